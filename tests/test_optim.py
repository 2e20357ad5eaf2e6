"""The optimiser against Adam written out in NumPy: chain order, clipping, decay, schedule."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muesli.config import OptimiserConfig
from muesli.optim import clip_updates, clipped_share, learning_rate_schedule, make_optimiser

TOTAL = 8
PAPER = OptimiserConfig()


def numpy_adam(theta, gradients, config, total):
    """θ ← θ − α_t (clip(m̂/(√v̂ + ε), −1, 1) + decay·θ), α_t linear; returns every θ and share."""
    theta = np.asarray(theta, np.float64).copy()
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    thetas, shares = [], []
    for t, g in enumerate(np.asarray(gradients, np.float64)):
        m = config.adam_b1 * m + (1 - config.adam_b1) * g
        v = config.adam_b2 * v + (1 - config.adam_b2) * g * g
        m_hat = m / (1 - config.adam_b1 ** (t + 1))
        v_hat = v / (1 - config.adam_b2 ** (t + 1))
        step = m_hat / (np.sqrt(v_hat) + config.adam_epsilon)
        shares.append(0.0)
        if config.update_clip is not None:
            shares[-1] = np.mean(np.abs(step) > config.update_clip)
            step = np.clip(step, -config.update_clip, config.update_clip)
        step = step + config.weight_decay * theta
        start, end = config.learning_rate, config.final_learning_rate
        rate = end + (start - end) * max(0.0, 1 - t / total)
        theta = theta - rate * step
        thetas.append(theta.copy())
    return np.array(thetas), np.array(shares)


def make_run(config, total=TOTAL):
    """The optimiser as a jitted function (θ, gradients [steps, n]) -> (every θ, every share)."""
    optimiser = make_optimiser(config, total)

    def step(carry, gradient):
        params, state = carry
        tree = {"a": gradient[:2], "b": gradient[2:]}
        updates, state = optimiser.update(tree, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), (jnp.concatenate([params["a"], params["b"]]), clipped_share(state))

    @jax.jit
    def run(theta, gradients):
        params = {"a": theta[:2], "b": theta[2:]}
        return jax.lax.scan(step, (params, optimiser.init(params)), gradients)[1]

    return run


CONFIGS = {
    "paper": OptimiserConfig(learning_rate=0.1),
    "decay": OptimiserConfig(learning_rate=0.1, weight_decay=0.5),
    "tight": OptimiserConfig(learning_rate=0.1, update_clip=0.3, weight_decay=0.1),
    "unclipped": OptimiserConfig(learning_rate=0.1, update_clip=None),
    "floor": OptimiserConfig(learning_rate=0.1, final_learning_rate=0.04),
    "moments": OptimiserConfig(learning_rate=0.1, adam_b1=0.5, adam_b2=0.8, adam_epsilon=0.1),
}
RUNS = {name: make_run(config) for name, config in CONFIGS.items()}


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_matches_adam_written_out(name, seed):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=5).astype(np.float32)
    # Heavy tails make m̂/√v̂ exceed 1, so that clipping matters.
    gradients = (rng.normal(size=(TOTAL + 2, 5)) * 10 ** rng.normal(size=(TOTAL + 2, 1))).astype(
        np.float32
    )
    thetas, shares = RUNS[name](theta, gradients)
    expected, expected_shares = numpy_adam(theta, gradients, CONFIGS[name], TOTAL)
    np.testing.assert_allclose(thetas, expected, rtol=1e-4, atol=1e-5)
    # Every first update is g/(|g| + ε), within rounding of ±1: leave that tie out.
    np.testing.assert_allclose(shares[1:], expected_shares[1:], atol=1e-6)


def test_clipping_comes_before_the_learning_rate_and_matters():
    # A thousand silent steps, then a gradient of 1: m̂ ≈ 0.1 and v̂ ≈ 0.001/(1 − 0.999¹⁰⁰¹) ≈ 0.0016,
    # so m̂/√v̂ ≈ 2.5. Clipped to 1 it moves θ by exactly the learning rate; clipped after the
    # multiplication with the rate, nothing would be touched and θ would move by 2.5 rates.
    gradients = jnp.concatenate([jnp.zeros(1000), jnp.ones(1)])[:, None] * jnp.ones(5)
    config = OptimiserConfig(learning_rate=1e-2, final_learning_rate=1e-2)
    thetas, shares = make_run(config)(jnp.zeros(5), gradients)
    np.testing.assert_allclose(thetas[-1], -1e-2, rtol=1e-6)
    assert shares[-1] == 1.0
    free = OptimiserConfig(learning_rate=1e-2, final_learning_rate=1e-2, update_clip=None)
    thetas, shares = make_run(free)(jnp.zeros(5), gradients)
    ratio = (0.1 / (1 - 0.9**1001)) / np.sqrt(0.001 / (1 - 0.999**1001))
    np.testing.assert_allclose(thetas[-1], -1e-2 * ratio, rtol=1e-4)
    assert ratio > 2.5
    assert shares[-1] == 0.0


def test_each_number_is_clipped_alone_not_the_norm():
    # Norm clipping would shrink all three by one factor and keep their direction.
    updates = {"a": jnp.array([0.5, -3.0]), "b": jnp.array([[1.5]])}
    transformation = clip_updates(1.0)
    clipped, state = transformation.update(updates, transformation.init(updates))
    np.testing.assert_array_equal(clipped["a"], [0.5, -1.0])
    np.testing.assert_array_equal(clipped["b"], [[1.0]])
    np.testing.assert_allclose(state.clipped_share, 2 / 3, rtol=1e-6)


def test_a_step_does_not_depend_on_the_scale_of_the_gradient():
    # What a clip of the gradient's norm would break: Adam's step is the same at any scale.
    run = RUNS["paper"]
    gradients = np.random.default_rng(0).normal(size=(TOTAL, 5)).astype(np.float32)
    gradients[3] *= 40.0
    small, _ = run(np.zeros(5, np.float32), gradients)
    large, _ = run(np.zeros(5, np.float32), 1024.0 * gradients)
    np.testing.assert_allclose(large, small, rtol=1e-5, atol=1e-6)


def test_share_weighs_numbers_not_arrays():
    # One of one and none of three: a quarter of the numbers, though half of the arrays.
    updates = {"a": jnp.array([9.0]), "b": jnp.zeros(3)}
    transformation = clip_updates(1.0)
    _, state = transformation.update(updates, transformation.init(updates))
    np.testing.assert_allclose(state.clipped_share, 0.25)


def test_a_value_at_the_limit_is_not_counted_as_clipped():
    transformation = clip_updates(1.0)
    clipped, state = transformation.update(jnp.array([1.0, -1.0]), transformation.init(None))
    np.testing.assert_array_equal(clipped, [1.0, -1.0])
    assert state.clipped_share == 0.0


def test_decay_is_decoupled():
    # No gradient: Adam's part is 0 and θ shrinks by α·decay·θ alone, large θ included: the decay
    # passes neither through the moments (the step would be ±1) nor through the clip (at most 1).
    config = OptimiserConfig(learning_rate=0.1, weight_decay=0.5, final_learning_rate=0.1)
    theta = jnp.array([100.0, -4.0, 1.0, 0.0, 2.0])
    thetas, shares = make_run(config)(theta, jnp.zeros((2, 5)))
    np.testing.assert_allclose(thetas[0], 0.95 * np.asarray(theta), rtol=1e-6)
    np.testing.assert_allclose(thetas[1], 0.95**2 * np.asarray(theta), rtol=1e-6)
    assert (np.asarray(shares) == 0.0).all()


def test_the_rate_is_linear_and_exactly_zero_at_the_end():
    schedule = jax.jit(learning_rate_schedule(PAPER, 1000))
    np.testing.assert_allclose(schedule(0), 3e-4, rtol=1e-6)
    np.testing.assert_allclose(schedule(250), 0.75 * 3e-4, rtol=1e-6)
    np.testing.assert_allclose(schedule(999), 3e-4 / 1000, rtol=1e-6)  # the last update counts
    assert schedule(1000) == 0.0
    assert schedule(5000) == 0.0


@pytest.mark.parametrize("total", [1, 3, 7, 12_345, 1_000_003])
def test_zero_is_reached_exactly_for_any_length(total):
    # Under jit, where a division by a constant may become a product with its reciprocal.
    schedule = jax.jit(learning_rate_schedule(PAPER, total))
    assert schedule(total) == 0.0
    np.testing.assert_allclose(schedule(total - 1), 3e-4 / total, rtol=1e-6)


def test_a_run_of_no_updates_has_a_schedule():
    assert np.isfinite(learning_rate_schedule(PAPER, 0)(0))


def test_parameters_stand_still_after_the_last_update():
    gradients = np.ones((TOTAL + 3, 5), np.float32)
    thetas, _ = RUNS["decay"](np.ones(5, np.float32), gradients)
    assert (np.asarray(thetas[TOTAL - 1]) != np.asarray(thetas[TOTAL - 2])).all()
    for later in thetas[TOTAL:]:
        np.testing.assert_array_equal(later, thetas[TOTAL - 1])


def test_the_final_rate_is_held_when_it_is_not_zero():
    schedule = learning_rate_schedule(CONFIGS["floor"], 10)
    np.testing.assert_allclose([schedule(10), schedule(99)], 0.04, rtol=1e-6)


def test_the_first_update_descends_by_the_rate():
    # m̂ = g and √v̂ = |g| at the first update, so θ moves by α·sign(g), against the gradient.
    gradients = np.array([[2.0, -0.5, 100.0, -1e-3, 0.0]], np.float32)
    thetas, _ = RUNS["paper"](np.zeros(5, np.float32), gradients)
    np.testing.assert_allclose(thetas[0], [-0.1, 0.1, -0.1, 0.1, 0.0], rtol=1e-4)


def test_optax_adam_is_the_same_without_clip_and_decay():
    rng = np.random.default_rng(1)
    theta, gradients = rng.normal(size=5), rng.normal(size=(TOTAL, 5)).astype(np.float32)
    params = jnp.asarray(theta, jnp.float32)
    adam = optax.adam(optax.linear_schedule(0.1, 0.0, TOTAL))
    state = adam.init(params)
    for g in gradients:
        updates, state = adam.update(g, state, params)
        params = optax.apply_updates(params, updates)
    thetas, _ = RUNS["unclipped"](theta.astype(np.float32), gradients)
    np.testing.assert_allclose(thetas[-1], params, rtol=1e-5, atol=1e-6)


def test_a_nan_gradient_reaches_the_parameters():
    gradients = np.ones((2, 5), np.float32)
    gradients[0, 3] = np.nan
    thetas, _ = RUNS["paper"](np.zeros(5, np.float32), gradients)
    np.testing.assert_array_equal(np.isnan(thetas[-1]), [False, False, False, True, False])


def test_share_is_zero_before_the_first_update_and_without_clipping():
    params = {"w": jnp.zeros(3)}
    assert clipped_share(make_optimiser(PAPER, 10).init(params)) == 0.0
    assert clipped_share(make_optimiser(CONFIGS["unclipped"], 10).init(params)) == 0.0


def test_a_long_gradient_is_shortened_before_adam_sees_it():
    long = {"a": jnp.array([30.0, 0.0]), "b": jnp.array([40.0])}
    short = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([4.0])}
    config = OptimiserConfig(max_gradient_norm=5.0)
    states = []
    for gradients in (long, short):
        optimiser = make_optimiser(config, 10)
        states.append(optimiser.update(gradients, optimiser.init(short), short)[1])
    for a, b in zip(jax.tree.leaves(states[0]), jax.tree.leaves(states[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    plain = make_optimiser(OptimiserConfig(), 10)
    free = plain.update(long, plain.init(short), short)[1]
    moments = next(s for s in free if isinstance(s, optax.ScaleByAdamState))
    np.testing.assert_allclose(moments.mu["b"], 4.0, rtol=1e-6)
