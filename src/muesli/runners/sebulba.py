"""Actors in threads beside the learner: for environments outside JAX.

Each group of environments has a thread. It asks the device for the actions of its whole group, with
the newest published parameters, steps its environments, and builds a chunk of T records per
environment on the device, where observations arrive once and stay. A finished chunk goes to the
learner, which stores it in the ring and trains once on each of its sequences, mixed with replayed
ones.

A device runs one program at a time, in the order of arrival. So the learner hands it one update at
a time, and the actions that were asked for in the meantime are computed before the next.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from muesli import keys
from muesli import replay as ring
from muesli.agent import Acting
from muesli.envs.base import HostEnv
from muesli.runners.host import ActorError, Memory, host_envs, initial_memory, remember
from muesli.runners.learner import init_ring, make_learn
from muesli.runners.parts import Parts
from muesli.types import (
    AgentState,
    Array,
    Metrics,
    PRNGKey,
    PyTree,
    StepType,
    TimeStep,
    Trajectory,
    Transition,
)

_STARTING_TIMEOUTS = 10  # copies of an environment may take this many step timeouts to start


class _Stopped(Exception):
    """The run is over: a group leaves its chunk unfinished."""


# --- on the device --------------------------------------------------------------------------


class Carry(NamedTuple):
    """A group between two steps, on the device. records: Transition [E, T + 1], the chunk being
    built; start: the ActorState at its first record; memory: Memory [E]; seen: what acts next.
    """

    records: Transition
    start: PyTree
    memory: Memory
    seen: TimeStep


class Collector(NamedTuple):
    """How a group builds a chunk, as pure functions.

    begin(timestep) -> Carry; act(acting, key, slots, carry, step, t) -> (actions [E], Carry);
    advance(acting, key, slots, carry, timestep, step, t): takes in what came of record t − 1, then
    acts; finish(carry, timestep) -> (Trajectory [E, T + 1], Carry of the next chunk).
    """

    begin: Callable[[TimeStep], Carry]
    act: Callable[..., tuple[Array, Carry]]
    advance: Callable[..., tuple[Array, Carry]]
    finish: Callable[[Carry, TimeStep], tuple[Trajectory, Carry]]


def make_collector(parts: Parts, group_size: int) -> Collector:
    """The collector of a group of ``group_size`` environments."""
    agent, length = parts.agent, parts.config.batch.sequence_length

    def empty(memory: Memory, seen: TimeStep) -> Transition:
        example = jax.eval_shape(
            lambda: agent.act(
                agent.acting(agent.init(jax.random.key(0))),
                seen,
                memory.actors,
                jax.random.split(jax.random.key(0), group_size),
            )
        )
        one = Transition(
            seen.observation, example[0], example[1], seen.reward, seen.discount,
            seen.step_type, seen.legal_actions,
        )  # fmt: skip
        return jax.tree.map(
            lambda x: jnp.zeros((x.shape[0], length + 1, *x.shape[1:]), x.dtype), one
        )

    def put(buffer: Array, x: Array, t: Array | int) -> Array:
        return jax.lax.dynamic_update_index_in_dim(buffer, x.astype(buffer.dtype), t, axis=1)

    def put_seen(records: Transition, seen: TimeStep, t: Array | int) -> Transition:
        observation, legal_actions = jax.tree.map(
            lambda b, x: put(b, x, t),
            (records.observation, records.legal_actions),
            (seen.observation, seen.legal_actions),
        )
        return records._replace(
            observation=observation,
            legal_actions=legal_actions,
            step_type=put(records.step_type, seen.step_type, t),
        )

    def begin(timestep: TimeStep) -> Carry:
        memory, seen = remember(parts, initial_memory(parts, group_size), timestep)
        records = put_seen(empty(memory, seen), seen, 0)
        return Carry(records, memory.actors, memory, seen)

    def take_in(carry: Carry, timestep: TimeStep, t: Array | int) -> Carry:
        memory, seen = remember(parts, carry.memory, timestep)
        records = put_seen(carry.records, seen, t)
        records = records._replace(
            reward=put(records.reward, seen.reward, t - 1),
            discount=put(records.discount, seen.discount, t - 1),
        )
        return Carry(records, carry.start, memory, seen)

    def act(
        acting: Acting, key: PRNGKey, slots: Array, carry: Carry, step: Array, t: Array
    ) -> tuple[Array, Carry]:
        act_keys = keys.act_keys(key, slots, step)
        action, behaviour, actors = agent.act(acting, carry.seen, carry.memory.actors, act_keys)
        records = carry.records._replace(
            action=put(carry.records.action, action, t),
            behaviour=jax.tree.map(lambda b, x: put(b, x, t), carry.records.behaviour, behaviour),
        )
        memory = carry.memory._replace(actors=actors)
        return action, carry._replace(records=records, memory=memory)

    def advance(
        acting: Acting,
        key: PRNGKey,
        slots: Array,
        carry: Carry,
        timestep: TimeStep,
        step: Array,
        t: Array,
    ) -> tuple[Array, Carry]:
        return act(acting, key, slots, take_in(carry, timestep, t), step, t)

    def finish(carry: Carry, timestep: TimeStep) -> tuple[Trajectory, Carry]:
        carry = take_in(carry, timestep, length)
        fresh = put_seen(jax.tree.map(jnp.zeros_like, carry.records), carry.seen, 0)
        after = Carry(fresh, carry.memory.actors, carry.memory, carry.seen)
        return Trajectory(carry.records, carry.start), after

    return Collector(begin, act, advance, finish)


# --- in threads -----------------------------------------------------------------------------


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


# --- the learner ----------------------------------------------------------------------------


class SebulbaState(NamedTuple):
    """What of the run is kept on the learner's side. replay: the ring, or None; iteration: chunks
    of every environment taken in so far.
    """

    agent: AgentState
    replay: PyTree
    key: PRNGKey
    iteration: Array


class Sebulba:
    """The loop of one run: actor groups, the queue between, and the learner."""

    def __init__(self, parts: Parts, seed: int):
        """Compiles nothing yet and starts no thread: see ``prepare``."""
        self.parts, self.config = parts, parts.config
        actors, envs = self.config.actors, self.config.env
        self.groups, self.group_size = actors.groups, envs.num_envs // actors.groups
        self.key = jax.random.key(seed)
        self.collector = make_collector(parts, self.group_size)
        self._learn = make_learn(parts.agent, self.config, parts.spec)
        self._write = jax.jit(
            lambda replay, chunk, slot: ring.write(replay, chunk, envs.frame_stack, slot),
            donate_argnums=0,
        )
        self.actors: list[ActorGroup] = []
        self.chunks: queue.SimpleQueue[Chunk | Failure] = queue.SimpleQueue()

    # --- shapes, before anything is allocated ---

    def example_timestep(self) -> TimeStep:
        """The shapes of what a group's environments answer: [E, ...]."""
        spec, size = host_envs(self.parts.env).spec, self.group_size

        def one(shape: tuple[int | None, ...], dtype: Any) -> Any:
            return jax.ShapeDtypeStruct((size, *shape), dtype)

        return TimeStep(
            one(spec.observation_shape, spec.observation_dtype),
            one((), jnp.float32),
            one((), jnp.float32),
            one((), jnp.int32),
            one((spec.num_actions,), jnp.bool_) if spec.legal_actions else None,
        )

    def example_chunk(self) -> Trajectory:
        """The shapes of a group's chunk: [E, T + 1, ...]."""
        timestep = self.example_timestep()
        carry = jax.eval_shape(self.collector.begin, timestep)
        return jax.eval_shape(self.collector.finish, carry, timestep)[0]

    def init(self, key: PRNGKey) -> SebulbaState:
        """A fresh run's state; pure, so that its shapes can be had without its memory."""
        one = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.example_chunk()
        )
        return SebulbaState(
            self.parts.agent.init(keys.agent_key(key)),
            init_ring(one, self.config),
            key,
            jnp.zeros((), jnp.int32),
        )

    def _learn_slice(
        self,
        agent: AgentState,
        replay: PyTree,
        chunk: Trajectory,
        index: Array,
        key: PRNGKey,
        lag: Array,
    ) -> tuple[AgentState, Acting, Metrics]:
        """One update on slice ``index`` of a chunk; also the parameters to act with from now on."""
        size = self.config.batch.online_sequences
        fresh = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, index * size, size), chunk)
        agent, metrics = self._learn(agent, replay, fresh, key, lag)
        return agent, self.parts.agent.acting(agent), metrics

    # --- starting and stopping ---

    def prepare(self, env_seed: int | None = None) -> None:
        """Starts the environments in their threads, and compiles everything in the meantime."""
        seed = self.config.seed if env_seed is None else env_seed
        self.actors = [
            ActorGroup(index, self.parts, lambda: self.published, self.chunks, self.key, seed)
            for index in range(self.groups)
        ]
        for actor in self.actors:
            actor.thread.start()
        state = jax.eval_shape(self.init, self.key)
        acting = jax.eval_shape(self.parts.agent.acting, state.agent)
        chunk, timestep, now = self.example_chunk(), self.example_timestep(), np.int32(0)
        self.learn_slice = (
            jax.jit(self._learn_slice, donate_argnums=0)
            .lower(state.agent, state.replay, chunk, now, self.key, np.float32(0))
            .compile()
        )
        carry = jax.eval_shape(self.collector.begin, timestep)
        fixed = (acting, self.key, jax.ShapeDtypeStruct((self.group_size,), jnp.int32), carry)
        act = jax.jit(self.collector.act, donate_argnums=3)
        advance = jax.jit(self.collector.advance, donate_argnums=3)
        finish = jax.jit(self.collector.finish, donate_argnums=0)
        self.functions = Collector(
            jax.jit(self.collector.begin).lower(timestep).compile(),
            act.lower(*fixed, now, now).compile(),
            advance.lower(*fixed, timestep, now, now).compile(),
            finish.lower(carry, timestep).compile(),
        )

    def start(self, state: SebulbaState) -> None:
        """Lets the actors begin, on fresh episodes; the ring may be empty."""
        self.state = state
        acting = jax.jit(self.parts.agent.acting)(state.agent)
        self.published = Published(int(state.agent.step), acting)
        for actor in self.actors:
            actor.functions = self.functions
            actor.step = int(state.iteration) * self.config.batch.sequence_length
            if not self.config.actors.lockstep:
                for _ in range(1 + self.config.actors.queue_chunks):
                    actor.tickets.put(Ticket(None))

    def close(self) -> None:
        """Asks every group to stop and waits for those that can."""
        for actor in self.actors:
            actor.stopping.set()
            actor.tickets.put(None)
        for actor in self.actors:
            actor.thread.join(timeout=10.0 if actor.waiting_since is None else 1.0)
            # What hangs in worker processes is killed with them; a thread that hangs in this one
            # is left behind, and ends with it.
            if actor.thread.is_alive() and self.config.env.processes:
                actor.close_env()
        self.actors = []

    # --- running ---

    def collect_iteration(self) -> list[Chunk]:
        """One chunk of each group, stored but not trained on."""
        chunks = []
        for chunk in self._iteration():
            self._store(chunk)
            self._release(chunk)
            chunks.append(chunk._replace(trajectory=None))
        self.state = self.state._replace(iteration=self.state.iteration + 1)
        return chunks

    def train_iteration(self) -> tuple[list[Metrics], list[Chunk], float]:
        """Takes in as many chunks as there are groups and trains on each of their sequences once.

        Returns the metrics of every update, the chunks, and the seconds spent waiting for actors.
        """
        metrics, chunks, waited = [], [], 0.0
        iteration = self._iteration()
        while True:
            began = time.monotonic()
            chunk = next(iteration, None)
            waited += time.monotonic() - began
            if chunk is None:
                break
            metrics += self._train_on(chunk)
            self._release(chunk)
            chunks.append(chunk._replace(trajectory=None))
        self.state = self.state._replace(iteration=self.state.iteration + 1)
        return metrics, chunks, waited

    def _iteration(self) -> Any:
        """The chunks of one iteration: as they come, or in lock-step, in the groups' order."""
        if not self.config.actors.lockstep:
            for _ in range(self.groups):
                yield self._take()
            return
        for actor in self.actors:
            actor.tickets.put(Ticket(self.published))
        yield from sorted((self._take() for _ in self.actors), key=lambda chunk: chunk.group)

    def _train_on(self, chunk: Chunk) -> list[Metrics]:
        self._store(chunk)
        metrics = []
        for index in range(self.group_size // self.config.batch.online_sequences):
            state, update = self.state, self.published.update
            lag = np.float32(update - chunk.update)
            agent, acting, row = self.learn_slice(
                state.agent, state.replay, chunk.trajectory, np.int32(index), self.key, lag
            )
            self.state = state._replace(agent=agent)
            self.published = Published(update + 1, acting)
            # One update at a time: what actors ask for now is computed before the next one.
            jax.block_until_ready(row["loss_total"])
            metrics.append(row)
        return metrics

    def _store(self, chunk: Chunk) -> None:
        if self.state.replay is not None:
            slot = np.int32(chunk.group * self.group_size)
            self.state = self.state._replace(
                replay=self._write(self.state.replay, chunk.trajectory, slot)
            )

    def _release(self, chunk: Chunk) -> None:
        if not self.config.actors.lockstep:
            self.actors[chunk.group].tickets.put(Ticket(None))

    def _take(self) -> Chunk:
        while True:
            # Looked for each time: the other groups may keep the queue filled.
            self._look_for_hung_groups()
            try:
                item = self.chunks.get(timeout=0.5)
            except queue.Empty:
                continue
            if isinstance(item, Failure):
                raise ActorError(
                    f"environment group {item.group} of {self.config.env.name} failed: "
                    f"{type(item.error).__name__}: {item.error}"
                ) from item.error
            return item

    def _look_for_hung_groups(self) -> None:
        limit = self.config.actors.step_timeout_seconds
        for actor in self.actors:
            since, allowed = actor.waiting_since, limit
            if not actor.started:
                allowed *= _STARTING_TIMEOUTS
            if since is not None and time.monotonic() - since > allowed:
                raise ActorError(
                    f"environment group {actor.index} of {self.config.env.name} has not answered "
                    f"for {allowed:g} s (actors.step_timeout_seconds)"
                )


def mean_metrics(rows: list[Metrics]) -> dict[str, float]:
    """The mean of every metric over the updates of a call."""
    fetched: list[Mapping[str, Any]] = jax.device_get(rows)
    return {name: float(np.mean([row[name] for row in fetched])) for name in fetched[0]}
