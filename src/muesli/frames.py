"""Observations made of several frames, along their last axis, oldest first."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from muesli.types import Array, PyTree


class Stack(NamedTuple):
    """What an observation is made of.

    frames: how many; before an episode's first one there is that one again. actions: 0, or how many
    actions there are: behind every frame then lies a plane that tells the one that led to it.
    """

    frames: int = 1
    actions: int = 0

    @property
    def planes(self) -> int:
        """Planes behind every frame."""
        return int(self.actions > 0)

    @property
    def plain(self) -> bool:
        """Whether an observation is a frame and nothing else."""
        return self.frames == 1 and not self.planes

    @property
    def reach(self) -> int:
        """How many records before its own an observation speaks of."""
        return self.frames - 1 + self.planes

    def channels(self, of_frame: int) -> int:
        """The last axis of an observation, from that of a frame."""
        return self.frames * (of_frame + self.planes)


def mark(frame: Array, action: Array, first: Array, stack: Stack) -> Array:
    """A frame [..., H, W, C] with its plane, if it is to have one: [..., H, W, C + 1].

    action: [...], what led to it; first: [...] bool, where nothing did: the plane is 0 there, else
    (action + 1) / actions, of bytes in 255ths.
    """
    if not stack.planes:
        return frame
    share = jnp.where(first, 0.0, (action + 1.0) / stack.actions)
    if frame.dtype == jnp.uint8:
        share = jnp.round(255.0 * share)
    plane = jnp.broadcast_to(share[..., None, None, None], (*frame.shape[:-1], 1))
    return jnp.concatenate([frame, plane.astype(frame.dtype)], axis=-1)


def begin(frame: Array, stack: Stack) -> Array:
    """The observation at an episode's start. frame: [..., C], marked."""
    return jnp.concatenate([frame] * stack.frames, axis=-1)


def push(observation: Array, frame: Array) -> Array:
    """The next observation, without its oldest frame. frame: [..., C], marked."""
    return jnp.concatenate([observation[..., frame.shape[-1] :], frame], axis=-1)


def newest(observation: PyTree, stack: Stack) -> PyTree:
    """The newest frame of observations, without its plane."""

    def one(x: Array) -> Array:
        size = x.shape[-1]
        return x[..., size - size // stack.frames : size - stack.planes]

    return jax.tree.map(one, observation)
