"""Algorithm 1's running second moment: a transcription, hand arithmetic, and Adam's debiasing."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muesli.ops.moments import deviation, init_moment, update_moment

seeds = st.integers(0, 2**31 - 1)
update = jax.jit(update_moment)
sigma = jax.jit(deviation)


def normal(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def all_of(errors):
    return np.ones(np.shape(errors), bool)


def algorithm_1(batches, beta, epsilon):
    """The lines of Algorithm 1 as printed: the divisor after each minibatch."""
    var, beta_product = 0.0, 1.0
    divisors = []
    for returns, values in batches:
        total, size = 0.0, 0
        for g, v in zip(returns.flat, values.flat, strict=True):
            total += (float(g) - float(v)) ** 2
            size += 1
        var = beta * var + (1 - beta) * total / size
        beta_product = beta_product * beta
        var_hat = var / (1 - beta_product)
        divisors.append(np.sqrt(var_hat + epsilon))
    return divisors


def test_two_updates_by_hand():
    # β = ½. Batch (1, −3): mean square 5, var = ½·0 + ½·5 = 2.5, β_product = ½, v̂ar = 5.
    moment = update(init_moment(), jnp.array([1.0, -3.0]), all_of([0, 0]), 0.5)
    np.testing.assert_allclose([moment.second, moment.decay_product], [2.5, 0.5])
    np.testing.assert_allclose(sigma(moment), np.sqrt(5.0), rtol=1e-6)
    # Batch (2, 2): mean square 4, var = ½·2.5 + ½·4 = 3.25, β_product = ¼, v̂ar = 3.25/0.75.
    moment = update(moment, jnp.array([2.0, 2.0]), all_of([0, 0]), 0.5)
    np.testing.assert_allclose([moment.second, moment.decay_product], [3.25, 0.25])
    np.testing.assert_allclose(sigma(moment), np.sqrt(3.25 / 0.75), rtol=1e-6)


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from([0.99, 0.9, 0.5]), st.sampled_from([1e-12, 1e-2]))
def test_a_run_follows_algorithm_1(seed, beta, epsilon):
    rng = np.random.default_rng(seed)
    scale, offset = 10.0 ** rng.uniform(-2, 2), 3 * rng.normal()
    batches = (scale * (offset + rng.normal(size=(12, 2, 4, 5)))).astype(np.float32)
    moment, actual = init_moment(), []
    for returns, values in batches:
        moment = update(moment, returns - values, all_of(returns), beta)
        actual.append(float(sigma(moment, epsilon)))
    np.testing.assert_allclose(actual, algorithm_1(batches, beta, epsilon), rtol=5e-5)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.99, 0.999])
def test_after_one_update_it_is_the_batchs_root_mean_square_whatever_the_decay(beta):
    errors = normal(0, (6, 7)) + 0.5
    moment = update(init_moment(), errors, all_of(errors), beta)
    expected = np.sqrt(np.mean(np.square(np.asarray(errors, np.float64))))
    np.testing.assert_allclose(sigma(moment), expected, rtol=1e-4)


def test_it_is_not_centred():
    # Constant errors have no variance, but their second moment is 9: σ = 3, not 0.
    errors = jnp.full((4,), -3.0)
    np.testing.assert_allclose(
        sigma(update(init_moment(), errors, all_of(errors), 0.99)), 3.0, rtol=1e-5
    )


def test_debiasing_is_adams():
    # optax keeps the same average of squares and divides it by 1 − β^t.
    beta, gradients = 0.9, normal(1, (10,))
    adam = optax.scale_by_adam(b1=0.0, b2=beta, eps=0.0)
    state, moment = adam.init(jnp.zeros(())), init_moment()
    for g in gradients:
        direction, state = adam.update(g, state)
        moment = update(moment, g[None], all_of([0]), beta)
        np.testing.assert_allclose(g / sigma(moment, 0.0), direction, rtol=1e-5)


def test_masked_records_do_not_count_even_if_they_are_not_finite():
    errors = jnp.array([[1.0, jnp.nan, -3.0], [jnp.inf, 1e20, 2.0]])
    mask = jnp.array([[True, False, True], [False, False, True]])
    expected = (1 + 9 + 4) / 3  # divided by 3, not by 6
    np.testing.assert_allclose(update(init_moment(), errors, mask, 0.0).second, expected, rtol=1e-6)
    # And op by op: XLA may turn a product with the mask, which keeps the NaN, into a select.
    with jax.disable_jit():
        moment = update_moment(init_moment(), errors, mask, 0.0)
    np.testing.assert_allclose(moment.second, expected, rtol=1e-6)


def test_an_unmasked_nan_stays_visible():
    moment = update(init_moment(), jnp.array([1.0, jnp.nan]), all_of([0, 0]), 0.9)
    assert np.isnan(sigma(moment))


def test_a_batch_without_records_is_finite_and_adds_nothing():
    before = update(init_moment(), jnp.array([2.0]), all_of([0]), 0.5)
    after = update(before, jnp.array([7.0]), np.array([False]), 0.5)
    np.testing.assert_allclose(after.second, 0.5 * before.second)


def test_epsilon_bounds_the_divisor_from_below_inside_the_root():
    # No error at all: √(0 + ε). With mean square 9 and ε = 16: √25 = 5, not 3 + 4.
    silent = update(init_moment(), jnp.zeros(3), all_of([0] * 3), 0.9)
    np.testing.assert_allclose(sigma(silent, 1e-4), 1e-2, rtol=1e-6)
    loud = update(init_moment(), jnp.full(3, 3.0), all_of([0] * 3), 0.0)
    np.testing.assert_allclose(sigma(loud, 16.0), 5.0, rtol=1e-6)


def test_the_mean_runs_over_all_axes_not_per_sequence():
    errors = normal(2, (4, 6))
    flat = update(init_moment(), errors.reshape(-1), all_of(errors.reshape(-1)), 0.9)
    square = update(init_moment(), errors, all_of(errors), 0.9)
    assert square.second.shape == ()
    np.testing.assert_allclose(flat.second, square.second, rtol=1e-6)


def test_many_moments_side_by_side_under_vmap():
    errors = normal(3, (3, 8))
    start = jax.tree.map(lambda x: jnp.broadcast_to(x, (3,)), init_moment())
    together = jax.vmap(update, in_axes=(0, 0, 0, None))(start, errors, all_of(errors), 0.9)
    np.testing.assert_allclose(
        jax.vmap(sigma)(together), np.sqrt(np.mean(np.square(errors), -1)), rtol=1e-4
    )


def test_bfloat16_errors_keep_the_moment_in_float32():
    errors = jnp.array([1.0, -3.0], jnp.bfloat16)
    moment = update(init_moment(), errors, all_of(errors), 0.5)
    assert moment.second.dtype == moment.decay_product.dtype == jnp.float32
    np.testing.assert_allclose(moment.second, 2.5)


def test_a_mask_of_another_shape_and_integer_errors_are_refused_by_name():
    with pytest.raises(ValueError, match=r"mask must have the shape of errors \[2, 3\], got \[3\]"):
        update(init_moment(), jnp.zeros((2, 3)), jnp.ones(3, bool), 0.9)
    with pytest.raises(TypeError, match="errors must be a floating-point array"):
        update(init_moment(), jnp.zeros(3, jnp.int32), jnp.ones(3, bool), 0.9)
