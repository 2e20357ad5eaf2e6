"""``muesli train`` and ``muesli resume``."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from muesli.cli.cluster import (
    add_where,
    refuse_unknown,
    resume_locally,
    train_locally,
    where,
)
from muesli.cli.configure import choice, parse_config
from muesli.cli.main import UsageError
from muesli.cli.options import Parser
from muesli.config import Config

STOPPED_ITSELF = 3
# Where a line cannot be overwritten, it comes at most this often.
_LINE_SECONDS = 30.0


def _own_options() -> argparse.ArgumentParser:
    parser = Parser(
        prog="muesli train",
        usage="muesli train [PRESET] [OPTIONS] [--FIELD VALUE ...]",
        description="PRESET comes first: a name of 'muesli list presets', atari:game, "
        "gym:EnvId or module:EnvId.",
        add_help=False,
    )
    add = parser.add_argument
    add(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="where everything is written (runs/PRESET-SEED-TIME); several seeds: DIR/seed-<n>",
    )
    add(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="train the seeds --seed, --seed + 1, ... side by side in one program (1)",
    )
    add(
        "--init-from",
        type=Path,
        metavar="RUN_DIR",
        help="start with the parameters of this run, or of an exported agent",
    )
    add(
        "--track",
        metavar="PROJECT",
        help="send every row of metrics to this project on Weights & Biases (extra track)",
    )
    add_where(parser)
    return parser


def train_command(argv: Sequence[str]) -> int:
    """``muesli train [PRESET] [--seeds N] [--run-dir DIR] [--init-from RUN] [--field VALUE …]``."""
    arguments = list(argv)
    preset = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    options = _own_options()
    own, rest = options.parse_known_args(arguments)
    refuse_unknown(options, rest)
    if {"-h", "--help"} & set(rest):
        print(f"{options.format_help()}\nThe fields of this preset:")
    name, config = parse_config(preset, rest)
    if own.seeds < 1:
        raise UsageError(f"--seeds: must be at least 1, got {own.seeds}")
    source = own.init_from
    if source is not None and not (source.is_file() or (source / "config.json").exists()):
        raise UsageError(f"--init-from: {source} holds no run, nor is it an exported agent")
    if own.track is not None:
        _check_tracking(own)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    if own.run_dir is None:
        dirs = [Path("runs") / f"{name}-{config.seed + k}-{stamp}" for k in range(own.seeds)]
    elif own.seeds == 1:
        dirs = [own.run_dir]
    else:
        dirs = [own.run_dir / f"seed-{config.seed + k}" for k in range(own.seeds)]

    if own.local is not None:
        return train_locally(arguments if preset is None else [preset, *arguments], own, dirs)

    from muesli.runners.signals import Signals

    title = f"{name} on {config.env.name}"
    with Signals(running=False) as signals:
        return _train(config, title, dirs, own, signals, choice(preset))


def _check_tracking(own: Any) -> None:
    if find_spec("wandb") is None:
        raise UsageError("--track: wandb is not installed; pip install 'muesli-rl[track]'")
    if own.seeds > 1:
        raise UsageError("--track: follows a run of one seed; leave --seeds out")


def _train(
    config: Config, title: str, dirs: list[Path], own: Any, signals: Any, remark: str | None
) -> int:
    from muesli.checkpoint import CheckpointError
    from muesli.runners.train import train

    def run(topology: Any) -> int:
        if remark is not None and topology.peers.rank == 0:
            print(remark, flush=True)
        # Names of directories hold the time, so process 0's is taken.
        paths = [Path(path) for path in topology.peers.first([str(path) for path in dirs])]
        with _onlookers(config, title, paths[0], own.track) as (callbacks, on_start):
            result = train(
                config,
                paths,
                callbacks,
                own.init_from,
                signals=signals,
                topology=topology,
                on_start=on_start,
            )
        return _conclude(result, topology.peers.rank == 0)

    try:
        return _somewhere(own, "train", config, run)
    except CheckpointError as error:
        raise UsageError(f"--init-from: {error}") from error


def resume_command(argv: Sequence[str]) -> int:
    """``muesli resume RUN_DIR [--devices.… ] [--distributed.…]``."""
    parser = Parser(prog="muesli resume")
    parser.add_argument("run_dir", type=Path)
    add_where(parser)
    own = parser.parse_args(list(argv))
    if own.local is not None:
        return resume_locally(argv, own)

    from muesli.runners.signals import Signals

    with Signals(running=False) as signals:
        return _resume(own.run_dir, own, signals)


def _resume(run_dir: Path, own: Any, signals: Any) -> int:
    from muesli.checkpoint import CheckpointError, newest_first, read_manifest, verify
    from muesli.metrics import tracked_project
    from muesli.runners.rundir import read_config
    from muesli.runners.train import resume

    config = read_config(run_dir)

    def is_complete() -> bool:
        with contextlib.suppress(CheckpointError, IndexError):
            newest = newest_first(run_dir / "checkpoints")[0]
            if read_manifest(newest)["meta"].get("complete"):
                verify(newest)
                return True
        return False

    def run(topology: Any) -> int:
        speaks = topology.peers.rank == 0
        if topology.peers.first(speaks and is_complete()):
            if speaks:
                print(f"{run_dir}: already complete")
            return 0
        project = tracked_project(run_dir)
        if project is not None and find_spec("wandb") is None:
            project = None
            if speaks:
                print(f"{run_dir}: wandb is not installed here; it is not tracked any more")
        with _onlookers(config, str(run_dir), run_dir, project) as (callbacks, on_start):
            result = resume(
                run_dir, callbacks, signals=signals, topology=topology, on_start=on_start
            )
        return _conclude(result, speaks)

    return _somewhere(own, "resume", config, run)


def _somewhere(own: Any, command: str, config: Config, run: Callable[[Any], int]) -> int:
    """Runs on the devices and with the processes that the options name; a run that stops itself
    says why, a failed environment with its traceback.
    """
    from muesli.runners.faults import TrainingError

    try:
        with where(own, command, config) as topology:
            return run(topology)
    except TrainingError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print("; ".join([f"muesli: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return STOPPED_ITSELF


def _conclude(result: Any, speaks: bool) -> int:
    """Draws the curves, says where everything is, and picks the exit code."""
    from muesli.plots import plot_runs
    from muesli.runners.evaluate import told_of_cuts

    if result.stopped_by is not None:
        if speaks:
            print(f"stopped and saved; continue with: muesli resume {result.run_dirs[0]}")
        return 128 + int(result.stopped_by)
    if not speaks:
        return 0
    for run_dir, evaluation, recent in zip(
        result.run_dirs, result.evaluations, result.returns, strict=True
    ):
        plot_runs({run_dir: run_dir.name}, run_dir / "curve.png")
        if evaluation:
            print(
                f"{run_dir}: return {evaluation['return_mean']:.2f} "
                f"± {evaluation['return_stderr']:.2f} "
                f"over {evaluation['episodes']} episodes{told_of_cuts(evaluation)}"
            )
        elif recent is not None:
            print(f"{run_dir}: return {recent:.2f} in the last training episodes")
    first = result.run_dirs[0]
    print(f"curve: {first / 'curve.png'}   video: muesli record {first}")
    return 0


@contextlib.contextmanager
def _onlookers(
    config: Config, title: str, run_dir: Path, project: str | None
) -> Iterator[tuple[list[Any], Callable[[int], None]]]:
    """Who is shown every row of metrics, and what tells them where the run starts."""
    with Progress(config.total_env_steps, title) as watch:
        if project is None:
            yield [watch], watch.begin
            return
        from muesli.metrics import Tracker

        with Tracker(project, run_dir, asdict(config)) as tracker:

            def begin(env_steps: int) -> None:
                tracker.begin(env_steps)
                watch.begin(env_steps)

            yield [watch, tracker], begin


class Progress:
    """One live line on a terminal; elsewhere, in the log of a job, a plain line now and then."""

    def __init__(self, total_steps: int, title: str):
        self.total, self.title = total_steps, title
        self._bar: Any = None
        self._task: Any = None
        self._said = -math.inf

    def __enter__(self) -> Progress:
        return self

    def begin(self, env_steps: int) -> None:
        """Says what begins, or continues at a later step."""
        what = f"{self.title}: {self.total:,} steps"
        if env_steps:
            what = f"{self.title} at step {env_steps:,} of {self.total:,}"
        print(f"{'continuing' if env_steps else 'training'} {what} (compiling first)", flush=True)
        if sys.stdout.isatty():
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.percentage:>3.0f}%"),
                BarColumn(),
                TextColumn("return {task.fields[shown]}  {task.fields[rate]:,.0f} frames/s"),
                TimeRemainingColumn(),
            )
            self._task = self._bar.add_task(
                "train", total=self.total, completed=env_steps, shown="-", rate=0.0
            )
            self._bar.start()

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Shows one row of metrics."""
        steps, rate = row["env_steps"], row["frames_per_second"]
        value = row.get("episode_return_mean")
        shown = "-" if value is None else f"{value:.2f}"
        if self._bar is not None:
            self._bar.update(self._task, completed=steps, shown=shown, rate=rate)
        elif time.monotonic() - self._said >= _LINE_SECONDS:
            self._said = time.monotonic()
            share = min(1.0, steps / self.total)
            line = f"{share:4.0%}  step {steps:,}  return {shown}  {rate:,.0f} frames/s"
            # A reader that went away, or a full disk, is no reason to stop training.
            with contextlib.suppress(OSError):
                print(line, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
