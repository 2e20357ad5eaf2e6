"""Two agents of ours against each other, many games at once, and ratings from such games."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from muesli.agent import Acting
from muesli.envs.base import JaxEnv
from muesli.runners.evaluate import random_act
from muesli.types import ActorState, Array, PRNGKey, PyTree, TimeStep, is_last


class Contestant(NamedTuple):
    """acting: the parameters that act; random: [] bool, whether it plays any legal move instead."""

    acting: Acting
    random: Array


class _Loop(NamedTuple):
    step: Array
    env_states: PyTree
    timesteps: TimeStep
    totals: Array


def make_versus(
    env: JaxEnv,
    act: Callable[..., Any],
    initial_actor: Callable[[int], ActorState],
    games: int,
    max_steps: int = 20_000,
) -> Callable[[Contestant, Contestant, PRNGKey], Array]:
    """A function that plays ``games`` games and returns the first one's results, [games]; jit it.

    The first contestant moves first in every other game. For agents without memory.
    """
    if env.spec.players != 2:
        raise ValueError("make_versus: the environment must be a game of two players")
    uniform = random_act(env.spec)

    def choose(contestant: Contestant, loop: _Loop, keys: Array) -> Array:
        actors = initial_actor(games)
        action = act(contestant.acting, loop.timesteps, actors, keys, loop.env_states)[0]
        random = uniform(contestant.acting, loop.timesteps, actors, keys)[0]
        return jnp.where(contestant.random, random, action)

    def versus(first: Contestant, second: Contestant, key: PRNGKey) -> Array:
        reset_key, key = jax.random.split(key)
        env_states, timesteps = jax.vmap(env.reset)(jax.random.split(reset_key, games))

        def running(loop: _Loop) -> Array:
            return (loop.step < max_steps) & ~jnp.all(is_last(loop.timesteps.step_type))

        def one_step(loop: _Loop) -> _Loop:
            keys = jax.random.split(jax.random.fold_in(key, loop.step), (3, games))
            ours = (loop.step + jnp.arange(games)) % 2 == 0
            action = jnp.where(
                ours,
                choose(first, loop, keys[0]),
                choose(second, loop, keys[1]),
            )
            stepped = jax.vmap(env.step)(loop.env_states, action, keys[2])
            done = is_last(loop.timesteps.step_type)

            def keep(old: Array, new: Array) -> Array:
                return jnp.where(done.reshape((-1,) + (1,) * (new.ndim - 1)), old, new)

            env_states, after = jax.tree.map(keep, (loop.env_states, loop.timesteps), stepped)
            won = jnp.where(ours, 1.0, -1.0) * after.reward
            totals = loop.totals + jnp.where(done, 0.0, won)
            return _Loop(loop.step + 1, env_states, after, totals)

        start = _Loop(jnp.zeros((), jnp.int32), env_states, timesteps, jnp.zeros(games))
        return jax.lax.while_loop(running, one_step, start).totals

    return versus


def fit_elo(points: np.ndarray, games: np.ndarray, anchor: int = 0) -> np.ndarray:
    """Elo ratings [n] that explain the results best, the anchor's being 0.

    points: [n, n], what the row won of the column, a draw being half; games: [n, n]. Everyone is
    given one draw against everyone played, so that a clean sweep leaves ratings finite.
    """
    met = games > 0
    points, games = points + 0.5 * met, games + met
    strength = np.ones(len(points))
    total = points.sum(axis=1)
    for _ in range(10_000):  # Zermelo's iteration for Bradley and Terry's model
        share = (games / (strength[:, None] + strength[None, :])).sum(axis=1)
        updated = total / share
        updated /= np.exp(np.mean(np.log(updated)))
        if np.abs(np.log(updated / strength)).max() < 1e-9:
            break
        strength = updated
    ratings = 400.0 * np.log10(strength)
    return ratings - ratings[anchor]


def round_robin(
    versus: Callable[[Contestant, Contestant, PRNGKey], Array],
    contestants: Sequence[Contestant],
    key: PRNGKey,
) -> tuple[np.ndarray, np.ndarray]:
    """Everyone against everyone: points [n, n] and games [n, n]."""
    n = len(contestants)
    points, games = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1, n):
            pair = jax.random.fold_in(key, i * n + j)
            results = np.asarray(versus(contestants[i], contestants[j], pair))
            won = float((0.5 * (1.0 + results)).sum())
            points[i, j], points[j, i] = won, len(results) - won
            games[i, j] = games[j, i] = len(results)
    return points, games
