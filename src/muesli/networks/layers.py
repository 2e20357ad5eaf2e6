"""Small parts shared by torsos, cores and models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from muesli.types import Array

Dtype: TypeAlias = Any


def linear(
    inputs: int, outputs: int, dtype: Dtype, rngs: nnx.Rngs, scale: float = 1.0
) -> nnx.Linear:
    """A dense layer with float32 parameters that computes in ``dtype``.

    Its weights start with variance scale / inputs.
    """
    return _Linear(
        inputs,
        outputs,
        kernel_init=nnx.initializers.variance_scaling(scale, "fan_in", "truncated_normal"),
        dtype=dtype,
        param_dtype=jnp.float32,
        rngs=rngs,
    )


def conv(
    inputs: int, outputs: int, size: int, dtype: Dtype, rngs: nnx.Rngs, stride: int = 1
) -> nnx.Conv:
    """A square 2-D convolution with float32 parameters that computes in ``dtype``."""
    return _Conv(
        inputs,
        outputs,
        (size, size),
        strides=(stride, stride),
        dtype=dtype,
        param_dtype=jnp.float32,
        rngs=rngs,
    )


class _Linear(nnx.Linear):
    """``nnx.Linear`` whose bias gets its gradient in float32."""

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        product = _plain_product(inputs.astype(self.dtype), self.kernel[...].astype(self.dtype))
        return product if self.bias is None else _add_bias(product, self.bias[...])


class _Conv(nnx.Conv):
    """``nnx.Conv`` over [M, H, W, C], padding SAME, whose bias gets its gradient in float32."""

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        strides = self.strides
        assert self.bias is not None and isinstance(strides, tuple)
        x, kernel = inputs.astype(self.dtype), self.kernel[...].astype(self.dtype)
        size, _, planes, outputs = kernel.shape
        on_board = strides == (1, 1) and size % 2 == 1 and x.shape[1] <= _BOARD
        if on_board and jax.default_backend() == "cpu":
            product = _plain_product(_patches(x, size), kernel.reshape(size**2 * planes, outputs))
        else:
            product = _plain_convolution(strides, x, kernel)
        return _add_bias(product, self.bias[...])


_BOARD = 19
"""Up to this height, convolutions on CPUs are matrix products over patches."""


def _patches(x: Array, size: int) -> Array:
    """What a convolution of odd size sees at every place: [..., H, W, N] -> [..., H, W, size² N].

    On CPUs, XLA runs convolutions inside loops more than ten times slower than products of these;
    and when many seeds train at once those become batched, instead of grouped convolutions.
    """
    if size == 1:
        return x
    height, width = x.shape[-3:-1]
    edge = (size // 2, size // 2)
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [edge, edge, (0, 0)])
    shifted = [padded[..., i : i + height, j : j + width, :] for i, j in np.ndindex(size, size)]
    return jnp.concatenate(shifted, axis=-1)


@jax.custom_vjp
def _add_bias(x: Array, bias: Array) -> Array:
    """x + bias in the type of x [..., N]; the gradient of bias is summed in float32.

    That sum runs over every state, and over every pixel of it: millions of terms, which bfloat16
    cannot add up.
    """
    return x + bias.astype(x.dtype)


def _add_bias_backward(_: None, g: Array) -> tuple[Array, Array]:
    return g, jnp.sum(g, axis=range(g.ndim - 1), dtype=jnp.float32)


_add_bias.defvjp(lambda x, bias: (_add_bias(x, bias), None), _add_bias_backward)


class WideLinear(nnx.Linear):
    """A dense layer that multiplies in ``dtype`` but adds, and answers, in float32; bias included.

    For sums that must not be rounded to bfloat16: logits, where a step of the optimiser on a bias
    of −100 would be lost, and gates that are summed again.
    """

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        product = _wide_product(inputs.astype(self.dtype), self.kernel[...].astype(self.dtype))
        return product if self.bias is None else product + self.bias[...]

    def look_up(self, index: Array) -> Array:
        """The answer to the one-hot vectors of ``index``, [...] integer: [..., outputs]."""
        row = self.kernel[...][index].astype(self.dtype).astype(jnp.float32)
        return row if self.bias is None else row + self.bias[...]


def _product(x: Array, kernel: Array, out: Dtype = None) -> Array:
    """x [..., N] times kernel [N, M]: [..., M]."""
    axes = (((x.ndim - 1,), (0,)), ((), ()))
    return jax.lax.dot_general(x, kernel, axes, preferred_element_type=out)


@jax.custom_vjp
def _plain_product(x: Array, kernel: Array) -> Array:
    """The product of x and kernel in their own type, whose gradients are products of what was
    computed before them, not of what is computed again inside them.

    Left to itself, a compiler may do the latter. On a GPU in bfloat16, behind a normalisation whose
    gradient sums to 0 over the units, it seems to have done so wrongly: the weights were moved, for
    the most part, all together, by a gradient thousands of times too long (docs/go.md).
    """
    return _product(x, kernel)


def _product_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(x, kernel), (x, kernel)


def _product_backward(operands: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    return _pull_back(_product, operands, g)


def _pull_back(
    function: Callable[[Array, Array], Array], operands: tuple[Array, Array], g: Array
) -> tuple[Array, Array]:
    """The gradients of a bilinear function, made of g as it is in memory."""
    dtype = operands[0].dtype
    g = g.astype(dtype)
    _, pull_back = jax.vjp(function, *operands)
    return pull_back(g if dtype == jnp.float32 else jax.lax.optimization_barrier(g))


_plain_product.defvjp(_product_forward, _product_backward)


def _convolution(strides: tuple[int, ...], x: Array, kernel: Array) -> Array:
    """x [M, H, W, N] with kernel [h, w, N, C], padding SAME: [M, H', W', C]."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=layout)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _plain_convolution(strides: tuple[int, ...], x: Array, kernel: Array) -> Array:
    """A convolution whose gradients are as those of ``_plain_product``.

    One of 1×1 may be run as a matrix product; others read their gradient from memory anyway.
    """
    return _convolution(strides, x, kernel)


