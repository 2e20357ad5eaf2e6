"""Where randomness comes from: every key of a run is folded from the run's key, never split off.

The key of a step is ``fold_in(fold_in(run_key, slot), step)``, so any step of any environment can
be replayed alone, by whichever runner. A step's key gives one key to the actor and one to the
environment.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from muesli.types import Array, PRNGKey

# Streams besides the environments' own, whose slots count up from 0.
_AGENT_STREAM = 2**31 - 1
_RESET_STREAM = 2**31 - 2
_UPDATE_STREAM = 2**31 - 3
_EVAL_STREAM = 2**31 - 4


def agent_key(run_key: PRNGKey) -> PRNGKey:
    """For the first parameters."""
    return jax.random.fold_in(run_key, _AGENT_STREAM)


def update_key(run_key: PRNGKey, step: Array) -> PRNGKey:
    """For update number ``step``."""
    return jax.random.fold_in(jax.random.fold_in(run_key, _UPDATE_STREAM), step)


def eval_key(run_key: PRNGKey, number: int) -> PRNGKey:
    """For evaluation ``number``: apart from everything a training run draws."""
    return jax.random.fold_in(jax.random.fold_in(run_key, _EVAL_STREAM), number)


def reset_keys(run_key: PRNGKey, slots: Array) -> Array:
    """For the first reset of each slot: [E]."""
    return _fold_each(jax.random.fold_in(run_key, _RESET_STREAM), slots)


def step_keys(run_key: PRNGKey, slots: Array, step: Array | int) -> Array:
    """``fold_in(fold_in(run_key, slot), step)`` for every slot: [E]."""
    return jax.vmap(lambda key: jax.random.fold_in(key, step))(_fold_each(run_key, slots))


def act_keys(run_key: PRNGKey, slots: Array, step: Array | int) -> Array:
    """What the actor of each slot draws from at a step: [E]."""
    return jax.vmap(lambda key: jax.random.fold_in(key, 0))(step_keys(run_key, slots, step))


def env_keys(run_key: PRNGKey, slots: Array, step: Array | int) -> Array:
    """What the environment of each slot draws from at a step: [E]."""
    return jax.vmap(lambda key: jax.random.fold_in(key, 1))(step_keys(run_key, slots, step))


def _fold_each(key: PRNGKey, slots: Array) -> Array:
    return jax.vmap(lambda slot: jax.random.fold_in(key, slot))(jnp.asarray(slots))
