"""A uniform ring of steps on the device; sequences and frame stacks are built when sampled.

A slot is one environment; the ring is ``[slot, time, ...]`` and is written in chunks of T records,
one chunk per slot at a time, to all slots at once or to a group of neighbours. A replayed sequence
starts where a chunk starts, with the recurrent state stored for it, and ends with the first record
of the next chunk, from which it bootstraps. So the newest chunk cannot be sampled until the next
one arrives. With frame stacks only the newest frame of a stack is stored; in a full ring the oldest
chunk's history is gone, so it is not sampled.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from muesli.frames import Stack, mark, newest
from muesli.types import (
    ActorState,
    Array,
    PRNGKey,
    PyTree,
    StepType,
    Trajectory,
    Transition,
    is_first,
)

_PLAIN = Stack()


class Replay(NamedTuple):
    """records: Transition [slots, chunks·T, ...]; starts: ActorState [slots, chunks, ...];
    written: [slots] i32, chunks ever written to each slot.
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


def init_replay(example: Trajectory, slots: int, chunks: int, stack: Stack = _PLAIN) -> Replay:
    """An empty ring. example: one Trajectory without a batch axis, arrays or their shapes."""
    length = example.transitions.reward.shape[0] - 1
    kept = jax.eval_shape(
        lambda x: x._replace(observation=newest(x.observation, stack)), example.transitions
    )
    records = jax.tree.map(
        lambda x: jnp.zeros((slots, chunks * length, *x.shape[1:]), x.dtype), kept
    )
    starts = jax.tree.map(lambda x: jnp.zeros((slots, chunks, *x.shape), x.dtype), example.start)
    return Replay(records, starts, jnp.zeros((slots,), jnp.int32))


def write(
    replay: Replay, batch: Trajectory, stack: Stack = _PLAIN, first_slot: Array | int = 0
) -> Replay:
    """Appends one chunk to each of the slots from ``first_slot`` on, which have been written alike.

    batch: [E, T + 1], E slots; its bootstrap record is left out.
    """
    chunks = replay.starts.last_reward.shape[1]
    length = replay.records.reward.shape[1] // chunks
    chunk = replay.written[first_slot] % chunks
    transitions = batch.transitions._replace(
        observation=newest(batch.transitions.observation, stack)
    )

    def put(ring: Array, x: Array, time: Array) -> Array:
        rest = (0,) * (ring.ndim - 2)
        return jax.lax.dynamic_update_slice(ring, x.astype(ring.dtype), (first_slot, time, *rest))

    records = jax.tree.map(
        lambda ring, x: put(ring, x[:, :length], chunk * length), replay.records, transitions
    )
    starts = jax.tree.map(lambda ring, x: put(ring, x[:, None], chunk), replay.starts, batch.start)
    slots = jnp.arange(replay.written.shape[0])
    here = (slots >= first_slot) & (slots < first_slot + batch.transitions.reward.shape[0])
    return Replay(records, starts, replay.written + here)


def truncate(replay: Replay, where: Array | bool = True) -> Replay:
    """Ends the episodes of the slots ``where`` their records end, as a time limit would.

    For slots that go on with fresh episodes: what is written next must not be taken for what came
    of the newest record. where: [slots] bool.
    """
    slots, total = replay.records.step_type.shape
    length = total // replay.starts.last_reward.shape[1]
    newest = (replay.written * length - 1) % total
    slot = jnp.arange(slots)
    kinds = replay.records.step_type
    cut = (replay.written > 0) & where
    last = jnp.where(cut, StepType.LAST, kinds[slot, newest]).astype(kinds.dtype)
    records = replay.records._replace(step_type=kinds.at[slot, newest].set(last))
    return replay._replace(records=records)


def lost_chunks(stack: Stack, length: int) -> int:
    """Oldest chunks of a full ring whose observations reach back to what was overwritten."""
    return -(-stack.reach // length)


def num_sampleable(replay: Replay, stack: Stack = _PLAIN) -> Array:
    """How many chunks of each slot can be sampled now, [slots]."""
    chunks = replay.starts.last_reward.shape[1]
    full = replay.written >= chunks
    present = jnp.minimum(replay.written, chunks)
    length = replay.records.reward.shape[1] // chunks
    lost_history = full * lost_chunks(stack, length)
    return jnp.maximum(0, present - 1 - lost_history)


def sample(replay: Replay, key: PRNGKey, num_sequences: int, stack: Stack = _PLAIN) -> Sample:
    """``num_sequences`` sequences, uniformly over all that can be sampled, with replacement.

    At least two chunks must have been written to some slot, or there is nothing to sample.
    """
    chunks = replay.starts.last_reward.shape[1]
    length = replay.records.reward.shape[1] // chunks
    # Every sampleable sequence has a number; a slot's own ones follow each other, newest first.
    ends = jnp.cumsum(num_sampleable(replay, stack))
    number = jax.random.randint(key, (num_sequences,), 0, jnp.maximum(1, ends[-1]))
    slot = jnp.searchsorted(ends, number, side="right")
    # Age 1 is the newest sampleable chunk, the one before the newest written.
    age = 1 + number - jnp.where(slot > 0, ends[slot - 1], 0)
    chunk = (replay.written[slot] - 1 - age) % chunks
    time = (chunk[:, None] * length + jnp.arange(length + 1)) % (chunks * length)
    transitions = jax.tree.map(lambda x: x[slot[:, None], time], replay.records)
    if not stack.plain:
        transitions = transitions._replace(
            observation=stacked(replay.records, slot, time[:, 0], length + 1, stack)
        )
    starts = jax.tree.map(lambda x: x[slot, chunk], replay.starts)
    return Sample(Trajectory(transitions, starts), age)


def stacked(records: Transition, slot: Array, start: Array, length: int, stack: Stack) -> PyTree:
    """Observations [B, length], built again from the frames and actions that are stored."""
    total = records.reward.shape[1]
    history = stack.frames - 1
    time = (start[:, None] + jnp.arange(-history, length)) % total
    first = is_first(records.step_type[slot[:, None], time])
    position = jnp.arange(length + history)
    # Where the episode of each record began, as a position in this window (or before it).
    began = jax.lax.cummax(jnp.where(first, position, -1), axis=1)
    wanted = position[history:, None] + jnp.arange(-history, 1)
    wanted = jnp.maximum(wanted[None], began[:, history:, None])
    before = records.action[slot[:, None], (time - 1) % total] if stack.planes else None

    def rebuild(frames: Array) -> Array:
        window = frames[slot[:, None], time]
        if before is not None:
            window = mark(window, before, first, stack)
        stacks = jax.vmap(lambda w, index: w[index])(window, wanted)
        return jnp.concatenate([stacks[:, :, k] for k in range(stack.frames)], axis=-1)

    return jax.tree.map(rebuild, records.observation)


def mix(online: Trajectory, replayed: Trajectory) -> Trajectory:
    """One batch of online and replayed sequences, online first."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b.astype(a.dtype)]), online, replayed)
