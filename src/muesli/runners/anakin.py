"""Acting, stepping, storing and updating inside one jitted function.

One iteration collects a chunk of T records from every environment with the prior parameters,
stores it in the ring, and trains on each of its sequences once, mixed with replayed ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from muesli import keys
from muesli import replay as ring
from muesli.envs.base import JaxEnv, auto_reset_step
from muesli.runners.learner import init_ring, make_learn
from muesli.runners.mesh import deal
from muesli.runners.parts import Parts
from muesli.symmetry import next_symmetry
from muesli.types import (
    Array,
    EpisodeState,
    Metrics,
    PRNGKey,
    PyTree,
    RunState,
    TimeStep,
    Trajectory,
    Transition,
    is_first,
    is_last,
)


class FinishedEpisodes(NamedTuple):
    """Episodes that ended in a chunk, [T, E]. ended: bool; total: f32; length: i32."""

    ended: Array
    total: Array
    length: Array


class Anakin(NamedTuple):
    """The loop as pure functions of a RunState.

    init(key) -> RunState; warm_up(RunState) collects one chunk without training;
    iterate(RunState, n) -> (RunState, metrics averaged over n iterations, FinishedEpisodes [n]);
    iterate_some(RunState, n, most) -> (RunState, Some [most]): n may be traced, and the numbers are
    the same however a run is cut.
    """

    init: Callable[[PRNGKey], RunState]
    warm_up: Callable[[RunState], tuple[RunState, FinishedEpisodes]]
    iterate: Callable[[RunState, int], tuple[RunState, Metrics, FinishedEpisodes]]
    iterate_some: Callable[[RunState, Array | int, int], tuple[RunState, Some]]


class Some(NamedTuple):
    """What up to ``most`` iterations brought. metrics: each [most]; episodes: FinishedEpisodes
    [most]; strange: [most] bool, where an environment gave what is not finite; skipped: the batch
    of the newest update that was skipped, [B, T + 1] (zeros if there was none).
    """

    metrics: Metrics
    episodes: FinishedEpisodes
    strange: Array
    skipped: Trajectory


Collect = Callable[[RunState], tuple[RunState, Trajectory, FinishedEpisodes]]
"""T steps of every environment: a batch [E, T + 1] and the episodes that ended in it."""


def make_collect(parts: Parts) -> Collect:
    """How the environments of a run inside JAX are played for one chunk."""
    env, agent, config = parts.trained_env, parts.agent, parts.config
    assert isinstance(env, JaxEnv)
    length, slots = config.batch.sequence_length, jnp.arange(config.env.num_envs)
    step = jax.vmap(lambda *x: auto_reset_step(env, *x))

    def collect(state: RunState) -> tuple[RunState, Trajectory, FinishedEpisodes]:
        acting = agent.acting(state.agent)
        start = state.actors

        def one_step(carry: PyTree, t: Array) -> tuple[PyTree, PyTree]:
            env_states, timesteps, actors, episodes = carry
            now = state.iteration * length + t
            act_keys = keys.act_keys(state.key, slots, now)
            env_keys = keys.env_keys(state.key, slots, now)
            action, behaviour, actors = agent.act(acting, timesteps, actors, act_keys)
            env_states, after = step(env_states, timesteps, action, env_keys)
            reward = config.env.reward_scale * after.reward
            record = Transition(
                timesteps.observation,
                action,
                behaviour,
                reward,
                after.discount,
                timesteps.step_type,
                timesteps.legal_actions,
            )
            actors = actors._replace(last_reward=reward)
            episodes, finished = _count(episodes, after, env.spec.players)
            return (env_states, after, actors, episodes), (record, finished)

        carry = (state.env_states, state.timesteps, state.actors, state.episodes)
        carry, (records, finished) = jax.lax.scan(one_step, carry, jnp.arange(length))
        env_states, timesteps, actors, episodes = carry
        # The bootstrap record: only its observation, mask and step type are ever read.
        last = jax.tree.map(lambda x: x[-1], records)._replace(
            observation=timesteps.observation,
            step_type=timesteps.step_type,
            legal_actions=timesteps.legal_actions,
        )
        records = jax.tree.map(
            lambda x, y: jnp.swapaxes(jnp.concatenate([x, y[None]]), 0, 1), records, last
        )
        state = state._replace(
            env_states=env_states,
            timesteps=timesteps,
            actors=next_symmetry(actors),
            episodes=episodes,
            iteration=state.iteration + 1,
        )
        return state, Trajectory(records, start), finished

    return collect


def make_anakin(parts: Parts) -> Anakin:
    """The loop of a run whose environment is inside JAX."""
    env, agent, config = parts.trained_env, parts.agent, parts.config
    assert isinstance(env, JaxEnv)
    num_envs, stack = config.env.num_envs, parts.stack
    updates = num_envs // config.batch.online_sequences
    collect, learn = make_collect(parts), make_learn(parts)
    reset = jax.vmap(env.reset)

    def init(key: PRNGKey) -> RunState:
        env_states, timesteps = reset(keys.reset_keys(key, jnp.arange(num_envs)))
        state = RunState(
            agent=agent.init(keys.agent_key(key)),
            actors=agent.initial_actor(num_envs),
            env_states=env_states,
            timesteps=timesteps,
            episodes=EpisodeState(jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32)),
            replay=None,
            key=key,
            iteration=jnp.zeros((), jnp.int32),
        )
        example = jax.eval_shape(lambda s: collect(s)[1], state)
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), example)
        return state._replace(replay=init_ring(one, parts))

    def train(
        state: RunState, chunk: Trajectory, skipped: Trajectory
    ) -> tuple[RunState, Metrics, Trajectory]:
        """Each online sequence once, in ``updates`` batches."""

        def one_update(carry: PyTree, batch_of: PyTree) -> tuple[PyTree, Metrics]:
            (agent_state, skipped), (fresh, lag) = carry, batch_of
            agent_state, metrics, batch = learn(agent_state, state.replay, fresh, state.key, lag)
            skipped = jax.lax.cond(metrics["update_skipped"] > 0, lambda: batch, lambda: skipped)
            return (agent_state, skipped), metrics

        hands = deal(chunk, updates, parts.topology.mesh.size)
        carry, metrics = jax.lax.scan(
            one_update, (state.agent, skipped), (hands, jnp.arange(updates))
        )
        return state._replace(agent=carry[0]), jax.tree.map(jnp.mean, metrics), carry[1]

    def store(state: RunState, chunk: Trajectory) -> RunState:
        if state.replay is None:
            return state
        return state._replace(replay=ring.write(state.replay, chunk, stack))

    def warm_up(state: RunState) -> tuple[RunState, FinishedEpisodes]:
        state, chunk, finished = collect(state)
        return store(state, chunk), finished

    @jax.jit  # so that it is traced once, for its shapes and for the loop
    def one_iteration(state: RunState, skipped: Trajectory) -> tuple[RunState, Some]:
        state, chunk, finished = collect(state)
        # Stored first: the chunk before this one now has its bootstrap record in the ring.
        state = store(state, chunk)
        state, metrics, skipped = train(state, chunk, skipped)
        seen = chunk.transitions.observation, chunk.transitions.reward
        return state, Some(metrics, finished, ~all_finite(seen), skipped)

    def no_batch(state: RunState) -> Trajectory:
        chunk = jax.eval_shape(lambda s: collect(s)[1], state)
        size = config.batch.batch_sequences
        return jax.tree.map(lambda x: jnp.zeros((size, *x.shape[1:]), x.dtype), chunk)

    def iterate_some(state: RunState, n: Array | int, most: int) -> tuple[RunState, Some]:
        none = no_batch(state)
        shapes = jax.eval_shape(one_iteration, state, none)[1]
        room = jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), shapes[:3])

        def body(i: Array, carry: PyTree) -> PyTree:
            state, room, skipped = carry
            state, some = one_iteration(state, skipped)
            room = jax.tree.map(lambda all_, x: all_.at[i].set(x), room, some[:3])
            return state, room, some.skipped

        state, room, skipped = jax.lax.fori_loop(0, n, body, (state, room, none))
        metrics, episodes, strange = room
        return state, Some(metrics, episodes, strange, skipped)

    def iterate(state: RunState, n: int) -> tuple[RunState, Metrics, FinishedEpisodes]:
        state, some = iterate_some(state, n, n)
        return state, jax.tree.map(jnp.mean, some.metrics), some.episodes

    return Anakin(init, warm_up, iterate, iterate_some)


def all_finite(tree: PyTree) -> Array:
    """Whether every number of a tree is finite: [] bool."""
    numbers = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in numbers]))


def _count(
    episodes: EpisodeState, after: TimeStep, players: int
) -> tuple[EpisodeState, FinishedEpisodes]:
    """Adds a step to the running episodes; in two-player games the total is the first player's."""
    fresh = is_first(after.step_type)
    sign = jnp.where(episodes.length % 2 == 0, 1.0, -1.0) if players == 2 else 1.0
    total = jnp.where(fresh, 0.0, episodes.total + sign * after.reward)
    length = jnp.where(fresh, 0, episodes.length + 1)
    return EpisodeState(total, length), FinishedEpisodes(is_last(after.step_type), total, length)
