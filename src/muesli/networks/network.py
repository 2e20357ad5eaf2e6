"""The whole network, assembled, behind a record of pure functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from muesli.config import NetworkConfig
from muesli.distributions import Categorical, DiagonalNormal, Policy
from muesli.networks.dynamics import DYNAMICS, MuZeroDynamics, Summary, encode_action
from muesli.networks.layers import (
    InformedHead,
    Lstm,
    categorical_head,
    head,
    linear,
    rms_normalise,
)
from muesli.networks.torsos import TORSOS
from muesli.ops.values import squeeze
from muesli.types import Array, EnvSpec, Frequencies, ModelOutput, PRNGKey, PyTree, RootOutput


class UnrollInputs(NamedTuple):
    """What the representation network reads, [T, B, ...].

    observation: pytree; legal_actions: [T, B, A] or None; last_action, last_reward: what preceded
    each observation; first: [T, B] bool, where memory is wiped.
    """

    observation: PyTree
    legal_actions: Array | None
    last_action: Array
    last_reward: Array
    first: Array


class Network(NamedTuple):
    """A network as pure functions of its parameters; the agent knows nothing else about it.

    init(key) -> params; initial_state(batch) -> recurrent state [B, ...];
    unroll(params, UnrollInputs [T, B], state [B]) -> (RootOutput [T, B], state [B]);
    model_step(params, embedding [M], action [M]) -> ModelOutput [M];
    look_ahead(params, embedding [M], actions [M, N]) -> (reward_logits, value_logits) [M, N, bins];
    expect(params, Frequencies, rate []) -> params: told how often each reward and value was the
    target in a batch; None for networks that do not want to know.
    """

    init: Callable[[PRNGKey], PyTree]
    initial_state: Callable[[int], PyTree]
    unroll: Callable[[PyTree, UnrollInputs, PyTree], tuple[RootOutput, PyTree]]
    model_step: Callable[[PyTree, PyTree, Array], ModelOutput]
    look_ahead: Callable[[PyTree, PyTree, Array], tuple[Array, Array]]
    expect: Callable[[PyTree, Frequencies, Array], PyTree] | None = None


class _Heads(nnx.Module):
    """Policy, value and (for the model) reward predictions from the summary of a state; with
    ``hidden``, each through a hidden layer of its own, as wide as the summary.
    """

    def __init__(
        self,
        inputs: int,
        spec: EnvSpec,
        config: NetworkConfig,
        rewards: bool,
        hidden: bool,
        point_planes: int | None,
        rngs: nnx.Rngs,
    ):
        dtype = jnp.dtype(config.compute_dtype)
        self.config, self.spec = config, spec
        outputs = spec.num_actions if spec.num_actions is not None else 2 * spec.action_size
        names = ("policy", "value", "reward") if rewards else ("policy", "value")
        self.hidden = nnx.Dict(
            {name: linear(inputs, inputs, dtype, rngs) for name in names if hidden}
        )
        self.policy_head = head(inputs, outputs, dtype, rngs)
        self.point_head = None if point_planes is None else head(point_planes, 1, dtype, rngs)
        scale, informed = config.value_head_scale, config.value_head_prior_rate > 0.0
        self.value_head = categorical_head(
            inputs, config.value_bins, config.value_max, scale, dtype, rngs, informed
        )
        self.reward_head = (
            categorical_head(
                inputs, config.reward_bins, config.reward_max, scale, dtype, rngs, informed
            )
            if rewards
            else None
        )

    def policy(self, x: Summary, legal: Array | None = None) -> Policy:
        parameters = self.policy_head(self._within("policy", x.features))
        if self.point_head is not None:
            assert x.points is not None
            local = self.point_head(x.points)[..., 0]
            # A pass is no point.
            passes = parameters.shape[-1] - local.shape[-1]
            parameters = parameters + jnp.pad(local, ((0, 0), (0, passes)))
        if self.spec.num_actions is not None:
            return Categorical.masked(parameters, legal)
        loc, log_scale = jnp.split(parameters, 2, axis=-1)
        if self.config.squash_actions:
            # Beyond ±5, tanh has reached its edge and an action no longer tells where it came from.
            loc = 5.0 * jnp.tanh(loc / 5.0)
        log_scale = jnp.clip(
            log_scale + self.config.init_log_scale,
            self.config.min_log_scale,
            self.config.max_log_scale,
        )
        return DiagonalNormal(loc, log_scale, self.config.squash_actions)

    def value(self, features: Array) -> Array:
        return self.value_head(self._within("value", features))

    def reward(self, features: Array) -> Array:
        assert self.reward_head is not None
        return self.reward_head(self._within("reward", features))

    def _within(self, name: str, features: Array) -> Array:
        """What a head's output layer reads."""
        return jax.nn.relu(self.hidden[name](features)) if name in self.hidden else features

    def expect(self, frequencies: Frequencies, rate: Array) -> None:
        """Root heads, which have no rewards, speak of a state; the model's of what follows it."""
        root = self.reward_head is None
        for informed, targets in (
            (self.value_head, frequencies.value if root else frequencies.next_value),
            (self.reward_head, frequencies.reward),
        ):
            if isinstance(informed, InformedHead):
                informed.expect(targets, rate)


