"""A large ring in files of its own, of which a checkpoint writes only those that have changed.

The ring's chunks are cut into segments. A segment is a file named by the SHA-256 of its bytes in a
folder that all checkpoints of a run share; a checkpoint lists the files it is made of, and a file
that no checkpoint lists any more is removed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from muesli.checkpoint.packed import CheckpointError, open_plain

_MOST_SEGMENTS, _LEAST_BYTES = 128, 2**20
_HEX = frozenset("0123456789abcdef")


class RingView(NamedTuple):
    """A ring as it is saved. chunks: how many it has; written: [slots], chunks ever written to each
    slot, the next one to ``written % chunks``; cut(start, size): those chunks of every array, as
    NumPy arrays in a fixed order; shapes: (shape, dtype) of one chunk of each array.
    """

    chunks: int
    written: np.ndarray
    cut: Callable[[int, int], list[np.ndarray]]
    shapes: list[tuple[tuple[int, ...], np.dtype[Any]]]


class RingFiles:
    """The segments of one run's ring, and what of them is on disk already."""

    def __init__(self, folder: Path):
        """``folder`` is made when something is written to it."""
        self.folder = folder
        self._names: list[str | None] = []
        self._written: np.ndarray | None = None

    def save(self, ring: RingView) -> dict[str, Any]:
        """Writes the segments that changed since the last commit, and answers the manifest's part.

        Call ``commit`` with it once a checkpoint lists them.
        """
        size = _segment_size(ring)
        changed = self._changed(ring)
        names = list(self._names) or [None] * -(-ring.chunks // size)
        self.folder.mkdir(parents=True, exist_ok=True)
        for segment in sorted({chunk // size for chunk in changed}):
            start = segment * size
            names[segment] = self._write(ring.cut(start, min(size, ring.chunks - start)))
        sync_folder(self.folder)
        return {"chunks": ring.chunks, "segment_chunks": size, "segments": names}

    def commit(self, part: Any, written: np.ndarray) -> None:
        """From now on, what has changed is what was written since ``part``, which is on disk."""
        self._names, self._written = part["segments"], written.copy()

    def _changed(self, ring: RingView) -> set[int]:
        changed: set[int] = set()
        for slot, now in enumerate(ring.written.tolist()):
            # The last chunk of then too: a run that was resumed may have ended its episode.
            then = 0 if self._written is None else max(0, int(self._written[slot]) - 1)
            changed.update(
                chunk % ring.chunks for chunk in range(max(then, now - ring.chunks), now)
            )
        return changed

    def _write(self, arrays: list[np.ndarray]) -> str:
        data = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
        name = hashlib.sha256(data).hexdigest()
        final, temporary = self.folder / name, self.folder / f".{name}.tmp"
        try:
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            # Also over a file of that name: it may have been damaged since.
            temporary.replace(final)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        return name

    def load(
        self, where: Path, part: Any, ring: RingView, place: Callable[[int, list[np.ndarray]], None]
    ) -> None:
        """Hands every segment on disk to ``place(start, arrays)``; raises if one is damaged."""
        size = _segment_size(ring)
        count = -(-ring.chunks // size)
        names = part.get("segments") if isinstance(part, dict) else None
        if (
            not isinstance(names, list)
            or len(names) != count
            or part.get("chunks") != ring.chunks
            or part.get("segment_chunks") != size
            or not all(name is None or _is_name(name) for name in names)
        ):
            raise CheckpointError(f"{where}: its replay ring is not laid out as this run's is")
        for segment, name in enumerate(names):
            if name is not None:
                start = segment * size
                chunks = min(size, ring.chunks - start)
                place(start, self._read(where, name, segment, chunks, ring))
        self.commit(part, ring.written)

    def verify(self, where: Path, part: Any) -> None:
        """Reads every segment that a manifest's part lists; raises where one is damaged."""
        names = part.get("segments") if isinstance(part, dict) else []
        for segment, name in enumerate(names if isinstance(names, list) else []):
            if name is not None:
                self._bytes(f"{where}: segment {segment} of its replay ring", str(name), None)

    def _read(
        self, where: Path, name: str, segment: int, chunks: int, ring: RingView
    ) -> list[np.ndarray]:
        shapes = [((s[0], s[1] * chunks, *s[2:]), dtype) for s, dtype in ring.shapes]
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in shapes]
        data = self._bytes(f"{where}: segment {segment} of its replay ring", name, sum(sizes))
        offsets = np.cumsum([0, *sizes])
        return [
            np.frombuffer(data, dtype, int(np.prod(shape)), int(offset)).reshape(shape)
            for (shape, dtype), offset in zip(shapes, offsets[:-1], strict=True)
        ]

    def _bytes(self, title: str, name: str, size: int | None) -> bytes:
        if not _is_name(name):
            raise CheckpointError(f"{title} has no name of ours")
        try:
            with open_plain(self.folder / name) as stream:
                if size is not None and os.fstat(stream.fileno()).st_size != size:
                    raise CheckpointError(f"{title} has another size than this run's")
                data = stream.read()
        except OSError as error:
            raise CheckpointError(f"{title} cannot be read ({error})") from error
        if hashlib.sha256(data).hexdigest() != name:
            raise CheckpointError(f"{title} is damaged (its checksum differs)")
        return data

    def keep_only(self, listed: Iterable[str]) -> None:
        """Removes the files that are not ``listed`` by any checkpoint."""
        wanted = set(listed)
        for file in self.folder.glob("*") if self.folder.is_dir() else ():
            if file.name not in wanted and (_is_name(file.name) or file.name.endswith(".tmp")):
                file.unlink(missing_ok=True)


def _segment_size(ring: RingView) -> int:
    """Chunks in a segment: enough for a file worth having, and not too many files."""
    chunk = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in ring.shapes)
    return min(ring.chunks, max(-(-ring.chunks // _MOST_SEGMENTS), -(-_LEAST_BYTES // chunk)))


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and len(name) == 64 and set(name) <= _HEX


def sync_folder(folder: Path) -> None:
    """Makes what was renamed within a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
