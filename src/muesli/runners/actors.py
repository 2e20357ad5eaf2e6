"""Actor threads: each steps a group of environments and hands its chunks to the learner.

A group whose environments raise or die makes them anew, after a pause and a bounded number of
times. Its unfinished chunk is discarded, and the first chunk of the new episodes says so.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import numpy as np

from muesli.checkpoint import to_numpy
from muesli.envs.base import EnvError, HostEnv, refuse_not_finite, slot_seeds
from muesli.runners.collector import Carry, Collector
from muesli.runners.host import host_envs
from muesli.runners.parts import Parts
from muesli.runners.publishing import Published
from muesli.types import PRNGKey, PyTree, StepType, TimeStep, Trajectory

Arrays = dict[str, np.ndarray]


class _Stopped(Exception):
    """The run is over: a group leaves its chunk unfinished."""


class Ticket(NamedTuple):
    """Leave to collect one chunk: with these parameters, or (None) with the newest at each step."""

    published: Published | None


class Chunk(NamedTuple):
    """What a group delivers. trajectory: [E, T + 1], on the device; update: mean number of updates
    its actors' parameters had seen; episodes: those that ended in it; env_seconds, act_seconds: in
    its environments, and waiting for actions; anew: whether it does not continue the chunk before;
    life: which of the threads that the group has had made it.
    """

    group: int
    trajectory: Trajectory | None
    update: float
    episodes: list[dict[str, Any]]
    env_seconds: float
    act_seconds: float
    anew: bool
    life: int


class Failure(NamedTuple):
    """A group whose environments failed. final: it cannot go on."""

    group: int
    error: BaseException
    final: bool
    life: int


class ActorGroup:
    """One thread, its environments and the chunk it is building."""

    def __init__(
        self,
        index: int,
        parts: Parts,
        newest: Callable[[], Published],
        chunks: queue.SimpleQueue[Chunk | Failure],
        key: PRNGKey,
        env_seed: int,
        saved: Mapping[str, np.ndarray] | None = None,
    ):
        """saved: what ``save`` answered, to go on from; ``env_seed`` is for a group that cannot."""
        config, topology = parts.config, parts.topology
        self.index, self.parts = index, parts
        self.device_index = index % len(topology.actors)
        self._device = topology.actors[self.device_index]
        self.newest, self.chunks, self.env_seed = newest, chunks, env_seed
        self.key = jax.device_put(key, self._device)
        self.saved = saved
        self.stopping = threading.Event()
        # Both are set before the first ticket is handed out; the functions are compiled.
        self.functions: Collector
        self.step: int
        own = topology.own_share(config.env.num_envs)
        size = len(own) // config.actors.groups
        self.slots = range(own.start + index * size, own.start + (index + 1) * size)
        self.tickets: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self.waiting_since: float | None = None
        self.ready = threading.Event()
        self.anew_because: str | None = None
        self.env: HostEnv | None = None
        self.restarts, self.life = 0, 0
        self.making = True
        self._anew = True
        self._ticket: Ticket | None = None
        self._unfinished: Ticket | None = None
        self._failed: EnvError | None = None
        self._chunk_began = 0
        self._saved_memory: Arrays | None = None
        self._carry: Carry | None = None
        self._first: TimeStep | None = None
        self._totals, self._lengths = np.zeros(size), np.zeros(size, np.int64)
        slots = np.arange(self.slots.start, self.slots.stop, dtype=np.int32)
        self._slot_array = jax.device_put(slots, self._device)
        self.thread = self._thread()

    def _thread(self) -> threading.Thread:
        name = f"actors-{self.index}-{self.life}"
        return threading.Thread(target=self._run, args=(self.life,), name=name, daemon=True)

    def replace_thread(self, error: EnvError) -> None:
        """Goes on in another thread, leaving behind one whose environments do not answer.

        Where they run in worker processes these are killed, and the old thread ends with them.
        """
        left_behind = self.env
        self.life += 1
        self.step, self.waiting_since, self.env = self._chunk_began, None, None
        if self.parts.config.env.processes and left_behind is not None:
            threading.Thread(target=left_behind.close, daemon=True).start()
        # The ticket that the old thread holds.
        self._unfinished, self._failed = self._ticket, error
        self.thread = self._thread()
        self.thread.start()

    # --- the thread ---

    def _run(self, life: int) -> None:
        try:
            if self._failed is None:
                self._make()
            else:
                self._restart_after(self._failed, life)
            self.ready.set()
            while (ticket := self._next_ticket()) is not None:
                chunk = self._collect_somehow(ticket, life)
                if life != self.life:
                    return
                self.chunks.put(chunk)
        except _Stopped:
            pass
        except BaseException as error:
            self.chunks.put(Failure(self.index, error, True, life))
        finally:
            if life == self.life:
                self.waiting_since = None
                self.close_env()

    def _next_ticket(self) -> Ticket | None:
        ticket, self._unfinished = self._unfinished, None
        self._ticket = ticket or self.tickets.get()
        return self._ticket

    def _collect_somehow(self, ticket: Ticket, life: int) -> Chunk:
        """A chunk, if need be from environments made anew."""
        self._chunk_began = self.step
        while True:
            try:
                return self._collect(ticket, life)
            except _Stopped:
                raise
            except Exception as error:
                if life != self.life:
                    raise _Stopped from error
                self.step = self._chunk_began
                self._restart_after(error, life)

    def _restart_after(self, error: Exception, life: int) -> None:
        """Pauses and makes the environments anew; raises the error when that was done too often."""
        actors = self.parts.config.actors
        while not self.stopping.is_set() and life == self.life:
            self.waiting_since = None
            if self.restarts >= actors.max_restarts:
                raise error
            self.chunks.put(Failure(self.index, error, False, life))
            pause = actors.restart_seconds * 2**self.restarts
            self.restarts += 1
            self.stopping.wait(pause)
            try:
                self._make_anew()
                return
            except Exception as again:
                error = again
        raise _Stopped

    def _make_anew(self) -> None:
        with suppress(Exception):  # what failed may also fail to close
            self.close_env()
        # Other episodes than those that led to the failure.
        self.env_seed = int(slot_seeds(range(self.restarts, self.restarts + 1), self.env_seed)[0])
        self._make()

    def _make(self) -> None:
        self.making, self.waiting_since = True, time.monotonic()
        size = len(self.slots)
        self._totals, self._lengths = np.zeros(size), np.zeros(size, np.int64)
        self._carry, self._anew = None, True
        if self.saved is not None:
            saved, self.saved = self.saved, None
            try:
                self._load(saved)
                self.making, self.waiting_since = False, None
                return
            except Exception as error:
                self.anew_because = str(error) or type(error).__name__
                with suppress(Exception):
                    self.close_env()
        self.env = host_envs(self.parts.trained_env).make(self.slots, self.env_seed)
        self._first = self.env.reset()
        refuse_not_finite(self.parts.config.env.name, self.slots, self._first)
        self.making, self.waiting_since = False, None

    def close_env(self) -> None:
        """Closes the environments, once."""
        env, self.env = self.env, None
        if env is not None:
            env.close()

    def _collect(self, ticket: Ticket, life: int) -> Chunk:
        length = self.parts.config.batch.sequence_length
        updates, episodes = 0, []
        env_seconds = act_seconds = 0.0
        timestep: TimeStep | None = None
        env, carry = self.env, self._carry
        assert env is not None
        if carry is None:
            carry = self.functions.begin(self._first)  # type: ignore[arg-type]
        for t in range(length):
            if self.stopping.is_set() or life != self.life:
                raise _Stopped
            began = time.monotonic()
            published = ticket.published or self.newest()
            updates += published.update
            now = (np.int32(self.step), np.int32(t))
            fixed = (published.on(self.device_index), self.key, self._slot_array)
            if timestep is None:
                actions, carry = self.functions.act(*fixed, carry, *now)
            else:
                actions, carry = self.functions.advance(*fixed, carry, timestep, *now)
            # Given away to the device: what fails from here on cannot go on from it.
            self._carry = None
            chosen = np.asarray(actions)
            self.waiting_since = acted = time.monotonic()
            timestep = env.step(chosen)
            if life != self.life:
                raise _Stopped
            self.waiting_since = None
            refuse_not_finite(self.parts.config.env.name, self.slots, timestep)
            env_seconds += time.monotonic() - acted
            act_seconds += acted - began
            self.step += 1
            episodes += self._count(timestep)
        assert timestep is not None  # a chunk has at least one step
        trajectory, self._carry = self.functions.finish(carry, timestep)
        anew, self._anew = self._anew, False
        return Chunk(
            self.index, trajectory, updates / length, episodes, env_seconds, act_seconds, anew, life
        )

    def _count(self, after: TimeStep) -> list[dict[str, Any]]:
        """Adds a step to the running episodes and lists those it ended."""
        begun = np.asarray(after.step_type) == StepType.FIRST
        # In two-player games the total is the first player's.
        second = (self.parts.spec.players == 2) & (self._lengths % 2 == 1)
        sign = np.where(second, -1.0, 1.0)
        self._totals = np.where(begun, 0.0, self._totals + sign * after.reward)
        self._lengths = np.where(begun, 0, self._lengths + 1)
        ended = np.flatnonzero(np.asarray(after.step_type) == StepType.LAST)
        steps = self.step * self.parts.config.env.num_envs
        return [
            {
                "env_steps": steps,
                "return": float(self._totals[e]),
                "length": int(self._lengths[e]),
                "slot": int(self.slots[e]),
            }
            for e in ended
        ]

    # --- between two chunks, while the thread waits for a ticket ---

    def save(self) -> Arrays | None:
        """All that the group is between two chunks, or None where its environments do not say."""
        env, carry = self.env, self._carry
        if env is None or env.save is None or carry is None:
            return None
        state = env.save()
        if state is None:
            return None
        named = jax.tree_util.tree_leaves_with_path((carry.memory, carry.seen))
        return {
            **{f"env/{name}": array for name, array in state.items()},
            **{f"memory/{jax.tree_util.keystr(path)}": to_numpy(leaf) for path, leaf in named},
            "totals": self._totals,
            "lengths": self._lengths,
            "seed": np.array(self.env_seed, np.int64),
        }

    def _load(self, saved: Mapping[str, np.ndarray]) -> None:
        seed = int(saved["seed"])
        self.env = host_envs(self.parts.trained_env).make(self.slots, seed)
        if self.env.load is None:
            raise EnvError("its environments cannot be brought back")
        self.env.load({n[4:]: array for n, array in saved.items() if n.startswith("env/")})
        self._totals = np.array(saved["totals"], np.float64)
        self._lengths = np.array(saved["lengths"], np.int64)
        self._saved_memory = {n[7:]: a for n, a in saved.items() if n.startswith("memory/")}
        self.env_seed, self._anew, self._first = seed, False, None

    def go_on(self, example: PyTree) -> None:
        """Takes up the memory that was loaded, if any. example: shapes of (Memory, TimeStep)."""
        named, self._saved_memory = self._saved_memory, None
        if named is None:
            return
        leaves, structure = jax.tree_util.tree_flatten_with_path(example)
        arrays = []
        for path, want in leaves:
            array = named.get(jax.tree_util.keystr(path))
            if array is None or (array.shape, array.dtype) != (want.shape, want.dtype):
                raise EnvError(f"its memory has another {jax.tree_util.keystr(path)}")
            arrays.append(jax.device_put(array, self._device))
        self._carry = self.functions.go_on(*jax.tree.unflatten(structure, arrays))
