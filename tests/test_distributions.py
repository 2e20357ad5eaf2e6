"""Policies: hand arithmetic, plain NumPy, distrax, masks, extreme logits, numerical integration."""

from functools import partial

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from muesli.distributions import LOG_ZERO, Categorical, DiagonalNormal, mixture, uniform_like

seeds = st.integers(0, 2**31 - 1)
few = settings(max_examples=25, deadline=None)

EXTREMES = [
    [1e4, 0.0, -1e4, 3.0],
    [-1e4, -1e4, -1e4, -1e4],
    [1e30, 0.0, -1e30, 1e30],
    [-1e30, -1e30, -3e30, -1e30],
    [3e38, 0.0, -3e38, 1.0],
]


def normal(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def softmax(logits):
    weights = np.exp(np.asarray(logits, np.float64))
    return weights / weights.sum(-1, keepdims=True)


def close(actual, expected, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=rtol, atol=atol)


# --- Categorical: arithmetic ----------------------------------------------------------------------


def test_categorical_by_hand():
    # exp(logits) = 1, 2, 5, so π = 1/8, 2/8, 5/8 whatever constant is added to the logits.
    policy = Categorical(jnp.log(jnp.array([1.0, 2.0, 5.0])) + 7.0)
    close(policy.probs(), [0.125, 0.25, 0.625])
    close(policy.log_prob(jnp.array(2)), np.log(0.625))
    # H = 1/8·log 8 + 1/4·log 4 + 5/8·log(8/5) = 3/8 log 2 + 1/2 log 2 + 5/8·(3 log 2 − log 5)
    close(policy.entropy(), (3 / 8 + 1 / 2 + 15 / 8) * np.log(2) - 5 / 8 * np.log(5))
    # KL to the uniform policy is log 3 − H.
    close(policy.kl(Categorical(jnp.zeros(3))), np.log(3) - float(policy.entropy()))
    assert policy.mode() == 2
    assert policy.num_actions == 3


@jax.jit
def categorical_answers(logits, other, action):
    p, q = Categorical(logits), Categorical(other)
    return p.probs(), p.log_prob(action), p.entropy(), p.kl(q), p.mode()


def categorical_loop(logits, other, action):
    """One row at a time, in float64, from the definitions."""
    rows = []
    for x, y, a in zip(logits, other, action, strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        p, q = np.exp(x) / np.exp(x).sum(), np.exp(y) / np.exp(y).sum()
        entropy = -sum(pi * np.log(pi) for pi in p)
        kl = sum(pi * np.log(pi / qi) for pi, qi in zip(p, q, strict=True))
        rows.append((p, np.log(p[a]), entropy, kl, np.argmax(p)))
    return [np.stack(column) for column in zip(*rows, strict=True)]


@few
@given(seeds, st.floats(0.01, 8.0))
def test_categorical_matches_a_plain_loop_and_distrax(seed, scale):
    rng = np.random.default_rng(seed)
    logits, other = (scale * rng.normal(size=(2, 5, 7))).astype(np.float32)
    action = rng.integers(0, 7, size=5)
    answers = categorical_answers(logits, other, action)
    for actual, expected in zip(answers, categorical_loop(logits, other, action), strict=True):
        close(actual, expected, rtol=2e-5, atol=2e-6)
    oracle, oracle_other = distrax.Categorical(logits), distrax.Categorical(other)
    close(answers[1], oracle.log_prob(action), atol=1e-5)
    close(answers[2], oracle.entropy(), atol=1e-5)
    close(answers[3], oracle.kl_divergence(oracle_other), rtol=1e-4, atol=1e-5)


def test_kl_is_not_symmetric_and_weighs_by_the_first_policy():
    # p = (1/2, 1/2), q = (1/4, 3/4):
    # KL(p, q) = ½ log 2 + ½ log(2/3) = ½ log(4/3);  KL(q, p) = ¼ log ½ + ¾ log(3/2).
    p = Categorical(jnp.zeros(2))
    q = Categorical(jnp.log(jnp.array([1.0, 3.0])))
    close(p.kl(q), 0.5 * np.log(4 / 3))
    close(q.kl(p), 0.25 * np.log(0.5) + 0.75 * np.log(1.5))


def test_gradient_of_log_prob_is_one_hot_minus_probs():
    logits = jnp.array([0.3, -1.0, 2.0])
    gradient = jax.grad(lambda x: Categorical(x).log_prob(jnp.array(1)))(logits)
    close(gradient, np.array([0.0, 1.0, 0.0]) - softmax(logits))


def test_log_prob_broadcasts_actions_against_the_policy_in_both_directions():
    logits = normal(0, (2, 3, 4))
    table = np.log(softmax(logits))
    many = np.random.default_rng(0).integers(0, 4, size=(5, 2, 3))  # many actions of each policy
    expected = [
        [[table[i, j, many[n, i, j]] for j in range(3)] for i in range(2)] for n in range(5)
    ]
    close(Categorical(logits).log_prob(many), expected)
    close(Categorical(logits).log_prob(jnp.array(2)), table[..., 2])  # one action of many policies
    one = Categorical(logits[0, 0])
    close(one.log_prob(jnp.arange(4)), table[0, 0])  # many actions of one policy


def test_categorical_is_a_pytree_that_vmaps_like_a_loop():
    logits = normal(1, (6, 4))
    actions = jnp.array([0, 1, 2, 3, 0, 1])
    together = jax.vmap(lambda policy, action: policy.log_prob(action))(
        Categorical(logits), actions
    )
    alone = [Categorical(x).log_prob(a) for x, a in zip(logits, actions, strict=True)]
    close(together, alone)


def test_bfloat16_logits_are_normalised_in_float32():
    logits = jnp.array([1.0, 2.0, 3.0], jnp.bfloat16)  # exact in bfloat16, so nothing else rounds
    exact = distrax.Categorical(jnp.array([1.0, 2.0, 3.0]))
    policy = Categorical(logits)
    assert policy.log_probs().dtype == policy.entropy().dtype == jnp.float32
    close(policy.log_probs(), np.log(exact.probs), atol=1e-6)
    close(policy.entropy(), exact.entropy(), atol=1e-6)
    masked = Categorical.masked(logits, jnp.array([True, True, False]))
    close(masked.log_prob(jnp.array(1)), -np.log1p(np.exp(-1)), atol=1e-6)


def test_categorical_float_action_is_refused_by_name():
    with pytest.raises(TypeError, match="action must be an integer"):
        jax.jit(lambda a: Categorical(jnp.zeros(3)).log_prob(a))(jnp.array(1.0))
    with pytest.raises(TypeError, match="action must be an integer"):
        Categorical(jnp.zeros(3)).log_prob(1.0)


def test_an_action_that_does_not_exist_has_log_prob_nan():
    assert np.isnan(Categorical(jnp.zeros(3)).log_prob(jnp.array(3)))


def test_nan_logits_stay_visible():
    policy = Categorical(jnp.array([0.0, jnp.nan, 1.0]))
    for answer in (policy.log_prob(jnp.array(0)), policy.entropy(), policy.probs()[2]):
        assert np.isnan(answer)


# --- Categorical: masks and extremes --------------------------------------------------------------


def test_masked_policy_by_hand():
    # Without action 1, the odds 1 : (100) : 3 leave π = 1/4, 0, 3/4.
    logits, legal = jnp.log(jnp.array([1.0, 100.0, 3.0])), jnp.array([True, False, True])
    policy = Categorical.masked(logits, legal)
    assert policy.probs()[1] == 0.0
    close(policy.probs(), [0.25, 0.0, 0.75])
    close(policy.entropy(), -(0.25 * np.log(0.25) + 0.75 * np.log(0.75)))
    assert policy.log_prob(jnp.array(1)) == LOG_ZERO
    assert policy.mode() == 2
    # KL to the uniform policy over the same two actions: log 2 − H.
    close(policy.kl(uniform_like(policy)), np.log(2) - float(policy.entropy()))


def test_masked_without_a_mask_changes_nothing():
    logits = jnp.array([5.0, 6.0])
    np.testing.assert_array_equal(Categorical.masked(logits, None).logits, logits)


def test_a_mask_is_applied_row_by_row_or_shared():
    logits = normal(2, (3, 4))
    legal = jnp.array([[True, True, False, True], [False, True, True, False], [True] * 4])
    probs = np.asarray(Categorical.masked(logits, legal).probs())
    close(probs, softmax(np.where(legal, logits, -np.inf)))
    close(Categorical.masked(logits, legal[1]).probs()[:, [0, 3]], 0.0, atol=0.0)


@jax.jit
@partial(jax.jacrev, has_aux=True)
def answers_of_a_masked_policy(logits, legal):
    p = Categorical.masked(logits, legal)
    fixed = Categorical.masked(jnp.array([0.1, 0.2, -0.3, 0.4]), legal)
    mixed = mixture((p, uniform_like(fixed), fixed), (0.9, 0.05, 0.05))
    scalars = [p.entropy(), p.kl(fixed), fixed.kl(mixed), p.kl(mixed), mixed.entropy(), fixed.kl(p)]
    answers = jnp.stack(scalars)
    answers = jnp.concatenate([answers, p.log_probs(), p.probs(), mixed.log_probs()])
    return answers, (answers, p.probs())


@pytest.mark.parametrize("logits", EXTREMES)
@pytest.mark.parametrize("legal", ["1111", "1010", "0010"])
def test_extreme_logits_with_masks_have_finite_answers_and_gradients(logits, legal):
    legal = np.array([c == "1" for c in legal])
    jacobian, (answers, probs) = answers_of_a_masked_policy(jnp.array(logits), legal)
    jacobian, answers, probs = map(np.asarray, (jacobian, answers, probs))
    assert np.isfinite(answers).all()
    assert np.isfinite(jacobian).all()
    np.testing.assert_array_equal(jacobian[:, ~legal], 0.0)  # an illegal logit moves nothing
    np.testing.assert_array_equal(probs[~legal], 0.0)
    close(probs.sum(), 1.0)
    assert (answers[:6] >= -1e-6).all()  # entropies and divergences


@pytest.mark.parametrize("logits", EXTREMES)
def test_no_extreme_logit_makes_an_illegal_action_happen(logits):
    legal = jnp.array([False, True, True, False])
    policy = Categorical.masked(jnp.array(logits), legal)
    samples = np.asarray(policy.sample(jax.random.key(0), (2000,)))
    assert set(samples.tolist()) <= {1, 2}
    assert policy.mode() in (1, 2)


def test_an_illegal_logit_that_is_not_finite_is_never_looked_at():
    legal = jnp.array([True, False, True])
    for value in (jnp.nan, jnp.inf, -jnp.inf):
        entropy, gradient = jax.value_and_grad(lambda x: Categorical.masked(x, legal).entropy())(
            jnp.array([0.0, value, 0.0])
        )
        close(entropy, np.log(2))
        close(gradient, 0.0)


def test_minus_infinity_as_a_logit_is_probability_zero_without_nan():
    p = Categorical(jnp.array([0.0, -jnp.inf, 0.0]))
    close(p.entropy(), np.log(2))
    close(p.kl(p), 0.0)
    gradient = jax.grad(lambda x: Categorical(x).entropy())(p.logits)
    assert np.isfinite(gradient).all()


def test_kl_is_enormous_where_the_second_policy_forbids_what_the_first_does():
    p = Categorical(jnp.zeros(2))
    q = Categorical.masked(jnp.zeros(2), jnp.array([True, False]))
    assert p.kl(q) > 1e29
    close(q.kl(p), np.log(2))


def test_a_mask_of_the_wrong_size_or_type_is_refused_by_name():
    with pytest.raises(ValueError, match="legal must end in 3 actions"):
        jax.jit(Categorical.masked)(jnp.zeros((2, 3)), jnp.ones((2, 1), bool))
    with pytest.raises(TypeError, match="legal must be a boolean"):
        jax.jit(Categorical.masked)(jnp.zeros(3), jnp.zeros(3))


# --- Categorical: sampling, uniform, mixture ------------------------------------------------------


def test_sampling_frequencies_pass_a_chi_squared_test():
    probs = np.array([[0.1, 0.2, 0.3, 0.4], [0.7, 0.05, 0.05, 0.2]])
    num = 20_000
    samples = Categorical(jnp.log(probs)).sample(jax.random.key(3), (num,))
    assert samples.shape == (num, 2)
    assert samples.dtype == jnp.int32
    for row in range(2):
        counts = np.bincount(samples[:, row], minlength=4)
        assert stats.chisquare(counts, num * probs[row]).pvalue > 1e-3
    # The two policies are sampled independently, and so are consecutive draws.
    together = np.histogram2d(samples[:, 0], samples[:, 1], bins=4)[0]
    assert stats.chi2_contingency(together).pvalue > 1e-3
    assert (
        stats.chi2_contingency(np.histogram2d(samples[1:, 0], samples[:-1, 0], bins=4)[0]).pvalue
        > 1e-3
    )


def test_uniform_like_spreads_over_possible_actions_only():
    logits = jnp.array([[3.0, -2.0, 1e4, -1e4], [0.0, 1.0, 2.0, 3.0]])
    legal = jnp.array([[True, True, False, True], [False, False, True, False]])
    close(
        uniform_like(Categorical.masked(logits, legal)).probs(),
        [[1 / 3, 1 / 3, 0, 1 / 3], [0, 0, 1, 0]],
    )
    close(uniform_like(Categorical(logits)).probs(), 0.25)


@few
@given(seeds)
def test_mixture_is_the_weighted_sum_of_probabilities(seed):
    rng = np.random.default_rng(seed)
    logits = (3 * rng.normal(size=(3, 6))).astype(np.float32)
    legal = rng.random(6) < 0.6
    legal[rng.integers(6)] = True
    weights = rng.dirichlet(np.ones(3)).astype(np.float32)
    mixed, parts = masked_mixture(logits, legal, weights)
    close(mixed, sum(w * np.asarray(p, np.float64) for w, p in zip(weights, parts, strict=True)))
    np.testing.assert_array_equal(mixed[~legal], 0.0)


@jax.jit
def masked_mixture(logits, legal, weights):
    policies = tuple(Categorical.masked(x, legal) for x in logits)
    mixed = mixture(policies, tuple(weights))
    return mixed.probs(), [p.probs() for p in policies]


def test_mixture_with_weight_zero_drops_that_policy():
    sure = Categorical.masked(jnp.zeros(3), jnp.array([True, False, False]))
    other = Categorical.masked(jnp.zeros(3), jnp.array([False, True, False]))
    mixed = mixture((sure, other), (1.0, 0.0))
    close(mixed.probs(), [1.0, 0.0, 0.0], atol=0.0)
    close(mixed.log_probs(), [0.0, LOG_ZERO, LOG_ZERO])


def test_mixture_counts_its_weights():
    p = Categorical(jnp.zeros(2))
    with pytest.raises(ValueError, match="2 policies but 1 weights"):
        mixture((p, p), (1.0,))


# --- DiagonalNormal -------------------------------------------------------------------------------


def test_normal_by_hand():
    # Two dimensions, u = (1, −1): standardised (1 − 0)/1 = 1 and (−1 − 1)/2 = −1, so
    # log p = Σ −½·1 − ½ log 2π − log σ = −1 − log 2π − log 2.
    policy = DiagonalNormal(jnp.array([0.0, 1.0]), jnp.log(jnp.array([1.0, 2.0])))
    close(policy.log_prob(jnp.array([1.0, -1.0])), -1 - np.log(2 * np.pi) - np.log(2))
    # H = Σ ½ log(2πe σ²) = log(2πe) + log 2.
    close(policy.entropy(), np.log(2 * np.pi * np.e) + np.log(2))
    # KL to the standard Normal, dimension by dimension ½(σ² + μ² − 1) − log σ: 0 and ½·4 − log 2.
    standard = DiagonalNormal(jnp.zeros(2), jnp.zeros(2))
    close(policy.kl(standard), 2 - np.log(2))
    # The other way, second dimension: log 2 + ½(¼ + ¼ − 1) = log 2 − ¼.
    close(standard.kl(policy), np.log(2) - 0.25)
    close(policy.mode(), [0.0, 1.0])


def test_squashing_divides_the_density_by_the_slope_of_tanh():
    # At u = ½, a = tanh ½ and p(a) = N(½; 0, 1) / (1 − tanh² ½).
    policy = DiagonalNormal(jnp.zeros(1), jnp.zeros(1), squash=True)
    expected = stats.norm.logpdf(0.5) - np.log(1 - np.tanh(0.5) ** 2)
    close(policy.log_prob(jnp.tanh(jnp.array([0.5]))), expected)
    close(DiagonalNormal(jnp.array([0.5]), jnp.zeros(1), squash=True).mode(), [np.tanh(0.5)])


def oracle(loc, log_scale, squash):
    base = distrax.Normal(loc, jnp.exp(log_scale))
    if squash:
        base = distrax.Transformed(base, distrax.Tanh())
    return distrax.Independent(base, reinterpreted_batch_ndims=1)


@partial(jax.jit, static_argnames="squash")
def normal_answers(parameters, action, squash):
    p = DiagonalNormal(parameters[0], parameters[1], squash)
    q = DiagonalNormal(parameters[2], parameters[3], squash)
    return p.log_prob(action), p.kl(q), p.entropy()


@partial(jax.jit, static_argnames="squash")
def oracle_answers(parameters, action, squash):
    p, q = oracle(*parameters[:2], squash), oracle(*parameters[2:], squash)
    return p.log_prob(action), p.kl_divergence(q)


@pytest.mark.parametrize("squash", [False, True])
@few
@given(seeds)
def test_normal_matches_distrax_and_a_plain_loop(squash, seed):
    rng = np.random.default_rng(seed)
    parameters = (0.5 * rng.normal(size=(4, 5, 3))).astype(np.float32)
    action = np.tanh(rng.normal(size=(5, 3))).astype(np.float32)
    log_prob, kl, _ = normal_answers(parameters, action, squash)
    oracle_log_prob, oracle_kl = oracle_answers(parameters, action, squash)
    close(log_prob, oracle_log_prob, rtol=1e-4, atol=1e-4)
    close(kl, oracle_kl, rtol=1e-4, atol=1e-4)
    for row in range(5):
        expected = 0.0
        for d in range(3):
            a = float(action[row, d])
            u = np.arctanh(a) if squash else a
            scale = np.exp(float(parameters[1, row, d]))
            expected += stats.norm.logpdf(u, float(parameters[0, row, d]), scale)
            expected -= np.log(1 - a * a) if squash else 0.0
        close(log_prob[row], expected, rtol=1e-4, atol=1e-4)


GRID = np.linspace(-14.0, 14.0, 20_001)


@pytest.mark.parametrize("squash", [False, True])
def test_density_integrates_to_one(squash):
    policy = DiagonalNormal(jnp.array([0.4]), jnp.log(jnp.array([0.8])), squash)
    u = (0.4 + 0.8 * GRID / 2).astype(np.float32)
    points = np.tanh(u.astype(np.float64)) if squash else u.astype(np.float64)
    inside = np.abs(points) < 1 - 1e-5 if squash else np.full(u.shape, True)
    density = np.exp(np.asarray(policy.log_prob(jnp.asarray(points[inside, None], jnp.float32))))
    close(np.trapezoid(density, points[inside]), 1.0, atol=1e-3)


@few
@given(st.floats(-2, 2), st.floats(-2, 1), st.floats(-2, 2), st.floats(-1, 1))
def test_kl_is_the_integral_of_the_log_ratio(loc, log_scale, other_loc, other_log_scale):
    # ∫ p log(p/q) over a fine grid of standardised points, in float64.
    parameters = np.array([loc, log_scale, other_loc, other_log_scale], np.float32)
    loc, log_scale, other_loc, other_log_scale = parameters.astype(np.float64)
    u = loc + np.exp(log_scale) * GRID
    log_p = stats.norm.logpdf(u, loc, np.exp(log_scale))
    log_q = stats.norm.logpdf(u, other_loc, np.exp(other_log_scale))
    expected = np.trapezoid(np.exp(log_p) * (log_p - log_q), u)
    for squash in (False, True):  # the change of variables cancels in the ratio
        _, kl, _ = normal_answers(parameters[:, None], np.zeros(1, np.float32), squash)
        close(kl, expected, rtol=1e-4, atol=1e-5)


def squashed_entropy(loc, scale):
    """H of tanh(u), u ∼ N(loc, scale²), by the trapezoidal rule in float64."""
    u = loc + scale * GRID
    log_slope = 2 * (np.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))
    return stats.norm.entropy(loc, scale) + np.trapezoid(stats.norm.pdf(GRID) * log_slope, GRID)


@pytest.mark.parametrize("loc", [0.0, 0.5, -2.0, 5.0, -60.0])
@pytest.mark.parametrize(
    ("scale", "tolerance"), [(0.01, 1e-5), (0.3, 1e-5), (1.0, 1e-5), (2.0, 3e-4), (5.0, 3e-2)]
)
def test_squashed_entropy_matches_numerical_integration(loc, scale, tolerance):
    policy = DiagonalNormal(jnp.array([loc]), jnp.log(jnp.array([scale])), squash=True)
    close(policy.entropy(), squashed_entropy(loc, scale), rtol=2e-6, atol=tolerance)


def test_squashed_entropy_is_minus_the_mean_log_prob_of_its_samples():
    policy = DiagonalNormal(jnp.array([0.3, -0.5]), jnp.array([-0.2, 0.1]), squash=True)
    samples = policy.sample(jax.random.key(5), (40_000,))
    surprise = -np.asarray(policy.log_prob(samples), np.float64)
    error = surprise.std() / np.sqrt(surprise.size)
    assert abs(surprise.mean() - float(policy.entropy())) < 4 * error


def test_gradient_of_the_squashed_entropy_matches_finite_differences():
    def entropy(parameters):
        return DiagonalNormal(parameters[:1], parameters[1:], squash=True).entropy()

    gradient = jax.grad(entropy)(jnp.array([0.7, -0.4]))
    step = 1e-4
    by_loc = squashed_entropy(0.7 + step, np.exp(-0.4)) - squashed_entropy(0.7 - step, np.exp(-0.4))
    by_scale = squashed_entropy(0.7, np.exp(-0.4 + step)) - squashed_entropy(
        0.7, np.exp(-0.4 - step)
    )
    close(gradient, np.array([by_loc, by_scale]) / (2 * step), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("squash", [False, True])
def test_normal_samples_follow_the_normal(squash):
    loc, scale = np.array([0.5, -1.0]), np.array([0.3, 1.2])
    policy = DiagonalNormal(jnp.asarray(loc), jnp.log(jnp.asarray(scale)), squash)
    samples = policy.sample(jax.random.key(6), (20_000,))
    assert samples.shape == (20_000, 2)
    raw = np.arctanh(np.asarray(samples, np.float64)) if squash else np.asarray(samples)
    for d in range(2):
        assert stats.kstest(raw[:, d], stats.norm(loc[d], scale[d]).cdf).pvalue > 1e-3
    assert abs(stats.pearsonr(raw[:, 0], raw[:, 1]).statistic) < 0.03


def test_samples_differentiate_through_loc_and_scale():
    # A sample is loc + scale·noise: its derivative by loc is 1, by log scale (sample − loc).
    def sample(parameters):
        return DiagonalNormal(parameters[:1], parameters[1:]).sample(jax.random.key(0))[0]

    parameters = jnp.array([0.7, -0.3])
    close(jax.grad(sample)(parameters), [1.0, float(sample(parameters)) - 0.7])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_actions_at_and_near_the_edge_have_finite_log_prob_and_gradient(dtype):
    for action in (1.0, -1.0, 0.99999994, -0.998):
        a = jnp.array([action], dtype)

        def log_prob(parameters, a=a):
            return DiagonalNormal(parameters[:1], parameters[1:], squash=True).log_prob(a)

        value, gradient = jax.value_and_grad(log_prob)(jnp.array([0.2, 0.0], dtype))
        assert np.isfinite(np.asarray(value, np.float32))
        assert np.isfinite(np.asarray(gradient, np.float32)).all()


def test_a_saturated_policy_stays_inside_and_knows_its_samples():
    # tanh(20) is 1 in float32; the sample is kept a margin inside, where its density is finite.
    policy = DiagonalNormal(jnp.array([20.0]), jnp.zeros(1), squash=True)
    sample = policy.sample(jax.random.key(0), (100,))
    assert (np.abs(sample) < 1.0).all()
    assert np.isfinite(policy.log_prob(sample)).all()
    assert abs(float(policy.mode()[0])) < 1.0


def test_normal_broadcasts_many_actions_against_one_policy():
    policy = DiagonalNormal(jnp.array([0.1, 0.2]), jnp.array([-0.5, 0.5]))
    actions = normal(7, (6, 2))
    close(policy.log_prob(actions), jax.vmap(policy.log_prob)(actions))
    assert policy.log_prob(actions).shape == (6,)


def test_normal_refuses_a_wrong_action_and_a_mixed_kl_by_name():
    policy = DiagonalNormal(jnp.zeros(3), jnp.zeros(3))
    with pytest.raises(ValueError, match="action must end in 3 dimensions"):
        jax.jit(policy.log_prob)(jnp.zeros((3, 1)))
    with pytest.raises(ValueError, match="both policies must be squashed, or neither"):
        policy.kl(DiagonalNormal(jnp.zeros(3), jnp.zeros(3), squash=True))


def test_normal_nan_stays_visible():
    policy = DiagonalNormal(jnp.array([jnp.nan, 0.0]), jnp.zeros(2), squash=True)
    for answer in (
        policy.log_prob(jnp.zeros(2)),
        policy.entropy(),
        policy.kl(policy),
        policy.mode()[0],
    ):
        assert np.isnan(answer)


def test_samples_among_many_actions_have_their_probabilities():
    rng = np.random.default_rng(0)
    logits = np.full((2, 3, 200), LOG_ZERO, np.float32)
    likely = rng.choice(199, size=(2, 3, 5)) + 0
    for index in np.ndindex(2, 3):
        logits[*index, likely[index]] = rng.normal(size=5)
    policy = Categorical(jnp.asarray(logits))
    samples = np.asarray(policy.sample(jax.random.key(0), (4_000,)))
    assert samples.shape == (4_000, 2, 3) and samples.dtype == np.int32
    probs = np.asarray(policy.probs())
    for index in np.ndindex(2, 3):
        counts = np.bincount(samples[:, *index], minlength=200) / 4_000
        assert not counts[probs[index] == 0.0].any()
        np.testing.assert_allclose(counts, probs[index], atol=0.035)
    # One state alone, as under vmap, and one sample.
    alone = Categorical(policy.logits[0, 0])
    assert alone.sample(jax.random.key(1)).shape == ()
    assert alone.sample(jax.random.key(1), (7,)).shape == (7,)
