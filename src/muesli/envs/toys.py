"""Small tasks that tell a broken agent from a sound one within seconds."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from muesli.envs.base import JaxEnv, first, later, render_planes
from muesli.types import Array, EnvSpec, PRNGKey, TimeStep


class CatchState(NamedTuple):
    """ball: [2] i32, row and column; paddle: [] i32, its column."""

    ball: Array
    paddle: Array


def catch(rows: int = 10, columns: int = 5) -> JaxEnv:
    """A ball falls, a paddle on the bottom row moves left, stays or moves right.

    +1 for catching, −1 for missing, when the ball reaches the bottom row.
    """
    spec = EnvSpec(
        (rows, columns, 1), np.dtype(np.bool_), 3, action_names=("left", "stay", "right")
    )

    def observe(state: CatchState) -> Array:
        board = jnp.zeros((rows, columns, 1), bool)
        board = board.at[state.ball[0], state.ball[1], 0].set(True)
        return board.at[rows - 1, state.paddle, 0].set(True)

    def reset(key: PRNGKey) -> tuple[CatchState, TimeStep]:
        column = jax.random.randint(key, (), 0, columns)
        state = CatchState(
            jnp.stack([jnp.zeros_like(column), column]), jnp.asarray(columns // 2, jnp.int32)
        )
        return state, first(observe(state))

    def step(state: CatchState, action: Array, key: PRNGKey) -> tuple[CatchState, TimeStep]:
        del key
        paddle = jnp.clip(state.paddle + action - 1, 0, columns - 1)
        state = CatchState(state.ball + jnp.array([1, 0]), paddle)
        landed = state.ball[0] == rows - 1
        reward = jnp.where(landed, jnp.where(state.ball[1] == paddle, 1.0, -1.0), 0.0)
        return state, later(observe(state), reward, landed)

    return JaxEnv(spec, reset, step, render_planes)


def catch_pixels(size: int = 96, num_actions: int = 18) -> JaxEnv:
    """Catch as a picture: ball and paddle are dots of 2×2 pixels on a fixed, colourful background.

    As on a screen of Atari, two pictures hardly differ, and there are 18 actions; they move the
    paddle by their remainder modulo 3.
    """
    board = catch()
    rows, columns = board.spec.observation_shape[:2]
    spec = EnvSpec((size, size, 3), np.dtype(np.uint8), num_actions)
    tiles = np.random.default_rng(0).integers(0, 160, (8, 8, 3))
    place = np.arange(size) * 8 // size
    background = jnp.asarray(tiles[place][:, place], jnp.uint8)
    # Which cell a pixel belongs to, and whether it is one of the two that show it.
    row, column = np.arange(size) * rows // size, np.arange(size) * columns // size
    shows_row = np.arange(size) - (row * size + rows - 1) // rows < 2
    shows_column = np.arange(size) - (column * size + columns - 1) // columns < 2
    shows = jnp.asarray(shows_row[:, None] & shows_column[None, :])

    def draw(timestep: TimeStep) -> TimeStep:
        lit = timestep.observation[row][:, column] & shows[..., None]
        return timestep._replace(observation=jnp.where(lit, jnp.uint8(255), background))

    def reset(key: PRNGKey) -> tuple[CatchState, TimeStep]:
        state, timestep = board.reset(key)
        return state, draw(timestep)

    def step(state: CatchState, action: Array, key: PRNGKey) -> tuple[CatchState, TimeStep]:
        state, timestep = board.step(state, action % 3, key)
        return state, draw(timestep)

    return JaxEnv(spec, reset, step, np.asarray)


def illustrative_mdp() -> JaxEnv:
    """The paper's four-state MDP with one and the same observation in every state.

    Action 0 is *up*, 1 is *down*. The best memory-less policy goes up with probability 5/8.
    """
    spec = EnvSpec((1,), np.dtype(np.float32), 2)
    observation = jnp.ones((1,), jnp.float32)
    # Rewards of (up, down) in states 1, 2, 3; states 2 and 3 lead to the terminal state 4.
    rewards = jnp.array([[1.0, 0.0], [-1.0, 1.0], [1.0, -1.0]])

    def reset(key: PRNGKey) -> tuple[Array, TimeStep]:
        del key
        return jnp.zeros((), jnp.int32), first(observation)

    def step(state: Array, action: Array, key: PRNGKey) -> tuple[Array, TimeStep]:
        del key
        after = jnp.where(state == 0, 1 + action, 3)
        return after, later(observation, rewards[jnp.minimum(state, 2), action], after == 3)

    return JaxEnv(spec, reset, step, _render_vector)


def bandit(num_actions: int = 4) -> JaxEnv:
    """One step, one good arm: arm a pays a / (num_actions − 1) plus Normal noise."""
    spec = EnvSpec((1,), np.dtype(np.float32), num_actions)
    observation = jnp.ones((1,), jnp.float32)
    means = jnp.linspace(0.0, 1.0, num_actions)

    def reset(key: PRNGKey) -> tuple[Array, TimeStep]:
        del key
        return jnp.zeros((), jnp.int32), first(observation)

    def step(state: Array, action: Array, key: PRNGKey) -> tuple[Array, TimeStep]:
        reward = means[action] + 0.1 * jax.random.normal(key)
        return state, later(observation, reward, jnp.asarray(True))

    return JaxEnv(spec, reset, step, _render_vector)


def continuous_bandit(target: tuple[float, ...] = (0.3, -0.6)) -> JaxEnv:
    """One step, one best action: a pays 1 − |a − target|² plus Normal noise."""
    spec = EnvSpec((1,), np.dtype(np.float32), None, len(target))
    observation = jnp.ones((1,), jnp.float32)
    best = jnp.asarray(target)

    def reset(key: PRNGKey) -> tuple[Array, TimeStep]:
        del key
        return jnp.zeros((), jnp.int32), first(observation)

    def step(state: Array, action: Array, key: PRNGKey) -> tuple[Array, TimeStep]:
        distance = jnp.sum(jnp.square(jnp.clip(action, -1.0, 1.0) - best))
        reward = 1.0 - distance + 0.1 * jax.random.normal(key)
        return state, later(observation, reward, jnp.asarray(True))

    return JaxEnv(spec, reset, step, _render_vector)


def crowded_bandit(num_actions: int = 10_000, good: int = 100) -> JaxEnv:
    """A context and very many arms: those with the context's remainder modulo ``good`` pay 1.

    Each context has ``num_actions / good`` good arms: 1% of all, unless told otherwise. Eight
    contexts, shown one-hot, so that arms must be told apart by where they pay.
    """
    contexts = 8
    spec = EnvSpec((contexts,), np.dtype(np.float32), num_actions)

    def reset(key: PRNGKey) -> tuple[Array, TimeStep]:
        context = jax.random.randint(key, (), 0, contexts)
        return context, first(jax.nn.one_hot(context, contexts))

    def step(state: Array, action: Array, key: PRNGKey) -> tuple[Array, TimeStep]:
        del key
        reward = jnp.where(action % good == state, 1.0, 0.0)
        return state, later(jax.nn.one_hot(state, contexts), reward, jnp.asarray(True))

    return JaxEnv(spec, reset, step, _render_vector)


class RecallState(NamedTuple):
    """cue: [] i32; time: [] i32."""

    cue: Array
    time: Array


def recall(delay: int = 5) -> JaxEnv:
    """A cue is shown once; ``delay`` blank steps later a question mark asks which it was.

    +1 for the right answer, −1 for the wrong one: without memory the best return is 0 on average.
    """
    spec = EnvSpec((3,), np.dtype(np.float32), 2)

    def observe(state: RecallState) -> Array:
        shown = state.time == 0
        asked = state.time == delay
        return jnp.stack([shown & (state.cue == 0), shown & (state.cue == 1), asked]).astype(
            jnp.float32
        )

    def reset(key: PRNGKey) -> tuple[RecallState, TimeStep]:
        state = RecallState(jax.random.randint(key, (), 0, 2), jnp.zeros((), jnp.int32))
        return state, first(observe(state))

    def step(state: RecallState, action: Array, key: PRNGKey) -> tuple[RecallState, TimeStep]:
        del key
        asked = state.time == delay
        reward = jnp.where(asked, jnp.where(action == state.cue, 1.0, -1.0), 0.0)
        state = RecallState(state.cue, state.time + 1)
        return state, later(observe(state), reward, asked)

    return JaxEnv(spec, reset, step, _render_vector)


def _render_vector(observation: np.ndarray) -> np.ndarray:
    """A row of grey squares, one per number."""
    values = np.clip(np.asarray(observation, np.float32), 0.0, 1.0)[None, :, None]
    return np.repeat((24 + 200 * values).astype(np.uint8), 3, axis=2)
