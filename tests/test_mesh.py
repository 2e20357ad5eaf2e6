"""Runs on several devices: what is dealt out, what is shared, and what never travels."""

import queue
import re
import signal
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import presets, replay
from muesli.agent import Acting
from muesli.config import ConfigError
from muesli.runners.engines import AnakinEngine, SebulbaEngine
from muesli.runners.learner import make_learn
from muesli.runners.loading import load_agent_state
from muesli.runners.mesh import check_divisible, choose_devices, deal, make_topology
from muesli.runners.parts import build
from muesli.runners.publishing import Courier, Packing, Published
from muesli.runners.train import resume, train
from muesli.types import ActorState, Trajectory, Transition


def config(**batch):
    base = presets.catch()
    return replace(
        base,
        total_env_steps=3_000,
        env=replace(base.env, num_envs=16),
        network=replace(base.network, torso_units=16, model_units=16),
        batch=replace(base.batch, **{"batch_sequences": 16, "online_sequences": 8, **batch}),
        log=replace(base.log, log_every_steps=600, eval_episodes=4),
    )


def engine(config, devices):
    return AnakinEngine(build(config, make_topology(jax.devices()[:devices])), [0])


def test_every_hand_has_as_much_of_each_devices_share():
    # Two devices, 0–3 and 4–7; two hands.
    np.testing.assert_array_equal(deal(jnp.arange(8), 2, 2), [[0, 1, 4, 5], [2, 3, 6, 7]])
    np.testing.assert_array_equal(deal(jnp.arange(8), 2, 1), [[0, 1, 2, 3], [4, 5, 6, 7]])


@pytest.mark.slow
def test_without_replay_eight_devices_learn_what_one_does():
    """The batches hold the same sequences in another order, and the means are global."""
    online_only = config(batch_sequences=16, online_sequences=16)
    results = {}
    for devices in (1, 8):
        run = engine(online_only, devices)
        run.start(None)
        results[devices] = (run.advance().metrics[0], run.state)
    (metrics, state), (other_metrics, other_state) = results[1], results[8]
    np.testing.assert_allclose(metrics["loss_total"], other_metrics["loss_total"], rtol=1e-3)
    np.testing.assert_allclose(
        state.agent.moment.second, other_state.agent.moment.second, rtol=1e-4
    )
    for a, b in zip(
        jax.tree.leaves(state.agent.online), jax.tree.leaves(other_state.agent.online), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-4)


@pytest.mark.slow
def test_the_state_is_dealt_out_and_the_agent_is_everywhere():
    run = engine(config(), 4)
    run.start(None)
    run.advance()
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(run.state.agent))
    for part in (run.state.replay, run.state.timesteps, run.state.actors, run.state.env_states):
        for x in jax.tree.leaves(part):
            assert x.sharding.shard_shape(x.shape)[0] == x.shape[0] // 4


def sequences(slots, length=3):
    """Sequences whose rewards are their slot's number: [slots, length + 1]."""
    number = jnp.broadcast_to(jnp.asarray(slots, jnp.float32)[:, None], (len(slots), length + 1))
    kind = jnp.ones(number.shape, jnp.int32)
    policy = jax.nn.one_hot(kind, 3)
    records = Transition(number[..., None], kind, policy, number, jnp.ones_like(number), kind, None)
    zeros = jnp.zeros(len(slots))
    return Trajectory(records, ActorState((), zeros.astype(jnp.int32), zeros))


class _Watched:
    """An agent that learns nothing and hands the batch back."""

    observe = staticmethod(lambda state, fresh: state)
    update = staticmethod(lambda state, batch, key: (state, {}))


