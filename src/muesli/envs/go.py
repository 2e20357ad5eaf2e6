"""Go on pgx: area scoring by Tromp-Taylor, both sides played by the agent.

Suicide and retaking a ko at once are illegal and masked. Other repetitions of a whole board are not
masked: whoever makes one loses at once. A game ends by two passes, or after 2·size² moves. With a
whole number for komi it may end in a tie, which is worth 0 to both.
"""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import numpy as np

from muesli.config import ConfigError, GoConfig
from muesli.envs.base import JaxEnv, first, later
from muesli.types import Array, EnvSpec, PRNGKey, TimeStep

PLANES = 7
SIZES = range(2, 20)


def go_size(name: str) -> int | None:
    """9 for ``go_9x9``; None for what is not a name of this kind."""
    found = re.fullmatch(r"go_(\d+)x(\d+)", name)
    if found is None:
        return None
    size = int(found[1])
    if found[1] != found[2] or size not in SIZES:
        raise ConfigError(f"env.name: Go boards are 2x2 to 19x19, got {name}")
    return size


def go(size: int = 9, config: GoConfig | None = None) -> JaxEnv:
    """Go on a board of size × size; action size² is a pass, action row · size + column a stone.

    An observation is [size, size, 7] bool, as the player about to move sees it: own stones, the
    opponent's and empty points of this position, the same of the one before, and a plane that is
    full when Black is to move. The reward is that of the player who has just moved: 1 or −1 at the
    end, 0 for a tie and before.
    """
    # Imported late: pgx computes as it is imported, which would start JAX's devices with it.
    from pgx.go import Go

    config = config or GoConfig()
    env = Go(size=size, komi=config.komi, history_length=2)
    spec = EnvSpec(
        (size, size, PLANES), np.dtype(np.bool_), size**2 + 1, players=2, legal_actions=True
    )

    def observe(state: Any) -> Array:
        game = state._x
        black = game.color == 0
        now = jnp.clip(game.board, -1, 1)
        # pgx marks positions before the first move by 2; they were empty boards.
        before = jnp.where(game.board_history[1] == 2, 0, game.board_history[1])
        own = jnp.where(black, 1, -1)
        planes = [board == stone for board in (now, before) for stone in (own, -own, 0)]
        planes.append(jnp.broadcast_to(black, now.shape))
        return jnp.stack(planes, axis=-1).reshape(size, size, PLANES)

    # pgx gives ties to White. A quarter of a point more for Black makes them Black's, and decides
    # nothing else: the mean of both is 0.
    lenient = Go(size=size, komi=config.komi - 0.25)._game if config.komi % 1 == 0 else None

    def reward_of(state: Any, player: Array) -> Array:
        if lenient is None:
            return state.rewards[player]
        rewards = lenient.rewards(state._x)[state._player_order]
        return 0.5 * (state.rewards[player] + rewards[player])

    def reset(key: PRNGKey) -> tuple[Any, TimeStep]:
        state = env.init(key)
        return state, first(observe(state), state.legal_action_mask)

    def step(state: Any, action: Array, key: PRNGKey) -> tuple[Any, TimeStep]:
        del key
        mover = state.current_player
        state = env.step(state, action)
        legal = jnp.logical_or(state.legal_action_mask, state.terminated)
        reward = reward_of(state, mover)
        return state, later(observe(state), reward, state.terminated, legal_actions=legal)

    return JaxEnv(spec, reset, step, render_board)


def render_board(observation: np.ndarray, pixels: int = 24) -> np.ndarray:
    """A picture of an observation: stones on a wooden board, [size · pixels, size · pixels, 3]."""
    planes = np.asarray(observation, bool)
    own_is_black = bool(planes[0, 0, 6])
    black, white = (planes[..., 0], planes[..., 1])[:: 1 if own_is_black else -1]
    size, half = planes.shape[0], pixels // 2
    picture = np.empty((size * pixels, size * pixels, 3), np.uint8)
    picture[:] = (222, 184, 120)
    edge = slice(half, (size - 1) * pixels + half + 1)
    for line in range(half, size * pixels, pixels):
        picture[line, edge] = picture[edge, line] = (90, 70, 40)
    rows, columns = np.mgrid[:pixels, :pixels] - half
    disc = rows**2 + columns**2 <= (0.46 * pixels) ** 2
    for stones, colour in ((black, 20), (white, 245)):
        for row, column in np.argwhere(stones):
            cell = picture[row * pixels : (row + 1) * pixels, column * pixels :][:, :pixels]
            cell[disc] = colour
    return picture
