"""A run's checkpoints on disk: written beside and renamed, verified when read, old ones removed.

A checkpoint is a directory, ``step-<updates>`` or ``best-<updates>``: ``arrays.bin`` holds every
array of the run, ``manifest.json`` says what they are. A replay ring lies in ``ring/``, shared.

Of a run of several processes, each writes its part, a checkpoint of that name in a folder of its
own, ``part-<rank>-of-<processes>``; the whole, written last, lists the parts' checksums.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import jax
import numpy as np

from muesli.checkpoint.packed import (
    MAX_MANIFEST_BYTES,
    CheckpointError,
    open_plain,
    read_array,
    seal,
    unseal,
    write_arrays,
)
from muesli.checkpoint.segments import RingFiles, sync_folder
from muesli.types import PyTree

T = TypeVar("T")
_MAGIC = b"muesli agent\n"


class Loaded(NamedTuple):
    """A checkpoint that passed its checks. tree: in the structure of the template; meta: what was
    saved beside it; extras: arrays by name, of whatever shape; ring: the manifest's part on it.
    """

    tree: PyTree
    meta: dict[str, Any]
    extras: dict[str, np.ndarray]
    ring: Any


# --- writing --------------------------------------------------------------------------------


def save(
    directory: Path,
    name: str,
    tree: PyTree,
    meta: Mapping[str, Any],
    extras: Mapping[str, np.ndarray] | None = None,
    ring: Mapping[str, Any] | None = None,
    parts: Sequence[str] = (),
) -> Path:
    """Writes ``directory/name``; a half-written one is never visible, and on an OSError what was
    there before still is. extras: arrays that no template knows; ring: what ``RingFiles`` answered;
    parts: the ``digest`` of each process's part.
    """
    final, temporary = directory / name, directory / f".{name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        with (temporary / "arrays.bin").open("wb") as stream:
            manifest = {
                "meta": dict(meta),
                "leaves": write_arrays(stream, _named(tree)),
                "extras": write_arrays(stream, (extras or {}).items()),
                "ring": ring,
                "parts": list(parts),
            }
            _finish(stream)
        with (temporary / "manifest.json").open("wb") as stream:
            stream.write(seal(manifest))
            _finish(stream)
        sync_folder(temporary)
        _exchange(temporary, final)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(directory)
    return final


def _named(tree: PyTree) -> list[tuple[str, np.ndarray]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), to_numpy(leaf)) for path, leaf in leaves]


def _finish(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _exchange(temporary: Path, final: Path) -> None:
    """Renames, over a checkpoint of that name if need be: ``sweep`` mends what a kill leaves."""
    old = final.with_name(f".{final.name}.old")
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    temporary.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def sweep(directory: Path) -> None:
    """Puts away what a killed process left: temporaries, and a rename half done."""
    for old in directory.glob(".*.old"):
        final = directory / old.name[1 : -len(".old")]
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(final)
    for temporary in directory.glob(".*.tmp"):
        shutil.rmtree(temporary, ignore_errors=True)


def prune(directory: Path, keep: int, prefix: str = "step") -> None:
    """Removes all but the ``keep`` newest checkpoints."""
    for path in newest_first(directory, prefix)[keep:]:
        shutil.rmtree(path, ignore_errors=True)


# --- reading --------------------------------------------------------------------------------


def load(path: Path, template: PyTree, within: str = "") -> Loaded:
    """What was saved at ``path``, its tree in the structure of ``template``.

    Every leaf must have the template's path, shape and dtype and the manifest's checksum. With
    ``within``, only the part of the saved tree under that path is read (".agent" of a run), and no
    extras.
    """
    manifest = read_manifest(path)
    try:
        with open_plain(path / "arrays.bin") as stream:
            tree = _read_tree(path, manifest, template, within, stream)
            extras = manifest["extras"] if not within else {}
            arrays = {n: read_array(path, n, entry, stream) for n, entry in extras.items()}
    except OSError as error:
        raise CheckpointError(f"{path}: its arrays cannot be read ({error})") from error
    return Loaded(tree, manifest["meta"], arrays, manifest.get("ring"))


def _read_tree(
    where: Path, manifest: dict[str, Any], template: PyTree, within: str, stream: BinaryIO
) -> PyTree:
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    loaded = []
    for keys, want in leaves:
        name = within + jax.tree_util.keystr(keys)
        entry = manifest["leaves"].get(name)
        if entry is None:
            raise CheckpointError(f"{where}: has no {name}; was it made by another configuration?")
        loaded.append(_read_leaf(where, name, entry, jax.eval_shape(lambda x: x, want), stream))
    known = {within + jax.tree_util.keystr(keys) for keys, _ in leaves}
    extra = {name for name in manifest["leaves"] if name.startswith(within)} - known
    if extra:
        raise CheckpointError(f"{where}: holds {min(extra)}, which this configuration does not")
    return jax.tree_util.tree_unflatten(structure, loaded)


def _read_leaf(
    where: Path, name: str, entry: Mapping[str, Any], want: Any, stream: BinaryIO
) -> jax.Array:
    is_key = jax.dtypes.issubdtype(want.dtype, jax.dtypes.prng_key)
    example = jax.eval_shape(jax.random.key_data, want) if is_key else want
    # Compared before anything is read: a declared shape is no reason to take memory.
    if tuple(entry["shape"]) != example.shape or entry["dtype"] != str(example.dtype):
        raise CheckpointError(
            f"{where}: {name} is {entry['dtype']}{entry['shape']}, "
            f"this configuration needs {example.dtype}{list(example.shape)}"
        )
    value = jax.numpy.array(read_array(where, name, entry, stream))
    return jax.random.wrap_key_data(value) if is_key else value


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint directory."""
    return unseal(path, _manifest_bytes(path))


