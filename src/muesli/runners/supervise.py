"""Several processes of one run on this machine, started again together when one of them is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from muesli.config import ConfigError
from muesli.runners.peers import PEER_LOST

_LAST_SECONDS = 20.0

Command = Callable[[str, int, bool], Sequence[str]]
"""(coordinator, process, again) -> the command line of one process."""


def supervise(command: Command, processes: int, restarts: int, again: Callable[[], bool]) -> int:
    """Runs all processes until they end; the exit code of the first that did not end well.

    When one is lost the others leave, and all are started again, at most ``restarts`` times.
    again(): whether there is something to go on from.
    """
    sent: list[int] = []
    previous = {
        number: signal.signal(number, lambda number, frame: sent.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        for attempt in range(restarts + 1):
            codes = _once(command, processes, again(), sent)
            lost = [c for c in codes if c == PEER_LOST or c < 0]
            if sent or not lost:
                break
            if attempt < restarts:
                _say(f"a process was lost; all are started again ({attempt + 1} of {restarts})")
            else:
                _say(f"a process was lost, after {restarts} restarts (--distributed.restarts)")
        wrong = [c for c in codes if c not in (0, PEER_LOST)] or [c for c in codes if c]
        return 0 if not wrong else wrong[0] if wrong[0] > 0 else 128 - wrong[0]
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _once(command: Command, processes: int, again: bool, sent: list[int]) -> list[int]:
    coordinator = f"127.0.0.1:{_free_port()}"
    devices = _shared_gpus(processes)
    running = []
    for process in range(processes):
        environment = dict(os.environ)
        if devices:
            environment["JAX_LOCAL_DEVICE_IDS"] = devices[process]
        running.append(
            subprocess.Popen(
                list(command(coordinator, process, again)),
                env=environment,
                # A terminal's Ctrl-C comes to this process alone, which passes it on once.
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        )
    told, ending = 0, None
    while any(child.poll() is None for child in running):
        for number in sent[told:]:
            told += 1
            for child in running:
                child.send_signal(number)
        # A process that was stopped, not killed, does not leave by itself.
        if ending is None and any(child.poll() not in (None, 0) for child in running):
            ending = time.monotonic()
        if ending is not None and not sent and time.monotonic() - ending > _LAST_SECONDS:
            for child in running:
                child.kill()
        time.sleep(0.05)
    return [int(child.returncode) for child in running]


def _end_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _shared_gpus(processes: int) -> list[str]:
    """Each process's share of the GPUs that there are, or nothing."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        count = len([part for part in chosen.split(",") if part.strip()])
    else:
        count = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if count == 0 or os.environ.get("JAX_PLATFORMS", "") == "cpu":
        return []
    if count % processes:
        raise ConfigError(
            f"distributed.local: must divide the {count} GPUs of this machine, got {processes}"
        )
    each = count // processes
    return [",".join(str(k * each + i) for i in range(each)) for k in range(processes)]


def _say(line: str) -> Any:
    print(f"muesli: {line}", file=sys.stderr, flush=True)  # noqa: T201
