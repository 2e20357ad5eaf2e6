"""Errors at trace time that name the argument, a finder of numbers that are not finite, and errors
told in one line.
"""

from __future__ import annotations

import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muesli.types import Array, PyTree

# Whose code is no user's: this package, Python's own, and what is installed.
_OTHERS = (__file__.rpartition("/")[0], traceback.__file__.rpartition("/")[0], "<")


def check_shape(function: str, argument: str, value: Array, shape: tuple[int | None, ...]) -> None:
    """Raises a ValueError naming ``argument`` unless its shape matches; None matches any size."""
    actual = jnp.shape(value)
    matches = len(actual) == len(shape) and all(
        want is None or want == have for want, have in zip(shape, actual, strict=True)
    )
    if not matches:
        wanted = "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
        raise ValueError(f"{function}: {argument} must have shape {wanted}, got {list(actual)}")


def leading_size(function: str, argument: str, value: Array) -> int:
    """The size of the first axis; raises a ValueError naming ``argument`` where there is none."""
    if jnp.ndim(value) == 0:
        raise ValueError(f"{function}: {argument} must have at least one axis, got a scalar")
    return jnp.shape(value)[0]


def check_float(function: str, argument: str, value: Array) -> None:
    """Raises a TypeError naming ``argument`` unless it holds floating-point numbers."""
    if isinstance(value, list | tuple):
        got = type(value).__name__
        raise TypeError(f"{function}: {argument} must be a floating-point array, got a {got}")
    dtype = jnp.result_type(value)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{function}: {argument} must be a floating-point array, got {dtype}")


def check_vector(function: str, length: int | None = None, **arguments: Array) -> None:
    """Raises unless every named argument is a floating-point vector (of ``length``, if given)."""
    for argument, value in arguments.items():
        check_float(function, argument, value)
        check_shape(function, argument, value, (length,))


def check_finite(tree: PyTree, name: str = "tree") -> None:
    """Raises a FloatingPointError naming the first leaf that holds a NaN or an infinity.

    For concrete arrays, outside ``jit``: a debugging aid and a guard at the doors of a run.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            continue
        values = np.asarray(leaf)
        if not np.issubdtype(values.dtype, np.inexact) and values.dtype != jnp.bfloat16:
            continue
        bad = ~np.isfinite(values.astype(np.float64))
        if bad.any():
            where = np.unravel_index(int(np.argmax(bad)), values.shape)
            index = f"[{', '.join(str(int(i)) for i in where)}]" if where else ""
            raise FloatingPointError(
                f"{name}{jax.tree_util.keystr(path)}{index} is {values[where]} "
                f"({int(bad.sum())} of {values.size} numbers there are not finite)"
            )


def described(value: Any) -> str:
    """An array by its dtype and shape, anything else by its type."""
    if hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    if type(value) is tuple:
        return f"({', '.join(described(part) for part in value)})"
    return type(value).__name__


def untraceable(what: str, error: Exception) -> str:
    """What is wrong with a user's function that JAX was to trace, in one line."""
    if isinstance(error, jax.errors.JAXTypeError):
        why = str(error).splitlines()[0]
        return f"{what} cannot be traced by JAX: {why}{place_of(error)}"
    return f"{what} raised {told(error)}{place_of(error)}"


def told(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place_of(error: BaseException) -> str:
    """Where a user's own code raised it, as `` (file.py:3)``; nothing where only others' did."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename.rpartition('/')[2]}:{error.lineno})"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        installed = "/site-packages/" in frame.filename or "/dist-packages/" in frame.filename
        if not installed and not frame.filename.startswith(_OTHERS):
            return f" ({frame.filename.rpartition('/')[2]}:{frame.lineno})"
    return ""
