"""Running mean and variance of observations, and observations in their units."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from muesli.types import Array, PyTree, Statistics

# Added to the variance, so that what never changed yet is not divided by zero. In pictures the
# first change of such a pixel is an event like any other: eight steps of 255 count as little.
_EPSILON = 1e-8
_BYTES_EPSILON = 1e-3


def init_statistics(observation: PyTree) -> Statistics:
    """Nothing seen yet: mean 0, variance 1, which leave an observation as it is.

    observation: pytree of arrays, or of their shapes.
    """
    return Statistics(
        seen=jnp.zeros(()),
        mean=jax.tree.map(lambda x: jnp.zeros(x.shape), observation),
        variance=jax.tree.map(lambda x: jnp.ones(x.shape), observation),
    )


def update_statistics(statistics: Statistics, observations: PyTree) -> Statistics:
    """Takes in more observations, each with the same weight as every one before.

    observations: pytree [B, T, ...]. The means run over both axes at once: under ``jit`` with a
    sharded batch they are global. Merged in the form that subtracts no large numbers.
    """
    leaf = jax.tree.leaves(observations)[0]
    more = leaf.shape[0] * leaf.shape[1]
    seen = statistics.seen + more
    share = more / seen

    def merge(mean: Array, variance: Array, x: Array) -> tuple[Array, Array]:
        x = as_float(x)
        new_mean = jnp.mean(x, axis=(0, 1))
        new_variance = jnp.mean(jnp.square(x - new_mean), axis=(0, 1))
        step = new_mean - mean
        between = share * (1.0 - share) * jnp.square(step)
        return mean + share * step, (1.0 - share) * variance + share * new_variance + between

    merged = jax.tree.map(merge, statistics.mean, statistics.variance, observations)
    mean, variance = jax.tree.transpose(
        jax.tree.structure(statistics.mean), jax.tree.structure((0, 0)), merged
    )
    return Statistics(seen, mean, variance)


def standardise(statistics: Statistics | None, observation: PyTree, clip: float) -> PyTree:
    """(x − mean) / √variance, clipped to ± ``clip``: f32 [...]. Without statistics, x itself."""
    if statistics is None:
        return observation

    def one(mean: Array, variance: Array, x: Array) -> Array:
        floor = _BYTES_EPSILON if x.dtype == jnp.uint8 else _EPSILON
        scaled = (as_float(x) - mean) * jax.lax.rsqrt(variance + floor)
        return jnp.clip(scaled, -clip, clip)

    return jax.tree.map(one, statistics.mean, statistics.variance, observation)


def as_float(observation: Array, dtype: Any = jnp.float32) -> Array:
    """Bytes to [0, 1], everything else as it is: [...]."""
    scale = 1.0 / 255.0 if observation.dtype == jnp.uint8 else 1.0
    return observation.astype(dtype) * jnp.asarray(scale, dtype)
