"""Desiderata 3c and 3d: reward scales, mis-scaled advantages, and the weight of the regulariser."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muesli.config import UpdateConfig
from muesli.distributions import Categorical
from muesli.ops.moments import deviation, init_moment, update_moment
from muesli.ops.returns import clipped_importance_ratio, retrace
from muesli.ops.targets import all_actions, max_total_variation
from muesli.policy_updates import UPDATES, cmpo_target, mpo_target, muesli
from muesli.types import Candidates, PolicyInputs, StepType

EXACT = UpdateConfig(kl_samples=None)
LENGTH, NUM_ACTIONS = 6, 4


def one_state(policy, prior, advantages, behaviour=None, temperature=1.0):
    """PolicyInputs in which only the model speaks: no sampled correction (ρ̄ = 0)."""
    zero = jnp.zeros(())
    return PolicyInputs(
        policy=policy,
        prior=prior,
        behaviour=prior if behaviour is None else behaviour,
        action=jnp.zeros((), jnp.int32),
        advantage=zero,
        q_advantage=zero,
        rho=zero,
        candidates=Candidates(*all_actions(prior), jnp.asarray(advantages, jnp.float32)),
        temperature=jnp.asarray(temperature, jnp.float32),
    )


# --- the scale of rewards -----------------------------------------------------------------------


@jax.jit
def targets_and_gradients(scale, normalise):
    """π_CMPO [T, A] and ∇ of the whole Muesli loss [T, A] along a sequence with scaled rewards.

    The chain of Algorithm 1: Retrace, two updates of the running moment, normalised advantages,
    target. An agent whose rewards are multiplied predicts multiplied values.
    """
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    logits, prior_logits, behaviour_logits = draw(3, LENGTH, NUM_ACTIONS)
    action = jnp.asarray(rng.integers(0, NUM_ACTIONS, LENGTH))
    rewards, q, values = (
        scale * draw(LENGTH),
        scale * draw(LENGTH, NUM_ACTIONS),
        scale * draw(LENGTH),
    )
    policy, prior = Categorical(logits), Categorical(prior_logits)
    behaviour = Categorical(behaviour_logits)

    rho = clipped_importance_ratio(policy.log_prob(action), behaviour.log_prob(action))
    q_taken = jnp.take_along_axis(q, action[:, None], axis=1)[:, 0]
    expected_q = jnp.append(jnp.sum(policy.probs() * q, axis=1), scale * 0.3)
    step_type = jnp.full((LENGTH + 1,), StepType.MID)
    returns = retrace(q_taken, expected_q, rewards, jnp.full(LENGTH, 0.99), rho, step_type).returns

    moment = init_moment()
    for _ in range(2):
        moment = update_moment(moment, returns - values, jnp.ones(LENGTH, bool), 0.99)
    sigma = jnp.where(normalise, deviation(moment), 1.0)
    inputs = PolicyInputs(
        policy=policy,
        prior=prior,
        behaviour=behaviour,
        action=action,
        advantage=(returns - values) / sigma,
        q_advantage=(q_taken - values) / sigma,
        rho=rho,
        candidates=Candidates(
            *jax.vmap(all_actions)(prior), advantages=(q - values[:, None]) / sigma
        ),
        temperature=jnp.ones(LENGTH),
    )
    targets = jax.vmap(lambda x: cmpo_target(x, EXACT))(inputs).weights
    loss = lambda p: jnp.sum(jax.vmap(lambda x: muesli(x, EXACT).loss)(inputs._replace(policy=p)))
    return targets, jax.grad(loss)(policy).logits


@pytest.mark.parametrize("scale", [1e-3, 1e-2, 1e-1, 10.0, 1e2, 1e3])
def test_multiplying_all_rewards_changes_neither_target_nor_gradient(scale):
    targets, gradients = targets_and_gradients(1.0, True)
    scaled_targets, scaled_gradients = targets_and_gradients(scale, True)
    np.testing.assert_allclose(scaled_targets, targets, rtol=1e-4)
    np.testing.assert_allclose(scaled_gradients, gradients, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_without_normalisation_it_would(scale):
    targets, gradients = targets_and_gradients(1.0, False)
    scaled_targets, scaled_gradients = targets_and_gradients(scale, False)
    assert np.abs(scaled_targets - targets).max() > 0.05
    assert np.abs(scaled_gradients - gradients).max() > 0.05


# --- mis-scaled advantages ----------------------------------------------------------------------

PRIOR = Categorical(jnp.log(jnp.array([0.4, 0.3, 0.2, 0.1])))
ADVANTAGES = np.array([-0.4, 0.9, -1.3, 0.2])
SCALES = (10.0, 100.0, 1000.0)


def entropy(probs):
    probs = np.asarray(probs, np.float64)
    return -np.sum(np.where(probs > 0, probs * np.log(np.maximum(probs, 1e-300)), 0.0))


def clipped_target(scale, threshold=1.0):
    config = replace(EXACT, advantage_scale=scale, clip_threshold=threshold)
    return np.asarray(cmpo_target(one_state(PRIOR, PRIOR, ADVANTAGES), config).weights)


def test_clipping_leaves_the_target_almost_constant_over_large_scales():
    # Beyond ×10 every advantage here is clipped to ±1: π_CMPO ∝ π_prior · exp(sign adv).
    expected = np.asarray(PRIOR.probs()) * np.exp(np.sign(ADVANTAGES))
    for scale in SCALES:
        np.testing.assert_allclose(clipped_target(scale), expected / expected.sum(), rtol=1e-5)


def test_unclipped_targets_collapse_to_one_action():
    prior_entropy = entropy(PRIOR.probs())
    for scale in SCALES[1:]:
        collapsed = clipped_target(scale, threshold=None)
        assert entropy(collapsed) < 1e-6
        assert np.argmax(collapsed) == np.argmax(ADVANTAGES)
        assert entropy(clipped_target(scale)) > 0.7 * prior_entropy


def test_mpo_with_a_fixed_temperature_collapses_alike():
    for scale in SCALES[1:]:
        target = mpo_target(one_state(PRIOR, PRIOR, scale * ADVANTAGES, temperature=1.0), EXACT)
        assert entropy(target.weights) < 1e-6


def test_tiny_advantages_leave_the_prior():
    np.testing.assert_allclose(clipped_target(1e-3), PRIOR.probs(), atol=1e-3)


@jax.jit
def distance_from_prior(logits, advantages, threshold):
    prior = Categorical(logits)
    config = replace(EXACT, clip_threshold=threshold)
    target = cmpo_target(one_state(prior, prior, advantages), config)
    return 0.5 * jnp.sum(jnp.abs(target.weights - prior.probs()))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    threshold=st.floats(0.1, 3.0),
    log_scale=st.floats(-3.0, 3.0),
)
def test_no_advantage_moves_the_target_further_than_the_theorem_allows(seed, threshold, log_scale):
    logits, advantages = np.random.default_rng(seed).normal(size=(2, 5))
    distance = distance_from_prior(2 * logits, 10**log_scale * advantages, threshold)
    assert distance <= np.tanh(threshold / 2) + 1e-5


@pytest.mark.parametrize("threshold", [0.5, 1.0, 2.0])
def test_the_bound_is_attained(threshold):
    # p* = (1 − e^−c)/(e^c − e^−c) on the action with gain +c, from the proof in the appendix.
    p = (1 - np.exp(-threshold)) / (np.exp(threshold) - np.exp(-threshold))
    prior = Categorical(jnp.log(jnp.array([p, 1 - p])))
    config = replace(EXACT, clip_threshold=threshold)
    target = cmpo_target(one_state(prior, prior, [1e3, -1e3]), config)
    distance = 0.5 * np.abs(target.weights - prior.probs()).sum()
    np.testing.assert_allclose(distance, max_total_variation(threshold), rtol=1e-4)


# --- the weight of the regulariser --------------------------------------------------------------


def minimise(name, config, start, inputs, scale):
    """The policy that gradient descent on loss/scale reaches from ``start``."""

    def step(_, logits):
        loss = lambda x: UPDATES[name](inputs._replace(policy=Categorical(x)), config).loss
        return logits - 2.0 * jax.grad(loss)(logits) / scale

    return Categorical(jax.jit(lambda x: jax.lax.fori_loop(0, 400, step, x))(start))


def improvement(policy):
    """E_π adv − E_{π_prior} adv."""
    return float(np.sum((policy.probs() - PRIOR.probs()) * ADVANTAGES))


START = jnp.array([0.5, -0.5, 0.3, 0.0])
HUGE = 1e4


def test_a_huge_cmpo_weight_still_improves_the_policy():
    config = replace(EXACT, cmpo_weight=HUGE)
    inputs = one_state(PRIOR, PRIOR, ADVANTAGES)
    policy = minimise("cmpo", config, START, inputs, HUGE)
    goal = cmpo_target(inputs, config).weights
    np.testing.assert_allclose(policy.probs(), goal, atol=1e-4)
    assert improvement(policy) > 0.3


def test_muesli_with_a_huge_weight_still_improves_the_policy():
    config = replace(EXACT, cmpo_weight=HUGE)
    policy = minimise("muesli", config, START, one_state(PRIOR, PRIOR, ADVANTAGES), HUGE)
    assert improvement(policy) > 0.3


def test_other_regularisers_with_a_huge_weight_do_not():
    # −E adv + λ KL(π_b, π) and −E adv + λ KL(π, π_prior) end at the prior (the data's policy here).
    inputs = one_state(PRIOR, PRIOR, ADVANTAGES)
    trpo = replace(EXACT, trpo_weight=HUGE)
    direct = replace(EXACT, direct_mpo_weight=HUGE)
    for name, config in (("trpo_penalty", trpo), ("direct_mpo", direct)):
        policy = minimise(name, config, START, inputs, HUGE)
        np.testing.assert_allclose(policy.probs(), PRIOR.probs(), atol=1e-3, err_msg=name)
        assert abs(improvement(policy)) < 1e-3, name


def test_a_huge_entropy_bonus_forgets_what_the_prior_knew():
    # −E adv − λ H ends at the uniform policy; a prior that has learned something is better.
    prior = Categorical(jnp.asarray(ADVANTAGES, jnp.float32))
    inputs = one_state(prior, prior, ADVANTAGES)
    policy = minimise("pg", replace(EXACT, entropy_weight=HUGE), START, inputs, HUGE)
    np.testing.assert_allclose(policy.probs(), 0.25, atol=1e-3)
    assert np.sum(policy.probs() * ADVANTAGES) < np.sum(prior.probs() * ADVANTAGES) - 0.1


@jax.jit
def expected_advantages(logits, advantages):
    prior = Categorical(logits)
    target = cmpo_target(one_state(prior, prior, advantages), EXACT)
    return jnp.sum(target.weights * advantages), jnp.sum(prior.probs() * advantages)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_cmpo_target_is_never_worse_than_its_prior(seed):
    # E_{π_CMPO} adv − E_prior adv = Cov_prior(adv, exp(clip adv))/z ≥ 0: both rise together.
    logits, advantages = np.random.default_rng(seed).normal(size=(2, 5)) * 2
    after, before = expected_advantages(logits, advantages)
    assert after >= before - 1e-5
