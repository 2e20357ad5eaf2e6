"""The guards say which argument, which leaf and which number is wrong, and let good ones pass."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli.checks import check_finite, check_float, check_shape, check_vector


class Record(NamedTuple):
    weights: dict
    loss: object


def test_check_shape_passes_exact_shapes_and_none_for_any_size():
    check_shape("f", "x", jnp.zeros((2, 3)), (2, 3))
    check_shape("f", "x", jnp.zeros((2, 3)), (None, 3))
    check_shape("f", "x", jnp.zeros(()), ())
    check_shape("f", "x", 1.0, ())


@pytest.mark.parametrize(
    ("shape", "wanted", "text"),
    [
        ((2, 3), (2, 4), r"f: x must have shape \[2, 4\], got \[2, 3\]"),
        ((2, 3), (None, 4), r"f: x must have shape \[any, 4\], got \[2, 3\]"),
        ((2, 3), (2,), r"f: x must have shape \[2\], got \[2, 3\]"),
        ((2,), (2, 1), r"f: x must have shape \[2, 1\], got \[2\]"),
        ((), (1,), r"f: x must have shape \[1\], got \[\]"),
    ],
)
def test_check_shape_names_function_argument_wish_and_fact(shape, wanted, text):
    with pytest.raises(ValueError, match=text):
        check_shape("f", "x", jnp.zeros(shape), wanted)


def test_check_shape_raises_while_tracing():
    with pytest.raises(ValueError, match=r"f: x must have shape \[4\], got \[3\]"):
        jax.eval_shape(lambda x: check_shape("f", "x", x, (4,)), jnp.zeros(3))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_check_float_passes_floating_point(dtype):
    check_float("f", "x", jnp.zeros(2, dtype))


@pytest.mark.parametrize("dtype", ["int32", "bool", "uint8", "complex64"])
def test_check_float_names_the_type_it_got(dtype):
    with pytest.raises(TypeError, match=f"f: x must be a floating-point array, got {dtype}"):
        check_float("f", "x", jnp.zeros(2, dtype))


def test_check_vector_names_the_first_argument_that_is_wrong():
    good = jnp.zeros(3)
    check_vector("f", 3, a=good, b=good)
    check_vector("f", None, a=good, b=jnp.zeros(5))
    with pytest.raises(ValueError, match=r"f: b must have shape \[3\], got \[4\]"):
        check_vector("f", 3, a=good, b=jnp.zeros(4), c=jnp.zeros(5))
    with pytest.raises(ValueError, match=r"f: b must have shape \[any\], got \[3, 1\]"):
        check_vector("f", None, a=good, b=good[:, None])
    with pytest.raises(TypeError, match="f: a must be a floating-point"):
        check_vector("f", 3, a=jnp.zeros(3, int), b=good)


def test_check_finite_passes_good_trees_and_skips_what_cannot_be_wrong():
    check_finite(
        {
            "weights": jnp.ones((2, 2), jnp.bfloat16),
            "step": jnp.array(3),
            "mask": np.array([True]),
            "key": jax.random.key(0),
            "none": None,
            "empty": jnp.zeros((0, 3)),
            "largest": jnp.finfo(jnp.float32).max,
            "scalar": 1.5,
        }
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_check_finite_names_the_first_bad_leaf_and_where_in_it(bad, dtype):
    tree = Record(
        weights={
            "a": jnp.zeros(4),
            "b": jnp.zeros((2, 3), dtype).at[1, 2].set(bad).at[1, 0].set(bad),
        },
        loss=jnp.array(jnp.nan),
    )
    with pytest.raises(FloatingPointError) as error:
        check_finite(tree, "state")
    assert str(error.value) == (
        f"state.weights['b'][1, 0] is {bad} (2 of 6 numbers there are not finite)"
    )


def test_check_finite_names_a_scalar_leaf_without_an_index():
    with pytest.raises(FloatingPointError, match=r"^tree\[1\]\.loss is nan \(1 of 1 "):
        check_finite([1.0, Record({}, float("nan"))])


def test_check_finite_looks_past_random_keys():
    with pytest.raises(FloatingPointError, match=r"tree\['loss'\] is inf"):
        check_finite({"key": jax.random.key(0), "loss": jnp.inf})
