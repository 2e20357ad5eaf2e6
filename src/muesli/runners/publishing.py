"""How parameters get from the learner to the actors, on devices of the same kind or of another.

To devices that do not learn they travel as one array of each type: Python starts one copy instead
of some sixty.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from muesli.agent import Acting
from muesli.runners.mesh import one_copy
from muesli.types import Array, PyTree

Parcel = dict[str, Array]
"""All numbers of a tree by their type, each [N]."""


class Packing:
    """How trees of one structure become a parcel and trees again: pure functions."""

    def __init__(self, example: PyTree):
        """example: arrays or their shapes."""
        self._leaves, self._structure = jax.tree.flatten(example)

    def pack(self, tree: PyTree) -> Parcel:
        flat: dict[str, list[Array]] = {}
        for x in jax.tree.leaves(tree):
            flat.setdefault(str(x.dtype), []).append(jnp.ravel(x))
        return {kind: jnp.concatenate(arrays) for kind, arrays in flat.items()}

    def unpack(self, parcel: Parcel) -> PyTree:
        read, leaves = dict.fromkeys(parcel, 0), []
        for x in self._leaves:
            kind = str(x.dtype)
            end = read[kind] + x.size
            leaves.append(jnp.reshape(parcel[kind][read[kind] : end], x.shape))
            read[kind] = end
        return jax.tree.unflatten(self._structure, leaves)


class Published:
    """Parameters to act with. update: how many updates made them."""

    def __init__(
        self,
        update: int,
        sent: PyTree,
        devices: Sequence[jax.Device],
        unpack: Callable[[Parcel], Acting] | None = None,
    ):
        """sent: an Acting, or its Parcel and how to ``unpack`` one."""
        self.update = update
        self._sent, self._devices, self._unpack = sent, devices, unpack
        self._held: list[Acting | None] = [None] * len(devices)
        self._lock = threading.Lock()

    def on(self, index: int) -> Acting:
        """Those on one of the devices that act, brought there when they are first asked for."""
        with self._lock:
            held = self._held[index]
            if held is None:
                held = self._bring(self._devices[index])
                self._held[index] = held
            return held

    def _bring(self, device: jax.Device) -> Acting:
        if self._unpack is None:
            return one_copy(self._sent, device)
        if device.platform == "cpu":
            # NumPy's array becomes the processor's without another copy.
            sent = jax.tree.map(np.asarray, one_copy(self._sent))
            return self._unpack(jax.device_put(sent, device))
        return self._unpack(one_copy(self._sent, device))


class Courier:
    """Brings parameters to devices of another kind in a thread of its own, the newest first:
    neither the learner nor an actor waits while they travel.
    """

    def __init__(self, deliver: Callable[[Published], None], devices: Sequence[jax.Device]):
        self._deliver, self._devices = deliver, devices
        self._sent: queue.SimpleQueue[Published | None] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
        self._thread.start()

    def send(self, published: Published) -> None:
        """Brings it to all devices, then delivers it; what fails is raised the next time."""
        if self.error is not None:
            raise self.error
        self._sent.put(published)

    def close(self) -> None:
        self._sent.put(None)
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        try:
            while (published := self._sent.get()) is not None:
                while not self._sent.empty():
                    newer = self._sent.get()
                    if newer is None:
                        return
                    published = newer
                for index in range(len(self._devices)):
                    jax.block_until_ready(published.on(index))
                self._deliver(published)
        except BaseException as error:
            self.error = error
