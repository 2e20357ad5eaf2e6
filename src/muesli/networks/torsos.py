"""Torsos: from one observation to features, over one flat batch axis ``[M, ...]``."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from muesli.config import NetworkConfig
from muesli.networks.layers import (
    BoardConv,
    Dtype,
    PreActivationBlock,
    conv,
    linear,
    max_pool,
    rms_normalise,
)
from muesli.ops.standardise import as_float
from muesli.types import Array


class MlpTorso(nnx.Module):
    """Dense layers over a flattened observation: [M, ...] -> [M, units]."""

    def __init__(
        self,
        shape: tuple[int, ...],
        config: NetworkConfig,
        dtype: Dtype,
        rngs: nnx.Rngs,
    ):
        size = 1
        for n in shape:
            size *= n
        sizes = (size, *config.torso_channels, config.torso_units)
        self.layers = nnx.List([linear(a, b, dtype, rngs) for a, b in pairwise(sizes)])
        self.normalise = config.normalise_features
        self.dtype = dtype

    def __call__(self, observation: Array) -> Array:
        x = as_float(observation, self.dtype).reshape(observation.shape[0], -1)
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return rms_normalise(x) if self.normalise else x


def _summarise(planes: Array, out: nnx.Linear, normalise: bool) -> Array:
    """Planes through one dense layer to features: [M, H, W, C] -> [M, units]."""
    x = jax.nn.relu(out(planes.reshape(planes.shape[0], -1)))
    return rms_normalise(x) if normalise else x


class SmallConvTorso(nnx.Module):
    """3×3 convolutions at full resolution, for boards and MinAtar: [M, H, W, C] -> [M, units]."""

    def __init__(
        self,
        shape: tuple[int, ...],
        config: NetworkConfig,
        dtype: Dtype,
        rngs: nnx.Rngs,
    ):
        height, width, planes = shape
        sizes = (planes, *config.torso_channels)
        self.convs = nnx.List([BoardConv(a, b, dtype, rngs) for a, b in pairwise(sizes)])
        self.out = linear(height * width * sizes[-1], config.torso_units, dtype, rngs)
        self.normalise = config.normalise_features
        self.dtype = dtype

    def __call__(self, observation: Array) -> Array:
        x = as_float(observation, self.dtype)
        for layer in self.convs:
            x = jax.nn.relu(layer(x))
        return _summarise(x, self.out, self.normalise)


class _ImpalaSection(nnx.Module):
    """Convolution, 3×3 max-pool of stride 2, two residual blocks."""

    def __init__(self, inputs: int, outputs: int, dtype: Dtype, rngs: nnx.Rngs):
        self.enter = conv(inputs, outputs, 3, dtype, rngs)
        self.blocks = nnx.List(
            [nnx.List([conv(outputs, outputs, 3, dtype, rngs) for _ in range(2)]) for _ in range(2)]
        )

    def __call__(self, x: Array) -> Array:
        x = max_pool(self.enter(x))
        for first, second in self.blocks:
            x = x + second(jax.nn.relu(first(jax.nn.relu(x))))
        return x


class ImpalaTorso(nnx.Module):
    """IMPALA's residual network: [M, H, W, C] -> [M, units]."""

    def __init__(
        self,
        shape: tuple[int, ...],
        config: NetworkConfig,
        dtype: Dtype,
        rngs: nnx.Rngs,
    ):
        height, width, planes = shape
        sizes = (planes, *config.torso_channels)
        self.sections = nnx.List([_ImpalaSection(a, b, dtype, rngs) for a, b in pairwise(sizes)])
        for _ in config.torso_channels:
            height, width = -(-height // 2), -(-width // 2)
        self.out = linear(height * width * sizes[-1], config.torso_units, dtype, rngs)
        self.normalise = config.normalise_features
        self.dtype = dtype

    def __call__(self, observation: Array) -> Array:
        x = as_float(observation, self.dtype)
        for section in self.sections:
            x = section(x)
        return _summarise(jax.nn.relu(x), self.out, self.normalise)


_DQN_WINDOWS = ((8, 4), (4, 2), (3, 1))
"""Size and stride of each of DQN's convolutions."""


class DqnTorso(nnx.Module):
    """DQN's strided convolutions, for pictures on a processor: [M, H, W, C] -> [M, units]."""

    def __init__(
        self,
        shape: tuple[int, ...],
        config: NetworkConfig,
        dtype: Dtype,
        rngs: nnx.Rngs,
    ):
        sizes = (shape[-1], *config.torso_channels)
        self.convs = nnx.List(
            conv(a, b, size, dtype, rngs, stride)
            for (a, b), (size, stride) in zip(pairwise(sizes), _DQN_WINDOWS, strict=True)
        )
        # Padded convolutions of strides 4, 2 and 1.
        height, width = (-(-n // 8) for n in shape[:2])
        self.out = linear(height * width * sizes[-1], config.torso_units, dtype, rngs)
        self.normalise = config.normalise_features
        self.dtype = dtype

    def __call__(self, observation: Array) -> Array:
        x = as_float(observation, self.dtype)
        for layer in self.convs:
            x = jax.nn.relu(layer(x))
        return _summarise(x, self.out, self.normalise)


class MuZeroTorso(nnx.Module):
    """MuZero's residual network, which keeps the board: [M, H, W, C] -> [M, H', W', planes].

    With ``downsample``, 96×96 becomes 6×6: a strided convolution, 2 blocks, another, 3 blocks, a
    pool, 3 blocks, a pool. Then ``blocks`` residual blocks at that size.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        config: NetworkConfig,
        dtype: Dtype,
        rngs: nnx.Rngs,
    ):
        planes = config.model_planes
        narrow = planes // 2

        def tower(width: int, count: int) -> nnx.List[PreActivationBlock]:
            return nnx.List([PreActivationBlock(width, dtype, rngs) for _ in range(count)])

        self.downsample = config.downsample
        if config.downsample:
            self.enter = conv(shape[-1], narrow, 3, dtype, rngs, stride=2)
            self.narrow = tower(narrow, 2)
            self.widen = conv(narrow, planes, 3, dtype, rngs, stride=2)
            self.before_pool = tower(planes, 3)
            self.after_pool = tower(planes, 3)
        else:
            self.enter = conv(shape[-1], planes, 3, dtype, rngs)
        self.tower = tower(planes, config.blocks)
        self.dtype = dtype

    def __call__(self, observation: Array) -> Array:
        x = self.enter(as_float(observation, self.dtype))
        if self.downsample:
            for block in self.narrow:
                x = block(x)
            x = self.widen(x)
            for block in self.before_pool:
                x = block(x)
            x = nnx.avg_pool(x, (3, 3), strides=(2, 2), padding="SAME")
            for block in self.after_pool:
                x = block(x)
            x = nnx.avg_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for block in self.tower:
            x = block(x)
        return scale_planes(x)


def scale_planes(x: Array) -> Array:
    """MuZero's scaling of a hidden state to [0, 1], over all planes. x: [..., H, W, C]."""
    wide = x.astype(jnp.float32)
    low, high = -highest(-wide), highest(wide)
    return (wide - low) / jnp.maximum(high - low, 1e-5)


@jax.custom_vjp
def highest(x: Array) -> Array:
    """The largest number of each state: [..., H, W, C] -> [..., 1, 1, 1].

    Of equal ones the first takes the gradient. JAX's own gradient looks for the places that hold
    the maximum and divides by their number. But a compiler may round x to bfloat16 where it takes
    the maximum and not where it looks for it; then no place holds it, and the gradient is NaN.
    """
    return jnp.max(x, axis=(-3, -2, -1), keepdims=True)


def _highest_forward(x: Array) -> tuple[Array, Array]:
    size = math.prod(x.shape[-3:])
    place = jnp.argmax(x.reshape((*x.shape[:-3], size)), axis=-1)
    return highest(x), (jnp.arange(size) == place[..., None]).reshape(x.shape)


def _highest_backward(held: Array, gradient: Array) -> tuple[Array]:
    return (jnp.where(held, gradient, 0.0),)


highest.defvjp(_highest_forward, _highest_backward)


TORSOS: dict[str, Any] = {
    "mlp": MlpTorso,
    "conv_small": SmallConvTorso,
    "dqn": DqnTorso,
    "impala": ImpalaTorso,
    "muzero": MuZeroTorso,
}
