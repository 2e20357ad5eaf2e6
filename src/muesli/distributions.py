"""Policies as records: a categorical one and a diagonal Normal one, plain or squashed by tanh.

Both are pytrees, so they travel through ``jit``, ``vmap``, ``scan`` and the replay ring like any
other record. Every method works on the trailing axis and keeps all leading ones.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from muesli.types import Array, PRNGKey

# Stands for log 0. Finite, so that 0 · log 0 is 0 and log 0 − log 0 is 0, never NaN.
LOG_ZERO = -1e30

_LOG_2PI = float(np.log(2.0 * np.pi))
# With more actions than this, one is not found by working through all of them: a sample costs one
# random number instead of one for each action, and the model looks an action up.
MANY_ACTIONS = 64
# An action of the squashed Normal is kept this far from ±1, where atanh would be infinite.
_SQUASH_MARGIN = 1e-6


@partial(jax.tree_util.register_dataclass, data_fields=["logits"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Categorical:
    """A policy over A discrete actions. logits: [..., A], not necessarily normalised."""

    logits: Array

    @classmethod
    def masked(cls, logits: Array, legal: Array | None) -> Categorical:
        """Gives illegal actions probability zero. legal: [..., A] bool, or None for all."""
        if legal is None:
            return cls(logits)
        if jnp.shape(legal)[-1:] != jnp.shape(logits)[-1:]:
            raise ValueError(
                f"Categorical.masked: legal must end in {jnp.shape(logits)[-1]} actions, "
                f"got shape {jnp.shape(legal)}"
            )
        if jnp.result_type(legal) != jnp.bool_:
            raise TypeError(
                f"Categorical.masked: legal must be a boolean array, got {jnp.result_type(legal)}"
            )
        logits = logits.astype(jnp.float32)
        # The legal logits are normalised first, so that no legal logit, however extreme, can fall
        # below the stand-in for log 0.
        return cls(jnp.where(legal, jax.nn.log_softmax(logits, where=legal), LOG_ZERO))

    @property
    def num_actions(self) -> int:
        return self.logits.shape[-1]

    def possible(self) -> Array:
        """Whether an action is one at all, not masked out: [..., A] bool."""
        logits = self.logits.astype(jnp.float32)
        return logits - jnp.max(logits, axis=-1, keepdims=True) > 0.5 * LOG_ZERO

    def log_probs(self) -> Array:
        """log π of every action, [..., A]."""
        log_probs = jax.nn.log_softmax(self.logits.astype(jnp.float32))
        return jnp.maximum(log_probs, LOG_ZERO)

    def probs(self) -> Array:
        """π of every action, [..., A]."""
        return jax.nn.softmax(self.logits.astype(jnp.float32))

    def sample(self, key: PRNGKey, shape: tuple[int, ...] = ()) -> Array:
        """Independent samples, [*shape, ...] i32."""
        full = shape + self.logits.shape[:-1]
        if self.num_actions > MANY_ACTIONS:
            return self._sample_many(key, full)
        return jax.random.categorical(key, self.logits.astype(jnp.float32), shape=full)

    def _sample_many(self, key: PRNGKey, full: tuple[int, ...]) -> Array:
        """By the inverse of the cumulated probabilities: one random number a sample, not A.

        First a row of about √A actions by the rows' sums, then an action in it: nothing but those
        sums is taken over all actions.
        """
        probs = self.probs().reshape(-1, self.num_actions)
        columns = math.isqrt(self.num_actions - 1) + 1
        probs = jnp.pad(probs, ((0, 0), (0, -self.num_actions % columns)))
        rows = probs.reshape(probs.shape[0], -1, columns)
        sums = jnp.sum(rows, axis=-1)[:, None]
        points = jax.random.uniform(key, full).reshape(-1, probs.shape[0]).T
        row, points = _invert(sums, points * jnp.sum(sums, axis=-1))
        column, _ = _invert(jnp.take_along_axis(rows, row[..., None], axis=1), points)
        return (row * columns + column).T.reshape(full).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        """log π(action), [...]. action: [...] integer; leading axes broadcast."""
        if not jnp.issubdtype(jnp.result_type(action), jnp.integer):
            raise TypeError(
                f"Categorical.log_prob: action must be an integer array, "
                f"got {jnp.result_type(action)}"
            )
        # Of the others only their sum is wanted: log_probs() would write one number for each.
        logits = self.logits.astype(jnp.float32)
        top = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
        log_sum = jnp.log(jnp.sum(jnp.exp(logits - top[..., None]), axis=-1))
        shape = jnp.broadcast_shapes(jnp.shape(action), top.shape)
        index = jnp.broadcast_to(action, shape)[..., None]
        logits = jnp.broadcast_to(logits, shape + logits.shape[-1:])
        chosen = jnp.take_along_axis(logits, index, axis=-1)[..., 0]
        return jnp.maximum(chosen - top - log_sum, LOG_ZERO)

    def entropy(self) -> Array:
        """H[π], [...]."""
        log_probs = self.log_probs()
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    def kl(self, other: Categorical) -> Array:
        """KL(self, other), [...]."""
        log_probs = self.log_probs()
        return jnp.sum(jnp.exp(log_probs) * (log_probs - other.log_probs()), axis=-1)

    def mode(self) -> Array:
        """The most probable action, [...] i32."""
        return jnp.argmax(self.logits, axis=-1)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["loc", "log_scale"],
    meta_fields=["squash"],
)
@dataclasses.dataclass(frozen=True)
class DiagonalNormal:
    """Independent Normals over D action dimensions; with ``squash``, of actions tanh(u), u Normal.

    loc: [..., D]; log_scale: [..., D]; squash: static.
    """

    loc: Array
    log_scale: Array
    squash: bool = False

    def sample(self, key: PRNGKey, shape: tuple[int, ...] = ()) -> Array:
        """Independent samples, [*shape, ..., D]."""
        noise = jax.random.normal(key, shape + self.loc.shape, self.loc.dtype)
        raw = self.loc + jnp.exp(self.log_scale) * noise
        return self._squash(raw) if self.squash else raw

    def log_prob(self, action: Array) -> Array:
        """Log-density of an action, [...]. action: [..., D]."""
        if jnp.shape(action)[-1:] != self.loc.shape[-1:]:
            raise ValueError(
                f"DiagonalNormal.log_prob: action must end in {self.loc.shape[-1]} dimensions, "
                f"got shape {jnp.shape(action)}"
            )
        raw = self._unsquash(action) if self.squash else action
        standard = (raw - self.loc) * jnp.exp(-self.log_scale)
        log_density = -0.5 * (jnp.square(standard) + _LOG_2PI) - self.log_scale
        if self.squash:
            log_density = log_density - _log_tanh_slope(raw)
        return jnp.sum(log_density, axis=-1)

    def entropy(self) -> Array:
        """Differential entropy, [...]. The squashed form adds E log(1 − tanh²u) by quadrature."""
        entropy = 0.5 * (1.0 + _LOG_2PI) + self.log_scale
        if self.squash:
            nodes, weights = (x.astype(np.float32) for x in np.polynomial.hermite_e.hermegauss(32))
            raw = self.loc[..., None] + jnp.exp(self.log_scale)[..., None] * nodes
            slope = _log_tanh_slope(raw) * (weights / weights.sum())
            entropy = entropy + jnp.sum(slope, axis=-1)
        return jnp.sum(entropy, axis=-1)

    def kl(self, other: DiagonalNormal) -> Array:
        """KL(self, other), [...]. Squashing is a bijection, so it leaves the divergence alone."""
        if self.squash != other.squash:
            raise ValueError("DiagonalNormal.kl: both policies must be squashed, or neither")
        log_ratio = other.log_scale - self.log_scale
        shift = (self.loc - other.loc) * jnp.exp(-other.log_scale)
        variance_ratio = jnp.exp(-2.0 * log_ratio)
        return jnp.sum(log_ratio + 0.5 * (variance_ratio + jnp.square(shift) - 1.0), axis=-1)

    def mode(self) -> Array:
        """The centre of the policy, [..., D]: loc, or tanh(loc) when squashed (its median)."""
        return self._squash(self.loc) if self.squash else self.loc

    def shifted(self, deviations: float) -> DiagonalNormal:
        """The same policy with its centre moved by so many standard deviations (unsquashed)."""
        loc = self.loc + deviations * jnp.exp(self.log_scale)
        return dataclasses.replace(self, loc=loc)

    @staticmethod
    def _squash(raw: Array) -> Array:
        return jnp.clip(jnp.tanh(raw), -1.0 + _SQUASH_MARGIN, 1.0 - _SQUASH_MARGIN)

    @staticmethod
    def _unsquash(action: Array) -> Array:
        # In float32, whatever the action's type: bfloat16 would round the margin away.
        action = action.astype(jnp.float32)
        return jnp.arctanh(jnp.clip(action, -1.0 + _SQUASH_MARGIN, 1.0 - _SQUASH_MARGIN))


Policy: TypeAlias = Categorical | DiagonalNormal


def _invert(masses: Array, points: Array) -> tuple[Array, Array]:
    """Where each point lies among the cumulated masses, and how far into that mass: [..., S].

    masses: [..., S or 1, N]; points: [..., S], from 0 to their sum. Never a mass of 0, even where
    rounding puts a point at the very end.
    """
    cumulated = jnp.cumsum(masses, axis=-1)
    last = masses.shape[-1] - 1 - jnp.argmax(masses[..., ::-1] > 0.0, axis=-1)
    index = jnp.minimum(jnp.sum(cumulated <= points[..., None], axis=-1), last)
    edges = jnp.concatenate([jnp.zeros_like(cumulated[..., :1]), cumulated], axis=-1)
    edges = jnp.broadcast_to(edges, (*index.shape, edges.shape[-1]))
    return index, points - jnp.take_along_axis(edges, index[..., None], axis=-1)[..., 0]


def _log_tanh_slope(raw: Array) -> Array:
    """log(1 − tanh²(raw)), without cancellation for large |raw|."""
    return 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))


def uniform_like(policy: Categorical) -> Categorical:
    """The uniform policy over the actions to which ``policy`` gives any probability."""
    possible = policy.possible()
    count = jnp.sum(possible, axis=-1, keepdims=True, dtype=jnp.float32)
    return Categorical(jnp.where(possible, -jnp.log(count), LOG_ZERO))


def mixture(policies: tuple[Categorical, ...], weights: tuple[float | Array, ...]) -> Categorical:
    """Σ_i weights[i]·policies[i] as one Categorical. weights: non-negative, summing to one."""
    if len(policies) != len(weights):
        raise ValueError(f"mixture: {len(policies)} policies but {len(weights)} weights")
    probs = sum(p.probs() * w for p, w in zip(policies, weights, strict=True))
    possible = probs > 0.0
    return Categorical(jnp.where(possible, jnp.log(jnp.where(possible, probs, 1.0)), LOG_ZERO))
