"""Small parts shared by torsos, cores and models."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from muesli.types import Array

Dtype: TypeAlias = Any

# Output layers start near zero, so that the first policy is uniform and the first values are 0.
_head_init = nnx.initializers.variance_scaling(1e-4, "fan_in", "truncated_normal")


def linear(inputs: int, outputs: int, dtype: Dtype, rngs: nnx.Rngs) -> nnx.Linear:
    """A dense layer with float32 parameters that computes in ``dtype``."""
    return nnx.Linear(inputs, outputs, dtype=dtype, param_dtype=jnp.float32, rngs=rngs)


def conv(
    inputs: int, outputs: int, size: int, dtype: Dtype, rngs: nnx.Rngs, stride: int = 1
) -> nnx.Conv:
    """A square 2-D convolution with float32 parameters that computes in ``dtype``."""
    return nnx.Conv(
        inputs,
        outputs,
        (size, size),
        strides=(stride, stride),
        dtype=dtype,
        param_dtype=jnp.float32,
        rngs=rngs,
    )


def head(inputs: int, outputs: int, dtype: Dtype, rngs: nnx.Rngs) -> nnx.Linear:
    """A dense output layer that starts near zero."""
    return nnx.Linear(
        inputs,
        outputs,
        kernel_init=_head_init,
        dtype=dtype,
        param_dtype=jnp.float32,
        rngs=rngs,
    )


def categorical_head(
    inputs: int, bins: int, maximum: float, dtype: Dtype, rngs: nnx.Rngs
) -> nnx.Linear:
    """An output layer over the bins of a support ±maximum that starts concentrated around 0.

    Its bias starts as −|bin|, in squeezed units. From a uniform start over hundreds of bins the
    quickest way down is to turn every feature into a bias, and the features do not recover soon.
    """
    positions = jnp.linspace(-maximum, maximum, bins)
    return nnx.Linear(
        inputs,
        bins,
        kernel_init=_head_init,
        bias_init=lambda key, shape, dtype: jnp.broadcast_to(-jnp.abs(positions), shape),
        dtype=dtype,
        param_dtype=jnp.float32,
        rngs=rngs,
    )


def rms_normalise(x: Array) -> Array:
    """x / √mean(x²) over the trailing axis, in float32."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype)


class BoardConv(nnx.Module):
    """A 3×3 convolution over a small board, written as one matrix product over its patches.

    On CPUs, XLA runs convolutions inside loops more than ten times slower than this; and when many
    seeds train at once this becomes a batched product instead of a grouped convolution.
    """

    def __init__(self, inputs: int, outputs: int, dtype: Dtype, rngs: nnx.Rngs):
        self.product = linear(9 * inputs, outputs, dtype, rngs)

    def __call__(self, x: Array) -> Array:
        height, width = x.shape[-3:-1]
        padded = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [(1, 1), (1, 1), (0, 0)])
        patches = [
            padded[..., i : i + height, j : j + width, :] for i in range(3) for j in range(3)
        ]
        return self.product(jnp.concatenate(patches, axis=-1))


class Lstm(nnx.Module):
    """An LSTM whose input and hidden products can be had apart, to share one of them.

    Gates are stacked as input, forget, candidate, output: [..., 4·units]. States are float32.
    """

    def __init__(
        self, inputs: int, units: int, dtype: Dtype, rngs: nnx.Rngs, one_hot_inputs: bool = False
    ):
        # Of a one-hot input only one number is not zero, however many there are: scaling by the
        # fan-in would make the model nearly deaf to its actions.
        scale = inputs if one_hot_inputs else 1
        self.units = units
        self.from_input = nnx.Linear(
            inputs,
            4 * units,
            kernel_init=nnx.initializers.variance_scaling(scale, "fan_in", "truncated_normal"),
            dtype=dtype,
            param_dtype=jnp.float32,
            rngs=rngs,
        )
        self.from_hidden = nnx.Linear(
            units,
            4 * units,
            use_bias=False,
            dtype=dtype,
            param_dtype=jnp.float32,
            rngs=rngs,
        )

    def advance(self, cell: Array, gates: Array) -> tuple[Array, Array]:
        """The next (cell, hidden), each [..., units], from summed gates [..., 4·units]."""
        i, f, g, o = jnp.split(gates.astype(jnp.float32), 4, axis=-1)
        cell = jax.nn.sigmoid(f + 1.0) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        return cell, jax.nn.sigmoid(o) * jnp.tanh(cell)


class PreActivationBlock(nnx.Module):
    """ResNet v2: x + conv(relu(norm(conv(relu(norm x)))))."""

    def __init__(self, planes: int, dtype: Dtype, rngs: nnx.Rngs):
        self.first = conv(planes, planes, 3, dtype, rngs)
        self.second = conv(planes, planes, 3, dtype, rngs)
        self.norms = nnx.List(
            [
                nnx.LayerNorm(planes, dtype=dtype, param_dtype=jnp.float32, rngs=rngs)
                for _ in range(2)
            ]
        )

    def __call__(self, x: Array) -> Array:
        y = self.first(jax.nn.relu(self.norms[0](x)))
        return x + self.second(jax.nn.relu(self.norms[1](y)))
