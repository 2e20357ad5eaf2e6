"""Losses that are not finite: skipped and counted; too many in a row end the run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import presets
from muesli.agent import unless_not_finite
from muesli.envs import ENVS
from muesli.envs.toys import catch
from muesli.metrics import read_jsonl
from muesli.runners.engines import make_engine
from muesli.runners.faults import ActorError, NotFiniteError
from muesli.runners.parts import build
from muesli.runners.train import resume, train

replace = dataclasses.replace


def tiny(runner="anakin", **optimiser):
    base = presets.catch()
    return replace(
        base,
        total_env_steps=600,
        env=replace(base.env, num_envs=4),
        actors=replace(base.actors, runner=runner, groups=1, lockstep=True, max_restarts=0),
        network=replace(
            base.network, torso_units=8, model_units=8, value_bins=11, reward_bins=11
        ),
        optimiser=replace(base.optimiser, **optimiser),
        batch=replace(
            base.batch, batch_sequences=8, online_sequences=2, sequence_length=5,
            replay_capacity_steps=400,
        ),
        log=replace(base.log, log_every_steps=100, eval_every_steps=0, eval_episodes=0),
    )  # fmt: skip


def same(a, b):
    return all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def test_an_update_that_is_not_finite_changes_nothing_but_the_counts():
    parts = build(tiny())
    engine = make_engine(parts, [0])
    engine.start(None)
    replay = engine.state.replay
    batch = jax.tree.map(lambda x: jnp.concatenate([x[:, :6], x[:, :6]]), replay.records)
    start = jax.tree.map(lambda x: jnp.concatenate([x[:, 0], x[:, 0]]), replay.starts)
    from muesli.types import Trajectory

    good = Trajectory(batch, start)
    bad = good._replace(transitions=batch._replace(reward=batch.reward.at[3, 2].set(jnp.nan)))
    update = jax.jit(parts.agent.update)
    before = engine.state.agent
    after, metrics = update(before, bad, jax.random.key(1))
    assert float(metrics["update_skipped"]) == 1.0
    assert (int(after.step), *map(int, after.faults)) == (1, 1, 1)
    keep = ("online", "prior", "optimiser", "moment", "dual")
    assert all(same(getattr(before, name), getattr(after, name)) for name in keep)
    later, metrics = update(after, good, jax.random.key(1))
    assert float(metrics["update_skipped"]) == 0.0
    assert (int(later.step), *map(int, later.faults)) == (2, 1, 0)
    assert not same(later.online, before.online) and np.isfinite(metrics["loss_total"])


def test_after_the_last_that_may_be_skipped_none_is_made():
    parts = build(tiny())
    state = jax.jit(parts.agent.init)(jax.random.key(0))
    made = state._replace(online=jax.tree.map(lambda x: x + 1, state.online))
    for count in range(1, 4):
        state = unless_not_finite(state, made, jnp.array(False), 3)
        assert tuple(map(int, state.faults)) == (count, count)
    state = unless_not_finite(state, made, jnp.array(True), 3)
    assert tuple(map(int, state.faults)) == (4, 4) and not same(state.online, made.online)


@pytest.mark.parametrize("runner", ["anakin", pytest.param("sebulba", marks=pytest.mark.slow)])
def test_too_many_in_a_row_end_the_run_with_their_batch_and_keep_the_checkpoint(tmp_path, runner):
    # A rate so high that the second update's loss is no number any more.
    config = tiny(runner, learning_rate=1e38, update_clip=None, max_skipped_updates=4)
    rows = []
    with pytest.raises(NotFiniteError, match="4 updates in a row.*max_skipped_updates") as caught:
        train(config, tmp_path, callbacks=[rows.append])
    assert "not_finite_batch.npz" in caught.value.__notes__[0]
    with np.load(tmp_path / "not_finite_batch.npz", allow_pickle=False) as batch:
        assert batch["transitions.reward"].shape == (8, 6)
        assert batch["transitions.observation"].shape[:2] == (8, 6)
        # A batch of real experience: one of eight sequences has a reward.
        assert np.isfinite(batch["transitions.reward"]).all()
        assert (batch["transitions.observation"] != 0).any()
    assert not list((tmp_path / "checkpoints").glob("step-*"))


def test_an_environment_inside_jax_that_gives_no_numbers_is_named(tmp_path):
    def strange():
        env = catch()

        def step(state, action, key):
            state, timestep = env.step(state, action, key)
            # Not so often that the steps before a run would find it.
            bad = (timestep.reward > 0) & (state.ball[1] == 0)
            reward = jnp.where(bad, jnp.nan, timestep.reward)
            return state, timestep._replace(reward=reward)

        return env._replace(step=step)

    ENVS["strange"] = strange
    try:
        config = tiny()
        config = replace(config, env=replace(config.env, name="strange"))
        with pytest.raises(ActorError, match="strange gave an observation or a reward that is not"):
            train(config, tmp_path)
    finally:
        del ENVS["strange"]


class EnoughError(Exception):
    pass


def test_what_a_callback_ends_is_saved_and_goes_on_as_if_unbroken(tmp_path):
    config = tiny()
    rows = []

    def enough(row):
        rows.append(row)
        if len(rows) == 2:
            raise EnoughError

    with pytest.raises(EnoughError) as caught:
        train(config, tmp_path / "ended", callbacks=[enough])
    assert caught.value.__notes__ == ["what was learnt until then is saved"]
    resume(tmp_path / "ended")
    train(config, tmp_path / "unbroken")
    ended, unbroken = (
        read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("ended", "unbroken")
    )
    timed = ("time", "frames_per_second", "elapsed_seconds")
    plain = lambda rows: [{k: v for k, v in row.items() if k not in timed} for row in rows]
    assert plain(ended) == plain(unbroken) and len(ended) > 2
