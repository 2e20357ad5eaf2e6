"""``muesli train`` and ``muesli resume``."""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
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
from muesli.cli.main import UsageError, nearest
from muesli.cli.options import Parser, whole_number
from muesli.config import Config, EnvConfig, validate
from muesli.fields import leaves

STOPPED_ITSELF = 3
# Where a line cannot be overwritten, it comes at most this often.
_LINE_SECONDS = 30.0


def parse_config(preset: str | None, arguments: Sequence[str]) -> tuple[str, Config]:
    """The preset's configuration with the fields given on the command line."""
    from muesli.envs import with_version

    name, default, text = _preset(preset)
    default = _with_named_update(default, arguments)
    try:
        config = parse_fields(default, arguments, f"muesli train {name}", text)
    except UsageError as error:
        stray = str(error).removeprefix("Unrecognized options: ")
        if preset is None and stray != str(error) and not stray.startswith("-"):
            raise UsageError(f"{stray}: PRESET comes first, before every option") from None
        raise
    config = replace(config, env=replace(config.env, name=with_version(config.env.name)))
    validate(config)
    return name, config


def choice(preset: str | None) -> str | None:
    """Which preset a name stands for, and why, where that depends on the machine."""
    if preset is None or not preset.startswith("atari:"):
        return None
    chosen, why = _preset_of_games()
    other = f"muesli train PRESET --env.name {preset}"
    return f"{preset}: as preset {chosen}, for JAX {why}; with another: {other}"


def _preset_of_games() -> tuple[str, str]:
    """The preset of a game of Atari that is named without one, and why."""
    from muesli.runners.device import finds_accelerator

    if finds_accelerator():
        return "atari_small", "finds an accelerator"
    return "atari_laptop", "finds no accelerator"


def parse_fields(
    default: Config,
    arguments: Sequence[str],
    prog: str,
    description: str = "",
    also: Sequence[str] = (),
) -> Config:
    """``default`` with the fields given on the command line, not yet validated.

    ``also``: flags that a misspelt one may have meant besides fields.
    """
    import tyro

    known = [f"--{field.replace('_', '-')}" for field, _ in leaves(default)]
    for flag in (argument.split("=")[0] for argument in arguments):
        if flag.startswith("--") and flag.replace("_", "-") not in (*known, "--help"):
            hint = nearest(flag, [*known, *also])
            raise UsageError(f"{flag}: there is no such field{hint}")
    said = io.StringIO()
    numbers = tyro.constructors.ConstructorRegistry()
    numbers.primitive_rule(_whole_numbers)
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                tyro.conf.configure(tyro.conf.FlagConversionOff)(Config),
                default=default,
                args=list(arguments),
                prog=prog,
                description=description,
                registry=numbers,
            )
    except SystemExit as end:
        if end.code:
            raise UsageError(_in_one_line(said.getvalue())) from None
        raise


def _whole_numbers(info: Any) -> Any:
    """How tyro reads fields that are whole numbers."""
    from tyro.constructors import PrimitiveConstructorSpec

    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


def _with_named_update(default: Config, arguments: Sequence[str]) -> Config:
    """The defaults beside an ``--update.name``: that update's own hyperparameters.

    The preset's stay for the update it has already, and for a user's, of which nothing is known.
    """
    from muesli.config import UPDATE_DEFAULTS
    from muesli.presets import with_update

    flag, name = "--update.name", default.update.name
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if argument == flag or argument.startswith(f"{flag}="):
            name = following if argument == flag else argument.removeprefix(f"{flag}=")
    if name == default.update.name or name not in UPDATE_DEFAULTS:
        return default
    return with_update(default, name)


def _in_one_line(box: str) -> str:
    """What tyro says of a wrong argument: in a box, or between lines where those cannot be drawn.

    Under its title are what is wrong and, perhaps, how the argument is to be given.
    """
    sections: list[list[str]] = [[]]
    for line in box.splitlines()[1:]:
        inside = line.strip("│╰╯ ")
        if inside.strip("─- "):
            sections[-1].append(inside)
        elif sections[-1]:
            sections.append([])
    usage = [s[1] for s in sections if s[:1] == ["Argument helptext:"] and len(s) > 1]
    return "; expected ".join([" ".join(sections[0]) or box.strip(), *usage])


def _preset(preset: str | None) -> tuple[str, Config, str]:
    """Name, configuration and description of a preset, or of any environment with a colon."""
    from muesli.presets import DEFAULT_PRESET, PRESETS, TUNED, gym

    name = preset or DEFAULT_PRESET
    if name in PRESETS:
        return name, PRESETS[name](), PRESETS[name].__doc__ or ""
    if ":" not in name:
        raise UsageError(
            f"unknown preset '{name}'{_meant(name, list(PRESETS))}; 'muesli list presets' "
            "shows them all"
        )
    from muesli.envs import make, with_version

    name = with_version(name)
    env = make(name, EnvConfig(name=name))
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    if (text := choice(name)) is not None:
        base = PRESETS[_preset_of_games()[0]]()
        return plain, replace(base, env=replace(base.env, name=name)), f"{text}."
    registered, mark, _ = name.partition("?")
    if registered in TUNED:
        base, text = TUNED[registered](), f"{registered}, with a configuration of its own."
        return plain, replace(base, env=replace(base.env, name=name)) if mark else base, text
    image = len(env.spec.observation_shape) == 3
    return plain, gym(name, image, env.spec.num_actions is not None), f"{name}, from its spaces."


def _meant(name: str, presets: list[str]) -> str:
    """What somebody may have meant who names neither a preset nor an environment of ours."""
    if re.search(r"[A-Z/]|-v\d", name):  # as Gymnasium writes its ids
        from muesli.envs.naming import other_names

        if others := other_names(name):
            return f" (did you mean {' or '.join(others)}?)"
    return nearest(name, presets)


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
