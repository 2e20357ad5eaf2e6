"""Actors in threads: the same trajectories as in one jitted loop, exact accounting, and faults."""

import dataclasses
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import presets
from muesli.agent.contract import is_taken
from muesli.config import ConfigError
from muesli.envs import ENVS
from muesli.envs.adapter import on_host
from muesli.envs.base import refuse_not_finite
from muesli.envs.toys import catch, recall
from muesli.runners.anakin import make_anakin
from muesli.runners.engines import make_engine
from muesli.runners.faults import ActorError
from muesli.runners.parts import build
from muesli.runners.player import load
from muesli.runners.sebulba import Sebulba
from muesli.runners.train import train

replace = dataclasses.replace


def tiny(
    env="catch", groups=1, lockstep=True, frame_stack=1, stack_actions=False, core="lstm", **batch
):
    base = presets.catch()
    return replace(
        base,
        total_env_steps=600,
        env=replace(
            base.env, name=env, num_envs=4, frame_stack=frame_stack, stack_actions=stack_actions
        ),
        actors=replace(
            base.actors, runner="sebulba", groups=groups, lockstep=lockstep, max_restarts=0
        ),
        network=replace(
            base.network, core=core, last_action_and_reward=True, torso_units=8, core_units=8,
            model_units=8, value_bins=11, reward_bins=11,
        ),
        batch=replace(
            base.batch,
            **{"batch_sequences": 8, "online_sequences": 2, "sequence_length": 5,
               "replay_capacity_steps": 400} | batch,
        ),
        log=replace(base.log, log_every_steps=100, eval_every_steps=0, eval_episodes=4),
    )  # fmt: skip


@pytest.fixture
def env_named():
    """Registers an environment for one test."""
    added = []

    def add(name, make):
        ENVS[name] = make
        added.append(name)
        return name

    yield add
    for name in added:
        del ENVS[name]


def sebulba_ring(config, iterations):
    sebulba = Sebulba(build(config), config.seed)
    try:
        sebulba.prepare()
        sebulba.start(sebulba.fresh_state())
        for _ in range(iterations):
            sebulba.collect_iteration()
        return sebulba.state.replay
    finally:
        sebulba.close()


def anakin_ring(config, iterations):
    config = replace(config, actors=replace(config.actors, runner="anakin"))
    anakin = make_anakin(build(config))
    state = jax.jit(anakin.init)(jax.random.key(config.seed))
    for _ in range(iterations):
        state, _ = jax.jit(anakin.warm_up)(state)
    return state.replay


