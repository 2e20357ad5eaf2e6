"""Observation statistics inside the agent: what updates them, who uses them, how they are kept."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import checkpoint, presets
from muesli import replay as ring
from muesli.agent import root_of, unroll
from muesli.config import ConfigError, validate
from muesli.ops.standardise import standardise
from muesli.runners.anakin import make_anakin
from muesli.runners.engines import with_parameters
from muesli.runners.learner import make_learn
from muesli.runners.mesh import lay_out
from muesli.runners.parts import build
from muesli.types import Trajectory

replace = dataclasses.replace
LENGTH, ENVS = 6, 4
# Compiling is all that takes time here.
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def tiny(core="none", **batch):
    base = presets.catch()
    return replace(
        base,
        env=replace(base.env, num_envs=ENVS),
        network=replace(
            base.network,
            normalise_observations=True,
            torso_units=8,
            core=core,
            core_units=8,
            model_units=8,
            value_bins=5,
            value_max=2.0,
            reward_bins=5,
            reward_max=2.0,
        ),
        batch=replace(
            base.batch,
            batch_sequences=2 * ENVS,
            online_sequences=ENVS,
            sequence_length=LENGTH,
            **batch,
        ),
        model=replace(base.model, unroll_steps=2),
    )


def _is_key(x):
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


@pytest.fixture(scope="module")
def run():
    parts = build(tiny("lstm"))
    anakin = make_anakin(parts)
    layout = lay_out(jax.eval_shape(anakin.init, jax.random.key(0)), parts.topology.mesh)
    state = jax.jit(anakin.init, out_shardings=layout)(jax.random.key(0))
    states = [state]
    iterate = jax.jit(
        lambda s: anakin.iterate(s, 1),
        compiler_options=QUICKLY,
        out_shardings=(layout, None, None),
    )
    for _ in range(3):
        # Without weak types, which the next state has lost: that would compile it all again.
        state = jax.tree.map(lambda x: x if _is_key(x) else jnp.asarray(x, x.dtype), state)
        state, _, _ = iterate(state)
        states.append(state)
    return parts, states


def fresh_records(state, chunk):
    """What was stored in chunk number ``chunk``, [E, T, ...]."""
    records = state.replay.records.observation
    return np.asarray(records[:, chunk * LENGTH : (chunk + 1) * LENGTH], np.float64)


def test_every_fresh_record_is_counted_once(run):
    _, states = run
    for n, state in enumerate(states[1:], 1):
        everything = np.concatenate([fresh_records(state, c) for c in range(n)], axis=1)
        normaliser = state.agent.normaliser
        assert int(normaliser.seen) == n * ENVS * LENGTH
        np.testing.assert_allclose(normaliser.mean, everything.mean((0, 1)), atol=1e-6)
        np.testing.assert_allclose(normaliser.variance, everything.var((0, 1)), atol=1e-6)


@pytest.mark.slow
def test_replayed_records_are_not_counted_again(run):
    parts, states = run
    state = states[-1]
    fresh = ring.sample(state.replay, jax.random.key(1), ENVS).batch
    agent = parts.agent._replace(update=lambda state, batch, key: (state, {}))
    learn = make_learn(parts._replace(agent=agent))
    after, _, _ = learn(state.agent, state.replay, fresh, state.key, 0)
    assert after.normaliser.seen - state.agent.normaliser.seen == ENVS * LENGTH


def test_the_learner_says_what_the_actor_said_with_the_same_statistics(run):
    parts, states = run
    state = states[-1]
    # The newest chunk, collected with the parameters and statistics of the state before it.
    before, newest = states[-2], (len(states) - 2) * LENGTH
    cut = lambda x: x[:, newest : newest + LENGTH]
    records = jax.tree.map(cut, state.replay.records)
    start = jax.tree.map(lambda x: x[:, len(states) - 2], state.replay.starts)
    seen = standardise(before.agent.normaliser, records.observation, 10.0)
    batch = Trajectory(records._replace(observation=seen), start)
    says = unroll(parts.network, before.agent.prior, batch).policy.log_probs()
    np.testing.assert_allclose(says, records.behaviour.log_probs(), atol=2e-5)
    raw = batch._replace(transitions=records)
    differs = unroll(parts.network, before.agent.prior, raw).policy.log_probs()
    assert np.abs(differs - records.behaviour.log_probs()).max() > 1e-3


@pytest.mark.slow
def test_an_update_standardises_with_the_statistics_of_its_state(run):
    """Observations and statistics in other units: the same update, whole or in pieces."""
    parts, states = run
    agent, batch = states[-1].agent, ring.sample(states[-1].replay, jax.random.key(2), 8).batch
    offset, scale = 3.0, 8.0
    moved = agent._replace(
        normaliser=agent.normaliser._replace(
            mean=scale * agent.normaliser.mean + offset,
            variance=scale**2 * agent.normaliser.variance + (scale**2 - 1) * 1e-8,
        )
    )
    records = batch.transitions
    units = batch._replace(
        transitions=records._replace(observation=scale * records.observation + offset)
    )
    pieces = build(replace(parts.config, batch=replace(parts.config.batch, micro_batches=2))).agent
    key = jax.random.key(3)
    update = jax.jit(parts.agent.update, compiler_options=QUICKLY)
    in_pieces = jax.jit(pieces.update, compiler_options=QUICKLY)
    one, _ = update(agent, batch, key)
    for other in (update(moved, units, key)[0], in_pieces(moved, units, key)[0]):
        for a, b in zip(jax.tree.leaves(one.online), jax.tree.leaves(other.online), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-4)


def test_actors_get_the_statistics_with_the_parameters(run):
    parts, states = run
    agent = states[-1].agent
    acting = parts.agent.acting(agent)
    assert acting.normaliser is agent.normaliser
    timestep, actors = states[-1].timesteps, states[-1].actors
    root, _ = root_of(parts.network, parts.config, acting, timestep, actors)
    seen = timestep._replace(observation=standardise(agent.normaliser, timestep.observation, 10.0))
    plain, _ = root_of(parts.network, parts.config, acting._replace(normaliser=None), seen, actors)
    np.testing.assert_allclose(root.value_logits, plain.value_logits, atol=1e-6)


def test_statistics_round_trip_through_a_checkpoint(run, tmp_path):
    _, states = run
    agent = states[-1].agent
    path = checkpoint.save(tmp_path, "step-1", agent, {})
    loaded = checkpoint.load(path, jax.eval_shape(lambda x: x, agent)).tree
    for a, b in zip(agent.normaliser, loaded.normaliser, strict=True):
        np.testing.assert_array_equal(a, b)
    assert float(jnp.abs(loaded.normaliser.mean).max()) > 0


def test_parameters_taken_from_another_run_bring_their_statistics(run):
    parts, states = run
    fresh = parts.agent.init(jax.random.key(9))
    placed = with_parameters(fresh, states[-1].agent)
    assert placed.normaliser is states[-1].agent.normaliser


def test_without_it_there_are_no_statistics():
    config = tiny()
    parts = build(replace(config, network=replace(config.network, normalise_observations=False)))
    assert jax.eval_shape(parts.agent.init, jax.random.key(0)).normaliser is None


def test_a_clip_of_zero_is_refused():
    config = tiny()
    with pytest.raises(ConfigError, match=r"network\.observation_clip: must be positive"):
        validate(replace(config, network=replace(config.network, observation_clip=0.0)))
