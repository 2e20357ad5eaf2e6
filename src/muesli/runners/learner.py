"""One update of either runner: fresh sequences, mixed with replayed ones, into ``agent.update``."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from muesli import keys
from muesli import replay as ring
from muesli.agent import Agent
from muesli.config import Config
from muesli.runners.symmetry import turn
from muesli.types import AgentState, Array, EnvSpec, Metrics, PRNGKey, PyTree, Trajectory

Learnt = tuple[AgentState, Metrics, Trajectory]
Learn = Callable[[AgentState, PyTree, Trajectory, PRNGKey, Array], Learnt]


def make_learn(agent: Agent, config: Config, spec: EnvSpec) -> Learn:
    """learn(AgentState, Replay or None, fresh sequences [B', T + 1], run key, policy lag); it also
    answers with the batch it trained on, [B, T + 1].
    """
    batch, stack = config.batch, config.env.frame_stack
    updates_per_chunk = config.env.num_envs // batch.online_sequences

    def learn(
        state: AgentState, replay: PyTree, fresh: Trajectory, run_key: PRNGKey, lag: Array
    ) -> Learnt:
        key = keys.update_key(run_key, state.step)
        sample_key, update_key = jax.random.split(key)
        sequences, metrics = fresh, dict[str, Array]()
        if replay is not None:
            wanted = batch.batch_sequences - batch.online_sequences
            replayed = ring.sample(replay, sample_key, wanted, stack)
            sequences = ring.mix(fresh, replayed.batch)
            age = replayed.age_chunks * updates_per_chunk
            metrics["replay_age_updates"] = jnp.mean(age.astype(jnp.float32))
        if batch.symmetries:
            sequences = turn(sequences, spec, jax.random.fold_in(sample_key, 1))
        state, update_metrics = agent.update(agent.observe(state, fresh), sequences, update_key)
        metrics["policy_lag_updates"] = jnp.asarray(lag, jnp.float32)
        return state, metrics | update_metrics, sequences

    return learn


def init_ring(example: Trajectory, config: Config) -> PyTree:
    """An empty ring for sequences like ``example`` (without a batch axis), or None without replay.

    example: arrays or their shapes, [T + 1, ...].
    """
    batch = config.batch
    if batch.online_sequences == batch.batch_sequences:
        return None
    slots = config.env.num_envs
    chunks = ring.ring_chunks(batch.replay_capacity_steps, slots, batch.sequence_length)
    return ring.init_replay(example, slots, chunks, config.env.frame_stack)