def _manifest_bytes(path: Path) -> bytes:
    if path.is_symlink():
        raise CheckpointError(f"{path}: is a link; a checkpoint is a directory")
    try:
        with open_plain(path / "manifest.json") as stream:
            text = stream.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: its manifest cannot be read ({error})") from error
    if len(text) > MAX_MANIFEST_BYTES:
        raise CheckpointError(f"{path}: its manifest is too long")
    return text


def digest(path: Path) -> str:
    """What tells a checkpoint from any other: the SHA-256 of its manifest, which has all others."""
    return hashlib.sha256(_manifest_bytes(path)).hexdigest()


def part_folder(directory: Path, rank: int, processes: int) -> Path:
    """Where one of several processes writes its parts."""
    return directory / f"part-{rank}-of-{processes}"


def parts_of(path: Path, manifest: Mapping[str, Any]) -> list[Path]:
    """The parts of a checkpoint, by rank; each is checked to be the one that belongs to it."""
    listed = manifest.get("parts") or []
    if not isinstance(listed, list):
        raise CheckpointError(f"{path}: its list of parts is none")
    paths = []
    for rank, wanted in enumerate(listed):
        part = part_folder(path.parent, rank, len(listed)) / path.name
        if part.parent.is_symlink() or digest(part) != wanted:
            raise CheckpointError(f"{part}: is not the part that {path} was saved with")
        paths.append(part)
    return paths


def prune_parts(directory: Path) -> None:
    """Removes parts of checkpoints that are no more."""
    wanted: set[Path] = set()
    for path in newest_first(directory):
        with suppress(CheckpointError):
            count = len(read_manifest(path).get("parts") or [])
            wanted.update(part_folder(directory, k, count) / path.name for k in range(count))
    for folder in directory.glob("part-*-of-*"):
        if re.fullmatch(r"part-\d+-of-\d+", folder.name) and not folder.is_symlink():
            for part in newest_first(folder):
                if part not in wanted:
                    shutil.rmtree(part, ignore_errors=True)
            if not newest_first(folder):
                shutil.rmtree(folder, ignore_errors=True)


def verify(path: Path) -> None:
    """Reads all that a checkpoint is made of; raises a CheckpointError where something is wrong."""
    manifest = read_manifest(path)
    try:
        with open_plain(path / "arrays.bin") as stream:
            for name, entry in (manifest["leaves"] | manifest["extras"]).items():
                read_array(path, name, entry, stream)
    except OSError as error:
        raise CheckpointError(f"{path}: its arrays cannot be read ({error})") from error
    RingFiles(path.parent / "ring").verify(path, manifest.get("ring"))
    for part in parts_of(path, manifest):
        verify(part)


