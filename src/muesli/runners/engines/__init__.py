"""Both runners behind one small interface, so that logging, measuring and saving are written once.

An engine holds the state of one run (or, inside JAX, of several seeds of it) and advances it by one
call of the schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

from muesli.config import ConfigError
from muesli.runners.engines.anakin import AnakinEngine
from muesli.runners.engines.base import (
    PENDING,
    Advance,
    Engine,
    Episodes,
    Snapshot,
    Stop,
    parted,
    put_together,
    with_parameters,
)
from muesli.runners.engines.sebulba import SebulbaEngine
from muesli.runners.numbers import Numbers
from muesli.runners.parts import Parts

__all__ = [
    "PENDING",
    "Advance",
    "AnakinEngine",
    "Engine",
    "Episodes",
    "SebulbaEngine",
    "Snapshot",
    "Stop",
    "make_engine",
    "parted",
    "put_together",
    "with_parameters",
]


def make_engine(parts: Parts, seeds: Sequence[int], numbers: Numbers | None = None) -> Engine:
    """The engine for a run's environment and configuration; ``numbers`` are each seed's own."""
    if not parts.sebulba:
        return AnakinEngine(parts, seeds, numbers)
    if len(seeds) > 1:
        raise ConfigError(
            f"seeds: several at once need an environment inside JAX, which {parts.config.env.name} "
            "is not under this runner; train them one after another with --seed"
        )
    return SebulbaEngine(parts, seeds[0])
