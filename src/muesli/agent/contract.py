"""What a user's own network and policy update must answer, checked before anything is computed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from muesli.checks import described, untraceable
from muesli.config import Config, ConfigError
from muesli.distributions import Categorical, DiagonalNormal, Policy
from muesli.networks.network import Network, UnrollInputs
from muesli.policy_updates import UPDATES
from muesli.search import search_target
from muesli.types import (
    Array,
    Candidates,
    EnvSpec,
    ModelOutput,
    PolicyInputs,
    PolicyOutput,
    PolicyTarget,
    PyTree,
    RootOutput,
)

# Sizes of the axes that functions are tried with: different, so that none is taken for another.
_T, _B, _M, _N = 2, 3, 5, 7

_TAKEN = """
    loss_total loss_policy loss_policy_model loss_value loss_reward reward_explained value_explained
    policy_entropy kl_prior_online kl_cmpo_online advantage_sigma advantage_clipped_share
    q_action_gap_sigmas q_error_ratio q_action_error_ratio value_disagreement_sigmas
    value_explained_variance value_mean return_mean reward_mean rho_mean rho_clipped_share
    feature_scale feature_variation gradient_norm update_clip_share mpo_temperature update_skipped
    replay_age_updates policy_lag_updates env_steps env_frames updates episode_return_mean
    episode_length_mean replay_fraction updates_skipped env_restarts learner_waited_seconds
    env_step_seconds act_seconds frames_per_second elapsed_seconds
""".split()  # noqa: SIM905
_TAKEN_PATTERN = re.compile(r"eval_.*|loss_(policy|value|reward)_step_\d+")


def is_taken(metric: str) -> bool:
    """Whether every row of metrics has a number of that name already."""
    return metric in _TAKEN or _TAKEN_PATTERN.fullmatch(metric) is not None


def is_own(entry: Any) -> bool:
    """Whether a user wrote what stands in a registry, not this package."""
    return str(getattr(entry, "__module__", "")).partition(".")[0] != __name__.partition(".")[0]


def check_network(network: Network, spec: EnvSpec, config: Config) -> None:
    """Raises a ConfigError where a network does not answer as ``networks.Network`` says."""
    tried = f"tried with T, B, M, N = {_T}, {_B}, {_M}, {_N}"
    check = _Checks(f"network.maker: {config.network.maker}, {tried}")
    bins, rewards = config.network.value_bins, config.network.reward_bins
    params = check.answer("init", network.init, jax.random.key(0))
    check.floating("init: params", params)
    state = check.answer("initial_state", lambda: network.initial_state(_B))
    check.leading("initial_state", state, (_B,))

    answer = check.answer("unroll", network.unroll, params, _unroll_inputs(spec, config), state)
    root, after = check.parts("unroll", answer, (RootOutput, None), "(RootOutput, state)")
    check.policy("unroll: policy", root.policy, (_T, _B), spec)
    check.array("unroll: value_logits", root.value_logits, (_T, _B, bins))
    check.leading("unroll: embedding", root.embedding, (_T, _B))
    check.same("unroll: the state", after, state)

    embedding = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((_M, *x.shape[2:]), x.dtype), root.embedding
    )
    output = check.answer("model_step", network.model_step, params, embedding, _actions(spec, _M))
    check.record("model_step: what it returns", output, ModelOutput)
    check.array("model_step: reward_logits", output.reward_logits, (_M, rewards))
    check.array("model_step: value_logits", output.value_logits, (_M, bins))
    check.policy("model_step: policy", output.policy, (_M,), spec)
    check.same("model_step: embedding", output.embedding, embedding)

    answer = check.answer(
        "look_ahead", network.look_ahead, params, embedding, _actions(spec, _M, _N)
    )
    pair = check.parts("look_ahead", answer, (None, None), "(reward_logits, value_logits)")
    check.array("look_ahead: reward_logits", pair[0], (_M, _N, rewards))
    check.array("look_ahead: value_logits", pair[1], (_M, _N, bins))


def check_update(spec: EnvSpec, config: Config) -> None:
    """Raises a ConfigError where a policy update does not answer with a PolicyOutput."""
    name, update = config.update.name, UPDATES[config.update.name]
    check = _Checks(f"update.name: {name}")

    def answer(inputs: PolicyInputs) -> Any:
        output = update(inputs, config.update)
        check.record("what it returns", output, PolicyOutput)
        check.metric_names(output.metrics)
        return output

    output = check.answer("it", answer, _policy_inputs(spec, config))
    check.array("loss", output.loss, ())
    for metric, value in output.metrics.items():
        check.array(f"metrics[{metric!r}]", value, (), floating=False)
    if output.target is not None:
        target = check.record("target", output.target, PolicyTarget)
        count = jnp.shape(target.actions)[0] if jnp.shape(target.actions) else 0
        check.array("target.weights", target.weights, (count,))
        check.array("target.log_probs", target.log_probs, (count,))
    if output.divergence is not None:
        check.array("divergence", output.divergence, ())


class _Checks:
    """Raises ConfigErrors that begin with whom they are about."""

    def __init__(self, whose: str):
        self.whose = whose

    def refuse(self, message: str) -> ConfigError:
        return ConfigError(f"{self.whose}: {message}")

    def answer(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function answers, as shapes and dtypes; nothing is computed."""
        try:
            return jax.eval_shape(function, *arguments)
        except ConfigError:
            raise
        except Exception as error:
            raise self.refuse(untraceable(what, error)) from error

    def record(self, what: str, value: Any, kind: type) -> Any:
        if not isinstance(value, kind):
            raise self.refuse(f"{what} must be a {kind.__name__}, got {described(value)}")
        return value

    def parts(self, what: str, value: Any, kinds: tuple[type | None, ...], wanted: str) -> Any:
        if type(value) is not tuple or len(value) != len(kinds):
            raise self.refuse(f"{what} must return {wanted}, got {described(value)}")
        for part, kind in zip(value, kinds, strict=True):
            if kind is not None:
                self.record(f"{what} must return {wanted}; the first", part, kind)
        return value

    def array(self, what: str, value: Any, shape: tuple[int, ...], floating: bool = True) -> None:
        kind = "a floating-point" if floating else "an"
        fits = hasattr(value, "dtype") and value.shape == shape
        if not fits or (floating and not jnp.issubdtype(value.dtype, jnp.floating)):
            raise self.refuse(
                f"{what} must be {kind} array of shape {list(shape)}, got {described(value)}"
            )

    def floating(self, what: str, tree: PyTree) -> None:
        for path, leaf in jax.tree.leaves_with_path(tree):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                where = jax.tree_util.keystr(path)
                raise self.refuse(f"{what}{where} must be floating-point, got {described(leaf)}")

    def leading(self, what: str, tree: PyTree, axes: tuple[int, ...]) -> None:
        for path, leaf in jax.tree.leaves_with_path(tree):
            if leaf.shape[: len(axes)] != axes:
                raise self.refuse(
                    f"{what}{jax.tree_util.keystr(path)} must begin with the axes {list(axes)}, "
                    f"got {described(leaf)}"
                )

    def same(self, what: str, tree: PyTree, wanted: PyTree) -> None:
        """Refuses a state that is not of the form it had before the step."""
        have: Any = jax.tree.structure(tree)
        need: Any = jax.tree.structure(wanted)
        if have != need:
            raise self.refuse(f"{what} must keep its parts, {need}, got {have}")
        pairs = zip(jax.tree.leaves_with_path(tree), jax.tree.leaves(wanted), strict=True)
        for (path, leaf), before in pairs:
            if (leaf.shape, leaf.dtype) != (before.shape, before.dtype):
                raise self.refuse(
                    f"{what}{jax.tree_util.keystr(path)} must stay {described(before)}, "
                    f"got {described(leaf)}"
                )

    def policy(self, what: str, policy: Any, axes: tuple[int, ...], spec: EnvSpec) -> None:
        if spec.num_actions is not None:
            self.record(what, policy, Categorical)
            self.array(f"{what}.logits", policy.logits, (*axes, spec.num_actions))
        else:
            self.record(what, policy, DiagonalNormal)
            self.array(f"{what}.loc", policy.loc, (*axes, spec.action_size))
            self.array(f"{what}.log_scale", policy.log_scale, (*axes, spec.action_size))

    def metric_names(self, metrics: Any) -> None:
        if not isinstance(metrics, dict):
            raise self.refuse(f"metrics must be a dict, got {described(metrics)}")
        for name in metrics:
            if not isinstance(name, str):
                raise self.refuse(f"metrics must be named by strings, got {name!r}")
            if is_taken(name):
                raise self.refuse(f"metrics[{name!r}] is a metric of every run; take another name")