def newest_first(directory: Path, prefix: str = "step") -> list[Path]:
    """Finished checkpoints ``<prefix>-<number>`` of a run, newest first."""
    start = len(prefix) + 1
    found = [p for p in directory.glob(f"{prefix}-*") if p.name[start:].isdigit() and p.is_dir()]
    return sorted(found, key=lambda p: int(p.name[start:]), reverse=True)


def first_good(
    directory: Path,
    attempt: Callable[[Path], T],
    warn: Callable[[str], None],
    prefix: str = "step",
    listed: Sequence[Path] | None = None,
) -> T:
    """What ``attempt`` makes of the newest checkpoint it does not refuse with a CheckpointError;
    each one skipped is told to ``warn``. listed: those that there are, newest first, if known.
    """
    problems = []
    for path in newest_first(directory, prefix) if listed is None else listed:
        try:
            return attempt(path)
        except CheckpointError as error:
            problems.append(str(error))
            warn(f"skipped {error}")
    raise CheckpointError(
        "; ".join(problems) if problems else f"{directory}: there is no checkpoint here"
    )


def load_newest(
    directory: Path,
    template: PyTree,
    warn: Callable[[str], None],
    within: str = "",
    prefix: str = "step",
) -> tuple[PyTree, dict[str, Any], Path]:
    """Tree, meta data and path of the newest checkpoint that passes its checks."""

    def attempt(path: Path) -> tuple[PyTree, dict[str, Any], Path]:
        loaded = load(path, template, within)
        return loaded.tree, loaded.meta, path

    return first_good(directory, attempt, warn, prefix)


def listed_segments(directory: Path) -> set[str]:
    """The files of the ring that some checkpoint is made of."""
    listed: set[str] = set()
    for path in newest_first(directory):
        with suppress(CheckpointError):
            ring = read_manifest(path).get("ring")
            if isinstance(ring, dict) and isinstance(ring.get("segments"), list):
                listed.update(name for name in ring["segments"] if isinstance(name, str))
    return listed


def to_numpy(leaf: Any) -> np.ndarray:
    """A leaf of a tree as an array; of a key, its data."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


# --- one file, to share ---------------------------------------------------------------------


def write_file(file: Path, tree: PyTree, meta: Mapping[str, Any]) -> None:
    """One file with a tree and its meta data: a line, the manifest's length, it, the arrays."""
    temporary = file.with_name(f".{file.name}.tmp")
    body = temporary.with_name(temporary.name + ".arrays")
    try:
        with body.open("w+b") as arrays, temporary.open("wb") as stream:
            leaves = write_arrays(arrays, _named(tree))
            manifest = seal({"meta": dict(meta), "leaves": leaves, "extras": {}, "ring": None})
            stream.write(_MAGIC + len(manifest).to_bytes(8, "little") + manifest)
            arrays.seek(0)
            shutil.copyfileobj(arrays, stream)
            _finish(stream)
        temporary.replace(file)
    finally:
        body.unlink(missing_ok=True)
        temporary.unlink(missing_ok=True)


def read_file_meta(file: Path) -> dict[str, Any]:
    """The meta data of what ``write_file`` wrote."""
    with _open_file(file) as stream:
        return _file_manifest(file, stream)["meta"]


def read_file(file: Path, template: PyTree) -> PyTree:
    """The tree that ``write_file`` wrote, checked against ``template``."""
    with _open_file(file) as stream:
        manifest = _file_manifest(file, stream)
        begin = stream.tell()
        for entry in manifest["leaves"].values():
            entry["offset"] += begin
        return _read_tree(file, manifest, template, "", stream)


def _open_file(file: Path) -> BinaryIO:
    try:
        return open_plain(file.resolve())
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error})") from error


def _file_manifest(file: Path, stream: BinaryIO) -> dict[str, Any]:
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise CheckpointError(f"{file}: is no file that 'muesli export' wrote")
    length = int.from_bytes(stream.read(8), "little")
    if length > MAX_MANIFEST_BYTES:
        raise CheckpointError(f"{file}: its manifest is too long")
    return unseal(file, stream.read(length))
