"""Algorithm 1's debiased running second moment of the advantage estimator."""

from __future__ import annotations

import jax.numpy as jnp

from muesli.checks import check_float
from muesli.types import Array, Moment


def init_moment() -> Moment:
    """``var := 0``, ``β_product := 1``."""
    return Moment(second=jnp.zeros(()), decay_product=jnp.ones(()))


def update_moment(moment: Moment, errors: Array, mask: Array, decay: float | Array) -> Moment:
    """``var := β var + (1 − β) mean (G − v̂)²`` and ``β_product := β β_product``.

    errors: any shape, G − v̂_prior, not centred; mask: the same shape, False where a record does
    not count. The mean runs over the whole array: under ``jit`` with a sharded batch it is global.
    """
    check_float("update_moment", "errors", errors)
    if jnp.shape(mask) != jnp.shape(errors):
        raise ValueError(
            f"update_moment: mask must have the shape of errors {list(jnp.shape(errors))}, "
            f"got {list(jnp.shape(mask))}"
        )
    squares = jnp.where(mask, jnp.square(errors), 0.0)
    mean = jnp.sum(squares) / jnp.maximum(1.0, jnp.sum(mask))
    return Moment(
        second=decay * moment.second + (1.0 - decay) * mean,
        decay_product=decay * moment.decay_product,
    )


def deviation(moment: Moment, epsilon: float | Array = 1e-12) -> Array:
    """√(var / (1 − β_product) + ε), []: what advantages are divided by."""
    return jnp.sqrt(moment.second / (1.0 - moment.decay_product) + epsilon)