def _convolution_backward(
    strides: tuple[int, ...], operands: tuple[Array, Array], g: Array
) -> tuple[Array, Array]:
    return _pull_back(partial(_convolution, strides), operands, g)


_plain_convolution.defvjp(
    lambda strides, x, kernel: (_convolution(strides, x, kernel), (x, kernel)),
    _convolution_backward,
)


@jax.custom_vjp
def _wide_product(x: Array, kernel: Array) -> Array:
    """The product of x and kernel in float32, whose gradients are products in their own type.

    Left to itself, JAX would multiply the float32 cotangent by x and kernel as they are, and XLA
    would widen those: the gradients would be float32 matrix products, which are slow on GPUs.
    """
    return _product(x, kernel, jnp.float32)


def _wide_product_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _wide_product(x, kernel), (x, kernel)


_wide_product.defvjp(_wide_product_forward, _product_backward)


def _head_init(scale: float) -> nnx.initializers.Initializer:
    """Weights of standard deviation scale / √inputs."""
    return nnx.initializers.variance_scaling(scale**2, "fan_in", "truncated_normal")


def head(inputs: int, outputs: int, dtype: Dtype, rngs: nnx.Rngs) -> WideLinear:
    """A dense output layer that starts near zero, so that the first policy is uniform."""
    return WideLinear(
        inputs,
        outputs,
        kernel_init=_head_init(0.01),
        dtype=dtype,
        param_dtype=jnp.float32,
        rngs=rngs,
    )


# The share of all bins together, however rarely they are targets. Rewards of a thousandth of a bin
# are lost where it is much larger.
_UNSEEN = 1e-6


class InformedHead(WideLinear):
    """A head over bins that is told how often each is the target, and learns the difference.

    Its answers are those of a dense layer plus the logarithms of ``frequencies``, which have no
    gradient and which ``expect`` keeps. Otherwise the layers below would learn them: the quickest
    way to values far from 0 is to turn every feature into a constant. Not their logarithms are
    kept, because the prior network is an average of parameters, and averaged logarithms forget what
    is rare.
    """

    def __init__(self, inputs: int, positions: Array, scale: float, dtype: Dtype, rngs: nnx.Rngs):
        """positions: of the bins, evenly spaced. Before anything is told, 0 is all that occurs."""
        super().__init__(
            inputs,
            positions.size,
            kernel_init=_head_init(scale),
            dtype=dtype,
            param_dtype=jnp.float32,
            rngs=rngs,
        )
        zero = jnp.maximum(0.0, 1.0 - jnp.abs(positions) / (positions[1] - positions[0]))
        self.frequencies = nnx.Param(zero)

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        seen = jax.lax.stop_gradient(self.frequencies[...])
        # What never occurred stays possible.
        possible = (1.0 - _UNSEEN) * seen + _UNSEEN / seen.size
        return super().__call__(inputs, out_sharding) + jnp.log(possible)

    def expect(self, frequencies: Array, rate: Array) -> None:
        """Moves what is expected towards the frequencies of a batch, [bins]."""
        self.frequencies[...] = (1.0 - rate) * self.frequencies[...] + rate * frequencies


