"""One update of either runner: fresh sequences, mixed with replayed ones, into ``agent.update``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from muesli import keys
from muesli import replay as ring
from muesli.runners.mesh import AXIS
from muesli.runners.parts import Parts
from muesli.symmetry import turn
from muesli.types import AgentState, Array, Metrics, PRNGKey, PyTree, Trajectory


@partial(jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["names"])
@dataclasses.dataclass(frozen=True)
class Row:
    """The metrics of one update as one array, [M] f32, so that one copy fetches them all.
    names: static.
    """

    values: Array
    names: tuple[str, ...]

    @classmethod
    def of(cls, metrics: Metrics) -> Row:
        values = [jnp.asarray(x, jnp.float32) for x in metrics.values()]
        return cls(jnp.stack(values), tuple(metrics))

    def fetch(self) -> dict[str, np.float32]:
        """The numbers by name, once the update is done."""
        return dict(zip(self.names, np.asarray(self.values), strict=True))


Learnt = tuple[AgentState, Metrics, Trajectory]
Learn = Callable[[AgentState, PyTree, Trajectory, PRNGKey, Array], Learnt]


def make_learn(parts: Parts) -> Learn:
    """learn(AgentState, Replay or None, fresh sequences [B', T + 1], run key, policy lag, one or
    one for each device); it also answers with the batch it trained on, [B, T + 1].

    Slots of the ring and sequences are dealt to the devices of the mesh. Each device replays from
    its own slots only, so no observation ever travels.
    """
    agent, config, mesh = parts.agent, parts.config, parts.topology.mesh
    batch, stack = config.batch, parts.stack
    updates_per_chunk = config.env.num_envs // batch.online_sequences
    replayed_each = (batch.batch_sequences - batch.online_sequences) // mesh.size

    def assemble(replay: PyTree, fresh: Trajectory, key: PRNGKey) -> tuple[Trajectory, Array]:
        """One device's share of the batch, and the ages of what it replayed."""
        key = jax.random.fold_in(key, jax.lax.axis_index(AXIS))
        replayed = ring.sample(replay, key, replayed_each, stack)
        return ring.mix(fresh, replayed.batch), replayed.age_chunks

    assemble_all = jax.shard_map(
        assemble, mesh=mesh, in_specs=(P(AXIS), P(AXIS), P()), out_specs=(P(AXIS), P(AXIS))
    )

    def learn(
        state: AgentState, replay: PyTree, fresh: Trajectory, run_key: PRNGKey, lag: Array
    ) -> Learnt:
        key = keys.update_key(run_key, state.step)
        sample_key, update_key = jax.random.split(key)
        sequences, metrics = fresh, dict[str, Array]()
        if replay is not None:
            sequences, age_chunks = assemble_all(replay, fresh, sample_key)
            age = age_chunks * updates_per_chunk
            metrics["replay_age_updates"] = jnp.mean(age.astype(jnp.float32))
        if batch.symmetries:
            sequences = turn(sequences, parts.spec)
        state, update_metrics = agent.update(agent.observe(state, fresh), sequences, update_key)
        metrics["policy_lag_updates"] = jnp.mean(jnp.asarray(lag, jnp.float32))
        return state, metrics | update_metrics, sequences

    return learn


def init_ring(example: Trajectory, parts: Parts) -> PyTree:
    """An empty ring for sequences like ``example`` (without a batch axis), or None without replay.

    example: arrays or their shapes, [T + 1, ...].
    """
    batch = parts.config.batch
    if batch.online_sequences == batch.batch_sequences:
        return None
    slots = parts.config.env.num_envs
    chunks = ring.ring_chunks(batch.replay_capacity_steps, slots, batch.sequence_length)
    return ring.init_replay(example, slots, chunks, parts.stack)
