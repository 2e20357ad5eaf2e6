"""The replay ring as a checkpoint sees it: cut into pieces of whole chunks, and put together.

A process saves and reads the slots that lie with its own devices.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muesli.checkpoint import RingView
from muesli.replay import Replay
from muesli.runners.mesh import Topology, dealt, shares
from muesli.types import Array, PyTree


def ring_view(replay: Replay, seed: int | None = None) -> RingView:
    """This process's slots of a ring; with ``seed``, of that entry of a leading axis of seeds."""
    slot_axis = 0 if seed is None else 1
    arrays = jax.tree.leaves((replay.records, replay.starts))
    # One list of arrays for each device.
    held = list(zip(*(shares(x, slot_axis) for x in arrays), strict=True))
    chunks = replay.starts.last_reward.shape[slot_axis + 1]

    def cut(start: int, size: int) -> list[np.ndarray]:
        pieces = [jax.device_get(_cut(list(own), seed, start, size, chunks)) for own in held]
        return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]

    written = np.concatenate(jax.device_get(shares(replay.written, slot_axis)), axis=slot_axis)
    written = written if seed is None else written[seed]
    shapes = [x.shape[slot_axis:] for x in arrays]
    return RingView(chunks, written, cut, _chunk_shapes(arrays, shapes, len(written), chunks))


def _chunk_shapes(arrays: Any, shapes: Any, slots: int, chunks: int) -> Any:
    """(shape, dtype) of one chunk of ``slots`` slots, of each array."""
    return [
        ((slots, shape[1] // chunks, *shape[2:]), np.dtype(x.dtype))
        for x, shape in zip(arrays, shapes, strict=True)
    ]


class RingBuilder:
    """A ring that is read piece by piece into the memory of this process's devices.

    Slots that will be written together must have been written alike. Where they were not, because
    other devices wrote them, those ahead lose as many of their oldest chunks as they are ahead.
    """

    def __init__(self, like: Replay, written: Array, topology: Topology, alike: int | None = None):
        """like: the whole ring's shapes; written: [slots]; alike: how many neighbours will be
        written together (all).
        """
        self._found, self._topology = np.asarray(written), topology
        rows = self._found.reshape(-1, alike or len(self._found))
        self._written = np.repeat(rows.min(axis=1), rows.shape[1]).astype(self._found.dtype)
        held = (like.records, like.starts)
        self._shapes, self._structure = jax.tree.leaves(held), jax.tree.structure(held)
        self.chunks = like.starts.last_reward.shape[1]
        self.slots = topology.own_share(len(self._written))
        each = len(self.slots) // len(topology.own)
        self._firsts = [self.slots.start + k * each for k in range(len(topology.own))]
        self._each = each
        self._held = [
            [jnp.zeros((each, *x.shape[1:]), x.dtype, device=device) for x in self._shapes]
            for device in topology.own
        ]

    def view(self, slots: range) -> RingView:
        """The layout of what was saved of ``slots``."""

        def cut(start: int, size: int) -> list[np.ndarray]:
            raise NotImplementedError

        shapes = _chunk_shapes(
            self._shapes, [x.shape for x in self._shapes], len(slots), self.chunks
        )
        return RingView(self.chunks, self._found[slots.start : slots.stop], cut, shapes)

    def place(self, slots: range, start: int, arrays: list[np.ndarray]) -> None:
        """Takes in chunks from ``start`` on of ``slots``, as far as they lie here."""
        for k, first in enumerate(self._firsts):
            begin, end = max(first, slots.start), min(first + self._each, slots.stop)
            for run in self._runs(begin, end):
                mine = [x[run.start - slots.start : run.stop - slots.start] for x in arrays]
                ahead = int(self._found[run.start] - self._written[run.start])
                self._put(k, mine, run.start - first, start - ahead)

    def _runs(self, begin: int, end: int) -> list[range]:
        """The slots from ``begin`` to ``end``, cut where they are not equally far ahead."""
        ahead = (self._found - self._written)[begin:end]
        edges = [begin, *(begin + 1 + np.flatnonzero(np.diff(ahead))), end]
        return [range(int(a), int(b)) for a, b in pairwise(edges) if a < b]

    def _put(self, k: int, arrays: list[np.ndarray], slot: int, start: int) -> None:
        """Chunks from ``start`` on, counted around the ring, into slots of device ``k``."""
        lengths = [x.shape[1] // self.chunks for x in self._shapes]
        size = arrays[0].shape[1] // lengths[0]
        done = 0
        while done < size:
            at = (start + done) % self.chunks
            now = min(size - done, self.chunks - at)
            piece = [
                x[:, done * n : (done + now) * n] for x, n in zip(arrays, lengths, strict=True)
            ]
            self._held[k] = _place(self._held[k], piece, slot, at, self.chunks)
            done += now

    def finish(self) -> Replay:
        """The ring, dealt to the devices of all processes."""
        sharding = dealt(self._topology.mesh)
        whole = [
            jax.make_array_from_single_device_arrays(
                shape.shape, sharding, [held[k] for held in self._held]
            )
            for k, shape in enumerate(self._shapes)
        ]
        records, starts = jax.tree.unflatten(self._structure, whole)
        written = jax.make_array_from_callback(
            self._written.shape, sharding, lambda index: self._written[index]
        )
        return Replay(records, starts, written)


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
def _place(held: PyTree, pieces: PyTree, slot: Any, start: Any, chunks: int) -> PyTree:
    def one(x: Array, piece: Array) -> Array:
        where = [0] * x.ndim
        where[0], where[1] = slot, start * (x.shape[1] // chunks)
        return jax.lax.dynamic_update_slice(x, piece, where)

    return jax.tree.map(one, held, pieces)
