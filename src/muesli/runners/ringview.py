"""The replay ring as a checkpoint sees it: cut into pieces of whole chunks, and put together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muesli.checkpoint import RingView
from muesli.replay import Replay
from muesli.types import Array, PyTree

Place = Callable[[int, list[np.ndarray]], None]


def ring_view(replay: Replay, seed: int | None = None) -> RingView:
    """A ring on the device; with ``seed``, that entry of a leading axis of seeds."""
    arrays = jax.tree.leaves((replay.records, replay.starts))
    axis = 1 if seed is None else 2
    chunks = replay.starts.last_reward.shape[axis]
    shapes = []
    for x in arrays:
        shape = list(x.shape[axis - 1 :])
        shape[1] //= chunks
        shapes.append((tuple(shape), np.dtype(x.dtype)))

    def cut(start: int, size: int) -> list[np.ndarray]:
        return jax.device_get(_cut(arrays, seed, start, size, chunks))

    written = np.asarray(replay.written if seed is None else replay.written[seed])
    return RingView(chunks, written, cut, shapes)


def read_ring(empty: Replay, written: Array, load: Callable[[RingView, Place], None]) -> Replay:
    """The ring that ``load(view, place)`` puts into an empty one, piece by piece."""
    held = (empty.records, empty.starts)
    structure = jax.tree.structure(held)
    view = ring_view(empty)._replace(written=np.asarray(written))

    def place(start: int, arrays: list[np.ndarray]) -> None:
        nonlocal held
        held = _place(held, jax.tree.unflatten(structure, arrays), start, view.chunks)

    load(view, place)
    return Replay(*held, jnp.asarray(written))


@partial(jax.jit, static_argnames=("size", "chunks"))
def _cut(arrays: list[Array], seed: Any, start: Any, size: int, chunks: int) -> list[Array]:
    axis = 1 if seed is None else 2

    def one(x: Array) -> Array:
        length = x.shape[axis] // chunks
        begin, sizes = [0] * x.ndim, list(x.shape)
        begin[axis], sizes[axis] = start * length, size * length
        if seed is not None:
            begin[0], sizes[0] = seed, 1
        piece = jax.lax.dynamic_slice(x, begin, sizes)
        return piece if seed is None else piece[0]

    return [one(x) for x in arrays]


@partial(jax.jit, static_argnames="chunks", donate_argnums=0)
def _place(held: PyTree, pieces: PyTree, start: Any, chunks: int) -> PyTree:
    def one(x: Array, piece: Array) -> Array:
        where = [0] * x.ndim
        where[1] = start * (x.shape[1] // chunks)
        return jax.lax.dynamic_update_slice(x, piece, where)

    return jax.tree.map(one, held, pieces)
