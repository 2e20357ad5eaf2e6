"""``--devices.*`` and ``--distributed.*``: on which devices and with which processes a run runs."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from muesli.cli.main import UsageError, nearest
from muesli.config import Config


def add_where(parser: argparse.ArgumentParser) -> None:
    """The options of ``where``."""
    add = parser.add_argument
    add(
        "--devices.learners",
        dest="learners",
        metavar="0,1,...|all",
        help="devices that learn, each with its share of environments and batch (the first)",
    )
    add(
        "--devices.actors",
        dest="actors",
        metavar="0,1,...|all",
        help="devices that act, for environments outside JAX (those that learn)",
    )
    add(
        "--distributed.local",
        dest="local",
        type=int,
        metavar="N",
        help="start N processes on this machine and look after them",
    )
    add(
        "--distributed.restarts",
        dest="restarts",
        type=int,
        default=3,
        metavar="N",
        help="with local: start all again this often when one is lost (3)",
    )
    add(
        "--distributed.coordinator",
        dest="coordinator",
        metavar="HOST:PORT|auto",
        help="where process 0 is, or auto: as SLURM, Open MPI or Kubernetes say",
    )
    add("--distributed.processes", dest="processes", type=int, metavar="N", help="how many")
    add(
        "--distributed.process-id",
        dest="process",
        type=int,
        metavar="I",
        help="which of them this is, from 0",
    )
    add(
        "--distributed.timeout-seconds",
        dest="timeout_seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="how long a process may be silent before the others leave (60)",
    )
    add(
        "--distributed.start-seconds",
        dest="start_seconds",
        type=float,
        default=300.0,
        metavar="S",
        help="how long to wait until all processes have come (300)",
    )


def refuse_unknown(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Names a ``--devices.*`` or ``--distributed.*`` that does not exist, and the nearest."""
    known = [option for option in parser._option_string_actions if "." in option]
    for option in rest:
        if option.startswith(("--devices.", "--distributed.")):
            name = option.split("=")[0]
            raise UsageError(f"{name}: there is no such option{nearest(name, known)}")


def _cluster(own: Any) -> Any:
    """The Cluster that the options describe, or None for a run of one process."""
    from muesli.runners.peers import Cluster, address

    for field, value in (
        ("timeout-seconds", own.timeout_seconds),
        ("start-seconds", own.start_seconds),
    ):
        if not value > 0.0:
            raise UsageError(f"--distributed.{field}: must be above 0, got {value:g}")
    given = (own.processes, own.process)
    if own.coordinator is None:
        if given != (None, None):
            raise UsageError("--distributed.coordinator: HOST:PORT of process 0 is missing")
        return None
    if own.coordinator == "auto":
        from muesli.runners.distributed import detect

        if given != (None, None):
            raise UsageError("--distributed.coordinator: auto finds processes and process id too")
        coordinator, processes, process = detect(own.start_seconds)
        if processes == 1:
            return None
    else:
        for field, value in (("processes", own.processes), ("process-id", own.process)):
            if value is None:
                raise UsageError(f"--distributed.{field}: is missing")
        coordinator, processes, process = own.coordinator, own.processes, own.process
        address(coordinator)
    return Cluster(coordinator, processes, process, own.start_seconds, own.timeout_seconds)


@contextlib.contextmanager
def where(own: Any, command: str, config: Config) -> Iterator[Any]:
    """The Topology that the options describe; other processes are met first."""
    from muesli.runners.supervise import begin_supervised

    begin_supervised()
    cluster = _cluster(own)
    from muesli.runners.device import prepare_device
    from muesli.runners.distributed import joined
    from muesli.runners.mesh import choose_devices

    card = {
        "command": command,
        "config": asdict(config),
        "devices": {"learners": own.learners, "actors": own.actors},
    }
    with joined(cluster, card) as peers:
        prepare_device()
        yield choose_devices(own.learners, own.actors, peers)


# --- several processes on this machine ------------------------------------------------------


def train_locally(argv: Sequence[str], own: Any, dirs: Sequence[Path]) -> int:
    """``muesli train … --distributed.local N``; started again, it resumes."""
    _check_local(own)
    if len(dirs) > 1:
        raise UsageError("--seeds: several at once are for a run of one process")
    run_dir = dirs[0]
    rest = _without(argv, {"--distributed.local", "--distributed.restarts", "--run-dir"})
    return _supervise(own, ["train", *rest, "--run-dir", str(run_dir)], run_dir)


def resume_locally(argv: Sequence[str], own: Any) -> int:
    """``muesli resume RUN_DIR --distributed.local N``."""
    _check_local(own)
    rest = _without(argv, {"--distributed.local", "--distributed.restarts"})
    return _supervise(own, ["resume", *rest], own.run_dir)


def _check_local(own: Any) -> None:
    if own.local < 2:
        raise UsageError(f"--distributed.local: must be at least 2, got {own.local}")
    if own.restarts < 0:
        raise UsageError(f"--distributed.restarts: must be at least 0, got {own.restarts}")
    if (own.coordinator, own.processes, own.process) != (None, None, None):
        raise UsageError("--distributed.local: chooses coordinator and process ids by itself")


def _without(argv: Sequence[str], options: set[str]) -> list[str]:
    """A command line without some options and their values."""
    kept: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        if argument in options:
            next(arguments, None)
        elif argument.split("=", 1)[0] not in options:
            kept.append(argument)
    return kept


def _supervise(own: Any, first: Sequence[str], run_dir: Path) -> int:
    from muesli.checkpoint import newest_first
    from muesli.cli import plugins
    from muesli.runners.supervise import supervise

    options = {
        "--devices.learners": own.learners,
        "--devices.actors": own.actors,
        "--distributed.timeout-seconds": own.timeout_seconds,
        "--distributed.start-seconds": own.start_seconds,
    }
    resumed = ["resume", str(run_dir)]
    for name, value in options.items():
        resumed += [name, str(value)] if value is not None else []

    def command(coordinator: str, process: int, again: bool) -> list[str]:
        return [
            *(sys.executable, "-m", "muesli.cli.main", *plugins.flags()),
            *(resumed if again else first),
            *("--distributed.coordinator", coordinator),
            *("--distributed.processes", str(own.local)),
            *("--distributed.process-id", str(process)),
        ]

    # Of a directory that already holds a run, the first start says so.
    attempts = iter([first[0] == "resume"])
    there = lambda: bool(newest_first(run_dir / "checkpoints"))  # noqa: E731
    return supervise(command, own.local, own.restarts, lambda: next(attempts, there()))
