"""Which devices a run uses, and how its state lies on them.

All of them hold the agent; each holds its share of the environments, of the ring and of every
batch. A single device is a mesh of one: there is no other path. ``agent.update`` names no axis of
the mesh, so its means are those of the whole batch, wherever its sequences lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from muesli.config import Config, ConfigError
from muesli.types import PyTree

AXIS = "data"
"""The axis of the mesh: environments, slots of the ring and sequences are dealt out along it."""


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of ``devices``, of one process or of all; of this process's first one by default."""
    chosen = list(devices) if devices is not None else jax.local_devices()[:1]
    return Mesh(np.array(chosen), (AXIS,))


def choose_devices(text: str | None) -> Mesh:
    """The mesh of ``--devices.learners``: numbers with commas, "all", or None for the first."""
    if text is None:
        return make_mesh()
    there = jax.local_devices()
    if text == "all":
        return make_mesh(there)
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"devices.learners: must be numbers with commas between them, or all, got '{text}'"
        ) from None
    for number in numbers:
        if not 0 <= number < len(there):
            raise ConfigError(
                f"devices.learners: this machine has devices 0 to {len(there) - 1}, got {number}"
            )
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"devices.learners: a device is named twice in '{text}'")
    return make_mesh([there[number] for number in numbers])


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds all of it."""
    return NamedSharding(mesh, P())


def dealt(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Each device holds its share, cut along ``axis``."""
    return NamedSharding(mesh, P(*([None] * axis), AXIS))


def deal(tree: PyTree, hands: int, shares: int) -> PyTree:
    """[E, ...] cut into [hands, E / hands, ...], each hand with as much of every device's share.

    The first axis is dealt to ``shares`` devices and stays where it lies.
    """

    def one(x: Any) -> Any:
        rest = x.shape[1:]
        x = x.reshape((shares, hands, x.shape[0] // (shares * hands), *rest))
        return x.swapaxes(0, 1).reshape((hands, -1, *rest))

    return jax.tree.map(one, tree)


def check_divisible(config: Config, mesh: Mesh) -> None:
    """Raises a ConfigError naming the size that cannot be dealt out evenly."""
    devices = mesh.size
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


def one_copy(tree: PyTree) -> PyTree:
    """What every device holds, as arrays of one of this process's own."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)