def _context_layer(inputs: int, features: int, dtype: Any, rngs: nnx.Rngs) -> nnx.Linear:
    """From last action and reward to features, as small as if it were read beside them.

    IMPALA concatenates both before its LSTM, so the fan-in is that of all together. Scaled by its
    own few inputs, the last action would drown what differs between two pictures.
    """
    share = inputs / (inputs + features)
    return linear(inputs, features, dtype, rngs, share)


class _AgentNetwork(nnx.Module):
    """Torso, core, root heads, dynamics, model heads."""

    def __init__(self, spec: EnvSpec, config: NetworkConfig, rngs: nnx.Rngs):
        dtype = jnp.dtype(config.compute_dtype)
        self.config, self.spec, self.dtype = config, spec, dtype
        self.torso = TORSOS[config.torso](spec.observation_shape, config, dtype, rngs)
        dummy = jnp.zeros((1, *spec.observation_shape), spec.observation_dtype)
        features = jax.eval_shape(self.torso, dummy).shape[1:]
        self.extra = (
            _context_layer(spec.action_inputs + 1, features[-1], dtype, rngs)
            if config.last_action_and_reward
            else None
        )
        recurrent = config.core == "lstm"
        self.core = Lstm(features[-1], config.core_units, dtype, rngs) if recurrent else None
        if recurrent:
            features = (config.core_units,)
        self.dynamics = DYNAMICS[config.model](features, spec, config, rngs)
        planes = isinstance(self.dynamics, MuZeroDynamics)
        points = self.dynamics.point_planes if planes else None
        make_heads = partial(_Heads, spec=spec, config=config, point_planes=points, rngs=rngs)
        root_size = self.dynamics.out_size if planes else features[-1]
        # MuZero's dynamics ends with a hidden layer that all heads share.
        hidden = config.hidden_heads and not planes
        hidden_root = config.hidden_root_heads and not planes
        self.root_heads = make_heads(root_size, rewards=False, hidden=hidden_root)
        self.model_heads = make_heads(self.dynamics.out_size, rewards=True, hidden=hidden)

    def unroll(self, inputs: UnrollInputs, state: PyTree) -> tuple[RootOutput, PyTree]:
        steps, batch = inputs.first.shape
        # Batch-major: a batch dealt to several devices stays where it is when it is flattened.
        flat = lambda x: x.swapaxes(0, 1).reshape((batch * steps, *x.shape[2:]))  # noqa: E731
        apart = lambda x: x.reshape((batch, steps, *x.shape[1:])).swapaxes(0, 1)  # noqa: E731
        features = self.torso(flat(inputs.observation))
        if self.extra is not None:
            context = self.extra(flat(self._context(inputs)))
            planes = (1,) * (features.ndim - 2)
            features = features + context.reshape((-1, *planes, features.shape[-1]))
        if self.core is not None:
            recalled, state = self._recur(apart(features), inputs.first, state)
            recalled = flat(recalled)
            features = features + recalled if self.config.core_skip else recalled
            if self.config.normalise_core:
                features = rms_normalise(features)
        planes = isinstance(self.dynamics, MuZeroDynamics)
        summary = self.dynamics.read(features) if planes else Summary(features)
        legal = None if inputs.legal_actions is None else flat(inputs.legal_actions)
        output = RootOutput(
            policy=self.root_heads.policy(summary, legal),
            value_logits=self.root_heads.value(summary.features),
            embedding=self.dynamics.start(features),
        )
        return jax.tree.map(apart, output), state

    def _context(self, inputs: UnrollInputs) -> Array:
        """Last action and squeezed last reward, wiped at the start of an episode: [T, B, size]."""
        action = encode_action(inputs.last_action, self.spec, self.dtype)
        reward = squeeze(inputs.last_reward).astype(self.dtype)[..., None]
        context = jnp.concatenate([action, reward], axis=-1)
        return jnp.where(inputs.first[..., None], jnp.zeros_like(context), context)

    def _recur(self, features: Array, first: Array, state: PyTree) -> tuple[Array, PyTree]:
        assert self.core is not None
        core = self.core
        from_input = core.from_input(features)

        def step(state: PyTree, record: tuple[Array, Array]) -> tuple[PyTree, Array]:
            gates, first_t = record
            cell, hidden = (jnp.where(first_t[:, None], 0.0, x) for x in state)
            cell, hidden = core.advance(cell, gates + core.from_hidden(hidden))
            return (cell, hidden), hidden

        state, outputs = jax.lax.scan(step, state, (from_input, first))
        return outputs, state

    def model_step(self, embedding: PyTree, action: Array) -> ModelOutput:
        embedding, summary = self.dynamics.step(embedding, action)
        return ModelOutput(
            reward_logits=self.model_heads.reward(summary.features),
            value_logits=self.model_heads.value(summary.features),
            policy=self.model_heads.policy(summary),
            embedding=embedding,
        )

    def look_ahead(self, embedding: PyTree, actions: Array) -> tuple[Array, Array]:
        x = self.dynamics.expand(embedding, actions)
        return self.model_heads.reward(x), self.model_heads.value(x)


