"""Jobs on this machine, each in a process of its own, a few at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from muesli.executors.jobs import Job, state_of, write_job

_POLL_SECONDS = 0.2


class Outcome(NamedTuple):
    """What became of a job. status: ``done``, ``already done``, ``failed`` or ``stopped``;
    detail: where to read why.
    """

    job: Job
    status: str
    detail: str


def job_command(file: Path, plugins: Sequence[str]) -> list[str]:
    """The command that does a job."""
    flags = [part for plugin in plugins for part in ("--plugin", plugin)]
    return [sys.executable, "-m", "muesli.cli.main", *flags, "job", str(file)]


def is_done(job: Job, out: Path) -> bool:
    """Whether every run of a job is finished."""
    return all(state_of(out / "runs" / run.path) == "finished" for run in job.runs)


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [x for x in log.read_text(encoding="utf-8", errors="replace").splitlines() if x.strip()]
    return lines[-1] if lines else "it said nothing"


class _Stopped(Exception):
    """A signal asked this process to stop."""


def run_locally(
    jobs: Sequence[Job],
    out: Path,
    plugins: Sequence[str] = (),
    at_once: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """Does every job that is not done yet. A failed one does not stop the others.

    A signal is passed on: the runs under way save themselves and can be continued.
    """
    outcomes: list[Outcome] = []
    waiting = []
    for job in jobs:
        if is_done(job, out):
            outcomes.append(Outcome(job, "already done", ""))
        else:
            waiting.append(job)
    running: list[tuple[Job, subprocess.Popen[bytes], Path]] = []
    # Elsewhere than in the main thread, whoever called us handles signals.
    ours = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGTERM, _raise_stopped) if ours else None
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                say(f"started  {job.name}")
                running.append((job, *_start(job, out, plugins, at_once)))
            for entry in [e for e in running if e[1].poll() is not None]:
                running.remove(entry)
                outcomes.append(_conclude(*entry))
                say(f"{outcomes[-1].status:<8} {entry[0].name} {outcomes[-1].detail}".rstrip())
            time.sleep(_POLL_SECONDS)
    except (KeyboardInterrupt, _Stopped):
        for _, process, _ in running:
            process.terminate()
        for job, process, _ in running:
            process.wait()
            outcomes.append(Outcome(job, "stopped", "the same command continues it"))
    finally:
        if ours:
            signal.signal(signal.SIGTERM, previous)
    return outcomes


def _raise_stopped(number: int, frame: FrameType | None) -> None:
    raise _Stopped


def _start(
    job: Job, out: Path, plugins: Sequence[str], at_once: int
) -> tuple[subprocess.Popen[bytes], Path]:
    file = write_job(job, out)
    log = file.with_suffix(".log")
    environment = dict(os.environ)
    if at_once > 1:  # several processes share one GPU's memory
        environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / at_once:.3f}")
    with log.open("ab") as stream:
        # A session of its own: Ctrl-C reaches this process only, which passes on one signal.
        process = subprocess.Popen(
            job_command(file.resolve(), plugins),
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    return process, log


def _conclude(job: Job, process: subprocess.Popen[bytes], log: Path) -> Outcome:
    if process.returncode == 0:
        return Outcome(job, "done", "")
    return Outcome(job, "failed", f"(exit {process.returncode}: {last_line(log)}; see {log})")
