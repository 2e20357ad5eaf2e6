"""Checkpoints: plain arrays and a manifest of checksums, written beside and then renamed.

A checkpoint is a directory: ``manifest.json`` names every leaf of the tree with its shape, dtype
and SHA-256; ``<number>.npy`` holds it. Nothing in it is executable and nothing is unpickled. A
directory that fails its checks is skipped in favour of the newest good one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from muesli.types import PyTree

FORMAT = 1


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used; the message says which and why."""


def save(directory: Path, name: str, tree: PyTree, meta: Mapping[str, Any]) -> Path:
    """Writes ``tree`` and ``meta`` as ``directory/name``; a half-written one is never visible."""
    final, temporary = directory / name, directory / f".{name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    leaves = {}
    for index, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(tree)):
        array = _to_numpy(leaf)
        file = temporary / f"{index}.npy"
        with file.open("wb") as stream:
            np.save(stream, array, allow_pickle=False)
            stream.flush()
            os.fsync(stream.fileno())
        leaves[jax.tree_util.keystr(path)] = {
            "file": file.name,
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "sha256": _sha256(file),
        }
    manifest = {"format": FORMAT, "meta": dict(meta), "leaves": leaves}
    with (temporary / "manifest.json").open("w", encoding="utf-8") as text:
        json.dump(manifest, text)
        text.flush()
        os.fsync(text.fileno())
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    return final


def load(path: Path, template: PyTree, within: str = "") -> tuple[PyTree, dict[str, Any]]:
    """The tree saved at ``path``, in the structure of ``template``, and its meta data.

    Every leaf must have the template's path, shape and dtype and the manifest's checksum. With
    ``within``, only the part of the saved tree under that path is read (".agent" of a run).
    """
    manifest = read_manifest(path)
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    loaded = []
    for keys, want in leaves:
        name = within + jax.tree_util.keystr(keys)
        entry = manifest["leaves"].get(name)
        if entry is None:
            raise CheckpointError(f"{path}: has no {name}; was it made by another configuration?")
        example = jax.eval_shape(lambda x: x, want)
        loaded.append(_read_leaf(path, name, entry, example))
    known = {within + jax.tree_util.keystr(keys) for keys, _ in leaves}
    extra = {name for name in manifest["leaves"] if name.startswith(within)} - known
    if extra:
        raise CheckpointError(f"{path}: holds {min(extra)}, which this configuration does not")
    return jax.tree_util.tree_unflatten(structure, loaded), manifest["meta"]


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: its manifest cannot be read ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a checkpoint of format {FORMAT}")
    return manifest


def newest_first(directory: Path) -> list[Path]:
    """Finished checkpoints ``step-<number>`` of a run, newest first."""
    found = [p for p in directory.glob("step-*") if p.name[5:].isdigit() and p.is_dir()]
    return sorted(found, key=lambda p: int(p.name[5:]), reverse=True)


def load_newest(
    directory: Path, template: PyTree, warn: Callable[[str], None], within: str = ""
) -> tuple[PyTree, dict[str, Any], Path]:
    """The newest checkpoint that passes its checks; each one skipped is told to ``warn``."""
    problems = []
    for path in newest_first(directory):
        try:
            tree, meta = load(path, template, within)
        except CheckpointError as error:
            problems.append(str(error))
            warn(f"skipped {error}")
            continue
        return tree, meta, path
    raise CheckpointError(
        "; ".join(problems) if problems else f"{directory}: there is no checkpoint here"
    )


def prune(directory: Path, keep: int) -> None:
    """Removes all but the ``keep`` newest checkpoints."""
    for path in newest_first(directory)[keep:]:
        shutil.rmtree(path)


def _to_numpy(leaf: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _read_leaf(path: Path, name: str, entry: Mapping[str, Any], want: Any) -> jax.Array:
    is_key = jax.dtypes.issubdtype(want.dtype, jax.dtypes.prng_key)
    example = jax.eval_shape(jax.random.key_data, want) if is_key else want
    file = path / Path(entry["file"]).name
    if file.is_symlink() or not file.is_file():
        raise CheckpointError(f"{path}: {name} is missing")
    if _sha256(file) != entry["sha256"]:
        raise CheckpointError(f"{path}: {name} is damaged (its checksum differs)")
    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {name} cannot be read ({error})") from error
    if array.shape != example.shape or array.dtype != example.dtype:
        raise CheckpointError(
            f"{path}: {name} is {array.dtype}{list(array.shape)}, "
            f"this configuration needs {example.dtype}{list(example.shape)}"
        )
    value = jax.numpy.asarray(array)
    return jax.random.wrap_key_data(value) if is_key else value


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
