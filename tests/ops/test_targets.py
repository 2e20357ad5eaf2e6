"""Prior mixing, π_CMPO, π_MPO, normalisers and distillation."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from muesli.distributions import Categorical, DiagonalNormal
from muesli.ops import targets
from muesli.types import Candidates, PolicyTarget

SEEDS = st.integers(0, 2**32 - 1)
few_examples = settings(max_examples=25, deadline=None)


def categorical(*probs):
    return Categorical(jnp.log(jnp.asarray(probs, jnp.float32)))


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


def listed(prior, advantages):
    """Candidates that are all actions of a categorical prior."""
    return Candidates(*targets.all_actions(prior), jnp.asarray(advantages, jnp.float32))


def sampled(actions, prior, advantages):
    """Candidates as if ``actions`` had been drawn from the prior."""
    actions = jnp.asarray(actions)
    count = actions.shape[0]
    return Candidates(
        actions=actions,
        weights=jnp.full((count,), 1.0 / count),
        log_prior=jax.vmap(prior.log_prob)(actions),
        advantages=jnp.asarray(advantages, jnp.float32),
    )


def exact_target(candidates, gains):
    """The target whose z is taken over the candidates."""
    log_z = targets.log_normaliser(gains, candidates.weights)
    return targets.reweighted_target(candidates, gains, log_z)


def leave_one_out_target(candidates, gains):
    return targets.reweighted_target(candidates, gains, targets.leave_one_out_normaliser(gains))


# --- mixing the prior ---------------------------------------------------------------------------


def test_mix_prior_by_hand():
    # 96.7% of (0.8, 0.1, 0.1), 0.3% of (1/3, 1/3, 1/3) and 3% of (0.2, 0.2, 0.6):
    #   0.967·0.8 + 0.001 + 0.03·0.2 = 0.7736 + 0.001 + 0.006 = 0.7806
    #   0.967·0.1 + 0.001 + 0.03·0.2 = 0.0967 + 0.001 + 0.006 = 0.1037
    #   0.967·0.1 + 0.001 + 0.03·0.6 = 0.0967 + 0.001 + 0.018 = 0.1157
    mixed = targets.mix_prior(categorical(0.8, 0.1, 0.1), categorical(0.2, 0.2, 0.6), 0.003, 0.03)
    np.testing.assert_allclose(mixed.probs(), [0.7806, 0.1037, 0.1157], rtol=1e-5)


def test_mix_prior_spreads_the_uniform_share_over_legal_actions_only():
    # Two legal actions, so the uniform policy is (1/2, 1/2, 0):
    #   0.967·0.8 + 0.003·0.5 + 0.03·0.5 = 0.7736 + 0.0015 + 0.015 = 0.7901
    legal = jnp.array([True, True, False])
    prior = Categorical.masked(jnp.log(jnp.array([0.8, 0.2, 0.3])), legal)
    behaviour = Categorical.masked(jnp.zeros(3), legal)
    mixed = targets.mix_prior(prior, behaviour, 0.003, 0.03)
    np.testing.assert_allclose(mixed.probs(), [0.7901, 0.2099, 0.0], rtol=1e-5)
    assert mixed.probs()[2] == 0.0


def test_mix_prior_takes_nothing_illegal_from_a_behaviour_policy_without_a_mask():
    prior = Categorical.masked(jnp.zeros(3), jnp.array([True, True, False]))
    mixed = targets.mix_prior(prior, categorical(0.1, 0.1, 0.8), 0.003, 0.03)
    np.testing.assert_allclose(mixed.probs(), [0.5, 0.5, 0.0], rtol=1e-5)


def test_mix_prior_with_zero_weights_is_the_prior():
    prior = categorical(0.7, 0.2, 0.1)
    mixed = targets.mix_prior(prior, categorical(0.1, 0.1, 0.8), 0.0, 0.0)
    np.testing.assert_allclose(mixed.probs(), prior.probs(), rtol=1e-6)


def test_mix_prior_keeps_every_legal_action_possible():
    # However deterministic the prior, each of 4 actions keeps 0.3%/4 of the uniform share.
    prior = Categorical(jnp.array([80.0, 0.0, -50.0, 0.0]))
    mixed = targets.mix_prior(prior, prior, 0.003, 0.03)
    np.testing.assert_allclose(mixed.probs()[1:], 0.003 / 4, rtol=1e-4)


def test_mix_prior_leaves_continuous_policies_alone():
    prior = DiagonalNormal(jnp.array([0.3]), jnp.array([-1.0]))
    behaviour = DiagonalNormal(jnp.array([2.0]), jnp.array([0.0]))
    assert targets.mix_prior(prior, behaviour, 0.003, 0.03) is prior


mix = jax.jit(lambda p, b: targets.mix_prior(Categorical(p), Categorical(b), 0.05, 0.2).probs())


@few_examples
@given(seed=SEEDS)
def test_mix_prior_matches_a_numpy_sum(seed):
    prior, behaviour = np.random.default_rng(seed).normal(size=(2, 5)) * 3
    expected = 0.75 * softmax(prior) + 0.05 / 5 + 0.2 * softmax(behaviour)
    np.testing.assert_allclose(mix(prior, behaviour), expected, rtol=1e-4)


# --- candidates ---------------------------------------------------------------------------------


def test_all_actions_lists_each_action_with_its_probability():
    actions, weights, log_prior = targets.all_actions(categorical(0.5, 0.3, 0.2))
    np.testing.assert_array_equal(actions, [0, 1, 2])
    np.testing.assert_allclose(weights, [0.5, 0.3, 0.2], rtol=1e-6)
    np.testing.assert_allclose(log_prior, np.log([0.5, 0.3, 0.2]), rtol=1e-6)


def test_sampled_actions_come_from_the_prior_with_equal_weights():
    prior = categorical(0.6, 0.3, 0.1)
    actions, weights, log_prior = targets.sampled_actions(prior, jax.random.key(0), 20_000)
    frequency = np.bincount(actions, minlength=3) / 20_000
    # The standard deviation of a frequency is at most √(0.25/20000) = 0.0035.
    np.testing.assert_allclose(frequency, [0.6, 0.3, 0.1], atol=0.015)
    np.testing.assert_allclose(weights, 1 / 20_000)
    np.testing.assert_allclose(log_prior, np.log([0.6, 0.3, 0.1])[actions], rtol=1e-5)


def test_sampled_actions_never_include_an_illegal_one():
    prior = Categorical.masked(jnp.zeros(4), jnp.array([True, False, True, False]))
    actions, _, _ = targets.sampled_actions(prior, jax.random.key(1), 1000)
    assert set(np.asarray(actions).tolist()) == {0, 2}


def test_sampled_actions_of_a_normal_carry_its_density():
    prior = DiagonalNormal(jnp.array([1.0, -2.0]), jnp.array([0.0, -1.0]))
    actions, weights, log_prior = targets.sampled_actions(prior, jax.random.key(2), 500)
    assert actions.shape == (500, 2) and weights.shape == (500,)
    oracle = distrax.MultivariateNormalDiag(prior.loc, jnp.exp(prior.log_scale))
    np.testing.assert_allclose(log_prior, oracle.log_prob(actions), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(actions.mean(0), [1.0, -2.0], atol=0.2)


def test_candidate_weights_turn_values_into_an_expectation_under_the_prior():
    # E_{π_prior} f with f = (10, 20, 30): 5 + 6 + 6 = 17, exactly or as a mean of samples.
    prior, f = categorical(0.5, 0.3, 0.2), jnp.array([10.0, 20.0, 30.0])
    actions, weights, _ = targets.all_actions(prior)
    assert jnp.sum(weights * f[actions]) == pytest.approx(17.0, rel=1e-5)
    actions, weights, _ = targets.sampled_actions(prior, jax.random.key(0), 20_000)
    assert jnp.sum(weights * f[actions]) == pytest.approx(17.0, abs=0.3)


# --- clipping and total variation ---------------------------------------------------------------


def test_clip_advantages_by_hand():
    advantages = jnp.array([-3.0, -0.5, 0.0, 0.7, 9.0])
    np.testing.assert_allclose(targets.clip_advantages(advantages, 1.0), [-1, -0.5, 0, 0.7, 1])
    np.testing.assert_allclose(targets.clip_advantages(advantages, 0.6), [-0.6, -0.5, 0, 0.6, 0.6])
    np.testing.assert_array_equal(targets.clip_advantages(advantages, None), advantages)


def test_clip_advantages_bounds_infinity_and_shows_nan():
    clipped = targets.clip_advantages(jnp.array([jnp.inf, -jnp.inf, jnp.nan]), 1.0)
    np.testing.assert_array_equal(clipped, [1.0, -1.0, np.nan])


def test_max_total_variation_at_the_papers_threshold():
    # tanh(1/2) = (e − 1)/(e + 1) = 1.718282/3.718282 = 0.462117
    assert targets.max_total_variation(1.0) == pytest.approx(0.462117, abs=1e-6)


def test_threshold_for_total_variation_inverts_it():
    # ε = 1/2: 2·artanh(1/2) = ln(1.5/0.5) = ln 3
    assert targets.threshold_for_total_variation(0.5) == pytest.approx(np.log(3), rel=1e-6)
    assert targets.max_total_variation(np.log(3)) == pytest.approx(0.5, rel=1e-6)


def test_total_variation_by_hand():
    # ½ (|0.5 − 0.2| + |0.3 − 0.3| + |0.2 − 0.5|) = 0.3
    distance = targets.total_variation(categorical(0.5, 0.3, 0.2), categorical(0.2, 0.3, 0.5))
    assert distance == pytest.approx(0.3, rel=1e-5)


# --- π_CMPO and π_MPO over all actions ----------------------------------------------------------


def test_cmpo_policy_by_hand():
    # π_prior = (1/2, 1/4, 1/4), c = ln 2, adv = (5, 0, −0.1 − ln 2): the clipped gains multiply the
    # prior by (2, 1, 1/2), giving (1, 1/4, 1/8), z = 11/8, so π_CMPO = (8, 2, 1)/11.
    advantages = jnp.array([5.0, 0.0, -0.1 - np.log(2)])
    policy = targets.cmpo_policy(categorical(0.5, 0.25, 0.25), advantages, np.log(2))
    np.testing.assert_allclose(policy.probs(), np.array([8, 2, 1]) / 11, rtol=1e-5)


def test_cmpo_policy_reweights_probabilities_and_not_logits():
    # A tempting mistake is softmax(logits · exp(adv)). It depends on the constant that logits are
    # free to carry; π_prior, and so π_CMPO, does not.
    logits, advantages = jnp.array([0.2, -0.3, 0.9]), jnp.array([0.5, -0.2, 0.1])
    policy = targets.cmpo_policy(Categorical(logits), advantages)
    shifted = targets.cmpo_policy(Categorical(logits + 7.0), advantages)
    mistake = softmax(np.asarray(logits) * np.exp(advantages))
    np.testing.assert_allclose(policy.probs(), shifted.probs(), rtol=1e-4)
    assert np.abs(policy.probs() - mistake).max() > 0.05


def test_unclipped_cmpo_policy_is_mpo_with_temperature_one():
    prior, advantages = categorical(0.5, 0.3, 0.2), jnp.array([3.0, -4.0, 0.5])
    np.testing.assert_allclose(
        targets.cmpo_policy(prior, advantages, None).probs(),
        targets.mpo_policy(prior, advantages, 1.0).probs(),
        rtol=1e-6,
    )


def test_mpo_policy_by_hand():
    # η = 2, q̂ = (2 ln 3, 0, −2 ln 2): the prior (1/3, 1/3, 1/3) is multiplied by (3, 1, 1/2), so
    # π_MPO = (6, 2, 1)/9.
    values = jnp.array([2 * np.log(3), 0.0, -2 * np.log(2)], jnp.float32)
    policy = targets.mpo_policy(categorical(1 / 3, 1 / 3, 1 / 3), values, 2.0)
    np.testing.assert_allclose(policy.probs(), np.array([6, 2, 1]) / 9, rtol=1e-5)


def test_mpo_policy_does_not_care_about_a_baseline():
    prior, values = categorical(0.5, 0.3, 0.2), jnp.array([3.0, -4.0, 0.5])
    np.testing.assert_allclose(
        targets.mpo_policy(prior, values, 0.7).probs(),
        targets.mpo_policy(prior, values - 5.0, 0.7).probs(),
        rtol=1e-4,
    )


@pytest.mark.parametrize("build", [targets.cmpo_policy, targets.mpo_policy])
def test_target_policies_keep_illegal_actions_impossible(build):
    prior = Categorical.masked(jnp.zeros(3), jnp.array([True, False, True]))
    policy = build(prior, jnp.array([0.0, 1e4, 0.0]), 1.0)
    np.testing.assert_allclose(policy.probs(), [0.5, 0.0, 0.5], rtol=1e-6)


cmpo = jax.jit(lambda logits, adv: targets.cmpo_policy(Categorical(logits), adv, 0.8).probs())
mpo = jax.jit(lambda logits, adv: targets.mpo_policy(Categorical(logits), adv, 0.4).probs())


@few_examples
@given(seed=SEEDS)
def test_target_policies_match_numpy_loops(seed):
    logits, advantages = np.random.default_rng(seed).normal(size=(2, 5)) * 2
    prior = softmax(logits)
    clipped, plain = [], []
    for a in range(5):
        clipped.append(prior[a] * np.exp(min(max(advantages[a], -0.8), 0.8)))
        plain.append(prior[a] * np.exp(advantages[a] / 0.4))
    np.testing.assert_allclose(cmpo(logits, advantages), clipped / np.sum(clipped), rtol=1e-4)
    np.testing.assert_allclose(mpo(logits, advantages), plain / np.sum(plain), rtol=1e-4, atol=1e-7)


def test_cmpo_policy_in_bfloat16_is_close_to_float32():
    logits, advantages = jnp.array([0.2, -1.3, 0.9]), jnp.array([0.5, -0.2, 3.0])
    exact = targets.cmpo_policy(Categorical(logits), advantages)
    short = targets.cmpo_policy(
        Categorical(logits.astype(jnp.bfloat16)), advantages.astype(jnp.bfloat16)
    )
    np.testing.assert_allclose(short.probs().astype(jnp.float32), exact.probs(), atol=0.01)


# --- normalisers --------------------------------------------------------------------------------


def test_log_normaliser_by_hand():
    # z = 0.5·1 + 0.3·2 + 0.2·4 = 1.9
    gains = jnp.log(jnp.array([1.0, 2.0, 4.0]))
    log_z = targets.log_normaliser(gains, jnp.array([0.5, 0.3, 0.2]))
    assert log_z == pytest.approx(np.log(1.9), rel=1e-5)


def test_log_normaliser_does_not_overflow():
    log_z = targets.log_normaliser(jnp.array([500.0, 0.0]), jnp.array([0.5, 0.5]))
    assert log_z == pytest.approx(500.0 - np.log(2), rel=1e-6)


def test_leave_one_out_normaliser_by_hand():
    # exp(gain) = (1, 2, 4), z_init = 1, N = 3:
    #   z̃ = ((1 + 2 + 4)/3, (1 + 1 + 4)/3, (1 + 1 + 2)/3) = (7/3, 2, 4/3)
    # and with z_init = 3: ((3 + 6)/3, (3 + 5)/3, (3 + 3)/3) = (3, 8/3, 2)
    gains = jnp.log(jnp.array([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(
        jnp.exp(targets.leave_one_out_normaliser(gains)), [7 / 3, 2, 4 / 3], rtol=1e-5
    )
    np.testing.assert_allclose(
        jnp.exp(targets.leave_one_out_normaliser(gains, 3.0)), [3, 8 / 3, 2], rtol=1e-5
    )


@pytest.mark.parametrize("z_init", [1.0, 2.5])
def test_leave_one_out_of_a_single_sample_is_the_initial_estimate(z_init):
    log_z = targets.leave_one_out_normaliser(jnp.array([0.9]), z_init)
    np.testing.assert_allclose(jnp.exp(log_z), [z_init], rtol=1e-6)


def test_leave_one_out_is_blind_to_its_own_sample():
    jacobian = jax.jacobian(targets.leave_one_out_normaliser)(jnp.array([0.3, -0.8, 1.0, 0.1]))
    np.testing.assert_array_equal(np.diag(jacobian), 0.0)
    assert np.all(jacobian[~np.eye(4, dtype=bool)] > 0.0)


def test_leave_one_out_does_not_cancel_beside_a_huge_gain():
    # total − own would leave nothing of the small samples: e^40 + 1 is e^40 in float32.
    log_z = targets.leave_one_out_normaliser(jnp.array([40.0, 0.0, 0.0]))
    np.testing.assert_allclose(log_z[0], np.log((1 + 1 + 1) / 3), atol=1e-6)


leave_one_out = jax.jit(targets.leave_one_out_normaliser)


@few_examples
@given(seed=SEEDS, count=st.sampled_from([1, 2, 16]))
def test_leave_one_out_matches_a_numpy_loop(seed, count):
    rng = np.random.default_rng(seed)
    gains, z_init = rng.uniform(-1, 1, count), rng.uniform(0.2, 3.0)
    expected = np.empty(count)
    for i in range(count):
        total = z_init
        for k in range(count):
            if k != i:
                total += np.exp(gains[k])
        expected[i] = total / count
    np.testing.assert_allclose(np.exp(leave_one_out(gains, z_init)), expected, rtol=1e-5)


def test_leave_one_out_in_bfloat16_stays_in_bfloat16():
    gains = jnp.array([0.3, -0.8, 1.0, 0.1])
    short = targets.leave_one_out_normaliser(gains.astype(jnp.bfloat16))
    assert short.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        short.astype(jnp.float32), targets.leave_one_out_normaliser(gains), atol=0.02
    )


# --- targets at candidates ----------------------------------------------------------------------


def test_exact_target_is_the_policy_itself():
    prior, advantages = categorical(0.5, 0.3, 0.2), jnp.array([3.0, -0.4, 0.5])
    gains = targets.clip_advantages(advantages, 1.0)
    target = exact_target(listed(prior, advantages), gains)
    policy = targets.cmpo_policy(prior, advantages)
    np.testing.assert_allclose(target.weights, policy.probs(), rtol=1e-5)
    np.testing.assert_allclose(target.log_probs, policy.log_probs(), rtol=1e-5)
    assert jnp.sum(target.weights) == pytest.approx(1.0, rel=1e-5)


def test_leave_one_out_target_by_hand():
    # Two samples of a prior of three actions, N = 2, exp(gain) = (2, 1/2):
    #   z̃ = ((1 + 1/2)/2, (1 + 2)/2) = (3/4, 3/2)
    #   weights = 1/N · exp(gain)/z̃ = (½·8/3, ½·1/3) = (4/3, 1/6)
    # They need not sum to one: each is the printed factor of its own log π.
    prior = categorical(0.5, 0.3, 0.2)
    gains = jnp.log(jnp.array([2.0, 0.5]))
    candidates = sampled([0, 2], prior, gains)
    target = targets.reweighted_target(candidates, gains, leave_one_out(gains))
    np.testing.assert_allclose(target.weights, [4 / 3, 1 / 6], rtol=1e-5)
    expected = np.log([0.5 * 8 / 3, 0.2 * 1 / 3])
    np.testing.assert_allclose(target.log_probs, expected, rtol=1e-5)
    np.testing.assert_array_equal(target.actions, [0, 2])


def test_leave_one_out_target_uses_z_init():
    # N = 1: the weight is exp(gain)/z_init = 2/4.
    gains = jnp.log(jnp.array([2.0]))
    candidates = sampled([1], categorical(0.5, 0.5), gains)
    target = targets.reweighted_target(candidates, gains, leave_one_out(gains, 4.0))
    np.testing.assert_allclose(target.weights, [0.5], rtol=1e-5)


def test_a_target_with_one_normaliser_for_all():
    # z = 0.5·2 + 0.5·1/2 = 5/4, so the one weight is 2/(5/4) = 8/5 whatever the other samples say.
    gains = jnp.log(jnp.array([2.0]))
    candidates = sampled([0], categorical(0.5, 0.5), gains)
    target = targets.reweighted_target(candidates, gains, jnp.log(1.25))
    np.testing.assert_allclose(target.weights, [1.6], rtol=1e-5)
    np.testing.assert_allclose(target.log_probs, [np.log(0.8)], rtol=1e-5)


def test_an_illegal_action_has_no_weight_however_large_its_unclipped_gain():
    prior = Categorical.masked(jnp.zeros(3), jnp.array([True, True, False]))
    gains = jnp.array([0.0, 0.0, 500.0])
    target = exact_target(listed(prior, gains), gains)
    np.testing.assert_allclose(target.weights, [0.5, 0.5, 0.0], rtol=1e-6)


@pytest.mark.parametrize("normalised", [exact_target, leave_one_out_target])
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_gain_that_is_not_finite_shows_in_the_loss(normalised, bad):
    prior = categorical(0.5, 0.3, 0.2)
    gains = jnp.array([0.1, bad, 0.2])
    target = normalised(listed(prior, gains), gains)
    assert not jnp.isfinite(targets.distillation(prior, target))


# --- distillation -------------------------------------------------------------------------------


def test_exact_distillation_by_hand():
    # KL((3/4, 1/4), (1/2, 1/2)) = ¾ ln(3/2) + ¼ ln(1/2) = 0.304099 − 0.173287 = 0.130812
    goal = categorical(0.75, 0.25)
    target = PolicyTarget(jnp.arange(2), goal.probs(), goal.log_probs())
    assert targets.distillation(categorical(0.5, 0.5), target) == pytest.approx(0.130812, abs=1e-6)


@jax.jit
def exact_distillation(logits, prior_logits, advantages):
    prior = Categorical(prior_logits)
    gains = targets.clip_advantages(advantages, 1.0)
    target = exact_target(listed(prior, advantages), gains)
    return targets.distillation(Categorical(logits), target)


@few_examples
@given(seed=SEEDS)
def test_exact_distillation_equals_the_divergence_of_the_policies(seed):
    logits, prior, advantages = np.random.default_rng(seed).normal(size=(3, 5)) * 2
    goal = targets.cmpo_policy(Categorical(jnp.asarray(prior)), jnp.asarray(advantages))
    loss = exact_distillation(logits, prior, advantages)
    np.testing.assert_allclose(
        loss, goal.kl(Categorical(jnp.asarray(logits))), rtol=1e-4, atol=1e-6
    )
    oracle = distrax.Categorical(goal.logits).kl_divergence(distrax.Categorical(logits))
    np.testing.assert_allclose(loss, oracle, rtol=1e-4, atol=1e-6)


def test_exact_distillation_gradient_is_policy_minus_target():
    prior, advantages = categorical(0.5, 0.3, 0.2), jnp.array([3.0, -0.4, 0.5])
    goal, logits = targets.cmpo_policy(prior, advantages), jnp.array([0.3, 0.0, -1.0])
    gradient = jax.grad(exact_distillation)(logits, prior.logits, advantages)
    expected = Categorical(logits).probs() - goal.probs()
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_distillation_is_zero_with_zero_gradient_at_its_target():
    goal = categorical(0.75, 0.25)
    target = PolicyTarget(jnp.arange(2), goal.probs(), goal.log_probs())
    loss, gradient = jax.value_and_grad(
        lambda logits: targets.distillation(Categorical(logits), target)
    )(goal.logits + 3.0)
    assert loss == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)


def test_illegal_actions_add_nothing_to_distillation_or_its_gradient():
    legal = jnp.array([True, False, True])
    prior = Categorical.masked(jnp.log(jnp.array([0.5, 0.3, 0.5])), legal)
    gains = jnp.array([1.0, 1.0, -1.0])
    target = exact_target(listed(prior, gains), gains)
    loss, gradient = jax.value_and_grad(
        lambda logits: targets.distillation(Categorical.masked(logits, legal), target)
    )(jnp.array([0.2, 5.0, -0.1]))
    # Without the illegal action: π = softmax(0.2, −0.1), target = softmax(1, −1).
    goal, policy = softmax(np.array([1.0, -1.0])), softmax(np.array([0.2, -0.1]))
    np.testing.assert_allclose(loss, np.sum(goal * np.log(goal / policy)), rtol=1e-5)
    difference = policy - goal
    np.testing.assert_allclose(gradient, [difference[0], 0.0, difference[1]], rtol=1e-5)


@jax.jit
def sampled_loss_and_gradient(policy, prior, actions, gains):
    def loss(policy):
        candidates = sampled(actions, prior, gains)
        target = targets.reweighted_target(candidates, gains, leave_one_out(gains))
        return targets.distillation(policy, target)

    return jax.value_and_grad(loss)(policy)


def printed_weights(gains):
    """exp(gain_i) / z̃^(i) of each sample, as printed."""
    exps, count = np.exp(gains), len(gains)
    return np.array([exps[i] / ((1.0 + exps.sum() - exps[i]) / count) for i in range(count)])


@few_examples
@given(seed=SEEDS)
def test_sampled_distillation_gradient_is_the_printed_one_for_discrete_actions(seed):
    # ∇ of −1/N Σ_i exp(gain_i)/z̃_i log π(a_i) in the logits: −1/N Σ_i w_i (onehot(a_i) − π).
    rng = np.random.default_rng(seed)
    logits, prior = rng.normal(size=(2, 5))
    actions, gains = rng.integers(0, 5, 7), rng.uniform(-1, 1, 7)
    _, gradient = sampled_loss_and_gradient(Categorical(logits), Categorical(prior), actions, gains)
    weights, expected = printed_weights(gains), np.zeros(5)
    for weight, action in zip(weights, actions, strict=True):
        expected -= weight / 7 * (np.eye(5)[action] - softmax(logits))
    np.testing.assert_allclose(gradient.logits, expected, rtol=1e-4, atol=1e-6)


@few_examples
@given(seed=SEEDS)
def test_sampled_distillation_gradient_is_the_printed_one_for_continuous_actions(seed):
    # ∂log π/∂μ = (a − μ)/s² and ∂log π/∂log s = ((a − μ)/s)² − 1 in each dimension.
    rng = np.random.default_rng(seed)
    loc, log_scale, prior_loc, prior_log_scale = rng.normal(size=(4, 2)) * 0.5
    actions, gains = rng.normal(size=(7, 2)), rng.uniform(-1, 1, 7)
    policy = DiagonalNormal(loc, log_scale)
    prior = DiagonalNormal(prior_loc, prior_log_scale)
    _, gradient = sampled_loss_and_gradient(policy, prior, actions, gains)
    expected_loc, expected_log_scale = np.zeros(2), np.zeros(2)
    for weight, action in zip(printed_weights(gains), actions, strict=True):
        standard = (action - loc) / np.exp(log_scale)
        expected_loc -= weight / 7 * standard / np.exp(log_scale)
        expected_log_scale -= weight / 7 * (standard**2 - 1)
    np.testing.assert_allclose(gradient.loc, expected_loc, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient.log_scale, expected_log_scale, rtol=1e-4, atol=1e-5)


def test_sampled_distillation_gradient_matches_rlax():
    logits, prior = jnp.array([0.2, -0.5, 1.0]), categorical(0.5, 0.3, 0.2)
    actions, gains = jnp.array([0, 2, 2, 1]), jnp.array([0.5, -1.0, -1.0, 0.2])
    _, gradient = sampled_loss_and_gradient(Categorical(logits), prior, actions, gains)
    # rlax averages −w·log π over the samples, so its weights are exp(gain)/z̃ without the 1/N.
    rlax_target = rlax.PolicyTarget(actions=actions, weights=jnp.asarray(printed_weights(gains)))
    expected = jax.grad(
        lambda x: rlax.sampled_policy_distillation_loss(distrax.Categorical(x), rlax_target)
    )(logits)
    np.testing.assert_allclose(gradient.logits, expected, rtol=1e-5, atol=1e-6)


def test_targets_and_distillation_of_many_states_under_vmap_match_one_at_a_time():
    rng = np.random.default_rng(0)
    logits, prior, advantages = jnp.asarray(rng.normal(size=(3, 6, 4)), jnp.float32)
    together = jax.jit(jax.vmap(exact_distillation))(logits, prior, advantages)
    alone = [exact_distillation(*state) for state in zip(logits, prior, advantages, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)


# --- wrong arguments ----------------------------------------------------------------------------


def test_wrong_shapes_are_named_at_trace_time():
    prior = categorical(0.5, 0.3, 0.2)
    cases = [
        ("advantages", lambda: targets.cmpo_policy(prior, jnp.zeros(1))),
        ("advantages", lambda: targets.mpo_policy(prior, jnp.zeros((2, 3)), 1.0)),
        ("log_gains", lambda: targets.log_normaliser(jnp.zeros(2), jnp.ones(3) / 3)),
        ("log_gains", lambda: targets.leave_one_out_normaliser(jnp.zeros((3, 3)))),
        ("weights", lambda: targets.log_normaliser(jnp.zeros(3), jnp.float32(1))),
        (
            "target.actions",
            lambda: targets.distillation(
                prior, PolicyTarget(jnp.int32(1), jnp.ones(1), jnp.zeros(1))
            ),
        ),
        (
            "log_gains",
            lambda: targets.reweighted_target(listed(prior, jnp.zeros(3)), jnp.zeros(1), 0.0),
        ),
        (
            "weights",
            lambda: targets.distillation(
                prior, PolicyTarget(jnp.arange(3), jnp.ones((3, 1)), jnp.zeros(3))
            ),
        ),
    ]
    for argument, call in cases:
        with pytest.raises(ValueError, match=argument):
            jax.eval_shape(call)


def test_integer_gains_are_refused_by_name():
    with pytest.raises(TypeError, match="log_gains"):
        jax.eval_shape(targets.leave_one_out_normaliser, jnp.arange(3))
    with pytest.raises(TypeError, match="advantages"):
        jax.eval_shape(targets.cmpo_policy, categorical(0.5, 0.5), jnp.arange(2))


def test_numpys_doubles_are_taken_as_they_come():
    gains = np.array([0.5, -0.5])
    exact = targets.leave_one_out_normaliser(jnp.asarray(gains))
    np.testing.assert_array_equal(targets.leave_one_out_normaliser(gains), exact)