def test_each_device_replays_its_own_slots():
    parts = build(config(batch_sequences=32), make_topology(jax.devices()[:4]))
    parts = parts._replace(agent=_Watched)
    chunk = sequences(range(16))
    one = jax.tree.map(lambda x: x[0], chunk)
    ring = replay.init_replay(one, 16, chunks=4)
    for _ in range(3):
        ring = replay.write(ring, chunk)
    state = build(config()).agent.init(jax.random.key(0))
    fresh = sequences(range(0, 16, 2))
    _, _, batch = jax.jit(make_learn(parts))(state, ring, fresh, jax.random.key(1), jnp.float32(0))
    rewards = np.asarray(batch.transitions.reward[:, 0]).reshape(4, 8)
    for device, share in enumerate(rewards):
        # Two fresh sequences, as they were dealt, and six from the four slots of this device.
        np.testing.assert_array_equal(share[:2], [4 * device, 4 * device + 2])
        assert set(share[2:]) <= set(range(4 * device, 4 * device + 4))
    assert len({tuple(share[2:] % 4) for share in rewards}) > 1  # each draws for itself


@pytest.mark.parametrize("core", ["none", pytest.param("lstm", marks=pytest.mark.slow)])
def test_an_update_on_several_devices_sends_gradients_and_no_observations(core):
    small = config()
    small = replace(small, network=replace(small.network, core=core, core_units=16))
    run = engine(small, 4)
    run.start(None)
    parts, state = run.parts, run.state
    learn = jax.jit(make_learn(parts))
    chunk = jax.tree.map(lambda x: x[:8], state.replay.records)
    length = small.batch.sequence_length
    fresh = Trajectory(
        jax.tree.map(lambda x: x[:, : length + 1], chunk),
        jax.tree.map(lambda x: x[:8, 0], state.replay.starts),
    )
    fresh = jax.device_put(fresh, state.timesteps.reward.sharding)
    text = learn.lower(state.agent, state.replay, fresh, state.key, jnp.float32(0)).compile()
    sent = set(re.findall(r" (all-\w+|collective-\w+|reduce-scatter)[.(-]", text.as_text()))
    assert sent == {"all-reduce"}, sent


@pytest.mark.parametrize(
    ("devices", "batch", "field"),
    [
        (3, {}, "env.num_envs"),
        (8, {"batch_sequences": 20}, "batch.batch_sequences"),
        (4, {"online_sequences": 2}, "batch.online_sequences"),
    ],
)
def test_sizes_that_cannot_be_dealt_out_are_named(devices, batch, field):
    with pytest.raises(ConfigError, match=f"^{field}: must be a multiple of"):
        check_divisible(config(**batch), make_topology(jax.devices()[:devices]))


def test_devices_are_chosen_by_number():
    assert choose_devices(None).mesh.size == 1
    assert choose_devices("all").mesh.size == len(jax.local_devices())
    assert list(choose_devices("3,1").mesh.devices) == [
        jax.local_devices()[3],
        jax.local_devices()[1],
    ]
    for text, problem in (("0,x", "numbers with commas"), ("0,99", "got 99"), ("1,1", "twice")):
        with pytest.raises(ConfigError, match=f"^devices.learners: .*{problem}"):
            choose_devices(text)


@pytest.mark.slow
def test_a_run_is_resumed_on_another_number_of_devices(tmp_path):
    """What was learnt and stored is the same; only the draws from the ring differ from then on."""
    sent = []

    def stop(row):
        if not sent:
            sent.append(row)
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.5)  # a thread of its own hears it

    result = train(config(), tmp_path / "run", [stop], topology=make_topology(jax.devices()[:2]))
    assert result.stopped_by == signal.SIGTERM
    first = load_agent_state(tmp_path / "run", build(config()))
    calls = []
    again = resume(tmp_path / "run", [calls.append], topology=make_topology(jax.devices()[:4]))
    assert again.stopped_by is None
    assert calls[0]["updates"] > int(first.step)
    assert int(load_agent_state(tmp_path / "run", build(config())).step) == calls[-1]["updates"]


