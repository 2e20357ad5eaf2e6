"""Actor threads: each steps a group of environments and hands its chunks to the learner.

A group whose environments raise or die makes them anew, after a pause and a bounded number of
times. Its unfinished chunk is discarded, and the first chunk of the new episodes says so.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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


class _Stopped(BaseException):
    """The run is over, or goes on without this thread, which leaves its chunk unfinished. No
    failure of an environment: what looks after those does not catch it.
    """


class Ticket(NamedTuple):
    """Leave to collect one chunk: with these parameters, or (None) with the newest at each step."""

    published: Published | None


class Chunk(NamedTuple):
    """What a group delivers. trajectory: [E, T + 1], on the device; update: mean number of updates
    its actors' parameters had seen; episodes: those that ended in it; env_seconds, act_seconds: in
    its environments, and waiting for actions; anew: whether it does not continue the chunk before.
    """

    group: int
    trajectory: Trajectory | None
    update: float
    episodes: list[dict[str, Any]]
    env_seconds: float
    act_seconds: float
    anew: bool


class Failure(NamedTuple):
    """A group whose environments failed. final: it cannot go on; restarts: with that one."""

    group: int
    error: BaseException
    final: bool
    restarts: int


class ActorGroup:
    """What stays of a group, and the life it lives now."""

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
        self.device = topology.actors[self.device_index]
        self.newest, self.chunks = newest, chunks
        self.key = jax.device_put(key, self.device)
        self.stopping = threading.Event()
        own = topology.own_share(config.env.num_envs)
        size = len(own) // config.actors.groups
        self.slots = range(own.start + index * size, own.start + (index + 1) * size)
        slots = np.arange(self.slots.start, self.slots.stop, dtype=np.int32)
        self.slot_array = jax.device_put(slots, self.device)
        self.tickets: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self.ready = threading.Event()
        self.functions: Collector
        self.life = Life(self, env_seed, saved=saved)

    def begin(self, functions: Collector, step: int) -> None:
        """Before the first ticket: the functions, compiled, and the step the run is at."""
        self.functions, self.life.step = functions, step

    def replace_thread(self, error: EnvError) -> None:
        """Goes on in another thread where a life was left, since its environments do not answer.

        Where they run in worker processes these are killed, and the old thread ends with them.
        """
        before = self.life
        self.life = Life(self, before.env_seed, continues=before, failed=error)
        if self.parts.config.env.processes:
            threading.Thread(target=before.close_env, daemon=True).start()
        self.life.thread.start()

    # --- between two chunks, while the thread waits for a ticket ---

    def save(self) -> Arrays | None:
        """All that the group is between two chunks, or None where its environments do not say."""
        life = self.life
        env, carry = life.env, life.carry
        if env is None or env.save is None or carry is None:
            return None
        state = env.save()
        if state is None:
            return None
        named = jax.tree_util.tree_leaves_with_path((carry.memory, carry.seen))
        return {
            **{f"env/{name}": array for name, array in state.items()},
            **{f"memory/{jax.tree_util.keystr(path)}": to_numpy(leaf) for path, leaf in named},
            "totals": life.totals,
            "lengths": life.lengths,
            "seed": np.array(life.env_seed, np.int64),
        }

    def go_on(self, example: PyTree) -> None:
        """Takes up the memory that was loaded, if any. example: shapes of (Memory, TimeStep)."""
        named, self.life.saved_memory = self.life.saved_memory, None
        if named is None:
            return
        leaves, structure = jax.tree_util.tree_flatten_with_path(example)
        arrays = []
        for path, want in leaves:
            array = named.get(jax.tree_util.keystr(path))
            if array is None or (array.shape, array.dtype) != (want.shape, want.dtype):
                raise EnvError(f"its memory has another {jax.tree_util.keystr(path)}")
            arrays.append(jax.device_put(array, self.device))
        self.life.carry = self.functions.go_on(*jax.tree.unflatten(structure, arrays))


class Life:
    """One thread of a group, its environments, the chunk it is building, and all else that it
    changes. A thread is left behind only while it waits for its environments, and ends when they
    answer: so nothing is done twice.
    """

    def __init__(
        self,
        group: ActorGroup,
        env_seed: int,
        saved: Mapping[str, np.ndarray] | None = None,
        continues: Life | None = None,
        failed: EnvError | None = None,
    ):
        """continues: the life before, whose unfinished chunk is collected anew after ``failed``."""
        self.group, self.env_seed, self.saved, self.failed = group, env_seed, saved, failed
        self.number: int = 0 if continues is None else continues.number + 1
        self.restarts: int = 0 if continues is None else continues.restarts
        self.step: int = 0 if continues is None else continues.chunk_began
        self.ticket: Ticket | None = None
        self.unfinished = None if continues is None else continues.ticket
        self.chunk_began: int = self.step
        self.waiting_since: float | None = None
        self.making = self.left = False
        self.anew = True
        self.anew_because: str | None = None
        self.env: HostEnv | None = None
        self.saved_memory: Arrays | None = None
        self.carry: Carry | None = None
        self.first: TimeStep | None = None
        self.forget_episodes()
        self._lock = threading.Lock()
        name = f"actors-{group.index}-{self.number}"
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)

    def forget_episodes(self) -> None:
        """Begins to count anew."""
        size = len(self.group.slots)
        self.totals, self.lengths = np.zeros(size), np.zeros(size, np.int64)

    @contextmanager
    def waiting(self, making: bool = False) -> Iterator[None]:
        """Around all that environments may not answer; the way out of a life that was left.

        Who reads ``making`` before ``waiting_since`` never takes the former's wait for a step's.
        """
        self.making, self.waiting_since = making, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self.waiting_since, self.making = None, False
                if self.left:
                    raise _Stopped

    def leave(self, since: float) -> bool:
        """For another thread: ends this life, if it still waits as it has ``since`` then."""
        with self._lock:
            self.left = self.waiting_since == since
            return self.left

    def close_env(self) -> None:
        """Closes the environments, once."""
        with self._lock:
            env, self.env = self.env, None
        if env is not None:
            env.close()

    # --- the thread ---

    def run(self) -> None:
        """Collects a chunk for each ticket, until it is told to stop."""
        group = self.group
        try:
            if self.failed is None:
                self._make()
            else:
                self._restart_after(self.failed)
            group.ready.set()
            while (ticket := self._next_ticket()) is not None:
                group.chunks.put(self._collect_somehow(ticket))
        except _Stopped:
            pass
        except BaseException as error:
            group.chunks.put(Failure(group.index, error, True, self.restarts))
        finally:
            self.close_env()

    def _next_ticket(self) -> Ticket | None:
        ticket, self.unfinished = self.unfinished, None
        self.ticket = ticket or self.group.tickets.get()
        return self.ticket

    def _collect_somehow(self, ticket: Ticket) -> Chunk:
        """A chunk, if need be from environments made anew."""
        self.chunk_began = self.step
        while True:
            try:
                return self._collect(ticket)
            except Exception as error:
                self.step = self.chunk_began
                self._restart_after(error)

    def _restart_after(self, error: Exception) -> None:
        """Pauses and makes the environments anew; raises the error when that was done too often."""
        group, actors = self.group, self.group.parts.config.actors
        while not group.stopping.is_set():
            if self.restarts >= actors.max_restarts:
                raise error
            pause = actors.restart_seconds * 2**self.restarts
            self.restarts += 1
            group.chunks.put(Failure(group.index, error, False, self.restarts))
            group.stopping.wait(pause)
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
        group = self.group
        with self.waiting(making=True):
            self.forget_episodes()
            self.carry, self.anew = None, True
            if self.saved is not None:
                saved, self.saved = self.saved, None
                try:
                    self._load(saved)
                    return
                except Exception as error:
                    self.anew_because = str(error) or type(error).__name__
                    with suppress(Exception):
                        self.close_env()
            self.env = host_envs(group.parts.trained_env).make(group.slots, self.env_seed)
            self.first = self.env.reset()
            refuse_not_finite(group.parts.config.env.name, group.slots, self.first)

    def _load(self, saved: Mapping[str, np.ndarray]) -> None:
        seed = int(saved["seed"])
        self.env = host_envs(self.group.parts.trained_env).make(self.group.slots, seed)
        if self.env.load is None:
            raise EnvError("its environments cannot be brought back")
        self.env.load({n[4:]: array for n, array in saved.items() if n.startswith("env/")})
        self.totals = np.array(saved["totals"], np.float64)
        self.lengths = np.array(saved["lengths"], np.int64)
        self.saved_memory = {n[7:]: a for n, a in saved.items() if n.startswith("memory/")}
        self.env_seed, self.anew, self.first = seed, False, None

    def _collect(self, ticket: Ticket) -> Chunk:
        group, functions = self.group, self.group.functions
        name, length = group.parts.config.env.name, group.parts.config.batch.sequence_length
        updates, episodes = 0, []
        env_seconds = act_seconds = 0.0
        timestep: TimeStep | None = None
        env, carry = self.env, self.carry
        assert env is not None
        if carry is None:
            carry = functions.begin(self.first)  # type: ignore[arg-type]
        for t in range(length):
            if group.stopping.is_set():
                raise _Stopped
            began = time.monotonic()
            published = ticket.published or group.newest()
            updates += published.update
            now = (np.int32(self.step), np.int32(t))
            fixed = (published.on(group.device_index), group.key, group.slot_array)
            if timestep is None:
                actions, carry = functions.act(*fixed, carry, *now)
            else:
                actions, carry = functions.advance(*fixed, carry, timestep, *now)
            # Given away to the device: what fails from here on cannot go on from it.
            self.carry = None
            chosen = np.asarray(actions)
            acted = time.monotonic()
            with self.waiting():
                timestep = env.step(chosen)
            refuse_not_finite(name, group.slots, timestep)
            env_seconds += time.monotonic() - acted
            act_seconds += acted - began
            self.step += 1
            episodes += self._count(timestep)
        assert timestep is not None  # a chunk has at least one step
        trajectory, self.carry = functions.finish(carry, timestep)
        anew, self.anew = self.anew, False
        return Chunk(
            group.index, trajectory, updates / length, episodes, env_seconds, act_seconds, anew
        )

    def _count(self, after: TimeStep) -> list[dict[str, Any]]:
        """Adds a step to the running episodes and lists those it ended."""
        begun = np.asarray(after.step_type) == StepType.FIRST
        # In two-player games the total is the first player's.
        second = (self.group.parts.spec.players == 2) & (self.lengths % 2 == 1)
        sign = np.where(second, -1.0, 1.0)
        self.totals = np.where(begun, 0.0, self.totals + sign * after.reward)
        self.lengths = np.where(begun, 0, self.lengths + 1)
        ended = np.flatnonzero(np.asarray(after.step_type) == StepType.LAST)
        steps = self.step * self.group.parts.config.env.num_envs
        return [
            {
                "env_steps": steps,
                "return": float(self.totals[e]),
                "length": int(self.lengths[e]),
                "slot": int(self.group.slots[e]),
            }
            for e in ended
        ]
