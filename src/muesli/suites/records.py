"""A suite as data: rows that each change a few fields, scales that say on what, and its claims."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from muesli.config import UPDATE_DEFAULTS, Config, ConfigError, leaves, validate
from muesli.fields import get_field, set_field
from muesli.presets import PRESETS, make_preset, with_update

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


Kind = Literal["better", "similar", "no_worse"]


@dataclass(frozen=True)
class Claim:
    """What the paper says of two rows. ``better``: the first scores higher; ``similar``: neither
    does; ``no_worse``: the second does not. ``text`` is the sentence the report prints.
    """

    kind: Kind
    first: str
    second: str
    text: str

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            hint = did_you_mean(self.kind, get_args(Kind))
            raise ConfigError(f"claims: there is no kind '{self.kind}'; {hint}")


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

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"rows: '{name}' is there twice")
            if not name or name.strip(".") == "" or set(name) & set("/\\\0"):
                raise ConfigError(f"rows: '{name}' cannot name a directory")
        for claim in self.claims:
            for name in (claim.first, claim.second):
                if name not in names:
                    hint = did_you_mean(name, names)
                    raise ConfigError(f"claims: there is no row '{name}'; {hint}")

    def with_rows(self, *rows: Row) -> Suite:
        """The same suite with more rows; one of a known name takes its place."""
        merged = {row.name: row for row in (*self.rows, *rows)}
        return dataclasses.replace(self, rows=tuple(merged.values()))

    def with_claims(self, *claims: Claim) -> Suite:
        """The same suite with more claims to check."""
        return dataclasses.replace(self, claims=(*self.claims, *claims))


class Run(NamedTuple):
    """One seed of one row in one environment.

    config: its whole configuration, or None where ``missing`` says what this installation lacks.
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


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The nearest of some names, or all of them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def set_fields(config: Config, fields: Fields) -> Config:
    """A configuration with dotted fields replaced; raises a ConfigError for one it has not.

    ``update.name`` brings that update's own hyperparameters; the other fields come after it.
    """
    for dotted in fields:
        try:
            get_field(config, dotted)
        except ConfigError as error:
            known = [name for name, _ in leaves(config)]
            close = difflib.get_close_matches(dotted, known, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{error}{hint}") from None
    if "update.name" in fields:
        config = _with_update(config, fields["update.name"])
    for dotted, value in fields.items():
        if dotted != "update.name":
            value = value(config) if callable(value) else value
            config = set_field(config, dotted, value)
    return config


def _with_update(config: Config, name: str) -> Config:
    """The same run with another policy update and its own hyperparameters.

    An entropy bonus that was set for the environment's sake, not the update's, stays: rows that
    differ in their updates are not to differ in that.
    """
    mine = config.update
    usual = UPDATE_DEFAULTS.get(mine.name)
    changed = with_update(config, name)
    if usual is None or mine.entropy_weight == usual.entropy_weight:
        return changed
    return set_field(changed, "update.entropy_weight", mine.entropy_weight)


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
        hint = did_you_mean(scale.preset, list(PRESETS))
        raise ConfigError(f"preset: this version has no '{scale.preset}'; {hint}")
    return set_fields(make_preset(scale.preset), scale.fields)


def expand(suite: Suite, selection: Selection) -> list[Run]:
    """Every run of a suite, in order: rows, then environments, then seeds.

    Raises a ConfigError for a row that contradicts itself, or what was chosen for every run.
    """
    scale = scale_of(suite, selection.scale)
    rows = [r for r in suite.rows if not selection.rows or r.name in selection.rows]
    known = [r.name for r in suite.rows]
    for name in selection.rows:
        if name not in known:
            raise ConfigError(f"rows: there is no '{name}'; {did_you_mean(name, known)}")
    seeds = scale.seeds if selection.seeds is None else selection.seeds
    if seeds < 1:
        raise ConfigError(f"seeds: must be at least 1, got {seeds}")
    envs = tuple(dict.fromkeys(selection.envs or scale.envs))
    return [
        Run(row.name, env, seed, dataclasses.replace(config, seed=seed), "")
        for row in rows
        for env in envs
        for config in (_configure(scale, row, env, selection.fields),)
        for seed in range(seeds)
    ]


def _configure(scale: Scale, row: Row, env: str, last: Fields) -> Config:
    base = base_config(scale)
    try:
        # Rows may compute a field from what was chosen; and what was chosen outlasts the
        # hyperparameters that a row's update brings.
        config = set_fields(base, {"env.name": env, **last})
        config = set_fields(set_fields(config, row.fields), last)
        validate(config)
    except ConfigError as error:
        raise ConfigError(f"row {row.name} on {env}: {error}") from error
    return config
