"""Hyperparameters that are plain numbers, as arrays: one compiled program serves a whole sweep.

The agent reads its numbers from the configuration it was built with. Inside a ``vmap`` it is built
anew from a configuration whose numbers are that map's tracers, so that nothing in the agent knows
of sweeps. Fields that decide shapes or branches are not numbers in this sense.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import jax.numpy as jnp

from muesli.agent import make_agent
from muesli.config import Config
from muesli.fields import get_field, set_field
from muesli.runners.parts import Parts
from muesli.types import Array

Numbers = Mapping[str, Array]
"""Values by dotted field: [] inside a map, [K] for K runs."""

TRACEABLE = (
    "update.total_weight",
    "update.entropy_weight",
    "update.trpo_weight",
    "update.ppo_clip",
    "update.mpo_kl_limit",
    "update.mpo_init_temperature",
    "update.mpo_min_temperature",
    "update.mpo_dual_learning_rate",
    "update.direct_mpo_weight",
    "update.cmpo_weight",
    "update.clip_threshold",
    "update.advantage_scale",
    "update.z_init",
    "update.uniform_prior_weight",
    "update.behaviour_prior_weight",
    "model.value_weight",
    "model.reward_weight",
    "optimiser.learning_rate",
    "optimiser.final_learning_rate",
    "optimiser.weight_decay",
    "optimiser.update_clip",
    "optimiser.adam_b1",
    "optimiser.adam_b2",
    "optimiser.adam_epsilon",
    "agent.trace_lambda",
    "agent.target_rate",
    "agent.moment_decay",
    "agent.moment_epsilon",
    "agent.q_softmax_temperature",
    "env.reward_scale",
)
"""Fields whose numbers may differ between runs of one program. None (no clipping) is no number."""


def skeleton(config: Config) -> Config:
    """What must be equal for runs to share a program: all but the seed and the numbers."""
    config = dataclasses.replace(config, seed=0)
    for name in TRACEABLE:
        if get_field(config, name) is not None:
            config = set_field(config, name, 0.0)
    return config


def families(configs: Iterable[Config]) -> list[list[int]]:
    """Which runs can share a program: lists of indices, in the order of their first."""
    found: dict[Config, list[int]] = {}
    for index, config in enumerate(configs):
        found.setdefault(skeleton(config), []).append(index)
    return list(found.values())


def varying(configs: Sequence[Config]) -> Numbers:
    """The numbers in which runs of one family differ, each [K] f32."""
    columns = {name: [get_field(config, name) for config in configs] for name in TRACEABLE}
    return {
        name: jnp.asarray(values, jnp.float32)
        for name, values in columns.items()
        if len(set(values)) > 1
    }


def with_numbers(parts: Parts, numbers: Numbers) -> Parts:
    """The same run with other numbers, which may be tracers; network and environment are shared."""
    if not numbers:
        return parts
    config = parts.config
    for name, value in numbers.items():
        config = set_field(config, name, value)
    agent = make_agent(parts.spec, parts.network, config, parts.schedule.total_updates)
    return parts._replace(config=config, agent=agent)
