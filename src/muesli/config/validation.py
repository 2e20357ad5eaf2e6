"""What a configuration must satisfy before anything starts."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from operator import attrgetter
from typing import Any, Literal

from muesli.config.tree import UPDATE_DEFAULTS, Config, ConfigError, leaves


def _require(condition: bool, field: str, message: str) -> None:
    if not condition:
        raise ConfigError(f"{field}: {message}")


LARGEST_SEED = 2**32 - 1
"""What every random generator of a run takes."""
_AT_LEAST_1 = (
    *("total_env_steps", "env.num_envs", "env.frame_stack", "env.atari.frame_skip"),
    *("env.atari.size_pixels", "env.atari.max_episode_frames", "actors.groups"),
    *("batch.batch_sequences", "batch.online_sequences", "batch.sequence_length"),
    *("batch.micro_batches", "model.unroll_steps", "search.simulations"),
    *("search.considered_actions", "log.log_every_steps", "log.keep_checkpoints"),
    *("network.torso_units", "network.core_units", "network.model_units"),
    *("network.model_planes", "network.head_planes", "optimiser.max_skipped_updates"),
)
_AT_LEAST_1_OR_NONE = ("update.kl_samples", "agent.retrace_samples", "search.max_depth")
_AT_LEAST_2 = ("network.value_bins", "network.reward_bins")
_NOT_NEGATIVE = (
    *("log.eval_every_steps", "log.eval_episodes", "log.checkpoint_every_steps", "log.keep_every"),
    *("env.threads", "env.processes", "env.opening_moves"),
    *("actors.queue_chunks", "actors.max_restarts", "actors.restart_seconds"),
    *("batch.replay_min_steps", "search.least_spread"),
    *("search.pb_c_init", "network.blocks", "model.value_weight", "model.reward_weight"),
    *("optimiser.final_learning_rate", "optimiser.weight_decay", "optimiser.adam_epsilon"),
    *("agent.moment_epsilon", "agent.dynamics_gradient_scale", "update.total_weight"),
    *("update.z_init", "update.ppo_clip"),
)
_NOT_NEGATIVE_OR_NONE = ("network.model_blocks",)
_SHARES = (
    *("env.atari.sticky_action_probability", "agent.trace_lambda", "agent.target_rate"),
    *("agent.exploration", "network.value_head_prior_rate", "search.dirichlet_fraction"),
    *("update.uniform_prior_weight", "update.behaviour_prior_weight"),
)
_DECAYS = ("agent.moment_decay", "optimiser.adam_b1", "optimiser.adam_b2")
_POSITIVE = (
    *("optimiser.learning_rate", "update.mpo_init_temperature", "update.mpo_min_temperature"),
    *("update.mpo_kl_limit", "update.mpo_dual_learning_rate", "env.reward_scale"),
    *("actors.step_timeout_seconds", "network.observation_clip", "network.value_head_scale"),
    "network.model_action_scale",
    *("network.value_max", "network.reward_max", "agent.q_softmax_temperature"),
    *("search.dirichlet_alpha", "search.pb_c_base"),
)
_POSITIVE_OR_NONE = (
    "update.clip_threshold",
    "optimiser.update_clip",
    "optimiser.max_gradient_norm",
)


def validate(config: Config) -> None:
    """Raises a ConfigError at the first field that cannot be right, whatever the environment."""
    _validate_types(config, Config)
    _validate_ranges(config)
    _validate_agent(config)
    _validate_network(config)
    _validate_batch(config)


def _validate_types(node: Any, kind: Any, where: str = "") -> None:
    """Each field is of the type that the tree says. Numbers may be NumPy's; True is no number."""
    _require(
        isinstance(node, kind),
        where.rstrip(".") or "configuration",
        f"must be of type {kind.__name__}, got {node!r}",
    )
    hints = _hints(kind)
    for field in fields(kind):
        hint, value = hints[field.name], getattr(node, field.name)
        if is_dataclass(hint):
            _validate_types(value, hint, f"{where}{field.name}.")
        else:
            wanted = f"must be {_in_words(hint)}, got {value!r}"
            _require(_is_of(value, hint), f"{where}{field.name}", wanted)


_hints = cache(typing.get_type_hints)
_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    types.NoneType: "None",
}


def _is_of(value: Any, hint: Any) -> bool:
    choices = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return any(_is_of(value, choice) for choice in choices)
    if typing.get_origin(hint) is Literal:
        return isinstance(value, str | Integral) and value in choices
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_is_of(x, choices[0]) for x in value)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    return isinstance(value, hint)


def _in_words(hint: Any) -> str:
    choices = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return _listed(_in_words(choice) for choice in choices)
    if typing.get_origin(hint) is Literal:
        return _listed(map(str, choices))
    if typing.get_origin(hint) is tuple:
        return "a tuple of whole numbers"
    return _WORDS[hint]