def _array(*shape: int, dtype: Any = jnp.float32) -> Array:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[return-value]


def _actions(spec: EnvSpec, *axes: int) -> Array:
    if spec.num_actions is None:
        return _array(*axes, spec.action_size)
    return _array(*axes, dtype=jnp.int32)


def _unroll_inputs(spec: EnvSpec, config: Config) -> UnrollInputs:
    seen = jnp.float32 if config.network.normalise_observations else spec.observation_dtype
    legal = _array(_T, _B, spec.num_actions or 0, dtype=jnp.bool_) if spec.legal_actions else None
    return UnrollInputs(
        observation=_array(_T, _B, *spec.observation_shape, dtype=seen),
        legal_actions=legal,
        last_action=_actions(spec, _T, _B),
        last_reward=_array(_T, _B),
        first=_array(_T, _B, dtype=jnp.bool_),
    )


def _policy_inputs(spec: EnvSpec, config: Config) -> PolicyInputs:
    """Inputs of one state."""
    policy: Policy
    if spec.num_actions is not None:
        policy = Categorical(_array(spec.num_actions))
    else:
        size = spec.action_size
        policy = DiagonalNormal(_array(size), _array(size), config.network.squash_actions)

    def candidates(count: int) -> Candidates:
        return Candidates(_actions(spec, count), _array(count), _array(count), _array(count))

    samples, every = config.update.kl_samples, spec.num_actions or 0
    oracle = samples is not None and config.update.sampled_normaliser == "oracle"
    return PolicyInputs(
        policy=policy,
        prior=policy,
        behaviour=policy,
        action=_actions(spec),
        advantage=_array(),
        q_advantage=_array(),
        rho=_array(),
        candidates=candidates(every if samples is None else samples),
        temperature=_array(),
        oracle=candidates(every) if oracle else None,
        search=jax.eval_shape(search_target, policy) if config.agent.act_with == "mcts" else None,
    )
