"""Fresh episodes with a fixed agent.

Every copy of the environment plays exactly one episode, and all of them count: taking the first N
that finish would favour short ones. Two-player games are played against a uniformly random player,
with the agent moving first in every other episode; the return is the agent's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from muesli.agent import Acting
from muesli.distributions import Categorical
from muesli.envs.base import JaxEnv
from muesli.types import ActorState, Array, EnvSpec, PRNGKey, PyTree, TimeStep, is_last

MAX_STEPS = 30_000
"""Steps after which an evaluation cuts an episode, wherever it is played; Atari's end by themselves
after 27,000."""


class Evaluation(NamedTuple):
    """returns: [N] f32; lengths: [N] i32; finished: [N] bool, False where ``MAX_STEPS`` came first,
    so that the return is of a part of the episode.
    """

    returns: Array | np.ndarray
    lengths: Array | np.ndarray
    finished: Array | np.ndarray


class Playing(NamedTuple):
    """One episode in each of N copies, under way. step: []; env_states: [N]; timesteps: TimeStep
    [N], which stay as they are once LAST; actors: ActorState [N]; totals: [N] f32, the first
    player's; lengths: [N] i32.
    """

    step: Array
    env_states: PyTree
    timesteps: TimeStep
    actors: ActorState
    totals: Array
    lengths: Array


Choose = Callable[[Playing, Array, Array], tuple[Array, ActorState]]
"""(playing, [N] bool: whether the first player moves, [2, N] keys) -> actions [N], ActorState [N];
games of two are moved first by the first player in every other copy."""


def play_once(
    env: JaxEnv, choose: Choose, actors: ActorState, episodes: int, key: Array
) -> Playing:
    """Plays one episode in each of ``episodes`` copies, or its first ``MAX_STEPS`` steps."""
    reset_key, key = jax.random.split(key)
    env_states, timesteps = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))
    start = Playing(
        jnp.zeros((), jnp.int32),
        env_states,
        timesteps,
        actors,
        jnp.zeros(episodes),
        jnp.zeros(episodes, jnp.int32),
    )

    def running(playing: Playing) -> Array:
        return (playing.step < MAX_STEPS) & ~jnp.all(is_last(playing.timesteps.step_type))

    def one_step(playing: Playing) -> Playing:
        keys = jax.random.split(jax.random.fold_in(key, playing.step), (3, episodes))
        ours = jnp.ones(episodes, bool)
        if env.spec.players == 2:
            ours = (playing.step + jnp.arange(episodes)) % 2 == 0
        action, actors = choose(playing, ours, keys[:2])
        stepped = jax.vmap(env.step)(playing.env_states, action, keys[2])
        done = is_last(playing.timesteps.step_type)

        def keep(old: Array, new: Array) -> Array:
            return jnp.where(done.reshape((-1,) + (1,) * (new.ndim - 1)), old, new)

        env_states, after = jax.tree.map(keep, (playing.env_states, playing.timesteps), stepped)
        won = jnp.where(ours, 1.0, -1.0) * after.reward
        return Playing(
            playing.step + 1,
            env_states,
            after,
            actors,
            playing.totals + jnp.where(done, 0.0, won),
            playing.lengths + ~done,
        )

    return jax.lax.while_loop(running, one_step, start)


def make_evaluate(
    env: JaxEnv,
    act: Callable[..., Any],
    initial_actor: Callable[[int], ActorState],
    episodes: int,
    reward_scale: float = 1.0,
) -> Callable[[Acting, PRNGKey], Evaluation]:
    """A function that plays ``episodes`` episodes in parallel; jit it."""

    def evaluate(acting: Acting, key: PRNGKey) -> Evaluation:
        def choose(playing: Playing, ours: Array, keys: Array) -> tuple[Array, ActorState]:
            timesteps = playing.timesteps
            actors = playing.actors._replace(last_reward=reward_scale * timesteps.reward)
            action, _, actors = act(acting, timesteps, actors, keys[0], playing.env_states)
            if env.spec.players == 2:
                action = jnp.where(ours, action, _random_actions(env.spec, timesteps, keys[1]))
                actors = actors._replace(last_action=action)
            return action, actors

        end = play_once(env, choose, initial_actor(episodes), episodes, key)
        return Evaluation(end.totals, end.lengths, is_last(end.timesteps.step_type))

    return evaluate


def summarise(returns: Any, lengths: Any, finished: Any) -> dict[str, Any]:
    """The numbers of one evaluation, as ``muesli eval --json`` prints them."""
    returns = np.asarray(returns, np.float64)
    error = float(returns.std(ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else 0.0
    return {
        "episodes": len(returns),
        "return_mean": float(returns.mean()),
        "return_stderr": error,
        "length_mean": float(np.mean(lengths)),
        "finished_share": float(np.mean(finished)),
    }


def told_of_cuts(summary: Mapping[str, Any]) -> str:
    """What the printed line of an evaluation adds where episodes were cut, else nothing."""
    cut = round(summary["episodes"] * (1.0 - summary["finished_share"]))
    return f"; {cut} cut after {MAX_STEPS:,} steps" if cut else ""


def random_act(spec: EnvSpec) -> Callable[..., Any]:
    """An acting function that ignores the agent and plays uniformly among the legal actions."""

    def act(
        acting: Acting, timesteps: TimeStep, actors: ActorState, keys: Array, states: PyTree = None
    ) -> tuple[Any, ...]:
        del acting, states
        return _random_actions(spec, timesteps, keys), None, actors

    return act


def _random_actions(spec: EnvSpec, timesteps: TimeStep, keys: Array) -> Array:
    if spec.num_actions is None:
        sample = lambda key: jax.random.uniform(  # noqa: E731
            key, (spec.action_size,), minval=-1.0, maxval=1.0
        )
        return jax.vmap(sample)(keys)
    logits = jnp.zeros((keys.shape[0], spec.num_actions))
    policy = Categorical.masked(logits, timesteps.legal_actions)
    return jax.vmap(lambda p, key: p.sample(key))(policy, keys)
