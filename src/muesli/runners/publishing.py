"""How parameters get from the learner to the actors, on devices of the same kind or of another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

import jax

from muesli.agent import Acting
from muesli.runners.mesh import one_copy


class Published:
    """Parameters to act with. update: how many updates made them."""

    def __init__(self, update: int, acting: Acting, devices: Sequence[jax.Device]):
        self.update = update
        self._acting, self._devices = acting, devices
        self._held: list[Acting | None] = [None] * len(devices)
        self._lock = threading.Lock()

    def on(self, index: int) -> Acting:
        """Those on one of the devices that act, brought there when they are first asked for."""
        with self._lock:
            held = self._held[index]
            if held is None:
                held = self._held[index] = one_copy(self._acting, self._devices[index])
            return held


class Courier:
    """Brings parameters to devices of another kind in a thread of its own, the newest first:
    neither the learner nor an actor waits while they travel.
    """

    def __init__(self, deliver: Callable[[Published], None], devices: Sequence[jax.Device]):
        self._deliver, self._devices = deliver, devices
        self._sent: queue.SimpleQueue[tuple[int, Acting] | None] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
        self._thread.start()

    def send(self, update: int, acting: Acting) -> None:
        """Parameters that ``update`` updates made; what fails is raised the next time."""
        if self.error is not None:
            raise self.error
        self._sent.put((update, acting))

    def close(self) -> None:
        self._sent.put(None)
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        try:
            while (parcel := self._sent.get()) is not None:
                while not self._sent.empty():
                    newer = self._sent.get()
                    if newer is None:
                        return
                    parcel = newer
                published = Published(*parcel, self._devices)
                for index in range(len(self._devices)):
                    jax.block_until_ready(published.on(index))
                self._deliver(published)
        except BaseException as error:
            self.error = error
