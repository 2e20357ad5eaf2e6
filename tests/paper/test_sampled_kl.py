"""Section 4.2: the regulariser from a few sampled actions, and its leave-one-out normaliser.

For actions a_1..a_N drawn independently from π_prior, with e_i = exp(clip(adv(a_i), −c, c)), the
paper's sampled gradient is

    g = −1/N Σ_i e_i / z̃_i · ∇log π(a_i),      z̃_i = (z_init + Σ_{k≠i} e_k) / N.

z̃_i is made of the other samples only, so it is independent of a_i, and the expectation factors:

    E g = −E[1/z̃] · Σ_a π_prior(a) e(a) ∇log π(a)
        = z E[1/z̃] · (−Σ_a π_CMPO(a) ∇log π(a))
        = z E[1/z̃] · ∇KL(π_CMPO, π).

So on average the sampled gradient has exactly the direction of the exact one, for any N, and its
scale z E[1/z̃] goes to one as N grows. The expectations below are taken over all A^N tuples.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli.config import UpdateConfig
from muesli.distributions import Categorical, DiagonalNormal
from muesli.ops.targets import (
    all_actions,
    clip_advantages,
    leave_one_out_normaliser,
    sampled_actions,
)
from muesli.policy_updates import cmpo
from muesli.types import Candidates, PolicyInputs

POLICY = Categorical(jnp.array([0.3, -0.2, 0.8]))
PRIOR = Categorical(jnp.log(jnp.array([0.5, 0.2, 0.3])))
ADVANTAGES = jnp.array([-0.6, 2.5, 0.4])  # the second is clipped to 1
GAINS = np.clip(ADVANTAGES, -1, 1)
Z = float(np.sum(PRIOR.probs() * np.exp(GAINS)))


def gradient(policy, prior, candidates, config):
    """∇ of KL(π_CMPO, π) in the policy's parameters, from these candidates."""
    zero = jnp.zeros(())
    oracle = Candidates(*all_actions(PRIOR), ADVANTAGES)
    inputs = PolicyInputs(policy, prior, prior, None, zero, zero, zero, candidates, zero, oracle)
    return jax.grad(lambda p: cmpo(inputs._replace(policy=p), config).loss)(policy)


def exact_gradient(policy=POLICY):
    candidates = Candidates(*all_actions(PRIOR), ADVANTAGES)
    return gradient(policy, PRIOR, candidates, UpdateConfig(kl_samples=None)).logits


def candidates_of(actions):
    count = actions.shape[0]
    return Candidates(
        actions=actions,
        weights=jnp.full((count,), 1.0 / count),
        log_prior=jax.vmap(PRIOR.log_prob)(actions),
        advantages=ADVANTAGES[actions],
    )


def all_tuples(count):
    """Every N-tuple of actions and its probability under the prior."""
    tuples = np.array(list(itertools.product(range(3), repeat=count)))
    return tuples, np.prod(np.asarray(PRIOR.probs())[tuples], axis=1)


