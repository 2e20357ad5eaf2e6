"""Actor threads: each steps a group of environments and hands its chunks to the learner."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from muesli.agent import Acting
from muesli.envs.base import HostEnv
from muesli.runners.collector import Carry, Collector
from muesli.runners.host import host_envs
from muesli.runners.parts import Parts
from muesli.types import PRNGKey, StepType, TimeStep, Trajectory


class _Stopped(Exception):
    """The run is over: a group leaves its chunk unfinished."""


class Ticket(NamedTuple):
    """Leave to collect one chunk: with these parameters, or (None) with the newest at each step."""

    published: Published | None


class Published(NamedTuple):
    """Parameters to act with. update: how many updates made them."""

    update: int
    acting: Acting


class Chunk(NamedTuple):
    """What a group delivers. trajectory: [E, T + 1], on the device; update: mean number of updates
    its actors' parameters had seen; episodes: those that ended in it; env_seconds, act_seconds: in
    its environments, and waiting for actions.
    """

    group: int
    trajectory: Trajectory | None
    update: float
    episodes: list[dict[str, Any]]
    env_seconds: float
    act_seconds: float


class Failure(NamedTuple):
    """A group that cannot go on."""

    group: int
    error: BaseException


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
    ):
        config = parts.config
        size = config.env.num_envs // config.actors.groups
        self.index, self.parts = index, parts
        self.newest, self.chunks, self.key, self.env_seed = newest, chunks, key, env_seed
        self.stopping = threading.Event()
        # Both are set before the first ticket is handed out; the functions are compiled.
        self.functions: Collector
        self.step: int
        self.slots = range(index * size, (index + 1) * size)
        self.tickets: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self.waiting_since: float | None = None
        self.started = False
        self.env: HostEnv | None = None
        self._totals, self._lengths = np.zeros(size), np.zeros(size, np.int64)
        self._slot_array = jnp.arange(self.slots.start, self.slots.stop)
        self.thread = threading.Thread(target=self._run, name=f"actors-{index}", daemon=True)

    def _run(self) -> None:
        try:
            self.waiting_since = time.monotonic()
            env = self.env = host_envs(self.parts.env).make(self.slots, self.env_seed)
            timestep = env.reset()
            self.waiting_since = None
            self.started = True
            carry: Carry | None = None
            while (ticket := self.tickets.get()) is not None:
                if carry is None:
                    carry = self.functions.begin(timestep)
                chunk, carry = self._collect(env, carry, ticket)
                self.chunks.put(chunk)
        except _Stopped:
            pass
        except BaseException as error:
            self.chunks.put(Failure(self.index, error))
        finally:
            self.waiting_since = None
            self.close_env()

    def close_env(self) -> None:
        """Closes the environments, once."""
        env, self.env = self.env, None
        if env is not None:
            env.close()

    def _collect(self, env: HostEnv, carry: Carry, ticket: Ticket) -> tuple[Chunk, Carry]:
        length = self.parts.config.batch.sequence_length
        updates, episodes = 0, []
        env_seconds = act_seconds = 0.0
        timestep: TimeStep | None = None
        for t in range(length):
            if self.stopping.is_set():
                raise _Stopped
            began = time.monotonic()
            published = ticket.published or self.newest()
            updates += published.update
            now = (np.int32(self.step), np.int32(t))
            fixed = (published.acting, self.key, self._slot_array)
            if timestep is None:
                actions, carry = self.functions.act(*fixed, carry, *now)
            else:
                actions, carry = self.functions.advance(*fixed, carry, timestep, *now)
            chosen = np.asarray(actions)
            self.waiting_since = acted = time.monotonic()
            timestep = env.step(chosen)
            self.waiting_since = None
            env_seconds += time.monotonic() - acted
            act_seconds += acted - began
            self.step += 1
            episodes += self._count(timestep)
        assert timestep is not None  # a chunk has at least one step
        trajectory, carry = self.functions.finish(carry, timestep)
        chunk = Chunk(self.index, trajectory, updates / length, episodes, env_seconds, act_seconds)
        return chunk, carry

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
