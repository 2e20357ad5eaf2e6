"""What one run's directory holds for a report: its curve, its score, and whether it is whole."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from muesli import statistics
from muesli.config import ConfigError
from muesli.metrics import read_jsonl


class RunData(NamedTuple):
    """What one run left behind.

    steps, returns: its learning curve; score: by the paper's protocol, None before any episode and
    for a run that diverged; self_play: whether evaluations score it; diverged: whether what should
    score it is not finite; complete: whether it reached its last step; progress: in [0, 1].
    """

    row: str
    env: str
    seed: int
    path: Path
    steps: list[float]
    returns: list[float]
    score: float | None
    self_play: bool
    diverged: bool
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
    _check_config(config, path / "config.json")
    rows = _rows(path / "metrics.jsonl")
    # Self-play returns say nothing of strength: there, evaluations do.
    self_play = config["agent"]["discount"] < 0.0
    key = "eval_return_mean" if self_play else "episode_return_mean"
    curve = [(_number(r.get("env_steps")), _number(r[key])) for r in rows if r.get(key) is not None]
    if self_play:
        scoring = [y for _, y in curve[-1:]]
    else:
        episodes = [_number(e.get("return")) for e in _rows(path / "episodes.jsonl")]
        scoring = episodes[-statistics.LAST_EPISODES :]
    done = max((x for r in rows if math.isfinite(x := _number(r.get("env_steps")))), default=0.0)
    return RunData(
        row=row or path.name,
        env=env or config["env"]["name"],
        seed=seed or config["seed"],
        path=path,
        steps=[x for x, y in curve if math.isfinite(x + y)],
        returns=[y for x, y in curve if math.isfinite(x + y)],
        score=statistics.final_score(scoring),
        self_play=self_play,
        diverged=not all(map(math.isfinite, scoring)),
        complete=done >= config["total_env_steps"],
        progress=min(1.0, done / config["total_env_steps"]),
        config=config,
        machine=machine if isinstance(machine, dict) else {},
    )


def _check_config(config: Any, file: Path) -> None:
    """Refuses what is no configuration, as far as it is read here."""
    for dotted, kind in (
        ("agent.discount", int | float),
        ("env.name", str),
        ("seed", int),
        ("total_env_steps", int),
    ):
        value = config
        for name in dotted.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if not isinstance(value, kind):
            raise ConfigError(f"{file} is no configuration of a run ({dotted} is {value})")
    if config["total_env_steps"] < 1:
        raise ConfigError(f"{file} is no configuration of a run (total_env_steps is below 1)")


def _number(value: Any) -> float:
    """A number as it was logged: what is not finite stands there as text. Not finite if none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        return [row for row in read_jsonl(path) if isinstance(row, dict)]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from error
