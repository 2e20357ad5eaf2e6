"""A suite's directory, or directories of plain runs, read into one record of plain numbers."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from muesli import statistics
from muesli.config import Config, ConfigError
from muesli.fields import leaves
from muesli.presets import PRESETS
from muesli.report.references import reference_of
from muesli.report.runs import RunData, read_run

POINTS = 80
"""Points of a curve at most."""
CAVEAT = (
    "Verdicts are by 95% Welch intervals, stratified by environment: where rows are alike, about "
    "1 claim in 20 is decided all the same, and few runs leave most differences open."
)
"""Goes with every list of verdicts."""


def read_study(directories: Sequence[Path]) -> dict[str, Any]:
    """A study as plain data. One suite's directory, or directories of runs: a row each, or one
    for each experiment below it.
    """
    if len(directories) == 1 and (directories[0] / "suite.json").exists():
        return _read_suite(directories[0])
    experiments: dict[Path, list[RunData]] = {}
    for directory in directories:
        read = (read_run(file.parent) for file in sorted(directory.rglob("config.json")))
        found = [run for run in read if run is not None]
        if not found:
            raise ConfigError(f"{directory} holds neither a suite nor a run")
        _refuse_nested([run.path for run in found])
        experiments |= _experiments(directory, found)
    names = distinct_names(list(experiments))
    runs = [run._replace(row=name) for path, name in names.items() for run in experiments[path]]
    meta = {
        "suite": "comparison",
        "title": " and ".join(names.values()) if len(names) <= 3 else f"{len(names)} algorithms",
        "figure": "",
        "remark": "",
        "scale": "",
        "preset": "",
        "command": [],
        "earlier_commands": [],
        "plugins": [],
        "claims": [],
        "rows": [{"name": name, "fields": {}, "published": ""} for name in names.values()],
        "missing": [],
        "failures": [],
    }
    return _summarise(meta, runs, Counter((run.row, run.env) for run in runs))


def _refuse_nested(paths: Sequence[Path]) -> None:
    """Whether a run below another belongs to it, nobody knows."""
    known = set(paths)
    for path in paths:
        outer = next((parent for parent in path.parents if parent in known), None)
        if outer is not None:
            raise ConfigError(f"{outer} is a run with another one below it ({path})")


def _experiments(directory: Path, runs: Sequence[RunData]) -> dict[Path, list[RunData]]:
    """All runs below a directory as one experiment, unless those of one environment differ in more
    than their seeds: then by the directories within.
    """
    kinds = {(run.env, json.dumps({**run.config, "seed": 0}, sort_keys=True)) for run in runs}
    if len(kinds) == len({env for env, _ in kinds}) or runs[0].path == directory:
        return {directory: list(runs)}
    within: dict[Path, list[RunData]] = {}
    for run in runs:
        part = run.path.relative_to(directory).parts[0]
        within.setdefault(directory / part, []).append(run)
    return {
        path: mine
        for part, some in within.items()
        for path, mine in _experiments(part, some).items()
    }


def distinct_names(directories: Sequence[Path]) -> dict[Path, str]:
    """Each directory, once, with as much of the end of its path as no other's ends with."""
    whole: dict[Path, Path] = {}
    for directory in directories:
        whole.setdefault(directory.resolve(), directory)
    ends = [[Path(*path.parts[-n:]) for n in range(1, len(path.parts) + 1)] for path in whole]
    return {
        directory: str(next(end for end in own if sum(end in other for other in ends) == 1))
        for directory, own in zip(whole.values(), ends, strict=True)
    }


def _read_suite(directory: Path) -> dict[str, Any]:
    file = directory / "suite.json"
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({error})") from error
    _check_description(meta, file)
    runs = []
    able = [entry for entry in meta["runs"] if not entry["missing"]]
    for entry in able:
        run = read_run(directory / entry["path"], entry["row"], entry["env"], entry["seed"])
        if run is not None:
            runs.append(run)
    lacking = [f"{e['row']}: {e['missing']}" for e in meta["runs"] if e["missing"]]
    there = {row["name"] for row in meta["rows"]}
    meta |= {
        "missing": list(dict.fromkeys(lacking)),
        "claims": [c for c in meta["claims"] if {c["first"], c["second"]} <= there],
        "failures": _failures(directory, runs),
    }
    return _summarise(meta, runs, Counter((entry["row"], entry["env"]) for entry in able))


def _check_description(meta: Any, file: Path) -> None:
    """Refuses a ``suite.json`` that lacks what is read here."""
    texts = ("suite", "title", "figure", "remark", "scale", "preset", "command", "plugins")
    lists = {
        "rows": ("name", "fields", "published"),
        "claims": ("kind", "first", "second", "text"),
        "runs": ("row", "env", "seed", "path", "missing"),
    }
    if not isinstance(meta, dict):
        raise ConfigError(f"{file} describes no suite")
    for name in (*texts, *lists):
        if name not in meta:
            raise ConfigError(f"{file} describes no suite (it lacks {name})")
    for name, needed in lists.items():
        entries = meta[name] if isinstance(meta[name], list) else [None]
        for entry in entries:
            lacking = [n for n in needed if not isinstance(entry, dict) or n not in entry]
            if lacking:
                raise ConfigError(f"{file} describes no suite ({name} lack {lacking[0]})")


