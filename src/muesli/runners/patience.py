"""Waiting for environments no longer than their time, and no longer than anybody wants it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from muesli.runners.faults import ActorError
from muesli.types import TimeStep

STARTING_TIMEOUTS = 10
"""Copies of an environment may take this many step timeouts to start."""
_LOOK_SECONDS = 0.2


class Stopped(Exception):
    """It was to stop before an answer came."""


class Asker:
    """Calls environments from a thread of its own, which can be left behind where they hang."""

    def __init__(self, name: str, stop: Callable[[], bool]):
        self._name, self._stop = name, stop
        self._calls: queue.SimpleQueue[Callable[[], TimeStep] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="asker", daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._answers.put((call(), None))
            except Exception as error:
                self._answers.put((None, error))

    def ask(self, call: Callable[[], TimeStep], seconds: float) -> TimeStep:
        """What ``call`` answers within so many seconds; raises Stopped where it was to stop."""
        self._calls.put(call)
        until = time.monotonic() + seconds
        while True:
            try:
                answer, error = self._answers.get(timeout=min(_LOOK_SECONDS, seconds))
            except queue.Empty:
                if self._stop():
                    raise Stopped from None
                if time.monotonic() < until:
                    continue
                raise ActorError(
                    f"{self._name} has not answered for {seconds:g} s in an evaluation "
                    "(actors.step_timeout_seconds)"
                ) from None
            if error is not None:
                raise ActorError(f"{self._name} failed in an evaluation: {error}") from error
            return answer

    def close(self) -> None:
        """Lets the thread go, once what it is asking has been answered."""
        self._calls.put(None)
