"""How much memory a run will take, worked out before any of it is taken."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import jax

from muesli.config import Config, ConfigError
from muesli.replay import ring_chunks
from muesli.runners.sebulba import Sebulba
from muesli.types import PyTree, RunState

GIB = 2**30


class MemoryPlan(NamedTuple):
    """Bytes on the device. replay: the ring; chunks: what actors build and the learner waits for;
    agent: parameters, optimiser and the copy that acts; update: an update's intermediate results,
    known once it is compiled; limit: what the device has, or None.
    """

    replay: int
    chunks: int
    agent: int
    update: int
    limit: int | None

    @property
    def total(self) -> int:
        """Everything a run takes."""
        return self.replay + self.chunks + self.agent + self.update

    def describe(self) -> str:
        """One line for the user."""
        parts = (("replay", self.replay), ("chunks", self.chunks), ("agent", self.agent),
                 ("update", self.update))  # fmt: skip
        listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts)
        limit = "" if self.limit is None else f" of {self.limit / GIB:.1f}"
        return f"device memory in GiB: {listed}; {self.total / GIB:.1f}{limit} in all"


def tree_bytes(tree: PyTree) -> int:
    """Bytes of all arrays of a tree of arrays or shapes."""
    leaves = [x for x in jax.tree.leaves(tree) if hasattr(x, "dtype")]
    sizes = [x.size * (8 if _is_key(x) else x.dtype.itemsize) for x in leaves]
    return sum(sizes)


def _is_key(x: jax.ShapeDtypeStruct) -> bool:
    return bool(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))


def device_limit() -> int | None:
    """Bytes the first device may use; on CPUs, its share of the machine's memory."""
    devices = jax.local_devices()
    device = devices[0]
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    if device.platform == "cpu" and hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(devices)
    return None


def plan_inside(state: RunState, devices: int) -> MemoryPlan:
    """The plan of runs inside JAX, from the shapes of their states: no chunk waits anywhere."""
    replay = tree_bytes(state.replay) // devices
    return MemoryPlan(replay, 0, tree_bytes(state.agent), 0, device_limit())


def plan_beside(sebulba: Sebulba, update: int = 0) -> MemoryPlan:
    """The plan of a run with actors beside its learner.

    update: bytes of an update's intermediate results, or 0 before they are known.
    """
    actors, state = sebulba.config.actors, sebulba.state_shapes()
    chunk = tree_bytes(sebulba.example_chunk())
    # Each group builds one chunk while others of its own wait or are trained on.
    waiting = 1 if actors.lockstep else 1 + actors.queue_chunks
    return MemoryPlan(
        replay=tree_bytes(state.replay) // sebulba.topology.mesh.size,
        chunks=chunk * -(-sebulba.groups // len(sebulba.acting_devices)) * (1 + waiting),
        agent=tree_bytes(state.agent) + tree_bytes(state.agent.prior),
        update=update,
        limit=device_limit(),
    )


def check_memory(plan: MemoryPlan, config: Config, runs: int = 1) -> MemoryPlan:
    """The plan of ``runs`` seeds in one program; raises a ConfigError with the ring that would fit
    if this one does not.
    """
    if plan.limit is None or plan.total <= plan.limit:
        return plan
    batch, num_envs = config.batch, config.env.num_envs
    # What an update takes may not be known yet: a tenth of the device is then left to it.
    room = plan.limit - plan.chunks - plan.agent - (plan.update or plan.limit // 10)
    if room <= 0 or not plan.replay:
        raise ConfigError(
            f"batch.batch_sequences: {plan.describe()}; more batch.micro_batches, fewer "
            "env.num_envs or a smaller network would fit"
        )
    held = ring_chunks(batch.replay_capacity_steps, num_envs, batch.sequence_length)
    fits = room // max(1, plan.replay // max(1, held)) * num_envs * batch.sequence_length
    seeds = "" if runs == 1 else f" for each of {runs} seeds"
    raise ConfigError(
        f"batch.replay_capacity_steps: {batch.replay_capacity_steps:,} steps{seeds} take "
        f"{plan.replay / GIB:.1f} GiB of the {plan.limit / GIB:.1f} that "
        f"{jax.local_devices()[0].device_kind} has; at most {fits:,} fit"
    )


def compiled_bytes(compiled: Any) -> int:
    """Bytes of a compiled program's intermediate results; 0 where the device does not say."""
    analysis = compiled.memory_analysis()
    return int(getattr(analysis, "temp_size_in_bytes", 0) or 0)
