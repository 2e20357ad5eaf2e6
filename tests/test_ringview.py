"""A ring that is saved and read: by the same devices, or by others that deal it out otherwise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import replay
from muesli.runners.mesh import make_topology
from muesli.runners.ringview import RingBuilder, ring_view
from muesli.types import ActorState, Trajectory, Transition

CHUNKS, LENGTH = 5, 3


def chunk(slots, number):
    """Sequences of some slots whose rewards say slot and number of the chunk: [slots, T + 1]."""
    said = jnp.asarray([100.0 * slot + number for slot in slots])
    reward = jnp.broadcast_to(said[:, None], (len(said), LENGTH + 1))
    kind = jnp.ones(reward.shape, jnp.int32)
    records = Transition(
        reward[..., None], kind, jax.nn.one_hot(kind, 2), reward, jnp.ones_like(reward), kind, None
    )
    return Trajectory(records, ActorState(said[:, None], jnp.zeros(len(said), jnp.int32), said))


def written_by_two_groups(first, second):
    """A ring of four slots in two groups that have delivered so many chunks."""
    example = jax.tree.map(lambda x: x[0], chunk([0], 0))
    ring = replay.init_replay(example, 4, CHUNKS)
    for slots, count in (((0, 1), first), ((2, 3), second)):
        for number in range(count):
            ring = replay.write(ring, chunk(slots, number), first_slot=slots[0])
    return ring


def read_again(ring, alike, pieces=2):
    builder = RingBuilder(jax.eval_shape(lambda: ring), ring.written, make_topology(), alike)
    view = ring_view(ring)
    for start in range(0, CHUNKS, pieces):
        arrays = view.cut(start, min(pieces, CHUNKS - start))
        # As two processes would have saved it.
        for slots in (range(2), range(2, 4)):
            builder.place(slots, start, [x[slots.start : slots.stop] for x in arrays])
    return builder.finish()


@pytest.mark.parametrize("alike", [2, None])
def test_a_ring_that_was_written_alike_is_read_as_it_was(alike):
    ring = written_by_two_groups(7, 7)
    for before, after in zip(
        jax.tree.leaves(ring), jax.tree.leaves(read_again(ring, alike)), strict=True
    ):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(("first", "second"), [(8, 7), (2, 4), (9, 3), (14, 6)])
def test_groups_that_are_joined_keep_their_newest_chunks(first, second):
    ring = written_by_two_groups(first, second)
    joined = read_again(ring, 4)
    least = min(first, second)
    assert joined.written.tolist() == [least] * 4
    for slot, count in enumerate((first, first, second, second)):
        for age in range(min(least, CHUNKS)):
            place = (least - 1 - age) % CHUNKS
            said = 100.0 * slot + count - 1 - age
            rewards = joined.records.reward[slot, place * LENGTH : (place + 1) * LENGTH]
            assert rewards.tolist() == [said] * LENGTH
            assert float(joined.starts.last_reward[slot, place]) == said
    # And they can be written together from now on.
    more = replay.write(joined, chunk(range(4), 50))
    batch = replay.sample(more, jax.random.key(0), 200).batch
    rewards = np.asarray(batch.transitions.reward)
    assert (rewards[:, 0] == np.asarray(batch.start.last_reward)).all()
    assert (np.diff(rewards[:, :LENGTH]) == 0).all()
    follows = rewards[:, LENGTH] - rewards[:, 0]
    newest = rewards[:, LENGTH] % 100 == 50
    assert newest.any() and (follows[~newest] == 1).all()
