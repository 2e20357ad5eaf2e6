"""Section 4.2 and the appendix on stochastic estimation: the policy-gradient term and its bias.

The gradient wanted is that of −E_{A∼π} (q(s, A) − v)/σ. The estimator sees one action of π_b and a
noisy return G with E[G | a] = q(a), weighted by ρ̄ = min(1, π/π_b). All expectations below are sums
over every action and over the two outcomes q(a) ± noise of the return.
"""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli.config import UpdateConfig
from muesli.distributions import Categorical, DiagonalNormal
from muesli.ops.returns import clipped_importance_ratio
from muesli.ops.targets import all_actions
from muesli.policy_updates import expected_advantage, pg, policy_gradient
from muesli.types import Candidates, PolicyInputs

PI = np.array([0.2, 0.3, 0.5])
BEHAVIOUR = np.array([0.5, 0.3, 0.2])  # ρ = (0.4, 1, 2.5): only the last action is clipped
PRIOR = np.array([0.4, 0.4, 0.2])
Q = np.array([1.0, -0.5, 2.0])
VALUE, SIGMA, NOISE = 0.7, 2.0, 1.3
SCORES = np.eye(3) - PI  # row a: ∇log π(a) in the logits
TRUE_GRADIENT = -(PI * (Q - VALUE) / SIGMA) @ SCORES


def categorical(probs):
    return Categorical(jnp.log(jnp.asarray(probs, jnp.float32)))


@jax.jit
def gradients_of_all_outcomes(pi, behaviour, q, model_q):
    """Gradients of the loss, [3 actions, 2 outcomes, plain or β-LOO, 3 logits]."""
    policy, behaviour = categorical(pi), categorical(behaviour)
    prior = categorical(PRIOR)
    model_advantages = (model_q - VALUE) / SIGMA

    def one(action, noise, beta_loo):
        rho = clipped_importance_ratio(policy.log_prob(action), behaviour.log_prob(action))
        inputs = PolicyInputs(
            policy=policy,
            prior=prior,
            behaviour=behaviour,
            action=action,
            advantage=(q[action] + noise - VALUE) / SIGMA,
            q_advantage=model_advantages[action],
            rho=rho,
            candidates=Candidates(*all_actions(prior), model_advantages),
            temperature=jnp.ones(()),
        )
        loss = lambda p: policy_gradient(inputs._replace(policy=p), beta_loo)
        return jax.grad(loss)(policy).logits

    action, noise = jnp.repeat(jnp.arange(3), 2), jnp.tile(jnp.array([-NOISE, NOISE]), 3)
    plain, corrected = (
        jax.vmap(lambda a, n, beta_loo=b: one(a, n, beta_loo))(action, noise) for b in (False, True)
    )
    return jnp.stack([plain, corrected], axis=1).reshape(3, 2, 2, 3)


def expected(beta_loo, pi=PI, behaviour=BEHAVIOUR, q=Q, model_q=Q):
    """The estimator's expectation over the action taken and the return's noise."""
    gradients = np.asarray(gradients_of_all_outcomes(pi, behaviour, q, model_q))
    return behaviour @ gradients[:, :, int(beta_loo)].mean(axis=1)


def test_on_policy_the_estimator_is_unbiased():
    np.testing.assert_allclose(expected(False, behaviour=PI), TRUE_GRADIENT, atol=1e-6)


def test_off_policy_it_is_unbiased_where_only_harmless_ratios_are_clipped():
    # ρ > 1 only at the last action. If its advantage is zero, min(1, ρ) and ρ weight it alike.
    q = np.array([1.0, -0.5, VALUE])
    true = -(PI * (q - VALUE) / SIGMA) @ SCORES
    np.testing.assert_allclose(expected(False, q=q), true, atol=1e-6)


def test_clipping_the_ratio_biases_it():
    # The estimator weights action a by π_b min(1, π/π_b) = min(π_b, π) instead of π.
    clipped = -(np.minimum(PI, BEHAVIOUR) * (Q - VALUE) / SIGMA) @ SCORES
    np.testing.assert_allclose(expected(False), clipped, atol=1e-6)
    assert np.linalg.norm(clipped - TRUE_GRADIENT) > 0.1


def test_beta_loo_with_an_exact_model_removes_the_bias():
    # E[G − q̂(a) | a] = 0, so clipping has nothing to bias, and Σ_b π(b)(q̂(b) − v̂) is exact.
    np.testing.assert_allclose(expected(True), TRUE_GRADIENT, atol=1e-6)


def test_beta_loo_on_policy_is_unbiased_whatever_the_model_says():
    wrong = np.array([-3.0, 2.0, 0.4])
    np.testing.assert_allclose(
        expected(True, behaviour=PI, model_q=wrong), TRUE_GRADIENT, atol=1e-6
    )


