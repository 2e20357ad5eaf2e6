"""Two agents of ours against each other, many games at once, and ratings from such games."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from muesli.agent import Acting
from muesli.envs.base import JaxEnv
from muesli.runners.evaluate import Playing, play_once, random_act
from muesli.types import ActorState, Array, PRNGKey


class Contestant(NamedTuple):
    """acting: the parameters that act; random: [] bool, whether it plays any legal move instead."""

    acting: Acting
    random: Array


def make_versus(
    env: JaxEnv,
    act: Callable[..., Any],
    initial_actor: Callable[[int], ActorState],
    games: int,
) -> Callable[[Contestant, Contestant, PRNGKey], Array]:
    """A function that plays ``games`` games and returns the first one's results, [games]; jit it.

    The first contestant moves first in every other game. For agents without memory.
    """
    if env.spec.players != 2:
        raise ValueError("make_versus: the environment must be a game of two players")
    uniform = random_act(env.spec)

    def move(contestant: Contestant, playing: Playing, keys: Array) -> Array:
        seen = (contestant.acting, playing.timesteps, playing.actors, keys)
        action = act(*seen, playing.env_states)[0]
        return jnp.where(contestant.random, uniform(*seen)[0], action)

    def versus(first: Contestant, second: Contestant, key: PRNGKey) -> Array:
        def choose(playing: Playing, ours: Array, keys: Array) -> tuple[Array, ActorState]:
            moves = move(first, playing, keys[0]), move(second, playing, keys[1])
            return jnp.where(ours, *moves), playing.actors

        return play_once(env, choose, initial_actor(games), games, key).totals

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
