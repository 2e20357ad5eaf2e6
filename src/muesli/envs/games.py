"""Games on pgx: the five of MinAtar, and two board games played against oneself."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from muesli.envs.base import JaxEnv, first, later, render_planes
from muesli.envs.seaquest import seaquest
from muesli.types import Array, EnvSpec, PRNGKey, TimeStep

MINATAR_ACTIONS = {
    "asterix": ("wait", "left", "up", "right", "down"),
    "breakout": ("wait", "left", "right"),
    "freeway": ("wait", "up", "down"),
    "seaquest": ("wait", "left", "up", "right", "down", "fire"),
    "space_invaders": ("wait", "left", "right", "fire"),
}
"""The games, and the actions of each that do anything."""
MINATAR_GAMES = tuple(MINATAR_ACTIONS)


def _pgx(name: str) -> Any:
    # Imported late: pgx computes as it is imported, which would start JAX's devices with it.
    import pgx

    return pgx.make(name)  # type: ignore[arg-type]


def minatar(game: str) -> JaxEnv:
    """One of MinAtar's games as pgx plays it: sticky actions 0.1, minimal action set."""
    env = seaquest() if game == "seaquest" else _pgx(f"minatar-{game}")
    spec = EnvSpec(
        tuple(env.observation_shape),
        np.dtype(np.bool_),
        env.num_actions,
        action_names=MINATAR_ACTIONS[game],
    )

    def reset(key: PRNGKey) -> tuple[Any, TimeStep]:
        state = env.init(key)
        return state, first(state.observation)

    def step(state: Any, action: Array, key: PRNGKey) -> tuple[Any, TimeStep]:
        state = env.step(state, action, key)
        return state, later(state.observation, state.rewards[0], state.terminated, state.truncated)

    return JaxEnv(spec, reset, step, render_planes)


def board_game(name: str) -> JaxEnv:
    """A two-player pgx game, both sides played by the agent.

    A time step shows the board to the player about to move; its reward is that of the player who
    has just moved. With a discount of −1 between moves this is negamax.
    """
    env = _pgx(name)
    spec = EnvSpec(
        tuple(env.observation_shape),
        np.dtype(np.bool_),
        env.num_actions,
        players=2,
        legal_actions=True,
    )

    def reset(key: PRNGKey) -> tuple[Any, TimeStep]:
        state = env.init(key)
        return state, first(state.observation, state.legal_action_mask)

    def step(state: Any, action: Array, key: PRNGKey) -> tuple[Any, TimeStep]:
        del key
        mover = state.current_player
        state = env.step(state, action)
        # A finished game has no move left; an all-false mask would have no distribution over it.
        legal = jnp.logical_or(state.legal_action_mask, state.terminated)
        return state, later(
            state.observation,
            state.rewards[mover],
            state.terminated,
            state.truncated,
            legal_actions=legal,
        )

    return JaxEnv(spec, reset, step, render_planes)
