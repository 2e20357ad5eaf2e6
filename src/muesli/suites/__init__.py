"""The paper's figures and tables as named suites of runs, and the records to write one's own."""

from muesli.suites.paper import SUITES
from muesli.suites.records import (
    SCALES,
    Claim,
    Row,
    Run,
    Scale,
    Selection,
    Suite,
    base_config,
    expand,
    scale_of,
    set_fields,
)

__all__ = [
    "SCALES",
    "SUITES",
    "Claim",
    "Row",
    "Run",
    "Scale",
    "Selection",
    "Suite",
    "base_config",
    "expand",
    "scale_of",
    "set_fields",
]
