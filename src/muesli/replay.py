"""A uniform ring of steps on the device; sequences and frame stacks are built when sampled.

A slot is one environment; the ring is ``[slot, time, ...]`` and is written in chunks of T records,
one chunk per slot at a time. A replayed sequence starts where a chunk starts, with the recurrent
state stored for it, and ends with the first record of the next chunk, from which it bootstraps. So
the newest chunk cannot be sampled until the next one arrives. With frame stacks only the newest
frame of a stack is stored; in a full ring the oldest chunk's history is gone, so it is not sampled.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from muesli.types import (
    ActorState,
    Array,
    PRNGKey,
    PyTree,
    Trajectory,
    Transition,
    is_first,
)


class Replay(NamedTuple):
    """records: Transition [slots, chunks·T, ...]; starts: ActorState [slots, chunks, ...];
    written: [] i32, chunks ever written to each slot.
    """

    records: Transition
    starts: ActorState
    written: Array


class Sample(NamedTuple):
    """batch: Trajectory [B, T + 1]; age_chunks: [B] i32, how many chunks ago each was written."""

    batch: Trajectory
    age_chunks: Array


def ring_chunks(capacity_steps: int, slots: int, length: int) -> int:
    """Chunks per slot in a ring of about ``capacity_steps`` steps (rounded down)."""
    return capacity_steps // (slots * length)


def init_replay(example: Trajectory, slots: int, chunks: int, frame_stack: int = 1) -> Replay:
    """An empty ring. example: one Trajectory without a batch axis, arrays or their shapes."""
    length = example.transitions.reward.shape[0] - 1
    newest = jax.eval_shape(
        lambda x: x._replace(observation=newest_frame(x.observation, frame_stack)),
        example.transitions,
    )
    records = jax.tree.map(
        lambda x: jnp.zeros((slots, chunks * length, *x.shape[1:]), x.dtype), newest
    )
    starts = jax.tree.map(lambda x: jnp.zeros((slots, chunks, *x.shape), x.dtype), example.start)
    return Replay(records, starts, jnp.zeros((), jnp.int32))


def newest_frame(observation: PyTree, frame_stack: int) -> PyTree:
    """The last frame of observations that stack ``frame_stack`` frames along their last axis."""
    return jax.tree.map(lambda x: x[..., -(x.shape[-1] // frame_stack) :], observation)


def write(replay: Replay, batch: Trajectory, frame_stack: int = 1) -> Replay:
    """Appends one chunk to every slot. batch: [slots, T + 1]; its bootstrap record is left out."""
    chunks = replay.starts.last_reward.shape[1]
    length = replay.records.reward.shape[1] // chunks
    chunk = replay.written % chunks
    transitions = batch.transitions._replace(
        observation=newest_frame(batch.transitions.observation, frame_stack)
    )
    records = jax.tree.map(
        lambda ring, x: jax.lax.dynamic_update_slice_in_dim(
            ring, x[:, :length].astype(ring.dtype), chunk * length, axis=1
        ),
        replay.records,
        transitions,
    )
    starts = jax.tree.map(
        lambda ring, x: jax.lax.dynamic_update_index_in_dim(ring, x, chunk, axis=1),
        replay.starts,
        batch.start,
    )
    return Replay(records, starts, replay.written + 1)


def lost_chunks(frame_stack: int, length: int) -> int:
    """Oldest chunks of a full ring whose frame stacks reach back to what was overwritten."""
    return -(-(frame_stack - 1) // length)


def num_sampleable(replay: Replay, frame_stack: int = 1) -> Array:
    """How many chunks of each slot can be sampled now, []."""
    chunks = replay.starts.last_reward.shape[1]
    full = replay.written >= chunks
    present = jnp.minimum(replay.written, chunks)
    length = replay.records.reward.shape[1] // chunks
    lost_history = full * lost_chunks(frame_stack, length)
    return present - 1 - lost_history


def sample(replay: Replay, key: PRNGKey, num_sequences: int, frame_stack: int = 1) -> Sample:
    """``num_sequences`` sequences, uniformly over slots and sampleable chunks, with replacement.

    At least two chunks must have been written, or there is nothing to sample.
    """
    slots, chunks = replay.starts.last_reward.shape
    length = replay.records.reward.shape[1] // chunks
    slot_key, chunk_key = jax.random.split(key)
    slot = jax.random.randint(slot_key, (num_sequences,), 0, slots)
    # Age 1 is the newest sampleable chunk, the one before the newest written.
    count = jnp.maximum(1, num_sampleable(replay, frame_stack))
    age = 1 + jax.random.randint(chunk_key, (num_sequences,), 0, count)
    chunk = (replay.written - 1 - age) % chunks
    time = (chunk[:, None] * length + jnp.arange(length + 1)) % (chunks * length)
    transitions = jax.tree.map(lambda x: x[slot[:, None], time], replay.records)
    if frame_stack > 1:
        transitions = transitions._replace(
            observation=_stacked(replay.records, slot, time[:, 0], length + 1, frame_stack)
        )
    starts = jax.tree.map(lambda x: x[slot, chunk], replay.starts)
    return Sample(Trajectory(transitions, starts), age)


def _stacked(
    records: Transition, slot: Array, start: Array, length: int, frame_stack: int
) -> PyTree:
    """Observations [B, length] with their frame stacks rebuilt; before an episode's first frame,
    that frame is repeated.
    """
    total = records.reward.shape[1]
    history = frame_stack - 1
    time = (start[:, None] + jnp.arange(-history, length)) % total
    first = is_first(records.step_type[slot[:, None], time])
    position = jnp.arange(length + history)
    # Where the episode of each record began, as a position in this window (or before it).
    began = jax.lax.cummax(jnp.where(first, position, -1), axis=1)
    wanted = position[history:, None] + jnp.arange(-history, 1)
    wanted = jnp.maximum(wanted[None], began[:, history:, None])

    def stack(frames: Array) -> Array:
        window = frames[slot[:, None], time]
        stacks = jax.vmap(lambda w, index: w[index])(window, wanted)
        return jnp.concatenate([stacks[:, :, k] for k in range(frame_stack)], axis=-1)

    return jax.tree.map(stack, records.observation)


def mix(online: Trajectory, replayed: Trajectory) -> Trajectory:
    """One batch of online and replayed sequences, online first."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b.astype(a.dtype)]), online, replayed)
