"""Named arrays as plain bytes behind a manifest: nothing to execute, nothing to unpickle.

A manifest names every array with its shape, dtype, place and SHA-256, and carries a SHA-256 of
itself. Whatever it says is checked before it is believed: it may have been written by anyone.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

FORMAT = 2
MAX_MANIFEST_BYTES = 2**26
# What an array may be made of. No objects, no text, no dates.
_DTYPES = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64"),
    }
)
_TABLES = ("leaves", "extras")


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used; the message says which and why."""


# --- writing --------------------------------------------------------------------------------


def write_arrays(stream: BinaryIO, arrays: Iterable[tuple[str, np.ndarray]]) -> dict[str, Any]:
    """Appends arrays and answers with their entries for the manifest."""
    entries = {}
    for name, array in arrays:
        if str(array.dtype) not in _DTYPES:
            raise TypeError(f"{name}: arrays of {array.dtype} cannot be saved")
        # (ascontiguousarray makes a vector of a scalar: the shape is that of the given array.)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        entries[name] = {
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "offset": stream.tell(),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        stream.write(data)
    return entries


def seal(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as text that notices its own damage."""
    body = {"format": FORMAT, **manifest}
    return json.dumps({"sha256": _digest(body), **body}).encode()


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


# --- reading --------------------------------------------------------------------------------


def open_plain(path: Path) -> BinaryIO:
    """Opens a regular file: not a link, a pipe or a device."""
    # Without O_NONBLOCK a named pipe would be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path.name} is no regular file")
    return os.fdopen(descriptor, "rb")


def unseal(where: Path, text: bytes) -> dict[str, Any]:
    """The manifest ``seal`` made, checked."""
    try:
        manifest = json.loads(text)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: its manifest cannot be read ({error})") from error
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise CheckpointError(f"{where}: its manifest cannot be read (it names no format)")
    if manifest["format"] != FORMAT:
        raise CheckpointError(
            f"{where}: is of format {manifest['format']}, this version reads format {FORMAT}"
        )
    given = manifest.pop("sha256", None)
    if given != _digest(manifest):
        raise CheckpointError(f"{where}: its manifest is damaged (its checksum differs)")
    if not isinstance(manifest.get("meta"), dict):
        raise CheckpointError(f"{where}: its manifest is not one of ours (meta)")
    for table in _TABLES:
        entries = manifest.get(table)
        if not isinstance(entries, dict) or not all(map(_is_entry, entries.values())):
            raise CheckpointError(f"{where}: its manifest is not one of ours ({table})")
    return manifest


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and set(entry) == {"shape", "dtype", "offset", "sha256"}
        and entry["dtype"] in _DTYPES
        and isinstance(entry["shape"], list)
        and all(type(n) is int and n >= 0 for n in entry["shape"])
        and type(entry["offset"]) is int
        and entry["offset"] >= 0
    )


def read_array(where: Path, name: str, entry: Mapping[str, Any], stream: BinaryIO) -> np.ndarray:
    """One array; its place must lie within the file, and its checksum must hold."""
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    wanted = math.prod(shape) * dtype.itemsize
    # Asked of the file first: a declared size is no reason to take memory.
    if entry["offset"] + wanted > os.fstat(stream.fileno()).st_size:
        raise CheckpointError(f"{where}: {name} is cut short")
    stream.seek(entry["offset"])
    data = stream.read(wanted)
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise CheckpointError(f"{where}: {name} is damaged (its checksum differs)")
    return np.frombuffer(data, dtype).reshape(shape)
