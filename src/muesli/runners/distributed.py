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

import jax

import muesli
from muesli.checkpoint import CheckpointError
from muesli.config import ConfigError
from muesli.runners.faults import TrainingError
from muesli.runners.peers import ALONE, Card, Cluster, Peers, meet
from muesli.runners.saving import differences

_MOMENT_SECONDS = 2.0


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
    told = [
        f"{name.removeprefix('config.')} is {there} at process 0 and {here} there"
        for name, (there, here) in changed.items()
    ]
    return ", ".join(told) or None


@contextlib.contextmanager
def joined(cluster: Cluster | None, card: Card) -> Iterator[Peers]:
    """The processes of a run while it lasts. Whatever ends it early here ends it everywhere."""
    if cluster is None:
        yield ALONE
        return
    global _leave_at_once
    peers = meet(cluster, {**card, "versions": versions()}, compare)
    try:
        _start_jax(cluster)
        yield peers
        peers.gather(None)
        peers.leave()
        # All is done and saved: what goes wrong now is of no account.
        with contextlib.suppress(Exception):
            jax.distributed.shutdown()
    except (CheckpointError, ConfigError, TrainingError) as error:
        _leave_at_once = True
        peers.fail(f"failed: {error}")
        raise
    except BaseException as error:
        # JAX's own complaint about a peer may be first; the connections tell which one it was.
        from_jax = isinstance(error, jax.errors.JaxRuntimeError | ValueError)
        time.sleep(_MOMENT_SECONDS + (cluster.timeout_seconds if from_jax else 0.0))
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


def _start_jax(cluster: Cluster) -> None:
    # JAX aborts a process whose coordinator is gone, from a thread of its own and past Python. So
    # the aborting thread sleeps first (for as many seconds as the signal's number, which is 6), in
    # which the connections tell who is gone and end the process; else the abort goes on.
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))
    # It would take SIGTERM for itself.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        cluster.coordinator,
        cluster.processes,
        cluster.process,
        # All devices that a process sees are its own (JAX_LOCAL_DEVICE_IDS: some of them).
        cluster_detection_method="deactivate",
        initialization_timeout=max(1, round(cluster.start_seconds)),
        # Ours notices first, and says more.
        heartbeat_timeout_seconds=max(100, round(3 * cluster.timeout_seconds)),
        shutdown_timeout_seconds=max(1, round(cluster.timeout_seconds)),
    )