def test_the_bias_left_by_an_inexact_model_is_its_error_on_clipped_actions():
    # E = −Σ_a min(π_b, π) (q − q̂)∇log π − Σ_a π (q̂ − v̂)∇log π, so the bias is
    #     Σ_a (π − min(π_b, π)) (q − q̂)(a)/σ ∇log π(a): only actions with ρ > 1 add to it.
    model = Q + np.array([0.3, -0.4, 0.2])
    bias = ((PI - np.minimum(PI, BEHAVIOUR)) * (Q - model) / SIGMA) @ SCORES
    np.testing.assert_allclose(expected(True, model_q=model), TRUE_GRADIENT + bias, atol=1e-6)
    plain_bias = expected(False) - TRUE_GRADIENT
    assert np.linalg.norm(bias) < 0.5 * np.linalg.norm(plain_bias)


def test_beta_loo_with_an_exact_model_leaves_only_the_noise_of_the_return():
    # On-policy its gradient is a constant ∓ noise/σ ∇log π(a): the variance is that of the noise,
    # (noise/σ)² Σ_a π(a) |∇log π(a)|², and nothing of the variance of q over actions.
    gradients = np.asarray(gradients_of_all_outcomes(PI, PI, Q, Q))

    def variance(index):
        mean = PI @ gradients[:, :, index].mean(axis=1)
        return PI @ ((gradients[:, :, index] - mean) ** 2).mean(axis=1).sum(axis=-1)

    noise_alone = (NOISE / SIGMA) ** 2 * (PI @ np.sum(SCORES**2, axis=1))
    np.testing.assert_allclose(variance(1), noise_alone, rtol=1e-4)
    assert variance(0) > 1.1 * noise_alone


# --- the model's expectation from a few candidates ----------------------------------------------


def candidate_gradients(count):
    """Gradient of E_π (q̂ − v̂)/σ estimated from every tuple of candidates, and its probability."""
    tuples = np.array(list(itertools.product(range(3), repeat=count)))
    policy, prior = categorical(PI), categorical(PRIOR)
    advantages = jnp.asarray((Q - VALUE) / SIGMA)
    zero = jnp.zeros(())

    def one(actions):
        candidates = Candidates(
            actions, jnp.full((count,), 1.0 / count), prior.log_prob(actions), advantages[actions]
        )
        inputs = PolicyInputs(policy, prior, prior, zero, zero, zero, zero, candidates, zero)
        return jax.grad(lambda p: expected_advantage(inputs._replace(policy=p)))(policy).logits

    return np.asarray(jax.jit(jax.vmap(one))(tuples)), PRIOR[tuples].prod(axis=1)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_sampled_candidates_give_the_models_gradient_without_bias(count):
    gradients, probability = candidate_gradients(count)
    np.testing.assert_allclose(probability @ gradients, -TRUE_GRADIENT, atol=1e-6)


def test_more_candidates_divide_the_variance():
    # Independent samples: Var_N = Var_1 / N, so three candidates have a third of the variance.
    variances = []
    for count in (1, 3):
        gradients, probability = candidate_gradients(count)
        variances.append(probability @ ((gradients + TRUE_GRADIENT) ** 2).sum(axis=-1))
    np.testing.assert_allclose(variances[1], variances[0] / 3, rtol=1e-4)


# --- continuous actions -------------------------------------------------------------------------


def test_the_estimator_is_unbiased_for_a_normal_policy():
    # adv(a) = 2a − a² under N(μ, s²): E adv = 2μ − μ² − s², so the true gradient of −E adv is
    # (−2 + 2μ, 2s²) in (μ, log s). The expectation over actions is Gauss–Hermite quadrature, exact
    # for polynomials of this degree.
    loc, scale = 0.4, 0.6
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    actions = jnp.asarray(loc + scale * nodes, jnp.float32)[:, None]
    policy = DiagonalNormal(jnp.array([loc]), jnp.log(jnp.array([scale])))
    config = replace(UpdateConfig(), beta_loo=False)
    zero, one = jnp.zeros(()), jnp.ones(())

    def gradient(action):
        advantage = 2 * action[0] - action[0] ** 2
        candidates = Candidates(action[None], jnp.ones(1), jnp.zeros(1), jnp.zeros(1))
        inputs = PolicyInputs(policy, policy, policy, action, advantage, zero, one, candidates, one)
        return jax.grad(lambda p: pg(inputs._replace(policy=p), config).loss)(policy)

    gradients = jax.jit(jax.vmap(gradient))(actions)
    weights = weights / weights.sum()
    np.testing.assert_allclose(weights @ gradients.loc[:, 0], -2 + 2 * loc, rtol=1e-4)
    np.testing.assert_allclose(weights @ gradients.log_scale[:, 0], 2 * scale**2, rtol=1e-4)