def expected_gradient(count, **settings):
    """E of the sampled gradient over all tuples of ``count`` actions."""
    tuples, probability = all_tuples(count)
    config = UpdateConfig(kl_samples=count, **settings)
    one = lambda actions: gradient(POLICY, PRIOR, candidates_of(actions), config).logits
    return probability @ np.asarray(jax.jit(jax.vmap(one))(tuples))


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_the_exact_gradient_is_policy_minus_target():
    target = np.asarray(PRIOR.probs()) * np.exp(GAINS) / Z
    np.testing.assert_allclose(exact_gradient(), POLICY.probs() - target, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_expected_sampled_gradient_is_the_exact_one_rescaled(count):
    tuples, probability = all_tuples(count)
    # z̃ of the first sample, for each tuple: blind to the first entry.
    others = np.exp(GAINS)[tuples[:, 1:]].sum(axis=1)
    scale = Z * np.sum(probability / ((1.0 + others) / count))
    np.testing.assert_allclose(
        expected_gradient(count), scale * np.asarray(exact_gradient()), rtol=1e-4, atol=1e-6
    )


def test_one_sample_scales_the_exact_gradient_by_z():
    # N = 1: z̃ = z_init = 1 always, so the scale z E[1/z̃] is z itself.
    ratio = expected_gradient(1) / np.asarray(exact_gradient())
    np.testing.assert_allclose(ratio, Z, rtol=1e-4)
    assert abs(Z - 1.0) > 0.05  # otherwise this would not tell the two apart


def test_the_scale_approaches_one_as_samples_are_added():
    exact = np.asarray(exact_gradient())
    errors = [
        abs(np.linalg.norm(expected_gradient(count)) / np.linalg.norm(exact) - 1.0)
        for count in (1, 6)
    ]
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_oracle_normaliser_is_unbiased(count):
    # With the true z, E g = (z/z) ∇KL: direction and scale.
    expected = expected_gradient(count, sampled_normaliser="oracle")
    np.testing.assert_allclose(expected, exact_gradient(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_self_normalised_weights_would_point_elsewhere(count):
    # Weights e_i / Σ_k e_k contain their own sample, and the expectation no longer factors. With
    # one sample the weight is always 1: the gradient of KL(π_prior, π), with no improvement at all.
    tuples, probability = all_tuples(count)
    pi, exps = np.asarray(POLICY.probs()), np.exp(GAINS)[tuples]
    weights = exps / exps.sum(axis=1, keepdims=True)
    scores = np.eye(3)[tuples] - pi
    mistake = -np.einsum("t,tn,tna->a", probability, weights, scores)
    exact = np.asarray(exact_gradient())
    assert cosine(mistake, exact) < 0.99
    assert cosine(expected_gradient(count), exact) > 1 - 1e-6
    if count == 1:
        np.testing.assert_allclose(mistake, pi - np.asarray(PRIOR.probs()), atol=1e-6)


def errors_by_sample_size(one, exact, counts, repeats=64):
    """Root mean square error of ``one(key, count)`` against ``exact``, for each count."""
    keys = jax.random.split(jax.random.key(0), repeats)
    errors = []
    for count in counts:
        estimates = jax.jit(jax.vmap(lambda key, n=count: one(key, n)))(keys)
        errors.append(float(np.sqrt(np.mean(np.sum((estimates - exact) ** 2, axis=-1)))))
    return errors


def test_the_sampled_gradient_converges_to_the_exact_one():
    def one(key, count):
        actions, _, _ = sampled_actions(PRIOR, key, count)
        config = UpdateConfig(kl_samples=count)
        return gradient(POLICY, PRIOR, candidates_of(actions), config).logits

    small, large = errors_by_sample_size(one, np.asarray(exact_gradient()), (16, 256))
    # The error falls as 1/√N: four times from 16 to 256.
    assert 2.7 < small / large < 6
    assert large < 0.06


@pytest.mark.parametrize("squash", [False, True])
def test_the_sampled_gradient_of_a_normal_policy_converges_to_the_integral(squash):
    # One-dimensional: ∇KL(π_CMPO, π) = −∫ π_CMPO(a) ∇log π(a) da. In terms of the raw action u
    # (a = u, or tanh u) the change of variable's slope cancels, and
    #   ∂/∂μ log π = (u − μ)/s²,    ∂/∂log s log π = ((u − μ)/s)² − 1.
    as_action = np.tanh if squash else (lambda u: u)
    advantage = lambda a: 1.5 * jnp.sin(2.0 * a) + a
    loc, scale, prior_loc, prior_scale = 0.3, 0.7, -0.2, 0.9
    raw = np.linspace(prior_loc - 9 * prior_scale, prior_loc + 9 * prior_scale, 20_001)
    density = np.exp(-0.5 * ((raw - prior_loc) / prior_scale) ** 2)
    density *= np.exp(np.clip(np.asarray(advantage(as_action(raw))), -1, 1))
    density /= density.sum()
    exact = -np.array(
        [
            np.sum(density * (raw - loc) / scale**2),
            np.sum(density * (((raw - loc) / scale) ** 2 - 1)),
        ]
    )

    policy = DiagonalNormal(jnp.array([loc]), jnp.log(jnp.array([scale])), squash)
    prior = DiagonalNormal(jnp.array([prior_loc]), jnp.log(jnp.array([prior_scale])), squash)

    def one(key, count):
        actions, weights, log_prior = sampled_actions(prior, key, count)
        candidates = Candidates(actions, weights, log_prior, advantage(actions[:, 0]))
        slope = gradient(policy, prior, candidates, UpdateConfig(kl_samples=count))
        return jnp.concatenate([slope.loc, slope.log_scale])

    small, large = errors_by_sample_size(one, exact, (16, 256))
    assert 2.7 < small / large < 6
    assert large < 0.4


def test_every_leave_one_out_normaliser_approaches_the_exact_one():
    actions, _, _ = sampled_actions(PRIOR, jax.random.key(1), 1000)
    z = jnp.exp(leave_one_out_normaliser(clip_advantages(ADVANTAGES, 1.0)[actions]))
    # The mean of 1000 samples whose standard deviation is about 0.8 is off by about 0.025.
    np.testing.assert_allclose(z, Z, atol=0.1)