def make_network(spec: EnvSpec, config: NetworkConfig) -> Network:
    """Builds the network of ``config`` for an environment of ``spec``."""
    template = nnx.eval_shape(lambda: _AgentNetwork(spec, config, nnx.Rngs(0)))
    graph, _ = nnx.split(template, nnx.Param)

    def module(params: PyTree) -> _AgentNetwork:
        return nnx.merge(graph, nnx.State(params))

    def init(key: PRNGKey) -> PyTree:
        network = _AgentNetwork(spec, config, nnx.Rngs(params=key))
        return nnx.to_pure_dict(nnx.state(network, nnx.Param))

    def expect(params: PyTree, frequencies: Frequencies, rate: Array) -> PyTree:
        told = module(params)
        for heads in (told.root_heads, told.model_heads):
            heads.expect(frequencies, rate)
        return nnx.to_pure_dict(nnx.state(told, nnx.Param))

    def initial_state(batch: int) -> PyTree:
        if config.core == "none":
            return ()
        zeros = jnp.zeros((batch, config.core_units), jnp.float32)
        return zeros, zeros

    return Network(
        init=init,
        initial_state=initial_state,
        unroll=lambda params, inputs, state: module(params).unroll(inputs, state),
        model_step=lambda params, embedding, action: module(params).model_step(embedding, action),
        look_ahead=lambda params, embedding, acts: module(params).look_ahead(embedding, acts),
        expect=expect if config.value_head_prior_rate > 0.0 else None,
    )


NETWORKS: dict[str, Callable[[EnvSpec, Any], Network]] = {"default": make_network}
"""Network makers by name. A user's own: ``NETWORKS["mine"] = my_maker``."""
