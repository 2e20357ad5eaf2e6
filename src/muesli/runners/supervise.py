"""Several processes of one run on this machine, started again together when one of them is lost."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from muesli.config import ConfigError
from muesli.runners.peers import PEER_LOST

# How long the others may take when one has ended: by itself, or asked to by a signal.
_LAST_SECONDS, _LAST_SECONDS_OF_SAVING = 20.0, 120.0

_SUPERVISED = "MUESLI_SUPERVISED"

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
            # One that has failed by itself would fail again.
            failed = any(c > 0 and c != PEER_LOST for c in codes)
            if sent or failed or not any(codes):
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
    devices, shares = _shared_gpus(processes), _shared_processors(processes)
    running = []
    for process in range(processes):
        processors = ",".join(map(str, shares[process])) if shares else ""
        environment = {**os.environ, _SUPERVISED: f"{os.getpid()}:{processors}"}
        if devices:
            environment["JAX_LOCAL_DEVICE_IDS"] = devices[process]
        running.append(
            subprocess.Popen(
                list(command(coordinator, process, again)),
                env=environment,
                # A terminal's Ctrl-C comes to this process alone, which passes it on once.
                start_new_session=True,
            )
        )
    told, ending = 0, None
    while any(child.poll() is None for child in running):
        for number in sent[told:]:
            told += 1
            for child in running:
                child.send_signal(number)
        # A process that was stopped, not killed, does not leave by itself.
        if ending is None and any(child.poll() is not None for child in running):
            ending = time.monotonic()
        allowed = _LAST_SECONDS_OF_SAVING if len(sent) == 1 else _LAST_SECONDS
        if ending is not None and time.monotonic() - ending > allowed:
            for child in running:
                child.kill()
        time.sleep(0.05)
    return [int(child.returncode) for child in running]


def begin_supervised() -> None:
    """What a process that ``supervise`` started does first, on Linux: it keeps to its share of the
    processors, and ends with its parent.
    """
    told = os.environ.pop(_SUPERVISED, None)
    if told is None or sys.platform != "linux":
        return
    parent, _, processors = told.partition(":")
    if processors:
        os.sched_setaffinity(0, [int(number) for number in processors.split(",")])
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(parent):
        sys.exit(128 + signal.SIGKILL)  # it was too late to ask for that


def _shared_processors(processes: int) -> list[list[int]]:
    """Each process's share of the processors, where they go round; nothing but on Linux."""
    if sys.platform != "linux":
        return []
    there = sorted(os.sched_getaffinity(0))
    each = len(there) // processes
    return [there[k * each : (k + 1) * each] for k in range(processes)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _shared_gpus(processes: int) -> list[str]:
    """Each process's share of the GPUs that there are, or nothing."""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if os.environ.get("JAX_PLATFORMS", "").startswith("cpu") or not any(map(find_spec, plugins)):
        return []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        count = len([part for part in chosen.split(",") if part.strip() not in ("", "-1")])
    else:
        count = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if count % processes:
        raise ConfigError(
            f"distributed.local: must divide the number of GPUs here, which is {count}, got "
            f"{processes}; with JAX_PLATFORMS=cpu in the environment they are left alone"
        )
    each = count // processes
    if each == 0:
        return []
    return [",".join(str(k * each + i) for i in range(each)) for k in range(processes)]


def _say(line: str) -> None:
    print(f"muesli: {line}", file=sys.stderr, flush=True)  # noqa: T201
