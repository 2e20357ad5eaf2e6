"""h, its inverse and the two-hot codec: against float64 formulas, rlax, and hand arithmetic."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from muesli.ops.values import Support, cross_entropy, decode, encode, squeeze, two_hot, unsqueeze

PAPER = Support()  # 601 bins on [−300, 300]
SMALL = Support(-2.0, 2.0, 5)  # bins −2, −1, 0, 1, 2
FINE = Support(-1.0, 1.0, 9)  # bins a quarter apart
few = settings(max_examples=25, deadline=None)

h = jax.jit(squeeze)
h_inverse = jax.jit(unsqueeze)
to_bins = jax.jit(two_hot, static_argnums=1)
to_scalar = jax.jit(decode, static_argnums=1)
loss = jax.jit(cross_entropy, static_argnums=2)


def normal(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def h_float64(x):
    """The definition, sign(x)(√(|x| + 1) − 1) + 0.001 x, in float64."""
    x = np.asarray(x, np.float64)
    return np.sign(x) * (np.sqrt(np.abs(x) + 1.0) - 1.0) + 0.001 * x


def real_values():
    """Values of both signs from 1e-6 to 58,000, and zero."""
    sizes = np.geomspace(1e-6, 58_000.0, 4000)
    return np.concatenate([-sizes[::-1], [0.0], sizes]).astype(np.float32)


# --- h --------------------------------------------------------------------------------------------


def test_squeeze_by_hand():
    # h(3) = √4 − 1 + 0.003; h(−8) = −(√9 − 1) − 0.008; h(99) = √100 − 1 + 0.099.
    expected = [1.003, -2.008, 9.099, 0.0]
    np.testing.assert_allclose(h(jnp.array([3.0, -8.0, 99.0, 0.0])), expected, rtol=1e-6)


def test_squeeze_matches_the_definition_in_float64():
    x = real_values()
    np.testing.assert_allclose(h(x), h_float64(x), rtol=5e-7)


def test_the_support_reaches_58_706_in_real_units():
    # h(x) = 300: with u = √(x + 1), 0.001u² + u = 301.001, u = (√(1 + 0.004·301.001) − 1)/0.002
    # = 242.297…, and x = u² − 1 = 58,706.
    u = (np.sqrt(1 + 0.004 * 301.001) - 1) / 0.002
    assert round(u**2 - 1) == 58_706
    np.testing.assert_allclose(
        h_inverse(jnp.array([300.0, -300.0])), [u**2 - 1, 1 - u**2], rtol=1e-6
    )


def test_unsqueeze_inverts_squeeze_to_a_millionth_over_the_whole_range():
    # The textbook inverse, ((√(1 + 4ε(|y| + 1 + ε)) − 1)/2ε)² − 1, loses three digits in float32.
    x = real_values()
    np.testing.assert_allclose(h_inverse(h(x)), x, rtol=1.5e-6)


def test_unsqueeze_inverts_the_float64_definition():
    x = np.linspace(-58_000.0, 58_000.0, 20_001)
    y = h_float64(x).astype(np.float32)
    # A rounding of y by 6e-8 relative moves x by at most twice that.
    np.testing.assert_allclose(h_inverse(y), x, rtol=1.5e-6, atol=1e-6)


def test_squeeze_and_unsqueeze_agree_with_rlax():
    x = real_values()
    np.testing.assert_allclose(h(x), jax.jit(rlax.signed_hyperbolic)(x), rtol=1e-5, atol=1e-6)
    y = np.linspace(-300, 300, 1201).astype(np.float32)
    # rlax's inverse cancels: near zero it is only good to a few hundredths of a percent.
    np.testing.assert_allclose(
        h_inverse(y), jax.jit(rlax.signed_parabolic)(y), rtol=5e-4, atol=2e-3
    )


def test_both_are_odd_and_increasing():
    x = real_values()
    for function in (h, h_inverse):
        y = np.asarray(function(x))
        np.testing.assert_array_equal(y, -y[::-1])
        assert (np.diff(y) > 0).all()


@pytest.mark.parametrize("x", [-1000.0, -1.0, 0.0, 1e-3, 50.0])
def test_derivatives_are_right_everywhere_even_at_zero(x):
    # h′(x) = 1/(2√(|x| + 1)) + 0.001, and (h⁻¹)′(h(x)) = 1/h′(x).
    slope = 1 / (2 * np.sqrt(abs(x) + 1)) + 0.001
    np.testing.assert_allclose(jax.jit(jax.grad(squeeze))(x), slope, rtol=1e-5)
    np.testing.assert_allclose(
        jax.jit(jax.grad(unsqueeze))(float(h_float64(x))), 1 / slope, rtol=1e-5
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_visible(bad):
    assert not np.isfinite(h(jnp.array(bad)))
    assert not np.isfinite(h_inverse(jnp.array(bad)))
    assert not np.isfinite(loss(jnp.zeros(5), jnp.array(bad), SMALL))
    assert not np.isfinite(to_scalar(jnp.array([0.0, bad, 0.0, 0.0, 0.0]), SMALL)) or bad == -np.inf


# --- two-hot --------------------------------------------------------------------------------------


def test_two_hot_by_hand():
    # 0.25 lies a quarter of the way from bin 0 to bin 1; −1.75 a quarter from −2 to −1.
    actual = to_bins(jnp.array([0.25, -1.75]), SMALL)
    np.testing.assert_array_equal(actual, [[0, 0, 0.75, 0.25, 0], [0.75, 0.25, 0, 0, 0]])
    # Bins a quarter apart: 0.05 lies 0.2 bins above bin 4 (zero).
    expected = np.zeros(9)
    expected[4:6] = 0.8, 0.2
    np.testing.assert_allclose(to_bins(jnp.array(0.05), FINE), expected, atol=1e-6)


def test_the_papers_bins_are_the_integers():
    np.testing.assert_array_equal(PAPER.bins(), np.arange(-300, 301))


@pytest.mark.parametrize("support", [PAPER, SMALL, FINE])
def test_an_exact_bin_is_one_hot_at_every_bin_and_both_edges(support):
    np.testing.assert_array_equal(to_bins(support.bins(), support), np.eye(support.num_bins))


def test_beyond_the_edges_everything_goes_to_the_last_bin():
    y = jnp.array([2.0001, 7.0, 1e30, -2.0001, -7.0, -1e30])
    expected = np.zeros((6, 5))
    expected[:3, 4] = expected[3:, 0] = 1.0
    np.testing.assert_array_equal(to_bins(y, SMALL), expected)


def two_hot_loop(y, support):
    """Floor, ceiling and two writes, one scalar at a time, in float64."""
    width = (support.maximum - support.minimum) / (support.num_bins - 1)
    rows = np.zeros((len(y), support.num_bins))
    for row, value in zip(rows, np.asarray(y, np.float64), strict=True):
        position = (min(max(value, support.minimum), support.maximum) - support.minimum) / width
        low = min(int(np.floor(position)), support.num_bins - 2)
        row[low], row[low + 1] = 1 - (position - low), position - low
    return rows


def numbers(support):
    return st.lists(
        st.floats(1.25 * support.minimum, 1.25 * support.maximum, width=32), min_size=8, max_size=8
    )


@pytest.mark.parametrize("support", [PAPER, SMALL, FINE])
@few
@given(data=st.data())
def test_two_hot_matches_a_plain_loop_and_keeps_the_mean(support, data):
    y = np.array(data.draw(numbers(support)), np.float32)
    actual = np.asarray(to_bins(y, support), np.float64)
    np.testing.assert_allclose(actual, two_hot_loop(y, support), atol=2e-6)
    clipped = np.clip(y, support.minimum, support.maximum)
    np.testing.assert_allclose(actual @ np.asarray(support.bins()), clipped, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(actual.sum(-1), 1.0, atol=1e-6)
    assert (actual >= 0).all()
    assert ((actual > 0).sum(-1) <= 2).all()


def test_two_hot_agrees_with_rlax():
    # rlax keeps a guard of 1e-5 in a denominator, and shifts by 300 in float32: hence 1e-4.
    y = np.random.default_rng(0).uniform(-310, 310, 500).astype(np.float32)
    pair = rlax.twohot_pair(-300.0, 300.0, 601)
    np.testing.assert_allclose(to_bins(y, PAPER), jax.jit(pair.apply)(y), atol=1e-4)


# --- encode, decode -------------------------------------------------------------------------------


def test_encode_by_hand():
    # h(3) = 1.003, so bin 1 takes 0.997 and bin 2 takes 0.003.
    expected = np.zeros(601)
    expected[301:303] = 0.997, 0.003
    np.testing.assert_allclose(
        jax.jit(encode, static_argnums=1)(jnp.array(3.0), PAPER), expected, atol=1e-6
    )


def test_decode_by_hand():
    # Half on bin −2, half on bin 1: mean −½ in the squeezed space (not the mean of the h⁻¹'s).
    logits = jnp.array([0.0, -1e9, -1e9, 0.0, -1e9])
    expected = -(((np.sqrt(1 + 0.004 * 1.501) - 1) / 0.002) ** 2 - 1)
    np.testing.assert_allclose(to_scalar(logits, SMALL), expected, rtol=1e-5)


def test_decode_reads_back_what_encode_wrote():
    x = real_values()
    back = jax.jit(lambda x: decode(jnp.log(encode(x, PAPER)), PAPER))(x)
    np.testing.assert_allclose(back, x, rtol=2e-5, atol=1e-6)


def test_decode_agrees_with_rlax():
    logits = 3 * normal(0, (20, 601))
    pair = rlax.compose_tx(rlax.SIGNED_HYPERBOLIC_PAIR, rlax.twohot_pair(-300.0, 300.0, 601))
    expected = jax.jit(pair.apply_inv)(jax.nn.softmax(logits))
    np.testing.assert_allclose(to_scalar(logits, PAPER), expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("share", [1e-3, 1e-5, 1e-7])
def test_decode_of_tiny_values_keeps_its_digits(share):
    # All but ``share`` on bin 0, ``share`` on bin 1: the mean is ``share`` and, h⁻¹ being smooth
    # there, x = u² − 1 with u − 1 = 2y/(s + √(s² + 4εy)), s = 1 + 2ε.
    logits = jnp.full(601, -jnp.inf).at[300].set(np.log1p(-share)).at[301].set(np.log(share))
    s = 1.002
    excess = 2 * share / (s + np.sqrt(s * s + 0.004 * share))
    np.testing.assert_allclose(to_scalar(logits, PAPER), excess * (excess + 2), rtol=3e-6)


def test_uniform_logits_decode_to_nearly_zero():
    assert abs(float(to_scalar(jnp.zeros(601), PAPER))) < 1e-4


def test_a_shift_of_the_logits_changes_nothing():
    logits = normal(1, (601,))
    np.testing.assert_allclose(
        to_scalar(logits + 50.0, PAPER), to_scalar(logits, PAPER), rtol=1e-4, atol=1e-3
    )


# --- cross-entropy --------------------------------------------------------------------------------


def test_cross_entropy_by_hand():
    # x = 0 is wholly on the middle bin, whose softmax probability is 3/(1 + 1 + 3 + 1 + 1).
    logits = jnp.log(jnp.array([1.0, 1.0, 3.0, 1.0, 1.0]))
    np.testing.assert_allclose(loss(logits, jnp.array(0.0), SMALL), np.log(7 / 3), rtol=1e-6)


@partial(jax.jit, static_argnums=2)
def value_and_gradient(logits, x, support):
    return jax.value_and_grad(lambda z: cross_entropy(z, x, support).sum())(logits)


@few
@given(st.integers(0, 2**31 - 1))
def test_cross_entropy_and_its_gradient_match_plain_numpy(seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(3, 5)).astype(np.float32)
    x = (2.0 * rng.normal(size=3)).astype(np.float32)
    value, gradient = value_and_gradient(logits, x, SMALL)
    target = two_hot_loop(h_float64(x), SMALL)
    z = logits.astype(np.float64)
    log_probs = z - np.log(np.exp(z).sum(-1, keepdims=True))
    np.testing.assert_allclose(value, -(target * log_probs).sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient, np.exp(log_probs) - target, atol=2e-6)  # softmax − target


def test_gradient_vanishes_exactly_where_the_prediction_is_the_target():
    x = jnp.array([0.37])
    _, gradient = value_and_gradient(jnp.log(encode(x, SMALL) + 1e-30), x, SMALL)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)


def test_bfloat16_logits_are_read_in_float32():
    logits = normal(2, (4, 601)).astype(jnp.bfloat16)
    x = jnp.array([-500.0, 0.1, 3.0, 20_000.0])
    same = logits.astype(jnp.float32)
    for actual, expected in (
        (to_scalar(logits, PAPER), to_scalar(same, PAPER)),
        (loss(logits, x, PAPER), loss(same, x, PAPER)),
    ):
        assert actual.dtype == jnp.float32
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_extreme_logits_have_a_finite_loss_and_gradient():
    for size in (1e4, 1e30):
        logits = jnp.array([[size, 0.0, -size, 0.0, 1.0]])
        value, gradient = value_and_gradient(logits, jnp.array([0.5]), SMALL)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


def test_vmap_over_both_axes_equals_the_batched_call():
    logits = normal(3, (2, 3, 5))
    x = normal(4, (2, 3))
    one = jax.jit(jax.vmap(jax.vmap(partial(cross_entropy, support=SMALL))))
    np.testing.assert_allclose(one(logits, x), loss(logits, x, SMALL), rtol=1e-6)


def test_wrong_shapes_and_types_are_refused_by_name():
    with pytest.raises(ValueError, match=r"decode: logits must have shape \[2, 5\], got \[2, 6\]"):
        to_scalar(jnp.zeros((2, 6)), SMALL)
    with pytest.raises(ValueError, match=r"cross_entropy: logits must have shape \[3, 5\]"):
        loss(jnp.zeros((2, 5)), jnp.zeros(3), SMALL)
    with pytest.raises(TypeError, match="two_hot: y must be a floating-point array"):
        to_bins(jnp.zeros(3, jnp.int32), SMALL)