def categorical_head(
    inputs: int,
    bins: int,
    maximum: float,
    scale: float,
    dtype: Dtype,
    rngs: nnx.Rngs,
    informed: bool = False,
) -> WideLinear:
    """An output layer over the bins of a support ±maximum that starts concentrated around 0.

    Its bias starts as −|bin|, in squeezed units. From a uniform start over hundreds of bins the
    quickest way down is to turn every feature into a bias, and the features do not recover soon.
    Its weights start with standard deviation scale / √inputs: what the layers before it hear of
    its errors is proportional to that. Informed: it is told the frequencies of its targets later.
    """
    positions = jnp.linspace(-maximum, maximum, bins)
    if informed:
        return InformedHead(inputs, positions, scale, dtype, rngs)
    return WideLinear(
        inputs,
        bins,
        kernel_init=_head_init(scale),
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


def centre_and_scale(x: Array) -> Array:
    """Each vector with mean 0 and variance 1 (over the trailing axis): layer norm, no weights."""
    wide = x.astype(jnp.float32)
    return rms_normalise(wide - jnp.mean(wide, axis=-1, keepdims=True)).astype(x.dtype)


def max_pool(x: Array) -> Array:
    """3×3 maxima at stride 2, padding SAME: [..., H, W, C] -> [..., ⌈H/2⌉, ⌈W/2⌉, C].

    Values and gradients are ``nnx.max_pool``'s: of equal maxima the first takes the gradient. But
    XLA's gradient scatters, which is slow on GPUs, and keeps x; this one is elementwise and keeps
    one byte per maximum.
    """
    # SAME pads even sizes at their end alone, odd ones by one on both sides.
    height, width = x.shape[-3:-1]
    return _even_max_pool(_pad(x, -jnp.inf, ((height % 2, 0), (width % 2, 0))))


def _pad(x: Array, value: float, planes: Sequence[tuple[int, int]]) -> Array:
    """x [..., H, W, C] with (before, after) added to H and W; below 0 takes away."""
    edges = [(0, 0)] * (x.ndim - 3) + [*planes, (0, 0)]
    return jax.lax.pad(x, jnp.asarray(value, x.dtype), [(a, b, 0) for a, b in edges])


@jax.custom_vjp
def _even_max_pool(x: Array) -> Array:
    return _maxima(x)[0]


def _maxima(x: Array) -> tuple[Array, Array]:
    """Maxima of the windows of x [..., 2P, 2Q, C], and 4·row + column of each in its window."""
    height, width = x.shape[-3:-1]
    padded = _pad(x, -jnp.inf, ((0, 1), (0, 1)))
    best = x[..., ::2, ::2, :]
    place = jnp.zeros_like(best, jnp.uint8)
    for i, j in list(np.ndindex(3, 3))[1:]:
        other = padded[..., i : i + height : 2, j : j + width : 2, :]
        place = jnp.where(other > best, jnp.uint8(4 * i + j), place)
        best = jnp.maximum(best, other)
    return best, place


def _even_max_pool_backward(place: Array, g: Array) -> tuple[Array]:
    # Row 2p + r of x, r ∈ {0, 1}, is row r of window p and row r + 2 of window p − 1 (but no window
    # has a row 3, so no place names it). Columns likewise: a number has at most four windows.
    total = jnp.zeros((), g.dtype)
    parity = np.arange(2, dtype=np.uint8)
    for back in np.ndindex(2, 2):
        shift = [(n, -n) for n in back]
        here = 4 * (parity + 2 * back[0])[:, None, None, None] + (parity + 2 * back[1])[:, None]
        won = jnp.expand_dims(_pad(place, 0, shift), (-4, -2)) == here
        total = total + jnp.where(won, jnp.expand_dims(_pad(g, 0.0, shift), (-4, -2)), 0)
    *batch, height, width, channels = g.shape
    return (total.reshape(*batch, 2 * height, 2 * width, channels),)


_even_max_pool.defvjp(_maxima, _even_max_pool_backward)


class BoardConv(nnx.Module):
    """A 3×3 convolution over a small board, one matrix product over its patches everywhere."""

    def __init__(self, inputs: int, outputs: int, dtype: Dtype, rngs: nnx.Rngs):
        self.product = linear(9 * inputs, outputs, dtype, rngs)

    def __call__(self, x: Array) -> Array:
        return self.product(_patches(x, 3))


class Lstm(nnx.Module):
    """An LSTM whose input and hidden products can be had apart, to share one of them.

    Gates are stacked as input, forget, candidate, output: [..., 4·units]. They and the states are
    float32.
    """

    def __init__(
        self,
        inputs: int,
        units: int,
        dtype: Dtype,
        rngs: nnx.Rngs,
        one_hot_scale: float | None = None,
    ):
        # Of a one-hot input only one number is not zero, however many there are: scaling by the
        # fan-in would make the model nearly deaf to its actions.
        scale = 1.0 if one_hot_scale is None else inputs * one_hot_scale**2
        self.units = units
        self.from_input = WideLinear(
            inputs,
            4 * units,
            kernel_init=nnx.initializers.variance_scaling(scale, "fan_in", "truncated_normal"),
            dtype=dtype,
            param_dtype=jnp.float32,
            rngs=rngs,
        )
        self.from_hidden = WideLinear(
            units,
            4 * units,
            use_bias=False,
            dtype=dtype,
            param_dtype=jnp.float32,
            rngs=rngs,
        )

    def advance(self, cell: Array, gates: Array) -> tuple[Array, Array]:
        """The next (cell, hidden), each [..., units], from summed gates [..., 4·units]."""
        i, f, g, o = jnp.split(gates, 4, axis=-1)
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
