"""Values and rewards as categorical distributions in a squeezed space.

A scalar is squeezed by h, spread over the two nearest bins of a fixed support, and predicted by
cross-entropy; a prediction is read back as h⁻¹ of its mean.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from muesli.checks import check_float, check_shape
from muesli.types import Array

EPSILON = 1e-3


class Support(NamedTuple):
    """Equally spaced bins in the squeezed space, from ``minimum`` to ``maximum``, both included."""

    minimum: float = -300.0
    maximum: float = 300.0
    num_bins: int = 601

    def bins(self) -> Array:
        """The bins' positions, [num_bins]."""
        # Spaced in float64: in float32 the default bins would miss the integers by up to 1.5e-5.
        bins = np.linspace(self.minimum, self.maximum, self.num_bins)
        return jnp.asarray(bins, jnp.float32)


def squeeze(x: Array, epsilon: float = EPSILON) -> Array:
    """h(x) = sign(x)(√(|x| + 1) − 1) + εx, any shape.

    √(|x| + 1) − 1 is computed as |x| / (√(|x| + 1) + 1), which keeps its digits for small x.
    """
    return x / (jnp.sqrt(jnp.abs(x) + 1.0) + 1.0) + epsilon * x


def unsqueeze(y: Array, epsilon: float = EPSILON) -> Array:
    """h⁻¹(y), any shape: the positive root of εu² + u = |y| + 1 + ε, then |x| = (u − 1)(u + 1).

    The root is taken in the form without cancellation, so float32 keeps six digits everywhere.
    """
    # u − 1, from the quadratic ε(u − 1)² + (1 + 2ε)(u − 1) = |y|: exact to rounding for small y.
    # It carries the sign of y, so that the derivative at zero is right too.
    slope = 1.0 + 2.0 * epsilon
    excess = 2.0 * y / (slope + jnp.sqrt(slope * slope + 4.0 * epsilon * jnp.abs(y)))
    return excess * (jnp.abs(excess) + 2.0)


def two_hot(y: Array, support: Support) -> Array:
    """Spreads squeezed scalars over the two nearest bins so that the mean is kept.

    y: [...]; returns [..., num_bins]. Values beyond the support go wholly to its last bin. Written
    as a triangle of width one bin around y: at a bin or an edge nothing is lost or counted twice.
    """
    check_float("two_hot", "y", y)
    clipped = jnp.clip(y.astype(jnp.float32), support.minimum, support.maximum)
    per_unit = (support.num_bins - 1) / (support.maximum - support.minimum)
    distance = jnp.abs(clipped[..., None] - support.bins()) * per_unit
    return jnp.maximum(0.0, 1.0 - distance)


def encode(x: Array, support: Support) -> Array:
    """Scalars in real units to two-hot targets: [...] -> [..., num_bins]."""
    return two_hot(squeeze(x), support)


def decode(logits: Array, support: Support) -> Array:
    """Predicted logits to scalars in real units: [..., num_bins] -> [...]."""
    leading = jnp.shape(logits)[:-1]
    check_shape("decode", "logits", logits, (*leading, support.num_bins))
    probs = jax.nn.softmax(logits.astype(jnp.float32))
    # A sum, not a matrix product: accelerators may round the latter's inputs to ten bits.
    return unsqueeze(jnp.sum(probs * support.bins(), axis=-1))


def cross_entropy(logits: Array, x: Array, support: Support) -> Array:
    """Categorical loss of predictions against scalars in real units.

    logits: [..., num_bins]; x: [...]; returns [...].
    """
    check_shape("cross_entropy", "logits", logits, (*jnp.shape(x), support.num_bins))
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.sum(encode(x, support) * log_probs, axis=-1)
