"""``muesli train`` and ``muesli resume``."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muesli.cli.main import UsageError, nearest
from muesli.config import Config, validate


def parse_config(preset: str | None, arguments: Sequence[str]) -> tuple[str, Config]:
    """The preset's configuration with the fields given on the command line."""
    import tyro

    from muesli.presets import DEFAULT_PRESET, PRESETS

    name = preset or DEFAULT_PRESET
    if name not in PRESETS:
        raise UsageError(
            f"unknown preset '{name}'{nearest(name, list(PRESETS))}; 'muesli list presets' "
            "shows them all"
        )
    config = tyro.cli(
        tyro.conf.configure(tyro.conf.FlagConversionOff)(Config),
        default=PRESETS[name](),
        args=list(arguments),
        prog=f"muesli train {name}",
        description=PRESETS[name].__doc__,
    )
    validate(config)
    return name, config


def _own_options(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"muesli {command}", add_help=False, allow_abbrev=False)
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--init-from", type=Path)
    return parser


def train_command(argv: Sequence[str]) -> int:
    """``muesli train [PRESET] [--seeds N] [--run-dir DIR] [--init-from RUN] [--field VALUE …]``."""
    arguments = list(argv)
    preset = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    own, rest = _own_options("train").parse_known_args(arguments)
    if {"-h", "--help"} & set(rest):
        print(
            "usage: muesli train [PRESET] [--run-dir DIR] [--seeds N] [--init-from RUN_DIR] "
            "[--FIELD VALUE ...]\n\nThe fields of this preset:"
        )
    name, config = parse_config(preset, rest)
    if own.seeds < 1:
        raise UsageError(f"--seeds: must be at least 1, got {own.seeds}")
    if own.init_from is not None and not (own.init_from / "config.json").exists():
        raise UsageError(f"--init-from: {own.init_from} holds no run")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    if own.run_dir is None:
        dirs = [Path("runs") / f"{name}-{config.seed + k}-{stamp}" for k in range(own.seeds)]
    elif own.seeds == 1:
        dirs = [own.run_dir]
    else:
        dirs = [own.run_dir / f"seed-{config.seed + k}" for k in range(own.seeds)]

    from muesli.runners.train import train

    with Progress(config.total_env_steps, f"{name} on {config.env.name}") as progress:
        result = train(config, dirs, callbacks=[progress], init_from=own.init_from)
    return _conclude(result)


def resume_command(argv: Sequence[str]) -> int:
    """``muesli resume RUN_DIR``."""
    parser = argparse.ArgumentParser(prog="muesli resume", allow_abbrev=False)
    parser.add_argument("run_dir", type=Path)
    run_dir = parser.parse_args(list(argv)).run_dir

    from muesli.checkpoint import CheckpointError, newest_first, read_manifest
    from muesli.runners.rundir import read_config
    from muesli.runners.train import resume

    config = read_config(run_dir)
    with contextlib.suppress(CheckpointError, IndexError):
        newest = newest_first(run_dir / "checkpoints")[0]
        if read_manifest(newest)["meta"].get("complete"):
            print(f"{run_dir}: already complete")
            return 0
    try:
        with Progress(config.total_env_steps, str(run_dir)) as progress:
            result = resume(run_dir, callbacks=[progress])
    except CheckpointError as error:
        raise UsageError(str(error)) from error
    return _conclude(result)


def _conclude(result: Any) -> int:
    """Draws the curves, says where everything is, and picks the exit code."""
    from muesli.plots import plot_runs

    if result.stopped_by is not None:
        print(f"stopped and saved; continue with: muesli resume {result.run_dirs[0]}")
        return 128 + int(result.stopped_by)
    for run_dir, evaluation in zip(result.run_dirs, result.evaluations, strict=True):
        plot_runs([run_dir], run_dir / "curve.png")
        print(
            f"{run_dir}: return {evaluation['return_mean']:.2f} "
            f"± {evaluation['return_stderr']:.2f} "
            f"over {evaluation['episodes']} episodes"
        )
    first = result.run_dirs[0]
    print(f"curve: {first / 'curve.png'}   video: muesli record {first}")
    return 0


class Progress:
    """One live line on a terminal; a line at the start and nothing more elsewhere."""

    def __init__(self, total_steps: int, title: str):
        self.total, self.title = total_steps, title
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        print(f"training {self.title}: {self.total:,} steps (compiling first)", flush=True)
        if sys.stdout.isatty():
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.percentage:>3.0f}%"),
                BarColumn(),
                TextColumn("return {task.fields[shown]}  {task.fields[rate]:,.0f} steps/s"),
                TimeRemainingColumn(),
            )
            self._task = self._bar.add_task("train", total=self.total, shown="-", rate=0.0)
            self._bar.start()
        return self

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Shows one row of metrics."""
        if self._bar is None:
            return
        value = row.get("episode_return_mean")
        self._bar.update(
            self._task,
            completed=row["env_steps"],
            shown="-" if value is None else f"{value:.2f}",
            rate=row["frames_per_second"],
        )

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
