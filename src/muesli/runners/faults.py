"""How a run stops itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from muesli.checkpoint import to_numpy
from muesli.types import PyTree, Trajectory


class TrainingError(RuntimeError):
    """Training stopped itself; what it had saved is there."""


class ActorError(TrainingError):
    """Environments failed; the cause is attached."""


class NotFiniteError(TrainingError):
    """Too many updates in a row were not finite. batch(): what the newest of them was to learn
    from; seed: which of several.
    """

    def __init__(self, limit: int, update: int, batch: Callable[[], Trajectory], seed: int = 0):
        super().__init__(
            f"{limit} updates in a row, up to update {update}, had a loss or gradient that is not "
            "finite (optimiser.max_skipped_updates)"
        )
        self.batch, self.seed = batch, seed


def dump(file: Path, batch: PyTree) -> None:
    """Writes a batch as one array per field, for ``numpy.load``."""
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    arrays = {jax.tree_util.keystr(path).lstrip("."): to_numpy(leaf) for path, leaf in leaves}
    np.savez(file, allow_pickle=False, **arrays)