def _listed(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _validate_ranges(config: Config) -> None:
    """Each field by itself."""
    for field, value in leaves(config):
        finite = not isinstance(value, float) or math.isfinite(value)
        _require(finite, field, f"must be a finite number, got {value}")
    for names, right, message in (
        (("seed",), lambda x: 0 <= x <= LARGEST_SEED, f"must be in [0, {LARGEST_SEED}]"),
        (_AT_LEAST_1, lambda x: x >= 1, "must be at least 1"),
        (_AT_LEAST_1_OR_NONE, lambda x: x is None or x >= 1, "must be at least 1, or None"),
        (_AT_LEAST_2, lambda x: x >= 2, "must be at least 2"),
        (("network.torso_channels",), lambda x: all(n >= 1 for n in x), "must be at least 1 each"),
        (_NOT_NEGATIVE, lambda x: x >= 0, "must not be negative"),
        (_NOT_NEGATIVE_OR_NONE, lambda x: x is None or x >= 0, "must not be negative, or be None"),
        (("agent.discount",), lambda x: -1.0 <= x <= 1.0, "must be in [-1, 1]"),
        (_SHARES, lambda x: 0.0 <= x <= 1.0, "must be in [0, 1]"),
        (_DECAYS, lambda x: 0.0 <= x < 1.0, "must be in [0, 1)"),
        (_POSITIVE, lambda x: x > 0.0, "must be positive"),
        (_POSITIVE_OR_NONE, lambda x: x is None or x > 0.0, "must be positive, or None"),
    ):
        for field in names:
            value = attrgetter(field)(config)
            shown = f"{value:g}" if isinstance(value, float) else value
            _require(right(value), field, f"{message}, got {shown}")


def _validate_agent(config: Config) -> None:
    """Fields of the agent, its update and its model beside each other."""
    agent, update, model = config.agent, config.update, config.model
    _require(
        update.uniform_prior_weight + update.behaviour_prior_weight <= 1.0,
        "update.behaviour_prior_weight",
        "must leave, with update.uniform_prior_weight, at most 1 in sum",
    )
    _require(agent.discount != 0.0, "agent.discount", "must not be 0, which marks an episode's end")
    # Whether a user's own update has a target, only they know.
    without_target = UPDATE_DEFAULTS.keys() - {"muesli", "cmpo", "mpo"}
    _require(
        not (update.sampled_normaliser == "oracle" and update.name in without_target),
        "update.sampled_normaliser",
        f"oracle is for updates that sample a target (muesli, cmpo, mpo), not {update.name}",
    )
    _require(
        not (agent.return_estimator == "vtrace" and update.beta_loo),
        "update.beta_loo",
        "must be False with agent.return_estimator vtrace, which has no action values",
    )
    _require(
        not (update.name == "mcts" and agent.act_with != "mcts"),
        "agent.act_with",
        f"must be mcts with update.name mcts, which distils what it acted by, got {agent.act_with}",
    )
    _require(
        not (update.name == "mcts" and agent.exploration > 0.0),
        "agent.exploration",
        "must be 0 with update.name mcts, which would distil it",
    )
    _require(
        not (agent.act_with == "mcts" and model.q_model == "direct"),
        "model.q_model",
        "must be reward_value with agent.act_with mcts: a search adds up rewards",
    )


def _validate_network(config: Config) -> None:
    net = config.network
    _require(
        net.min_log_scale <= net.max_log_scale,
        "network.min_log_scale",
        f"must not exceed network.max_log_scale ({net.max_log_scale:g}), got {net.min_log_scale:g}",
    )
    _require(
        net.torso != "dqn" or len(net.torso_channels) == 3,
        "network.torso_channels",
        f"must be three numbers for network.torso dqn, got {len(net.torso_channels)}",
    )
    muzero = (net.torso == "muzero", net.model == "muzero", net.core == "none")
    _require(
        muzero[0] == muzero[1] and (muzero[2] or not muzero[0]),
        "network.model",
        "muzero goes with network.torso muzero and network.core none, and only with them",
    )
    _require(
        not net.core_skip or net.core == "none" or net.core_units == net.torso_units,
        "network.core_skip",
        f"adds network.torso_units ({net.torso_units}) to as many network.core_units, "
        f"got {net.core_units}",
    )
    _require(
        muzero[0] or not net.point_policy,
        "network.point_policy",
        "is for network.torso muzero, which keeps a board's points",
    )


def _validate_batch(config: Config) -> None:
    batch, num_envs = config.batch, config.env.num_envs
    _require(
        batch.online_sequences <= batch.batch_sequences,
        "batch.online_sequences",
        f"must not exceed batch.batch_sequences ({batch.batch_sequences}), "
        f"got {batch.online_sequences}",
    )
    _require(
        batch.batch_sequences % batch.micro_batches == 0,
        "batch.micro_batches",
        f"must divide batch.batch_sequences ({batch.batch_sequences}), got {batch.micro_batches}",
    )
    _require(
        num_envs % batch.online_sequences == 0,
        "env.num_envs",
        f"must be a multiple of batch.online_sequences ({batch.online_sequences}), got {num_envs}",
    )
    _require(
        batch.sequence_length >= config.model.unroll_steps,
        "batch.sequence_length",
        f"must be at least model.unroll_steps ({config.model.unroll_steps}), "
        f"got {batch.sequence_length}",
    )
    if batch.online_sequences < batch.batch_sequences:
        chunk = num_envs * batch.sequence_length
        # With frame stacks a full ring gives up its oldest chunk as well as its newest.
        reach = config.env.frame_stack - 1 + config.env.stack_actions
        chunks = 2 - (-reach // batch.sequence_length)
        smallest = max(chunks * chunk, batch.batch_sequences * batch.sequence_length)
        _require(
            batch.replay_capacity_steps >= smallest,
            "batch.replay_capacity_steps",
            f"must be at least {smallest}, a batch and {chunks} sequences of every environment, "
            f"got {batch.replay_capacity_steps}",
        )
