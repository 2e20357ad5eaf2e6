"""A suite as data: rows that each change a few fields, scales that say on what, and its claims."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from muesli.config import Config, ConfigError, validate
from muesli.fields import set_field
from muesli.presets import PRESETS, with_update

Fields = Mapping[str, Any]
"""Dotted fields of a Config and their values: ``{"update.kl_samples": 1}``. A value may be a
function of the configuration so far.
"""

SCALES = ("laptop", "gpu", "paper")


@dataclass(frozen=True)
class Row:
    """One line of a figure: a name and the fields in which it differs from the suite's base."""

    name: str
    fields: Fields = field(default_factory=dict)
    published: str = ""
    """What the paper prints for it, as text; empty where it shows only a curve."""


@dataclass(frozen=True)
class Scale:
    """On what a suite runs: a preset, the environments, how many seeds, and what else it sets."""

    preset: str
    envs: tuple[str, ...]
    seeds: int
    fields: Fields = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """What the paper says of two rows. ``better``: the first scores higher; ``similar``: neither
    does; ``no_worse``: the second does not. ``text`` is the sentence the report prints.
    """

    kind: Literal["better", "similar", "no_worse"]
    first: str
    second: str
    text: str


@dataclass(frozen=True)
class Suite:
    """One figure or table: what it is about, its rows, what the paper says of them, and scales."""

    title: str
    figure: str
    rows: tuple[Row, ...]
    scales: Mapping[str, Scale]
    claims: tuple[Claim, ...] = ()
    remark: str = ""
    published: Mapping[str, str] = field(default_factory=dict)
    """What the paper prints for single environments, as text."""

    def with_rows(self, *rows: Row) -> Suite:
        """The same suite with more rows; one of a known name takes its place."""
        merged = {row.name: row for row in (*self.rows, *rows)}
        return dataclasses.replace(self, rows=tuple(merged.values()))

    def with_claims(self, *claims: Claim) -> Suite:
        """The same suite with more claims to check."""
        return dataclasses.replace(self, claims=(*self.claims, *claims))


class Run(NamedTuple):
    """One seed of one row in one environment.

    config: its whole configuration, or None where ``missing`` says what this version lacks.
    """

    row: str
    env: str
    seed: int
    config: Config | None
    missing: str

    @property
    def path(self) -> str:
        """Where it lies in a suite's directory; also its name."""
        plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in self.env)
        return f"{self.row}/{plain}/seed-{self.seed}"


def set_fields(config: Config, fields: Fields) -> Config:
    """A configuration with dotted fields replaced; raises a ConfigError for one it has not.

    ``update.name`` brings that update's own hyperparameters; the other fields come after it.
    """
    if "update.name" in fields:
        config = with_update(config, fields["update.name"])
    for dotted, value in fields.items():
        if dotted != "update.name":
            value = value(config) if callable(value) else value
            config = set_field(config, dotted, value)
    return config


@dataclass(frozen=True)
class Selection:
    """What of a suite to run: a scale, and whatever of it is not as the scale says."""

    scale: str = "laptop"
    seeds: int | None = None
    rows: tuple[str, ...] = ()
    envs: tuple[str, ...] = ()
    fields: Fields = field(default_factory=dict)
    """Set in every run, over everything else."""


def scale_of(suite: Suite, name: str) -> Scale:
    """A scale of a suite by name."""
    if name not in suite.scales:
        known = ", ".join(suite.scales)
        raise ConfigError(f"scale: this suite has no '{name}'; it has {known}")
    return suite.scales[name]


def base_config(scale: Scale) -> Config:
    """What every row of a suite starts from at a scale."""
    if scale.preset not in PRESETS:
        raise ConfigError(f"this version has no preset '{scale.preset}'")
    return set_fields(PRESETS[scale.preset](), scale.fields)


def expand(suite: Suite, selection: Selection) -> list[Run]:
    """Every run of a suite, in order: rows, then environments, then seeds."""
    scale = scale_of(suite, selection.scale)
    rows = [r for r in suite.rows if not selection.rows or r.name in selection.rows]
    unknown = set(selection.rows) - {r.name for r in suite.rows}
    if unknown:
        known = ", ".join(r.name for r in suite.rows)
        raise ConfigError(f"rows: there is no '{min(unknown)}'; there are {known}")
    seeds = scale.seeds if selection.seeds is None else selection.seeds
    if seeds < 1:
        raise ConfigError(f"seeds: must be at least 1, got {seeds}")
    runs = []
    for row in rows:
        for env in selection.envs or scale.envs:
            config, missing = _configure(scale, row, env, selection.fields)
            for seed in range(seeds):
                seeded = None if config is None else dataclasses.replace(config, seed=seed)
                runs.append(Run(row.name, env, seed, seeded, missing))
    return runs


def _configure(scale: Scale, row: Row, env: str, last: Fields) -> tuple[Config | None, str]:
    try:
        # Rows may compute a field from what was chosen; and what was chosen outlasts the
        # hyperparameters that a row's update brings.
        config = set_fields(base_config(scale), {"env.name": env, **last})
        config = set_fields(set_fields(config, row.fields), last)
        validate(config)
    except ConfigError as error:
        return None, str(error)
    return config, ""