def lockstep(devices, actors=None):
    """A run of actor threads in lock-step, without replay, after one call."""
    base = config(batch_sequences=8, online_sequences=8)
    base = replace(
        base,
        env=replace(base.env, num_envs=16),
        actors=replace(base.actors, runner="sebulba", lockstep=True, groups=2),
    )
    run = SebulbaEngine(build(base, make_topology(devices, actors)), 0)
    try:
        run.start(None)
        assert {actor.device for actor in run.sebulba.actors} == set(actors or devices)
        return run.advance().metrics[0], run.sebulba.state
    finally:
        run.close()


@pytest.mark.parametrize(
    ("learners", "actors"),
    [(slice(1, 3), slice(0, 1)), pytest.param(slice(0, 2), None, marks=pytest.mark.slow)],
    ids=["one acts and two learn", "both do both"],
)
def test_actor_threads_feed_several_devices_as_they_feed_one(learners, actors):
    there = jax.devices()
    metrics, state = lockstep(there[:1])
    acting = None if actors is None else there[actors]
    other_metrics, other_state = lockstep(there[learners], acting)
    np.testing.assert_allclose(metrics["loss_total"], other_metrics["loss_total"], rtol=1e-3)
    for x in jax.tree.leaves(other_state.agent):
        assert x.sharding.device_set == set(there[learners])
    for a, b in zip(
        jax.tree.leaves(state.agent.online), jax.tree.leaves(other_state.agent.online), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-4)


def test_a_courier_brings_the_newest_parameters_and_tells_of_what_fails():
    there, arrived = jax.devices()[:2], queue.SimpleQueue()

    def acting(update):
        return Acting({"w": jnp.full((3, 2), update), "n": jnp.int32(update)}, jnp.ones(()), None)

    packing = Packing(acting(0))
    unpack = jax.jit(packing.unpack)

    def published(update):
        return Published(update, packing.pack(acting(update)), there[1:], unpack)

    courier = Courier(arrived.put, there[1:])
    for update in range(1, 6):
        courier.send(published(update))
    while (newest := arrived.get(timeout=60)).update < 5:
        pass
    held = newest.on(0)
    assert {d for x in jax.tree.leaves(held) for d in x.devices()} == {there[1]}
    jax.tree.map(np.testing.assert_array_equal, held, acting(5))
    courier.send(Published(6, {"float32": "no array"}, there[1:], unpack))
    while courier.error is None:
        time.sleep(0.01)
    with pytest.raises(AttributeError):
        courier.send(newest)
    courier.close()


def test_actors_on_the_processor_train_a_learner_elsewhere():
    """With several CPU devices the first stands for the processor, another for what learns."""
    base = config(batch_sequences=8, online_sequences=4)
    # The learner's arithmetic: on the processor, actors have their own.
    base = replace(base, network=replace(base.network, compute_dtype="bfloat16"))
    actors = replace(base.actors, runner="sebulba", groups=2, device="cpu")
    base = replace(base, env=replace(base.env, num_envs=8), actors=actors)
    learner = jax.devices()[1]
    run = SebulbaEngine(build(base, make_topology([learner])), 0)
    try:
        run.start(None)
        for _ in range(2):
            metrics = run.advance().metrics[0]
        assert {actor.device for actor in run.sebulba.actors} == {jax.devices("cpu")[0]}
        assert {d for x in jax.tree.leaves(run.sebulba.state.agent) for d in x.devices()} == {
            learner
        }
        # Parameters arrive: after two calls actors no longer play by the first ones.
        assert 0 < run.sebulba.published.update <= run.sebulba.updates
        assert np.isfinite(metrics["loss_total"])
        act = run.sebulba.functions[0].act.as_text()
        assert "bf16" not in act and "f32" in act
    finally:
        run.close()
    with pytest.raises(ConfigError, match=r"^actors.device: cpu leaves no choice"):
        build(base, choose_devices("1", "2"))


def test_inside_jax_devices_cannot_only_act():
    with pytest.raises(ConfigError, match=r"^devices.actors: catch runs inside JAX"):
        build(config(), choose_devices("1,2", "0"))
