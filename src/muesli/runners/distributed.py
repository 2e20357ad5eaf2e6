"""One process of several: meets the others, then starts JAX's distributed runtime."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import jax

import muesli
from muesli.checkpoint import CheckpointError
from muesli.config import ConfigError
from muesli.runners.faults import TrainingError
from muesli.runners.peers import ALONE, PEER_LOST, Card, Cluster, Connected, Peers, meet
from muesli.runners.saving import differences, tell

_MOST_SECONDS_OF_NEWS = 2.0


def detect(start_seconds: float) -> tuple[str, int, int]:
    """Coordinator, processes and this process's number, as JAX finds them: under SLURM, Open MPI,
    Kubernetes and what else it knows.
    """
    from jax._src.clusters import ClusterEnv

    try:
        found = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, int(start_seconds)
        )
    except Exception as error:
        raise ConfigError(f"distributed.coordinator: auto found no cluster ({error})") from error
    coordinator, processes, process = found[:3]
    if coordinator is None or processes is None or process is None:
        raise ConfigError(
            "distributed.coordinator: auto found no cluster (SLURM, Open MPI, Kubernetes); give "
            "HOST:PORT, --distributed.processes and --distributed.process-id"
        )
    return coordinator, processes, process


def versions() -> dict[str, str]:
    """What all processes of a run must have alike."""
    return {
        "muesli": muesli.__version__,
        "jax": jax.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def compare(first: Card, other: Card) -> str | None:
    """What another process has to do differently from process 0, in words."""
    changed = differences(dict(first), dict(other))
    changed = {name.removeprefix("config."): pair for name, pair in changed.items()}
    return f"it is set otherwise than process 0 ({tell(changed)})" if changed else None


@contextlib.contextmanager
def joined(cluster: Cluster | None, card: Card) -> Iterator[Peers]:
    """The processes of a run while it lasts. Whatever ends it early here ends it everywhere."""
    if cluster is None:
        yield ALONE
        return
    peers = meet(cluster, {**card, "versions": versions()}, compare)
    _speak_when_aborted(peers)
    # It would take SIGTERM for itself.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        cluster.coordinator,
        cluster.processes,
        cluster.process,
        initialization_timeout=max(1, round(cluster.start_seconds)),
        # Ours notices first, and says more.
        heartbeat_timeout_seconds=max(100, round(3 * cluster.timeout_seconds)),
        shutdown_timeout_seconds=max(1, round(cluster.timeout_seconds)),
    )
    global _leave_at_once
    try:
        yield peers
        peers.gather(None)
        peers.leave()
        jax.distributed.shutdown()
    except (CheckpointError, ConfigError, TrainingError) as error:
        _leave_at_once = True
        peers.fail(f"failed: {error}")
        raise
    except BaseException as error:
        # JAX's own complaint about a peer may be first; the connections tell which one it was.
        time.sleep(_MOST_SECONDS_OF_NEWS)
        peers.fail(f"failed: {type(error).__name__}: {error}")
        traceback.print_exc()
        leave(1)


_leave_at_once = False


def leave(code: int) -> None:
    """Ends the process now: at an ordinary exit JAX would wait for processes that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def leave_if_failed(code: int) -> None:
    """Ends the process now if it has left others in the lurch."""
    if _leave_at_once:
        leave(code)


_handler: Any = None


def _speak_when_aborted(peers: Connected) -> None:
    """JAX aborts a process whose coordinator is gone, from a thread of its own and past Python."""
    global _handler

    def aborted(_: int) -> None:
        lost = peers.describe(0) if peers.rank else "another process"
        line = (
            f"muesli: process {peers.rank} of {peers.size} leaves: {lost} is gone, "
            "or cannot be reached any more\n"
        )
        os.write(2, line.encode())
        os._exit(PEER_LOST)

    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    _handler = kind(aborted)  # kept, since C code holds it
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, kind], ctypes.c_void_p
    libc.signal(signal.SIGABRT, _handler)