def _failures(directory: Path, runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """The jobs that failed and whose runs nobody has finished since."""
    done = {str(run.path.relative_to(directory)) for run in runs if run.complete}
    found = []
    for file in sorted((directory / "jobs").glob("*.failed")):
        try:
            failure = json.loads(file.read_text(encoding="utf-8"))
            if not done.issuperset(failure["runs"]):
                found.append({key: failure[key] for key in ("job", "why", "log", "runs")})
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it is being tried again at this moment
    return found


class _Table(NamedTuple):
    """What a claim is judged by. raw: scores [runs, games] in the games' own units, None while an
    environment has none; scores: with the common measure, None without one.
    """

    raw: np.ndarray | None
    scores: np.ndarray | None
    begun: bool
    provisional: bool


def _summarise(
    meta: dict[str, Any], runs: Sequence[RunData], wanted: Mapping[tuple[str, str], int]
) -> dict[str, Any]:
    """Scores, aggregates, curves and verdicts of a study. wanted: runs by row and environment."""
    # An environment whose runs have not begun is one of the study's all the same.
    envs = list(dict.fromkeys(env for _, env in wanted))
    references = {env: reference_of(env) for env in envs}
    # One game may stay in its own units; several without a common measure are not averaged.
    comparable = len(envs) == 1 or all(references.values())
    measure = "normalised" if all(references.values()) else "raw return" if comparable else "none"
    summaries = [_row(row, runs, wanted, references, measure) for row in meta["rows"]]
    rows = [row for row, _ in summaries]
    tables = {row["name"]: table for row, table in summaries}
    claims = [_claim(claim, tables, measure) for claim in meta["claims"]]
    study = {
        **{key: meta[key] for key in ("suite", "title", "figure", "remark", "scale", "preset")},
        "published": meta.get("published", {}),
        "command": meta["command"],
        "earlier_commands": meta.get("earlier_commands", []),
        "plugins": meta["plugins"],
        "missing": meta["missing"],
        "failures": meta["failures"],
        "runs_wanted": sum(wanted.values()),
        "runs_finished": sum(run.complete for run in runs),
        "runs_diverged": sum(run.diverged for run in runs),
        "progress": sum(run.progress for run in runs) / max(1, sum(wanted.values())),
        "comparable": comparable,
        "measure": measure,
        "envs": [_env(env, references[env], runs) for env in envs],
        "rows": rows,
        "claims": claims,
        "caveat": CAVEAT if claims else "",
        "machines": _machines(runs),
        "settings": _settings(meta, runs),
    }
    return dict(finite(study))


def finite(value: Any) -> Any:
    """The same with None for numbers that JSON has not."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(x) for key, x in value.items()}
    return [finite(x) for x in value] if isinstance(value, list | tuple) else value


def _env(env: str, reference: Any, runs: Sequence[RunData]) -> dict[str, Any]:
    return {
        "name": env,
        "random": None if reference is None else reference.random,
        "reference": None if reference is None else reference.score,
        "who": "" if reference is None else reference.who,
        "self_play": any(run.self_play for run in runs if run.env == env),
    }


def _row(
    row: Mapping[str, Any],
    runs: Sequence[RunData],
    wanted: Mapping[tuple[str, str], int],
    references: Mapping[str, Any],
    measure: str,
) -> tuple[dict[str, Any], _Table]:
    mine = [run for run in runs if run.row == row["name"]]
    per_env, raw, scores, curves = {}, {}, {}, {}
    for env, reference in references.items():
        here = [run for run in mine if run.env == env]
        finished = [run.score for run in here if run.complete and run.score is not None]
        if finished:
            per_env[env] = {
                "runs": len(finished),
                **_plain(statistics.estimate(np.array(finished)[:, None], statistics.mean)),
                "scores": [round(float(x), 4) for x in finished],
            }
            raw[env] = finished
            scores[env] = [
                x
                if reference is None
                else statistics.normalised(x, reference.random, reference.score)
                for x in finished
            ]
        # A run under way would cut the others' curves off.
        begun = [run for run in here if run.steps]
        curve = _curve([run for run in begun if run.complete] or begun)
        if curve is not None:
            curves[env] = curve
    everywhere = bool(raw) and len(raw) == len(references)
    matrix = statistics.score_matrix(scores) if everywhere and measure != "none" else None
    table = _Table(
        raw=statistics.score_matrix(raw) if everywhere else None,
        scores=matrix,
        begun=bool(mine),
        provisional=sum(run.complete for run in mine) < _wanted(row["name"], wanted),
    )
    counted = min(map(len, raw.values())) if everywhere else 0
    described = {
        "name": row["name"],
        "fields": row["fields"],
        "published": row["published"],
        "runs": len(mine),
        "wanted": _wanted(row["name"], wanted),
        "finished": sum(run.complete for run in mine),
        "diverged": sum(run.diverged for run in mine),
        "provisional": table.provisional,
        # The longest common number of runs, and how many are left out for it.
        "counted": counted,
        "uncounted": sum(map(len, raw.values())) - counted * len(raw) if everywhere else 0,
        "envs": per_env,
        "curves": curves,
        "aggregates": {}
        if matrix is None
        else {
            name: _plain(statistics.estimate(matrix, aggregate))
            for name, aggregate in statistics.AGGREGATES.items()
            # Returns in their own units fall short of no target.
            if measure == "normalised" or name != "optimality_gap"
        },
    }
    return described, table


def _wanted(row: str, wanted: Mapping[tuple[str, str], int]) -> int:
    return sum(number for (name, _), number in wanted.items() if name == row)


def _curve(runs: Sequence[RunData]) -> dict[str, list[float] | None] | None:
    """The mean over seeds at common steps, with its interval."""
    if not runs:
        return None
    start = max(run.steps[0] for run in runs)
    end = min(run.steps[-1] for run in runs)
    longest = max(runs, key=lambda run: len(run.steps)).steps
    grid = [x for x in longest if start <= x <= end]
    if len(grid) > POINTS:
        grid = list(np.linspace(start, end, POINTS))
    if not grid:
        return None
    stacked = np.array([[statistics.on_grid(r.steps, r.returns, grid)] for r in runs])
    curve = statistics.efficiency_curve(stacked, statistics.mean)
    digits = lambda values: None if values is None else [float(f"{x:.5g}") for x in values]  # noqa: E731
    return {
        "steps": digits(grid),
        "value": digits(curve.value),
        "low": digits(curve.low),
        "high": digits(curve.high),
    }


def _claim(claim: Mapping[str, Any], tables: Mapping[str, _Table], measure: str) -> dict[str, Any]:
    """A claim with its verdict; the difference of means it was told by, or, of environments without
    a common measure, the probability of improvement less a half.
    """
    first, second = tables[claim["first"]], tables[claim["second"]]
    provisional = first.provisional or second.provisional
    told = {**claim, "measure": measure, "provisional": provisional, "gap": None}
    if not (first.begun and second.begun):
        return {**told, "verdict": "not run", "improvement": None}
    if first.raw is None or second.raw is None:
        verdict = "unfinished" if provisional else "no score"
        return {**told, "verdict": verdict, "improvement": None}
    if first.scores is None or second.scores is None:
        told["measure"] = "probability of improvement"
        gap = statistics.welch(*statistics.ranks(first.raw, second.raw))
    else:
        gap = statistics.welch(first.scores, second.scores)
    improvement = statistics.compare(first.raw, second.raw)
    return {
        **told,
        "verdict": statistics.verdict(claim["kind"], gap),
        "gap": _plain(gap),
        "improvement": _plain(improvement),
    }


def _plain(estimate: statistics.Estimate) -> dict[str, float | None]:
    return {
        name: None if value is None else float(f"{value:.6g}")
        for name, value in estimate._asdict().items()
    }


def _machines(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """The machines the runs were made on, each once."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        names = ("devices", "platform", "python", "jax", "commit", "commit_modified")
        kept = {k: run.machine.get(k) for k in names}
        devices = kept["devices"] if isinstance(kept["devices"], list) else []
        kept["devices"] = sorted(set(map(str, devices)))
        found.setdefault(json.dumps(kept), {**kept, "runs": 0})["runs"] += 1
    return list(found.values())


def _settings(meta: Mapping[str, Any], runs: Sequence[RunData]) -> dict[str, Any]:
    """How the study differs from its preset, and each row from the study's other rows."""
    flat = {run.row: dict(_flatten(run.config)) for run in runs}
    if not flat:
        return {"base": {}, "rows": {}}
    everything = set().union(*flat.values())
    shared, differing = {}, []
    for name in sorted(everything - {"seed", "env.name"}):
        values = [row.get(name) for row in flat.values()]
        if all(value == values[0] for value in values):
            shared[name] = values[0]
        else:
            differing.append(name)
    base = _preset(meta["preset"])
    changed = {k: v for k, v in shared.items() if base and k in base and base[k] != v}
    return {
        "base": changed,
        "rows": {row: {k: values.get(k) for k in differing} for row, values in flat.items()},
    }


def _preset(name: str) -> dict[str, Any]:
    if name not in PRESETS:
        return {}
    config: Config = PRESETS[name]()
    return {k: list(v) if isinstance(v, tuple) else v for k, v in leaves(config)}


def _flatten(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            found += _flatten(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found