def assert_same_experience(ours, theirs):
    for name in ("observation", "action", "reward", "discount", "step_type"):
        np.testing.assert_array_equal(
            getattr(ours.records, name), getattr(theirs.records, name), err_msg=name
        )
    for a, b in zip(
        jax.tree.leaves((ours.records.behaviour, ours.starts)),
        jax.tree.leaves((theirs.records.behaviour, theirs.starts)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=1e-5)
    np.testing.assert_array_equal(ours.written, theirs.written)


@pytest.mark.parametrize("groups", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_same_keys_give_the_same_trajectories_as_one_jitted_loop(groups):
    config = tiny(groups=groups)
    ours, theirs = sebulba_ring(config, 4), anakin_ring(config, 4)
    # Catch lasts 9 steps: 20 steps hold two ends of episodes.
    assert int((ours.records.step_type == 2).sum()) >= 4
    assert_same_experience(ours, theirs)


def test_boards_are_turned_alike_by_both_runners():
    base = presets.tic_tac_toe()
    config = replace(
        base,
        env=replace(base.env, num_envs=8),
        actors=replace(base.actors, runner="sebulba", groups=1, lockstep=True),
        network=replace(base.network, torso_units=8, model_units=8, value_bins=11, reward_bins=11),
        batch=replace(
            base.batch, batch_sequences=8, online_sequences=4, sequence_length=5, symmetries=True
        ),
    )
    ours, theirs = sebulba_ring(config, 3), anakin_ring(config, 3)
    assert_same_experience(ours, theirs)
    # Every copy begins with a side of its own and sees the next one after each chunk.
    sides = np.asarray(ours.starts.symmetry)[:, :3]
    np.testing.assert_array_equal(sides, (np.arange(8)[:, None] + np.arange(3)) % 8)


def catch_of_bytes():
    """Catch as a picture that can carry planes of actions."""
    env = catch()
    as_bytes = lambda t: t._replace(observation=jnp.uint8(255) * t.observation)
    return env._replace(
        spec=env.spec._replace(observation_dtype=np.dtype(np.uint8)),
        reset=lambda key: (lambda s, t: (s, as_bytes(t)))(*env.reset(key)),
        step=lambda *x: (lambda s, t: (s, as_bytes(t)))(*env.step(*x)),
    )


@pytest.mark.parametrize("actions", [pytest.param(False, marks=pytest.mark.slow), True])
def test_frames_of_a_host_environment_are_stacked_as_inside_jax(env_named, actions):
    inside = env_named("catch_of_bytes", catch_of_bytes)
    name = env_named("host_catch", lambda: on_host(catch_of_bytes()))
    stack = {"frame_stack": 3, "stack_actions": actions}
    # Experience is the same only if the same parameters saw the same.
    ours, theirs = sebulba_ring(tiny(name, **stack), 4), anakin_ring(tiny(inside, **stack), 4)
    assert ours.records.observation.shape[-1] == catch().spec.observation_shape[-1]
    assert_same_experience(ours, theirs)


@pytest.mark.slow
def test_two_runs_in_lockstep_are_one(tmp_path):
    config = tiny(groups=2)
    rows = [[], []]
    for k in range(2):
        train(config, tmp_path / str(k), callbacks=[rows[k].append])
    assert len(rows[0]) > 2
    timeless = [[{n: v for n, v in r.items() if "second" not in n} for r in some] for some in rows]
    assert timeless[0] == timeless[1]


@pytest.mark.parametrize("lockstep", [True, False])
def test_every_online_sequence_is_trained_once(tmp_path, lockstep):
    config = tiny(groups=2, lockstep=lockstep)
    parts = build(config)
    engine = make_engine(parts, [0])
    try:
        engine.start(None)
        sebulba = engine.sebulba
        assert sebulba.state.replay.written.sum() == 4
        progress = engine.advance()
        # 4 environments in batches of 2 online sequences: two updates an iteration.
        updates = 2 * parts.schedule.per_call
        assert int(sebulba.state.agent.step) == updates
        written = np.asarray(sebulba.state.replay.written)
        assert written.sum() == 4 * (1 + parts.schedule.per_call)
        assert int(sebulba.state.iteration) == 1 + parts.schedule.per_call
        lag = progress.metrics[0]["policy_lag_updates"]
        if lockstep:
            # Data of update u in an iteration is u updates old: 0 and 1, on average 1/2.
            np.testing.assert_allclose(lag, 0.5)
        else:
            assert 0.0 <= lag <= updates
    finally:
        engine.close()


def test_without_replay_there_is_no_ring():
    config = tiny(batch_sequences=2, groups=2)
    engine = make_engine(build(config), [0])
    try:
        engine.start(None)
        assert engine.sebulba.state.replay is None
        assert np.isfinite(engine.advance().metrics[0]["loss_total"])
    finally:
        engine.close()


def failing(at, how):
    """Catch on the host, whose ``at``-th step of slot 0's group does ``how``."""

    def make_family():
        family = on_host(catch())

        def make(slots, seed):
            env, count = family.make(slots, seed), 0

            def step(actions):
                nonlocal count
                count += 1
                if count == at and 0 in slots:
                    how()
                return env.step(actions)

            return env._replace(step=step)

        return family._replace(make=make)

    return make_family


def explode():
    raise OverflowError("the paddle fell off")


def test_an_environment_that_raises_ends_the_run_with_its_error_and_a_checkpoint(
    tmp_path, env_named
):
    name = env_named("exploding_catch", failing(23, explode))
    with pytest.raises(ActorError, match="group 0 of exploding_catch.*paddle fell off") as caught:
        train(tiny(name, groups=2, lockstep=False), tmp_path / "run")
    assert isinstance(caught.value.__cause__, OverflowError)
    assert list((tmp_path / "run" / "checkpoints").glob("step-*/manifest.json"))


def test_what_is_saved_in_the_middle_of_an_iteration_begins_new_episodes(env_named):
    name = env_named("exploding_catch", failing(8, explode))
    engine = make_engine(build(tiny(name, groups=2)), [0])
    try:
        engine.start(None)
        assert any(name.startswith("group-1/") for name in engine.snapshot(0).own_extras)
        with pytest.raises(ActorError):
            engine.advance()
        # Group 1 has finished its chunk and group 0 has not: they cannot go on together.
        assert not any(name.startswith("group-") for name in engine.snapshot(0).own_extras)
    finally:
        engine.close()


@pytest.mark.slow
def test_a_run_that_fails_before_it_begins_leaves_its_directory_free(tmp_path, env_named):
    name = env_named("exploding_catch", failing(1, explode))
    with pytest.raises(ActorError):
        train(tiny(name), tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()
    train(tiny(), tmp_path / "run")
    assert (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("lockstep", [pytest.param(True, marks=pytest.mark.slow), False])
def test_an_environment_that_hangs_is_noticed(tmp_path, env_named, lockstep):
    name = env_named("hanging_catch", failing(23, lambda: time.sleep(30)))
    # Long enough for the other group to go on alone, if nobody notices.
    config = replace(tiny(name, groups=2, lockstep=lockstep), total_env_steps=60_000)
    config = replace(config, actors=replace(config.actors, step_timeout_seconds=1.0))
    began = time.monotonic()
    with pytest.raises(ActorError, match="group 0 of hanging_catch has not answered for 1 s"):
        train(config, tmp_path / "run")
    assert time.monotonic() - began < 120
    assert list((tmp_path / "run" / "checkpoints").glob("step-*/manifest.json"))


def test_an_evaluation_that_fails_keeps_what_was_learnt(tmp_path, env_named):
    def make_family():
        family = on_host(catch())

        def make(slots, seed):
            env = family.make(slots, seed)
            # The run's own copies are two groups of two; an evaluation plays four.
            return env._replace(step=lambda a: explode()) if len(slots) == 4 else env

        return family._replace(make=make)

    name = env_named("shy_catch", make_family)
    with pytest.raises(ActorError, match="shy_catch failed in an evaluation") as caught:
        train(tiny(name, groups=2), tmp_path / "run")
    assert caught.value.__notes__ == ["what was learnt until then is saved"]
    assert list((tmp_path / "run" / "checkpoints").glob("step-*/manifest.json"))


def test_a_signal_within_an_evaluation_stops_the_run(tmp_path, env_named):
    def make_family():
        family = on_host(catch())

        def make(slots, seed):
            env = family.make(slots, seed)
            if len(slots) != 4:  # the run's own copies are two groups of two
                return env

            def step(actions):
                signal.raise_signal(signal.SIGTERM)
                time.sleep(0.5)  # a thread of its own hears it
                return env.step(actions)

            return env._replace(step=step)

        return family._replace(make=make)

    name = env_named("interrupted_catch", make_family)
    result = train(tiny(name, groups=2), tmp_path / "run")
    assert result.stopped_by == signal.SIGTERM


def resumed(config, snapshot):
    """An engine that goes on from a snapshot, and what it says about that."""
    engine = make_engine(build(config), [0])
    tree = jax.tree.map(jax.numpy.array, snapshot.tree)
    builder = engine.new_ring(tree)
    assert builder.chunks == snapshot.ring.chunks
    for start in range(builder.chunks):
        builder.place(builder.slots, start, snapshot.ring.cut(start, 1))
    extras = snapshot.extras | snapshot.own_extras
    return engine, engine.restore(tree, extras, builder.finish())


def snapshot_after_a_call(config):
    engine = make_engine(build(config), [0])
    try:
        engine.start(None)
        engine.advance()
        engine.end_call()
        snapshot = engine.snapshot(0)
        return snapshot._replace(tree=jax.tree.map(lambda x: x.copy(), snapshot.tree))
    finally:
        engine.close()


@pytest.mark.slow
def test_a_resumed_run_plays_other_episodes_and_never_joins_two():
    config = tiny(groups=2, lockstep=False)
    snapshot = snapshot_after_a_call(config)
    began = int(snapshot.tree.iteration)
    engine, remarks = resumed(config, snapshot)
    try:
        assert remarks == ["episodes under way were not saved and begin anew"]
        assert engine.updates() == int(snapshot.tree.agent.step)
        engine.advance()
        ring = jax.device_get(engine.sebulba.state.replay)
    finally:
        engine.close()
    kinds = ring.records.step_type[:, : int(ring.written.min()) * 5]
    # Every FIRST but a slot's very first record follows a LAST.
    slots, times = np.nonzero(kinds == 0)
    assert (kinds[slots, times - 1][times > 0] == 2).all() and (times > 0).sum() >= 4
    for slot in range(4):
        seam = int(snapshot.ring.written[slot]) * 5
        assert began > 1 and kinds[slot, seam] == 0 and kinds[slot, seam - 1] == 2
    fresh, old = ring.records.observation[:, seam], ring.records.observation[:, 0]
    assert not np.array_equal(fresh, old)


@pytest.mark.slow  # tests/reliability kills such runs, and they end where they should
@pytest.mark.parametrize("core", ["lstm", "none"])
def test_in_lockstep_a_resumed_run_is_the_run_it_continues(core):
    config = tiny(groups=2, core=core)
    whole = make_engine(build(config), [0])
    try:
        whole.start(None)
        whole.advance()
        whole.end_call()
        expected = [whole.advance() for _ in range(1)]
        end = jax.device_get(whole.sebulba.state.agent), jax.device_get(whole.sebulba.state.replay)
    finally:
        whole.close()
    engine, remarks = resumed(config, snapshot_after_a_call(config))
    try:
        assert remarks == []
        again = engine.advance()
        state = engine.sebulba.state
        assert again.episodes == expected[0].episodes
        for a, b in zip(
            jax.tree.leaves(end),
            jax.tree.leaves(jax.device_get((state.agent, state.replay))),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)
    finally:
        engine.close()


def test_environments_that_fail_are_started_again_and_counted(tmp_path, env_named, capfd):
    made = []

    def make_family():
        family = failing(23, explode)()

        def make(slots, seed):
            made.append((slots, seed))
            # Only the first copies explode.
            return (family if len(made) <= 2 else on_host(catch())).make(slots, seed)

        return family._replace(make=make)

    name = env_named("shaky_catch", make_family)
    config = tiny(name, groups=2, lockstep=False)
    config = replace(config, log=replace(config.log, eval_episodes=0))
    config = replace(config, actors=replace(config.actors, max_restarts=1, restart_seconds=0.01))
    rows = []
    train(config, tmp_path / "run", callbacks=[rows.append])
    assert all(is_taken(name) for name in rows[-1].keys() - {"loss_pg", "loss_cmpo"})
    assert rows[-1]["env_restarts"] == 1 and rows[-1]["env_steps"] >= 600
    assert len({seed for _, seed in made}) == 2  # the new copies play other episodes
    assert "paddle fell off; it is started again (1 of 1)" in capfd.readouterr().out


@pytest.mark.slow
def test_environments_that_hang_are_left_behind(tmp_path, env_named):
    made = []

    def make_family():
        family = failing(23, lambda: time.sleep(20))()

        def make(slots, seed):
            made.append(slots)
            return (family if len(made) <= 2 else on_host(catch())).make(slots, seed)

        return family._replace(make=make)

    config = tiny(env_named("slow_catch", make_family), groups=2)
    actors = replace(config.actors, max_restarts=1, restart_seconds=0.01, step_timeout_seconds=2.0)
    config = replace(config, actors=actors, log=replace(config.log, eval_episodes=0))
    rows = []
    train(config, tmp_path / "run", callbacks=[rows.append])
    assert rows[-1]["env_restarts"] == 1 and rows[-1]["env_steps"] >= 600


def test_an_answer_at_the_last_moment_is_not_taken_twice(env_named, monkeypatch):
    """The learner finds a group silent; before it acts on that the group answers and goes on."""
    asked, answer, answered, decided = (threading.Event() for _ in range(4))

    def hesitate():
        asked.set()
        assert answer.wait(30)

    class Clock:
        def monotonic(self):  # the learner asks for the time after it has seen a group wait
            if asked.is_set() and not answered.is_set():
                answer.set()
                assert answered.wait(30)
                threading.Timer(0.5, decided.set).start()
                return time.monotonic() + 1e6
            return time.monotonic()

    def refuse(*arguments):  # what the group does first with an answer
        if asked.is_set() and not answered.is_set():
            answered.set()
            assert decided.wait(30)
        refuse_not_finite(*arguments)

    monkeypatch.setattr("muesli.runners.actors.refuse_not_finite", refuse)
    monkeypatch.setattr("muesli.runners.sebulba.time", Clock())
    config = tiny(env_named("hesitating_catch", failing(13, hesitate)))
    config = replace(config, actors=replace(config.actors, max_restarts=1, restart_seconds=0.3))
    sebulba = Sebulba(build(config), config.seed)
    try:
        sebulba.prepare()
        sebulba.start(sebulba.fresh_state())
        chunks = [chunk for _ in range(6) for chunk in sebulba.collect_iteration()]
        kinds = np.asarray(sebulba.state.replay.records.step_type)
    finally:
        sebulba.close()
    assert decided.is_set()
    rows = [row for chunk in chunks for row in chunk.episodes]
    # Every step is counted once: where an episode is said to end, the record says so.
    ends = {(row["slot"], row["env_steps"] // 4) for row in rows}
    assert ends == {(slot, t) for slot, t in np.argwhere(kinds == 2).tolist() if t < 30}
    assert {row["length"] for row in rows} == {9} and sebulba.restarts == 0


def test_what_is_not_finite_is_refused_at_the_door(tmp_path, env_named):
    def make_family():
        family = on_host(catch())

        def make(slots, seed):
            env = family.make(slots, seed)

            def step(actions):
                timestep = env.step(actions)
                reward = np.where(np.asarray(slots) == 3, np.nan, timestep.reward)
                return timestep._replace(reward=reward.astype(np.float32))

            return env._replace(step=step)

        return family._replace(make=make)

    name = env_named("nan_catch", make_family)
    with pytest.raises(ActorError, match="nan_catch, slot 3: the reward holds a number that is"):
        train(tiny(name, groups=2), tmp_path / "run")


@pytest.mark.slow
def test_both_runners_count_a_game_of_two_players_for_the_first(tmp_path):
    base = presets.tic_tac_toe()
    config = replace(
        base,
        env=replace(base.env, num_envs=8),
        network=replace(base.network, torso_units=8, model_units=8, value_bins=11, reward_bins=11),
        batch=replace(base.batch, batch_sequences=8, online_sequences=4),
        log=replace(base.log, log_every_steps=80, eval_episodes=0),
    )
    returns = {}
    for runner in ("anakin", "sebulba"):
        actors = replace(config.actors, runner=runner, lockstep=True)
        engine = make_engine(build(replace(config, actors=actors)), [0])
        try:
            rows = engine.start(None)[0]
        finally:
            engine.close()
        returns[runner] = sorted((row["slot"], row["env_steps"], row["return"]) for row in rows)
    assert returns["anakin"] == returns["sebulba"]
    assert {r for _, _, r in returns["anakin"]} > {1.0, -1.0}


@pytest.mark.slow
def test_vectors_are_stacked_too(env_named):
    plain = on_host(recall())
    name = env_named("host_recall", lambda: plain)
    ring = sebulba_ring(tiny(name, frame_stack=3), 2)
    assert ring.records.observation.shape[-1] == plain.spec.observation_shape[-1]


def test_a_ring_that_cannot_fit_is_refused_with_one_that_would():
    config = tiny(replay_capacity_steps=10**13)
    with pytest.raises(ConfigError, match=r"batch.replay_capacity_steps: .* at most [\d,]+ fit"):
        make_engine(build(config), [0])


def test_bad_combinations_name_their_field(env_named):
    name = env_named("host_catch", lambda: on_host(catch()))
    config = tiny(name)
    with pytest.raises(ConfigError, match="actors.runner: host_catch does not run inside JAX"):
        build(replace(config, actors=replace(config.actors, runner="anakin")))
    with pytest.raises(ConfigError, match="env.num_envs: must be a multiple of actors.groups"):
        build(tiny(groups=4))
    with pytest.raises(ConfigError, match="seeds: several at once"):
        make_engine(build(config), [0, 1])


def test_evaluations_outside_jax_compile_nothing_new(tmp_path, compilations, monkeypatch):
    config = tiny("gym:CartPole-v1", core="none")
    config = replace(
        config,
        total_env_steps=800,
        log=replace(config.log, eval_every_steps=100, eval_episodes=3),
    )
    counts = []
    result = train(
        config, tmp_path / "run", callbacks=[lambda row: counts.append(len(compilations))]
    )
    assert result.evaluations[0]["episodes"] == 3 and len(counts) >= 5
    # As inside JAX: by the fourth row everything has been done twice.
    assert counts[-1] == counts[3]
    player = load(tmp_path / "run")
    first = player.evaluate(3)
    before = len(compilations)
    again = player.evaluate(3)
    player.evaluate(3, seed=1)
    assert len(compilations) == before
    np.testing.assert_array_equal(first.returns, again.returns)
    assert first.finished.all()
    monkeypatch.setattr("muesli.runners.host.MAX_STEPS", 3)
    cut = player.evaluate(3)
    assert cut.lengths.tolist() == [3, 3, 3] and not cut.finished.any()


@pytest.mark.parametrize("stack", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_tiny_atari_run_goes_from_emulators_to_checkpoint(tmp_path, stack):
    base = presets.atari_small()
    config = replace(
        base,
        total_env_steps=150,
        env=replace(
            base.env, name="atari:breakout", num_envs=4, frame_stack=stack,
            atari=replace(base.env.atari, size_pixels=24),
        ),
        network=replace(
            base.network, torso_channels=(4,), torso_units=8, core_units=8, model_units=8,
            value_bins=11, reward_bins=11,
        ),
        batch=replace(
            base.batch, batch_sequences=8, online_sequences=2, sequence_length=6,
            replay_capacity_steps=400,
        ),
        log=replace(base.log, log_every_steps=40),
    )  # fmt: skip
    rows = []
    result = train(config, tmp_path / "run", callbacks=[rows.append])
    assert result.evaluations == [{}] and len(rows) >= 2
    last = rows[-1]
    assert last["env_frames"] == 4 * last["env_steps"] and last["replay_fraction"] == 0.75
    assert all(np.isfinite(v) for v in last.values() if isinstance(v, float))
    player = load(tmp_path / "run")
    evaluation = player.evaluate(2)
    assert evaluation.finished.all() and (evaluation.lengths > 20).all()


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["anakin", "sebulba"])
def test_a_call_left_in_the_middle_is_finished_by_another_process(runner):
    config = tiny(groups=2)
    config = replace(config, actors=replace(config.actors, runner=runner))
    whole = make_engine(build(config), [0])
    try:
        whole.start(None)
        expected = whole.advance()
    finally:
        whole.close()
    first = make_engine(build(config), [0])
    try:
        first.start(None)
        looked = iter([False, False, True])
        part = first.advance(lambda: next(looked))
        assert part.metrics is None and 2 <= part.iterations < first.parts.schedule.per_call
        snapshot = first.snapshot(0)
        snapshot = snapshot._replace(tree=jax.tree.map(lambda x: x.copy(), snapshot.tree))
    finally:
        first.close()
    second, _ = resumed(config, snapshot)
    try:
        rest = second.advance()
    finally:
        second.close()
    assert part.episodes[0] + rest.episodes[0] == expected.episodes[0]
    assert part.iterations + rest.iterations == expected.iterations
    timeless = [{n: v for n, v in row.metrics[0].items() if "second" not in n}
                for row in (rest, expected)]  # fmt: skip
    assert timeless[0] == timeless[1]
