"""SIGINT and SIGTERM: the first asks a run to save and stop, the second ends the process at once.

What comes twice within a second was sent once: launchers signal a process and then its group.

Python runs a signal's handler between two steps of its main thread, which may sit in a compiler or
in a device's program for minutes. So a thread of its own watches for signals.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
# The same signal again within so many seconds is the first one still.
_ONE_SIGNAL_SECONDS = 1.0


class Signals:
    """Watches for signals while it is entered.

    Until ``running`` is set there is nothing to save: a signal then ends the process at once, after
    ``leave`` has been called, but never while somebody holds ``undivided``. A caller outside the
    main thread looks after signals itself.
    """

    def __init__(self, running: bool = True):
        self.received: int | None = None
        self.running = running
        self.leave: Callable[[], None] = lambda: None
        self.undivided = threading.Lock()
        self._received_at = 0.0
        self._previous: dict[int, Any] = {}
        self._previous_wakeup = -1
        self._pipe: tuple[int, int] | None = None
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Signals:
        if threading.current_thread() is not threading.main_thread():
            return self
        read, write = self._pipe = os.pipe()
        os.set_blocking(write, False)
        self._watcher = threading.Thread(target=self._watch, args=(read,), name="signals")
        self._watcher.daemon = True
        self._watcher.start()
        self._previous_wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in _NUMBERS:
            self._previous[number] = signal.signal(number, lambda number, frame: None)
        return self

    def _watch(self, read: int) -> None:
        while (number := os.read(read, 1)[0]) != 0:
            if number in _NUMBERS:
                self._receive(number)

    def _receive(self, number: int) -> None:
        now = time.monotonic()
        if number == self.received and now - self._received_at < _ONE_SIGNAL_SECONDS:
            return
        if self.received is not None:
            self._exit(number, "left at once; what was saved before is intact")
        self.received, self._received_at = number, now
        if not self.running:
            self._exit(number, "interrupted before there was anything to save")
        name = signal.Signals(number).name
        _say(f"muesli: {name}: saving, then leaving; once more after a second leaves at once")

    def _exit(self, number: int, why: str) -> None:
        try:
            if not self.running:
                self.undivided.acquire()  # and keep: nothing is begun any more
                self.leave()
            _say(f"muesli: {why}")
        finally:
            os._exit(128 + number)

    def __exit__(self, *_: object) -> None:
        if self._pipe is None or self._watcher is None:
            return
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        read, write = self._pipe
        os.write(write, b"\0")
        self._watcher.join()
        os.close(read)
        os.close(write)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201
