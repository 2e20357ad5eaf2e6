"""The ring against a plain list of everything that was ever written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import replay as ring
from muesli.distributions import Categorical
from muesli.frames import Stack, begin, mark, newest, push
from muesli.types import ActorState, StepType, Trajectory, Transition

SLOTS, LENGTH, CHUNKS = 3, 4, 5


def chunk(index: int, frame_stack: int = 1) -> Trajectory:
    """Chunk ``index`` of every slot: each number says which slot and which time it came from."""
    time = index * LENGTH + np.arange(LENGTH + 1)
    stamp = 1000.0 * np.arange(SLOTS)[:, None] + time[None, :]
    step_type = np.where(time % 6 == 0, StepType.FIRST, StepType.MID)
    step_type = np.broadcast_to(step_type, (SLOTS, LENGTH + 1))
    episode_start = time - time % 6
    frames = [np.maximum(time - back, episode_start) for back in range(frame_stack - 1, -1, -1)]
    observation = np.stack([1000.0 * np.arange(SLOTS)[:, None] + f[None, :] for f in frames], -1)
    transitions = Transition(
        observation=jnp.asarray(observation, jnp.float32),
        action=jnp.asarray(time[None, :] % 3 + 0 * stamp, jnp.int32),
        behaviour=Categorical(jnp.asarray(np.repeat(stamp[..., None], 3, -1), jnp.float32)),
        reward=jnp.asarray(stamp, jnp.float32),
        discount=jnp.ones((SLOTS, LENGTH + 1)),
        step_type=jnp.asarray(step_type, jnp.int32),
    )
    start = ActorState(
        recurrent=jnp.asarray(stamp[:, :1] + 0.5, jnp.float32),
        last_action=jnp.zeros((SLOTS,), jnp.int32),
        last_reward=jnp.asarray(stamp[:, 0], jnp.float32),
    )
    return Trajectory(transitions, start)


def filled(count: int, frame_stack: int = 1) -> ring.Replay:
    one, stack = jax.tree.map(lambda x: x[0], chunk(0, frame_stack)), Stack(frame_stack)
    replay = ring.init_replay(one, SLOTS, CHUNKS, stack)
    for index in range(count):
        replay = ring.write(replay, chunk(index, frame_stack), stack)
    return replay


@pytest.mark.parametrize("count", [2, 4, 5, 6, 13])
def test_samples_are_whole_sequences_with_the_state_of_their_start(count):
    replay = filled(count)
    sample = jax.jit(ring.sample, static_argnums=2)(replay, jax.random.key(count), 200)
    stamp = np.asarray(sample.batch.transitions.reward)
    # Each sequence is T + 1 consecutive records of one slot, the last being the next chunk's first.
    np.testing.assert_array_equal(np.diff(stamp, axis=1), 1.0)
    np.testing.assert_array_equal(sample.batch.transitions.observation[..., 0], stamp)
    np.testing.assert_array_equal(sample.batch.transitions.behaviour.logits[..., 1], stamp)
    # It starts where a chunk starts, with the recurrent state stored there.
    time = stamp[:, 0] % 1000
    np.testing.assert_array_equal(time % LENGTH, 0)
    np.testing.assert_array_equal(sample.batch.start.recurrent[:, 0], stamp[:, 0] + 0.5)
    np.testing.assert_array_equal(sample.batch.start.last_reward, stamp[:, 0])
    # Exactly the sampleable chunks occur: not the newest, nothing overwritten.
    newest = count - 1
    oldest = max(0, count - CHUNKS)
    assert set(time // LENGTH) == set(range(oldest, newest))
    assert set(stamp[:, 0] // 1000) == set(range(SLOTS))
    np.testing.assert_array_equal(sample.age_chunks, newest - time // LENGTH)


def test_sampling_is_uniform_over_slots_and_chunks():
    replay = filled(9)
    sample = ring.sample(replay, jax.random.key(0), 24_000)
    stamp = np.asarray(sample.batch.transitions.reward[:, 0])
    _, counts = np.unique(stamp, return_counts=True)
    assert len(counts) == SLOTS * (CHUNKS - 1)
    # 12 equally likely starts, 2,000 each; five standard deviations are 5·√(2000·11/12) ≈ 214.
    assert np.abs(counts - 2000).max() < 214


@pytest.mark.parametrize("count", [3, 5, 6, 11])
def test_frame_stacks_are_rebuilt_from_single_frames(count):
    stack = 3
    replay = filled(count, stack)
    assert replay.records.observation.shape == (SLOTS, CHUNKS * LENGTH, 1)
    sample = ring.sample(replay, jax.random.key(1), 300, Stack(stack))
    stamp = np.asarray(sample.batch.transitions.reward)
    base, time = stamp - stamp % 1000, stamp % 1000
    episode_start = time - time % 6
    for back in range(stack):
        wanted = base + np.maximum(time - back, episode_start)
        got = sample.batch.transitions.observation[..., stack - 1 - back]
        np.testing.assert_array_equal(got, wanted)
    # In a full ring the history of the oldest chunk is gone, so it is not sampled.
    oldest = max(0, count - CHUNKS) + (1 if count >= CHUNKS else 0)
    assert set(time[:, 0] // LENGTH) == set(range(oldest, count - 1))


def test_a_plane_behind_each_frame_tells_the_action_that_led_to_it():
    stack = Stack(frames=2, actions=3)
    frames = [jnp.full((2, 2, 1), 10 * k, jnp.uint8) for k in range(4)]
    yes, no = jnp.array(True), jnp.array(False)
    seen = begin(mark(frames[0], jnp.int32(2), yes, stack), stack)
    rows = [seen]
    for frame, action in zip(frames[1:], (0, 1, 2), strict=True):
        seen = push(seen, mark(frame, jnp.int32(action), no, stack))
        rows.append(seen)
    # Bytes: a third of the actions is 85. What came before an episode's start is not told.
    wanted = [[0, 0, 0, 0], [0, 0, 10, 85], [10, 85, 20, 170], [20, 170, 30, 255]]
    np.testing.assert_array_equal([row[0, 0] for row in rows], wanted)
    np.testing.assert_array_equal([row[1, 1] for row in rows], wanted)
    assert stack.channels(1) == 4
    np.testing.assert_array_equal([newest(row, stack)[0, 1, 0] for row in rows], [0, 10, 20, 30])
    # Numbers stay what they are.
    np.testing.assert_allclose(
        mark(jnp.zeros((1, 1, 1)), jnp.int32(1), no, stack)[0, 0], [0.0, 2 / 3], rtol=1e-6
    )


@pytest.mark.parametrize("count", [3, 5, 11])
def test_planes_of_actions_are_rebuilt_from_the_actions_that_are_stored(count):
    stack = Stack(frames=3, actions=3)

    def picture(index):
        """The same chunk with images of one pixel, as an actor would have seen them."""
        plain = chunk(index, 3)
        time = index * LENGTH + np.arange(LENGTH + 1)
        at = [np.maximum(time - back, time - time % 6) for back in (2, 1, 0)]
        shares = [np.where(t % 6 == 0, 0.0, ((t - 1) % 3 + 1) / 3) for t in at]
        parts = []
        for k in range(3):
            parts += [plain.transitions.observation[..., k], np.tile(shares[k], (SLOTS, 1))]
        observation = jnp.asarray(np.stack(parts, -1), jnp.float32)[:, :, None, None]
        return plain._replace(transitions=plain.transitions._replace(observation=observation))

    replay = ring.init_replay(jax.tree.map(lambda x: x[0], picture(0)), SLOTS, CHUNKS, stack)
    for index in range(count):
        replay = ring.write(replay, picture(index), stack)
    assert replay.records.observation.shape == (SLOTS, CHUNKS * LENGTH, 1, 1, 1)
    sample = ring.sample(replay, jax.random.key(1), 200, stack)
    start = np.asarray(sample.batch.transitions.reward[:, 0])
    for got, at in zip(sample.batch.transitions.observation, start, strict=True):
        wanted = picture(int(at % 1000) // LENGTH).transitions.observation[int(at // 1000)]
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_groups_of_slots_are_written_each_at_its_own_pace():
    one = jax.tree.map(lambda x: x[0], chunk(0))
    replay = ring.init_replay(one, SLOTS, CHUNKS)
    group = lambda index, first, last: jax.tree.map(lambda x: x[first:last], chunk(index))
    write = jax.jit(lambda r, batch, slot: ring.write(r, batch, first_slot=slot))
    for index in range(7):
        replay = write(replay, group(index, 1, 3), 1)
        if index < 2:
            replay = write(replay, group(index, 0, 1), 0)
    assert replay.written.tolist() == [2, 7, 7]
    # Slot 0 has one sequence that can be sampled, the others four each: nine, equally likely.
    sample = ring.sample(replay, jax.random.key(0), 18_000)
    stamp = np.asarray(sample.batch.transitions.reward)
    np.testing.assert_array_equal(np.diff(stamp, axis=1), 1.0)
    starts, counts = np.unique(stamp[:, 0], return_counts=True)
    assert starts.tolist() == [0] + [1000 * s + LENGTH * c for s in (1, 2) for c in (2, 3, 4, 5)]
    # Five standard deviations are 5·√(2000·8/9) ≈ 211.
    assert np.abs(counts - 2000).max() < 211
    newest = np.where(stamp[:, 0] < 1000, 1, 6)
    np.testing.assert_array_equal(sample.age_chunks, newest - stamp[:, 0] % 1000 // LENGTH)


def test_a_slot_with_nothing_to_sample_is_left_out():
    one = jax.tree.map(lambda x: x[0], chunk(0))
    replay = ring.init_replay(one, SLOTS, CHUNKS)
    replay = ring.write(replay, chunk(0))
    replay = ring.write(replay, jax.tree.map(lambda x: x[1:2], chunk(1)), first_slot=1)
    sample = ring.sample(replay, jax.random.key(0), 50)
    np.testing.assert_array_equal(sample.batch.transitions.reward[:, 0], 1000.0)


def test_a_truncated_ring_ends_its_episodes_where_its_records_end():
    replay = ring.truncate(filled(7))
    kinds = np.asarray(replay.records.step_type)
    before = np.asarray(filled(7).records.step_type)
    newest = (7 * LENGTH - 1) % (CHUNKS * LENGTH)
    assert (kinds[:, newest] == StepType.LAST).all()
    np.testing.assert_array_equal(np.delete(kinds, newest, 1), np.delete(before, newest, 1))
    # A slot that was never written has no record to end.
    one = jax.tree.map(lambda x: x[0], chunk(0))
    empty = ring.init_replay(one, SLOTS, CHUNKS)
    np.testing.assert_array_equal(ring.truncate(empty).records.step_type, empty.records.step_type)


def test_a_batch_is_online_sequences_first_then_replayed_ones():
    replayed = ring.sample(filled(4), jax.random.key(0), 5).batch
    batch = ring.mix(chunk(9), replayed)
    assert batch.transitions.reward.shape == (SLOTS + 5, LENGTH + 1)
    np.testing.assert_array_equal(batch.transitions.reward[:SLOTS], chunk(9).transitions.reward)
    np.testing.assert_array_equal(batch.start.recurrent[SLOTS:], replayed.start.recurrent)


def test_capacity_is_counted_in_steps_of_all_environments():
    assert ring.ring_chunks(1000, slots=10, length=10) == 10
    assert ring.ring_chunks(1099, slots=10, length=10) == 10
