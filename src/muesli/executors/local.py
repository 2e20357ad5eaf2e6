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
from typing import Any, NamedTuple

from muesli.executors.jobs import Job, forget_failure, note_failure, state_of, write_job

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


def unfinished(job: Job, out: Path) -> str:
    """What to say of a job whose process ended well but left runs undone; nothing otherwise."""
    undone = [r.path for r in job.runs if state_of(out / "runs" / r.path) != "finished"]
    more = f" and {len(undone) - 1} more" if len(undone) > 1 else ""
    return f"it ended without finishing {undone[0]}{more}" if undone else ""


def reason(log: Path, start: int = 0) -> str:
    """What a log, from a position on, says went wrong: its last exception or word of ours; or,
    without those, its last line.

    (JAX says after an exception that it has shortened its traceback.)
    """
    with log.open("rb") as stream:
        stream.seek(start)
        lines = stream.read().decode("utf-8", "replace").splitlines()
    found, last, within = "", "", False
    for line in filter(str.strip, lines):
        last = line.strip()
        if line.startswith("Traceback (most recent call last)"):
            within = True
        elif within and not line[0].isspace():
            found, within = last, False
        elif line.startswith(("muesli:", "muesli job:")):
            found = last
    return found or last or "it said nothing"


class _Signals:
    """Counts SIGINT and SIGTERM while it is entered; elsewhere than in the main thread whoever
    called looks after them.
    """

    def __init__(self) -> None:
        self.count = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # as of a job in the background
                    self._previous[number] = signal.signal(number, self._receive)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class _Running(NamedTuple):
    """A job under way. start: where in its log this try begins."""

    job: Job
    process: subprocess.Popen[bytes]
    file: Path
    start: int


def run_locally(
    jobs: Sequence[Job],
    out: Path,
    plugins: Sequence[str] = (),
    at_once: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """Does every job that is not done yet. A failed one does not stop the others.

    A signal is passed on: the runs under way save themselves and can be continued. A second one
    makes them leave at once, a third ends them.
    """
    outcomes = [Outcome(job, "already done", "") for job in jobs if is_done(job, out)]
    already = {id(outcome.job) for outcome in outcomes}
    waiting = [job for job in jobs if id(job) not in already]
    running: list[_Running] = []
    passed_on = 0
    with _Signals() as signals:
        while running or (waiting and not signals.count):
            while waiting and len(running) < at_once and not signals.count:
                job = waiting.pop(0)
                say(f"started  {job.name}")
                running.append(_start(job, out, plugins, at_once))
            for entry in running:
                if passed_on < signals.count:
                    (entry.process.terminate if signals.count < 3 else entry.process.kill)()
            passed_on = signals.count
            for entry in [e for e in running if e.process.poll() is not None]:
                running.remove(entry)
                outcomes.append(_conclude(entry, out, signals.count > 0))
                say(f"{outcomes[-1].status:<8} {entry.job.name} {outcomes[-1].detail}".rstrip())
            time.sleep(_POLL_SECONDS)
    return outcomes


def _start(job: Job, out: Path, plugins: Sequence[str], at_once: int) -> _Running:
    file = write_job(job, out)
    forget_failure(file)
    log = file.with_suffix(".log")
    environment = dict(os.environ)
    if at_once > 1:  # several processes share one GPU's memory
        environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / at_once:.3f}")
    with log.open("ab") as stream:
        start = stream.tell()
        # A session of its own: Ctrl-C reaches this process only, which passes on one signal.
        process = subprocess.Popen(
            job_command(file.resolve(), plugins),
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    return _Running(job, process, file, start)


def _conclude(entry: _Running, out: Path, stopping: bool) -> Outcome:
    job, process, file, start = entry
    code, log = process.returncode, file.with_suffix(".log")
    if code == 0:
        why = unfinished(job, out)
    elif stopping and (code < 0 or code > 128):
        return Outcome(job, "stopped", "the same command continues it")
    elif code < 0:
        why = f"killed by {signal.Signals(-code).name}: {reason(log, start)}"
    else:
        why = f"exit {code}: {reason(log, start)}"
    if not why:
        return Outcome(job, "done", "")
    # Another command's process is at it, and what becomes of the run is for that one to tell.
    if "is in use by another process" not in why:
        note_failure(file, job, why)
    return Outcome(job, "failed", f"({why}; see {log})")
