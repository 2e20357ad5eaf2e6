"""Which devices a run uses, and how its state lies on them.

All devices that learn hold the agent; each holds its share of the environments, of the ring and of
every batch. They may be those of one process or of several. A single device is a mesh of one: there
is no other path. ``agent.update`` names no axis of the mesh, so its means are those of the whole
batch, wherever its sequences lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from muesli.config import Config, ConfigError
from muesli.runners.peers import ALONE, Peers
from muesli.types import Array, PyTree

AXIS = "data"
"""The axis of the mesh: environments, slots of the ring and sequences are dealt out along it."""


class Topology(NamedTuple):
    """Where a run takes place. mesh: the devices that learn, of all processes; actors: those of
    this process that act, for environments outside JAX; peers: the processes.
    """

    mesh: Mesh
    actors: tuple[jax.Device, ...]
    peers: Peers = ALONE

    @property
    def own(self) -> list[jax.Device]:
        """The devices of this process that learn, in the order of the mesh."""
        return [d for d in self.mesh.devices.flat if d.process_index == jax.process_index()]

    def own_share(self, size: int) -> range:
        """Which of ``size`` things that are dealt to the devices lie with this process."""
        each = size // self.peers.size
        return range(self.peers.rank * each, (self.peers.rank + 1) * each)


def make_topology(
    learners: Sequence[jax.Device] | None = None,
    actors: Sequence[jax.Device] | None = None,
    peers: Peers = ALONE,
) -> Topology:
    """By default this process's first device learns, and those that learn act."""
    chosen = list(learners) if learners is not None else jax.local_devices()[:1]
    topology = Topology(Mesh(np.array(chosen), (AXIS,)), (), peers)
    return topology._replace(actors=tuple(actors if actors is not None else topology.own))


def choose_devices(
    learners: str | None, actors: str | None = None, peers: Peers = ALONE
) -> Topology:
    """What ``--devices.learners`` and ``--devices.actors`` say of every process's own devices:
    numbers with commas, "all", or None for the first one (actors: for those that learn).
    """
    there = jax.local_devices()
    numbers = _device_numbers("learners", learners, len(there)) if learners else [0]
    chosen = []
    for process in range(peers.size):
        owned = [d for d in jax.devices() if d.process_index == process]
        if len(owned) != len(there):
            raise ConfigError(
                f"devices.learners: every process needs as many devices; process {process} has "
                f"{len(owned)}, this one {len(there)}"
            )
        chosen += [owned[number] for number in numbers]
    acting = _device_numbers("actors", actors, len(there)) if actors else None
    return make_topology(chosen, acting and [there[number] for number in acting], peers)


def act_on_processor(topology: Topology) -> Topology:
    """The same, with actors on the processor whatever learns."""
    if topology.actors != tuple(topology.own):
        raise ConfigError("actors.device: cpu leaves no choice of --devices.actors; name only one")
    try:
        return topology._replace(actors=tuple(jax.local_devices(backend="cpu")[:1]))
    except RuntimeError:
        raise ConfigError(
            "actors.device: JAX was told not to use the cpu; set JAX_PLATFORMS to cuda,cpu"
        ) from None


def _device_numbers(field: str, text: str, count: int) -> list[int]:
    if text == "all":
        return list(range(count))
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"devices.{field}: must be numbers with commas between them, or all, got '{text}'"
        ) from None
    for number in numbers:
        if not 0 <= number < count:
            raise ConfigError(
                f"devices.{field}: this machine has devices 0 to {count - 1}, got {number}"
            )
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"devices.{field}: a device is named twice in '{text}'")
    return numbers


def check_divisible(config: Config, topology: Topology) -> None:
    """Raises a ConfigError naming the size that cannot be dealt out evenly."""
    devices = topology.mesh.size
    batch = config.batch
    pieces = devices * batch.micro_batches
    for field, size, parts in (
        ("env.num_envs", config.env.num_envs, devices),
        ("batch.online_sequences", batch.online_sequences, devices),
        ("batch.batch_sequences", batch.batch_sequences, pieces),
    ):
        if size % parts:
            raise ConfigError(
                f"{field}: must be a multiple of {parts}, so that each of {devices} devices has "
                f"the same share, got {size}"
            )


