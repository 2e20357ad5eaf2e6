"""Fresh episodes with a fixed agent.

Every copy of the environment plays exactly one episode, and all of them count: taking the first N
that finish would favour short ones. Two-player games are played against a uniformly random player,
with the agent moving first in every other episode; the return is the agent's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from muesli.agent import Acting
from muesli.distributions import Categorical
from muesli.envs.base import JaxEnv
from muesli.types import ActorState, Array, EnvSpec, PRNGKey, PyTree, TimeStep, is_last


class Evaluation(NamedTuple):
    """returns: [N] f32; lengths: [N] i32; finished: [N] bool, False where the limit came first."""

    returns: Array | np.ndarray
    lengths: Array | np.ndarray
    finished: Array | np.ndarray


class _Loop(NamedTuple):
    step: Array
    env_states: PyTree
    timesteps: TimeStep
    actors: ActorState
    totals: Array
    lengths: Array


def make_evaluate(
    env: JaxEnv,
    act: Callable[..., Any],
    initial_actor: Callable[[int], ActorState],
    episodes: int,
    max_steps: int = 20_000,
    reward_scale: float = 1.0,
) -> Callable[[Acting, PRNGKey], Evaluation]:
    """A function that plays ``episodes`` episodes in parallel; jit it."""
    two_players = env.spec.players == 2

    def evaluate(acting: Acting, key: PRNGKey) -> Evaluation:
        reset_key, key = jax.random.split(key)
        env_states, timesteps = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))
        start = _Loop(
            jnp.zeros((), jnp.int32),
            env_states,
            timesteps,
            initial_actor(episodes),
            jnp.zeros(episodes),
            jnp.zeros(episodes, jnp.int32),
        )

        def running(loop: _Loop) -> Array:
            return (loop.step < max_steps) & ~jnp.all(is_last(loop.timesteps.step_type))

        def one_step(loop: _Loop) -> _Loop:
            keys = jax.random.split(jax.random.fold_in(key, loop.step), (3, episodes))
            action, _, actors = act(acting, loop.timesteps, loop.actors, keys[0], loop.env_states)
            sign = jnp.ones(episodes)
            if two_players:
                ours = (loop.step + jnp.arange(episodes)) % 2 == 0
                action = jnp.where(ours, action, _random_actions(env.spec, loop.timesteps, keys[1]))
                actors = actors._replace(last_action=action)
                sign = jnp.where(ours, 1.0, -1.0)
            env_states, after = jax.vmap(env.step)(loop.env_states, action, keys[2])
            done = is_last(loop.timesteps.step_type)

            def keep(old: Array, new: Array) -> Array:
                return jnp.where(done.reshape((-1,) + (1,) * (new.ndim - 1)), old, new)

            env_states, after = jax.tree.map(
                keep, (loop.env_states, loop.timesteps), (env_states, after)
            )
            actors = actors._replace(last_reward=reward_scale * after.reward)
            totals = loop.totals + jnp.where(done, 0.0, sign * after.reward)
            lengths = loop.lengths + ~done
            return _Loop(loop.step + 1, env_states, after, actors, totals, lengths)

        end = jax.lax.while_loop(running, one_step, start)
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
