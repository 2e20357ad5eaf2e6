"""Games of two that begin with moves nobody chose, so that self-play meets more than its own style.

A dealt move is the only legal one of its state: whoever acts plays it with certainty, so it needs
no correction and the policy there has nothing to learn. Values learn from it as from any other. So
does the model, which has no mask: its policy after such moves is drawn towards chance.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from muesli.envs.base import JaxEnv
from muesli.types import Array, PRNGKey, PyTree, TimeStep, is_last


class Dealt(NamedTuple):
    """game: the environment's own state; left: [] i32, how many moves are still to be dealt."""

    game: PyTree
    left: Array


def deal_openings(env: JaxEnv, most: int) -> JaxEnv:
    """The same game, the first n moves of each drawn at random, n itself from 0 to ``most``."""

    def deal(timestep: TimeStep, left: Array, key: PRNGKey) -> TimeStep:
        legal = timestep.legal_actions
        assert legal is not None
        # On a board nobody is made to pass while there is a point to play.
        stones = legal.at[-1].set(False) if env.spec.has_pass else legal
        choices = jnp.where(jnp.any(stones), stones, legal)
        move = jax.random.categorical(key, jnp.where(choices, 0.0, -jnp.inf))
        dealing = (left > 0) & ~is_last(timestep.step_type)
        only = jnp.arange(legal.shape[0]) == move
        return timestep._replace(legal_actions=jnp.where(dealing, only, legal))

    def reset(key: PRNGKey) -> tuple[Dealt, TimeStep]:
        game, timestep = env.reset(key)
        count_key, move_key = jax.random.split(jax.random.fold_in(key, 1))
        left = jax.random.randint(count_key, (), 0, most + 1)
        return Dealt(game, left), deal(timestep, left, move_key)

    def step(state: Dealt, action: Array, key: PRNGKey) -> tuple[Dealt, TimeStep]:
        game, timestep = env.step(state.game, action, key)
        left = jnp.maximum(0, state.left - 1)
        return Dealt(game, left), deal(timestep, left, jax.random.fold_in(key, 1))

    return env._replace(reset=reset, step=step)
