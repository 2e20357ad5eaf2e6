"""The in-jit loop: keys, accounting, seeds, and that nothing is compiled twice."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from muesli import keys, presets
from muesli.config import ConfigError
from muesli.runners import memory
from muesli.runners.anakin import make_anakin
from muesli.runners.engines import make_engine
from muesli.runners.parts import build, make_schedule
from muesli.runners.player import load
from muesli.runners.train import train

replace = dataclasses.replace


def tiny(**batch):
    base = presets.catch()
    return replace(
        base,
        total_env_steps=800,
        env=replace(base.env, num_envs=4),
        network=replace(base.network, torso_units=8, model_units=8, value_bins=11, reward_bins=11),
        batch=replace(
            base.batch,
            **{"batch_sequences": 8, "online_sequences": 4, "sequence_length": 5,
               "replay_capacity_steps": 400} | batch,
        ),
        log=replace(base.log, log_every_steps=100, eval_every_steps=200, eval_episodes=4),
    )  # fmt: skip


def test_the_key_of_a_step_is_folded_from_slot_and_step():
    run_key = jax.random.key(3)
    found = keys.step_keys(run_key, np.arange(4), 17)
    alone = jax.random.fold_in(jax.random.fold_in(run_key, 2), 17)
    np.testing.assert_array_equal(jax.random.key_data(found[2]), jax.random.key_data(alone))


def test_two_calls_compile_nothing_new(tmp_path, compilations):
    counts = []
    train(tiny(), tmp_path / "run", callbacks=[lambda row: counts.append(len(compilations))])
    # Two evaluations have been made by the fourth row; after that nothing is new.
    assert counts[0] > 0 and len(counts) >= 7
    assert counts[-1] == counts[3]


def test_a_loaded_agent_compiles_its_evaluations_once(tmp_path, compilations):
    train(replace(tiny(), total_env_steps=200), tmp_path / "run")
    player = load(tmp_path / "run")
    first = player.evaluate(3)
    before = len(compilations)
    again, others = player.evaluate(3), player.evaluate(3, seed=1)
    assert len(compilations) == before
    np.testing.assert_array_equal(first.returns, again.returns)
    assert others.finished.all()
    player.evaluate(3, greedy=True)
    assert len(compilations) > before


def test_every_online_sequence_is_trained_once_and_replay_is_real_experience():
    config = tiny(online_sequences=2)
    parts = build(config)
    schedule = make_schedule(config)
    assert schedule.updates_per_iteration == 2 and schedule.warm_up == 1
    state = jax.jit(make_anakin(parts).init)(jax.random.key(0))
    state, _ = jax.jit(make_anakin(parts).warm_up)(state)
    assert set(state.replay.written.tolist()) == {1}
    state, metrics, finished = jax.jit(lambda s: make_anakin(parts).iterate(s, 3))(state)
    assert int(state.iteration) == 4 and int(state.agent.step) == 6
    assert set(state.replay.written.tolist()) == {4}
    assert finished.ended.shape == (3, 5, 4)
    # Data of update u in an iteration is u updates old: 0 and 1, on average 1/2.
    np.testing.assert_allclose(metrics["policy_lag_updates"], 0.5)
    # Sampled chunks are 1..3 iterations old, each two updates apart.
    assert 2.0 <= float(metrics["replay_age_updates"]) <= 6.0


@pytest.mark.parametrize("total", [1_000, 3_070, 30_000_000, 60_000_000])
def test_a_run_is_less_than_one_row_longer_than_asked(total):
    config = presets.PRESETS["go_h200"]()
    log = replace(config.log, log_every_steps=500_000)
    schedule = make_schedule(replace(config, total_env_steps=total, log=log))
    over = schedule.env_steps(schedule.calls) - total
    assert 0 <= over < schedule.per_call * schedule.steps_per_iteration
    assert schedule.per_call * schedule.steps_per_iteration < 600_000


def test_without_replay_there_is_no_ring_and_no_warm_up():
    config = tiny(batch_sequences=4)
    parts = build(config)
    assert parts.schedule.warm_up == 0
    state = jax.jit(make_anakin(parts).init)(jax.random.key(0))
    assert state.replay is None
    state, metrics, _ = jax.jit(lambda s: make_anakin(parts).iterate(s, 2))(state)
    assert int(state.agent.step) == 2 and np.isfinite(float(metrics["loss_total"]))


@pytest.mark.slow
def test_two_seeds_together_equal_each_alone():
    parts = build(tiny())
    anakin = make_anakin(parts)
    run = lambda key: anakin.iterate(anakin.warm_up(anakin.init(key))[0], 2)[0]
    keys = jax.random.split(jax.random.key(0), 2)
    together = jax.jit(jax.vmap(run))(keys)
    alone = jax.jit(run)(keys[1])
    for a, b in zip(
        jax.tree.leaves(together.agent.online), jax.tree.leaves(alone.agent.online), strict=True
    ):
        np.testing.assert_allclose(a[1], b, atol=1e-5)


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_ring_that_cannot_fit_is_refused_with_one_that_would(seeds, monkeypatch):
    config = presets.catch()

    def engine(steps):
        batch = dataclasses.replace(config.batch, replay_capacity_steps=steps)
        return make_engine(build(dataclasses.replace(config, batch=batch)), range(seeds))

    monkeypatch.setattr(memory, "device_limit", lambda: 100 * 2**20)
    each = f" for each of {seeds} seeds" if seeds > 1 else ""
    wanted = rf"batch.replay_capacity_steps: [\d,]+ steps{each} take .* at most ([\d,]+) fit"
    with pytest.raises(ConfigError, match=wanted) as refused:
        engine(10**7)
    fits = int(re.search(wanted, str(refused.value))[1].replace(",", ""))
    assert fits * seeds == pytest.approx(1_000_000, rel=0.2)  # some 80 bytes each
    engine(fits)
