"""Continuous actions, and very many discrete ones, through the whole agent."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import presets
from muesli.agent import centre, make_targets, raw_targets, unroll
from muesli.presets import with_update
from muesli.runners.parts import build
from muesli.types import StepType, Trajectory, Transition, is_last

replace = dataclasses.replace
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
BATCH, LENGTH = 3, 4


def tiny(update="muesli", squash=True, **agent):
    base = presets.gym("continuous_bandit", discrete=False)
    return replace(
        with_update(base, update),
        env=replace(base.env, num_envs=1),
        network=replace(
            base.network, torso_channels=(), torso_units=8, model_units=8, value_bins=5,
            value_max=2.0, reward_bins=5, reward_max=2.0, squash_actions=squash,
        ),
        agent=replace(base.agent, **agent),
        model=replace(base.model, unroll_steps=2),
    )  # fmt: skip


def experience(parts):
    """A batch of records that could have been: random observations, actions of the agent's own."""
    agent, keys = parts.agent, jax.random.split(jax.random.key(0), 4)
    state = agent.init(keys[0])
    shape = (BATCH, LENGTH + 1)
    observation = jax.random.normal(keys[1], (*shape, 1))
    records = Transition(
        observation,
        None,
        None,
        jax.random.normal(keys[2], shape),
        jnp.ones(shape),
        jnp.full(shape, StepType.MID, jnp.int32),
    )
    start = agent.initial_actor(BATCH)
    empty = records._replace(action=jnp.zeros((*shape, 2)))
    policy = unroll(parts.network, state.prior, Trajectory(empty, start)).policy
    action = policy.sample(keys[3])
    return state, Trajectory(records._replace(action=action, behaviour=policy), start)


@pytest.mark.parametrize(
    ("update", "squash"),
    [("muesli", True), ("ppo", True)]
    + [
        pytest.param(name, name != "muesli", marks=pytest.mark.slow)
        for name in ("muesli", "cmpo", "mpo", "direct_mpo", "pg", "trpo_penalty")
    ],
)
def test_every_update_trains_a_continuous_policy(update, squash):
    parts = build(tiny(update, squash))
    state, batch = experience(parts)
    after, metrics = jax.jit(parts.agent.update, compiler_options=QUICKLY)(
        state, batch, jax.random.key(1)
    )
    assert all(np.isfinite(float(x)) for x in metrics.values())
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after.online))
    head = lambda s: s.online["root_heads"]["policy_head"]
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), head(state), head(after))
    assert max(jax.tree.leaves(moved)) > 1e-5


def test_actions_of_a_continuous_policy_fit_the_environment():
    parts = build(tiny())
    state, batch = experience(parts)
    assert batch.transitions.action.shape == (BATCH, LENGTH + 1, 2)
    assert float(jnp.abs(batch.transitions.action).max()) < 1.0
    del state


def estimates_of(config, key):
    parts = build(config)
    state, batch = experience(parts)
    online = unroll(parts.network, state.online, batch)
    prior = unroll(parts.network, state.prior, batch)
    arguments = (parts.network, config, state, batch, online, prior)
    trained = ~is_last(batch.transitions.step_type[:, :-1])
    raw = raw_targets(*arguments, jax.random.split(key, BATCH))
    targets, _ = make_targets(*arguments, key)
    return raw, targets, trained


def test_centred_advantages_have_no_mean_and_keep_their_differences():
    config = tiny(centre_advantages=True)
    raw, targets, _ = estimates_of(config, jax.random.key(2))
    centred = centre(raw, config).policy
    before, after = raw.policy, targets.policy
    assert abs(float(centred.advantage[:, :-1].mean())) < 1e-6
    assert abs(float(centred.q_advantage[:, :-1].mean())) < 1e-6
    # G − q̂ and q̂(s, b) − q̂(s, a): only what all records have in common is gone.
    shift = float(before.advantage[:, :-1].mean())
    np.testing.assert_allclose(centred.advantage + shift, before.advantage, atol=1e-6)
    gap = lambda x: x.candidates.advantages - x.q_advantage[..., None]
    np.testing.assert_allclose(gap(centred), gap(before), atol=1e-6)
    # The update sees these, divided by σ.
    ratio = np.asarray(after.advantage / centred.advantage)[:, :-1]
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-4)


def test_advantages_are_not_centred_unless_asked_for():
    raw, targets, _ = estimates_of(tiny(centre_advantages=False), jax.random.key(2))
    ratio = np.asarray(targets.policy.advantage / raw.policy.advantage)[:, :-1]
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-4)
