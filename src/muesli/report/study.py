"""A suite's directory, or directories of plain runs, read into one record of plain numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from muesli import statistics
from muesli.config import Config, ConfigError
from muesli.fields import leaves
from muesli.metrics import read_jsonl
from muesli.presets import PRESETS
from muesli.report.references import reference_of

POINTS = 80
"""Points of a curve at most."""


class RunData(NamedTuple):
    """What one run left behind.

    steps, returns: its learning curve; score: by the paper's protocol, None before any episode;
    self_play: whether evaluations score it; complete: whether it reached its last step; progress:
    in [0, 1].
    """

    row: str
    env: str
    seed: int
    path: Path
    steps: list[float]
    returns: list[float]
    score: float | None
    self_play: bool
    complete: bool
    progress: float
    config: Mapping[str, Any]
    machine: Mapping[str, Any]


def read_run(path: Path, row: str = "", env: str = "", seed: int = 0) -> RunData | None:
    """A run directory; None if it holds no configuration yet."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        machine = json.loads((path / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    rows = _rows(path / "metrics.jsonl")
    # Self-play returns say nothing of strength: there, evaluations do.
    self_play = config["agent"]["discount"] < 0.0
    key = "eval_return_mean" if self_play else "episode_return_mean"
    curve = [(r["env_steps"], r[key]) for r in rows if isinstance(r.get(key), int | float)]
    if self_play:
        score = curve[-1][1] if curve else None
    else:
        score = statistics.final_score([e["return"] for e in _rows(path / "episodes.jsonl")])
    done = rows[-1]["env_steps"] if rows else 0
    return RunData(
        row=row or path.name,
        env=env or config["env"]["name"],
        seed=seed or config["seed"],
        path=path,
        steps=[float(x) for x, _ in curve],
        returns=[float(y) for _, y in curve],
        score=score,
        self_play=self_play,
        complete=done >= config["total_env_steps"],
        progress=min(1.0, done / config["total_env_steps"]),
        config=config,
        machine=machine,
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    return read_jsonl(path) if path.exists() else []


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
    }
    return _summarise(meta, runs, len(runs))


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
    try:
        meta = json.loads((directory / "suite.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{directory}/suite.json cannot be read ({error})") from error
    runs = []
    for entry in meta["runs"]:
        if not entry["missing"]:
            run = read_run(directory / entry["path"], entry["row"], entry["env"], entry["seed"])
            if run is not None:
                runs.append(run)
    able = [entry for entry in meta["runs"] if not entry["missing"]]
    lacking = [f"{e['row']}: {e['missing']}" for e in meta["runs"] if e["missing"]]
    return _summarise({**meta, "missing": list(dict.fromkeys(lacking))}, runs, len(able))


def _summarise(meta: dict[str, Any], runs: Sequence[RunData], wanted: int) -> dict[str, Any]:
    """Scores, aggregates, curves and verdicts of a study."""
    envs = list(dict.fromkeys(run.env for run in runs))
    references = {env: reference_of(env) for env in envs}
    # One game may stay in its own units; several without a common measure are not averaged.
    comparable = len(envs) == 1 or all(references.values())
    rows = [_row(row, runs, envs, references, comparable) for row in meta["rows"]]
    matrices = {row["name"]: row.pop("matrix") for row in rows}
    return {
        **{key: meta[key] for key in ("suite", "title", "figure", "remark", "scale", "preset")},
        "published": meta.get("published", {}),
        "command": meta["command"],
        "earlier_commands": meta.get("earlier_commands", []),
        "plugins": meta["plugins"],
        "missing": meta["missing"],
        "runs_wanted": wanted,
        "runs_finished": sum(run.complete for run in runs),
        "progress": sum(run.progress for run in runs) / max(1, wanted),
        "comparable": comparable,
        "envs": [_env(env, references[env], runs) for env in envs],
        "rows": rows,
        "claims": [_claim(claim, matrices) for claim in meta["claims"]],
        "machines": _machines(runs),
        "settings": _settings(meta, runs),
    }


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
    envs: Sequence[str],
    references: Mapping[str, Any],
    comparable: bool,
) -> dict[str, Any]:
    mine = [run for run in runs if run.row == row["name"]]
    per_env, scores, curves = {}, {}, {}
    for env in envs:
        here = [run for run in mine if run.env == env]
        finished = [run.score for run in here if run.complete and run.score is not None]
        if finished:
            raw = np.array(finished)[:, None]
            per_env[env] = {
                "runs": len(finished),
                **_plain(statistics.estimate(raw, statistics.mean)),
                "scores": [round(float(x), 4) for x in finished],
            }
            reference = references[env]
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
    complete = comparable and len(scores) == len(envs) and bool(scores)
    matrix = statistics.score_matrix(scores) if complete else None
    return {
        "name": row["name"],
        "fields": row["fields"],
        "published": row["published"],
        "runs": len(mine),
        "finished": sum(run.complete for run in mine),
        "envs": per_env,
        "curves": curves,
        "aggregates": {}
        if matrix is None
        else {
            name: _plain(statistics.estimate(matrix, aggregate))
            for name, aggregate in statistics.AGGREGATES.items()
        },
        "matrix": matrix,
    }


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


def _claim(claim: Mapping[str, Any], matrices: Mapping[str, Any]) -> dict[str, Any]:
    first, second = matrices.get(claim["first"]), matrices.get(claim["second"])
    if first is None or second is None:
        return {**claim, "verdict": "not run", "gap": None, "improvement": None}
    gap = statistics.compare(first, second, statistics.difference)
    improvement = statistics.compare(first, second)
    return {
        **claim,
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
        kept["devices"] = sorted(set(kept["devices"] or []))
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
