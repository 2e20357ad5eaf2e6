"""Checkpoints: plain arrays and a manifest of checksums, written beside and then renamed.

Nothing in one is executable and nothing is unpickled. One that fails its checks is skipped in
favour of the newest good one.
"""

from muesli.checkpoint.packed import FORMAT, CheckpointError
from muesli.checkpoint.segments import RingFiles, RingView
from muesli.checkpoint.store import (
    Loaded,
    digest,
    first_good,
    listed_segments,
    load,
    load_newest,
    newest_first,
    part_folder,
    parts_of,
    prune,
    prune_parts,
    read_file,
    read_file_meta,
    read_manifest,
    save,
    sweep,
    to_numpy,
    verify,
    write_file,
)

__all__ = [
    "FORMAT",
    "CheckpointError",
    "Loaded",
    "RingFiles",
    "RingView",
    "digest",
    "first_good",
    "listed_segments",
    "load",
    "load_newest",
    "newest_first",
    "part_folder",
    "parts_of",
    "prune",
    "prune_parts",
    "read_file",
    "read_file_meta",
    "read_manifest",
    "save",
    "sweep",
    "to_numpy",
    "verify",
    "write_file",
]
