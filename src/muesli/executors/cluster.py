"""Jobs on a Ray cluster: the same processes, placed by Ray, tried again when a machine is lost.

Every machine must see the suite's directory under the same path (a shared file system); what a lost
machine had saved there is continued by the next try.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from muesli.config import ConfigError
from muesli.executors.jobs import Job, forget_failure, note_failure, write_job
from muesli.executors.local import Outcome, is_done, job_command, reason, unfinished


def run_on_ray(
    jobs: Sequence[Job],
    out: Path,
    plugins: Sequence[str] = (),
    cpus_per_job: float = 1.0,
    gpus_per_job: float = 0.0,
    retries: int = 2,
    address: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """Does every job that is not done yet as a Ray task with these resources.

    Joins the cluster at ``address`` (or the one this process is already connected to); without one,
    Ray is started on this machine alone and stopped at the end.
    """
    started = _join(address)
    import ray

    place = ray.remote(
        num_cpus=cpus_per_job,
        num_gpus=gpus_per_job,
        max_retries=retries,
        retry_exceptions=True,
    )(_run)
    outcomes = [Outcome(job, "already done", "") for job in jobs if is_done(job, out)]
    pending: dict[Any, tuple[Job, Path, int]] = {}
    try:
        for job in jobs:
            if is_done(job, out):
                continue
            file = write_job(job, out).resolve()
            forget_failure(file)
            log = file.with_suffix(".log")
            start = log.stat().st_size if log.exists() else 0
            pending[place.remote(job_command(file, plugins), str(log))] = (job, file, start)
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1)
            job, file, start = pending.pop(ready[0])
            log = file.with_suffix(".log")
            try:
                ray.get(ready[0])
                why = unfinished(job, out)
            except ray.exceptions.RayError as error:
                why = reason(log, start) if log.exists() else str(error).splitlines()[-1]
            outcome = Outcome(job, "done", "")
            if why:
                note_failure(file, job, why)
                outcome = Outcome(job, "failed", f"({why}; see {log})")
            outcomes.append(outcome)
            say(f"{outcome.status:<8} {job.name} {outcome.detail}".rstrip())
    except KeyboardInterrupt:
        for reference in pending:
            ray.cancel(reference, force=False)
        outcomes += [
            Outcome(job, "stopped", "the same command continues it") for job, *_ in pending.values()
        ]
    finally:
        if started:
            ray.shutdown()
    return outcomes


def _run(command: list[str], log: str) -> int:
    """A job where Ray placed it."""
    with Path(log).open("ab") as stream:
        done = subprocess.run(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            check=True,
        )
    return done.returncode


def _join(address: str | None) -> bool:
    """Connects this process to Ray; False if it was connected already."""
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "executor: ray is not installed; pip install 'muesli-rl[cluster]'"
        ) from None
    if ray.is_initialized():
        return False
    try:
        _knock(address)
        ray.init(address=address, include_dashboard=False, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"ray-address: cannot join {address or 'Ray'} ({why})") from error
    return True


def _knock(address: str | None, seconds: float = 10.0) -> None:
    """Raises an OSError where nobody listens: Ray itself goes on trying for minutes.

    Addresses that are no HOST:PORT (``auto``, ``local``) are left to Ray.
    """
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