# --- how arrays lie on it -------------------------------------------------------------------


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds all of it."""
    return NamedSharding(mesh, P())


def dealt(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Each device holds its share, cut along ``axis``."""
    return NamedSharding(mesh, P(*([None] * axis), AXIS))


def lay_out(state: Any, mesh: Mesh, axis: int = 0) -> Any:
    """Where each array of a run's state lies: those that ``EVERYWHERE`` names on every device, all
    others dealt out along ``axis``.
    """
    cut, whole = dealt(mesh, axis), replicated(mesh)
    fields = {
        name: jax.tree.map(lambda _, name=name: whole if name in EVERYWHERE else cut, part)
        for name, part in state._asdict().items()
    }
    return type(state)(**fields)


EVERYWHERE = frozenset({"agent", "key", "iteration"})
"""Fields of a run's state that every device holds."""


def deal(tree: PyTree, hands: int, shares: int) -> PyTree:
    """[E, ...] cut into [hands, E / hands, ...], each hand with as much of every device's share.

    The first axis is dealt to ``shares`` devices and stays where it lies.
    """

    def one(x: Any) -> Any:
        rest = x.shape[1:]
        x = x.reshape((shares, hands, x.shape[0] // (shares * hands), *rest))
        return x.swapaxes(0, 1).reshape((hands, -1, *rest))

    return jax.tree.map(one, tree)


def place(tree: PyTree, layout: PyTree) -> PyTree:
    """Arrays that every process has whole, laid out as ``layout`` says."""

    def one(x: Any, sharding: NamedSharding) -> Any:
        if sharding.is_fully_addressable:
            return jax.device_put(x, sharding)
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            return x  # it lies there already
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(x), sharding))
        held = np.asarray(x)
        return jax.make_array_from_callback(held.shape, sharding, lambda index: held[index])

    return jax.tree.map(one, tree, layout)


def spread(tree: PyTree, topology: Topology) -> PyTree:
    """What this process has, [n, ...] on one of its devices, as its share of [n · processes, ...],
    dealt to the devices that learn. All processes do it together.
    """
    here, everywhere, own = _spreading(topology.mesh)

    def one(x: Any) -> Array:
        shards = jax.device_put(x, here).addressable_shards
        by_device = {shard.device: shard.data for shard in shards}
        shape = (x.shape[0] * topology.peers.size, *x.shape[1:])
        return jax.make_array_from_single_device_arrays(
            shape, everywhere, [by_device[device] for device in own]
        )

    return jax.tree.map(one, tree)


@lru_cache(maxsize=8)
def _spreading(mesh: Mesh) -> tuple[NamedSharding, NamedSharding, list[jax.Device]]:
    own = [d for d in mesh.devices.flat if d.process_index == jax.process_index()]
    return dealt(Mesh(np.array(own), (AXIS,))), dealt(mesh), own


def shares(x: Array, axis: int = 0) -> list[Array]:
    """This process's shares of an array that is dealt out along ``axis``, in order."""
    found = {shard.index[axis].start or 0: shard.data for shard in x.addressable_shards}
    return [found[start] for start in sorted(found)]


def own_share(tree: PyTree) -> PyTree:
    """Of arrays that are dealt out, what lies with this process, as NumPy arrays (keys: data)."""

    def one(x: Array) -> np.ndarray:
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        if x.ndim == 0 or x.is_fully_replicated:
            return np.asarray(x.addressable_data(0))
        return np.concatenate([np.asarray(share) for share in shares(x)])

    return jax.tree.map(one, tree)


def one_copy(tree: PyTree, device: jax.Device | None = None) -> PyTree:
    """What every device holds, as arrays of one of this process's own, or of ``device``."""

    def one(x: Array) -> Array:
        if device is None or x.sharding.device_set == {device}:
            return x if x.is_fully_addressable and len(x.devices()) == 1 else x.addressable_data(0)
        for shard in x.addressable_shards:
            if shard.device == device:
                return shard.data
        return jax.device_put(x.addressable_data(0), device)

    return jax.tree.map(one, tree)
