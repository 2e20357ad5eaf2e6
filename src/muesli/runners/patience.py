"""Waiting for environments no longer than their time, and no longer than anybody wants it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from muesli.runners.faults import ActorError

T = TypeVar("T")
STARTING_TIMEOUTS = 10
"""Copies of an environment may take this many step timeouts to start."""
_LOOK_SECONDS = 0.2
_CLOSING_SECONDS = 10.0


class Stopped(BaseException):
    """It was to stop before an answer came."""


class Asker:
    """Calls environments from a thread of its own, which can be left behind where they hang."""

    def __init__(self, name: str, stop: Callable[[], bool]):
        self._name, self._stop, self._waits = name, stop, False
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="asker", daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._answers.put((call(), None))
            except Exception as error:
                self._answers.put((None, error))

    def ask(self, call: Callable[[], T], seconds: float) -> T:
        """What ``call`` answers within so many seconds; raises Stopped where it was to stop."""
        self._waits = True
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
            self._waits = False
            if error is not None:
                raise ActorError(f"{self._name} failed in an evaluation: {error}") from error
            return answer

    def close(self, close: Callable[[], None]) -> None:
        """Calls ``close`` in the same thread and lets that go; what hangs is left behind."""
        if self._waits:
            # Closing from elsewhere may end what hangs, or hang as well.
            last = threading.Thread(target=close, name="closer", daemon=True)
            last.start()
            last.join(_CLOSING_SECONDS)
        else:
            self._calls.put(close)
            with suppress(queue.Empty):
                self._answers.get(timeout=_CLOSING_SECONDS)
        self._calls.put(None)
