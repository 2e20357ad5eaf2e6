"""Games of one match in several processes at once, each with an agent and an engine of its own.

Games are dealt out by their numbers, from which alone an agent draws: which process plays a game,
and how many there are, makes no difference to it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from muesli.go.match import Match, Played
from muesli.go.stop import Stopped, stoppable

# Longer than an engine is given to quit.
_LAST_SECONDS = 10.0


class WorkerLost(Exception):
    """A process of a match ended in the middle of it; the message says how."""


class Workers:
    """What ``Match`` is, played by ``jobs`` processes.

    make() -> the Match of a process, called there; it is pickled, and so is what it raises.
    """

    def __init__(self, make: Callable[[], Match], jobs: int):
        self.about: dict[str, dict[str, Any]] = {}
        self._workers: dict[Connection, Any] = {}
        context = get_context("spawn")  # a fork would take over half of JAX
        with _deaf_children():
            for _ in range(jobs):
                ours, theirs = context.Pipe()
                arguments = (make, theirs, os.getpid())
                worker = context.Process(target=_work, args=arguments, daemon=True)
                worker.start()
                theirs.close()  # so that it ends with the worker
                self._workers[ours] = worker

    def begin(self) -> None:
        """Waits until every process could begin; raises what one of them raises."""
        for connection in self._workers:
            self.about = self._hear(connection)

    def games(self, count: int) -> Iterator[Played]:
        """Games 1 to ``count``, as they end."""
        numbers = iter(range(1, count + 1))
        busy = []
        for connection, number in zip(self._workers, numbers, strict=False):
            self._say(connection, number)
            busy.append(connection)
        while busy:
            spoke = wait(busy)
            for connection in [c for c in busy if c in spoke]:
                played = self._hear(connection)
                if number := next(numbers, 0):
                    self._say(connection, number)
                else:
                    busy.remove(connection)
                yield played

    def _say(self, connection: Connection, number: int) -> None:
        with self._noticing_an_end(connection):
            connection.send(number)

    def _hear(self, connection: Connection) -> Any:
        with self._noticing_an_end(connection):
            said = connection.recv()
        if isinstance(said, Exception):
            raise said
        return said

    @contextmanager
    def _noticing_an_end(self, connection: Connection) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            worker = self._workers[connection]
            # What ends all processes of a job at once is on its way to this one, too.
            worker.join(1.0)
            code = worker.exitcode
            raise WorkerLost(f"a process of the match ended (exit code {code})") from None

    def close(self) -> None:
        """Ends the processes, which end their engines."""
        try:
            for worker in self._workers.values():
                worker.terminate()
            for worker in self._workers.values():
                worker.join(_LAST_SECONDS)
        finally:
            for connection, worker in self._workers.items():
                worker.kill()
                worker.join()
                connection.close()


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started here ignore what a terminal sends to all: their parent ends them."""
    previous = {}
    for number in (signal.SIGINT, signal.SIGHUP):
        with suppress(ValueError):  # outside of the main thread
            previous[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _work(make: Callable[[], Match], connection: Connection, parent: int) -> None:
    """What a process does: begins, and plays the games whose numbers it is sent."""
    # Each would take most of a GPU for itself.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with suppress(Stopped, EOFError, BrokenPipeError), stoppable():
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                return  # it was too late to ask for that
        match: Match | None = None
        try:
            match = make()
            match.begin()
            connection.send(match.about)
            while True:
                connection.send(match.play(connection.recv()))
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:
            error.add_note(traceback.format_exc())
            connection.send(error)
        finally:
            if match is not None:
                match.close()
