"""Actors in threads beside the learner: for environments outside JAX.

Each group of environments has a thread. It asks the device for the actions of its whole group, with
the newest published parameters, steps its environments, and builds a chunk of T records per
environment on the device, where observations arrive once and stay. A finished chunk goes to the
learner, which stores it in the ring and trains once on each of its sequences, mixed with replayed
ones.

A device runs one program at a time, in the order of arrival. So the learner hands it one update at
a time, and the actions that were asked for in the meantime are computed before the next.

With several devices, groups act in turn on those that act, and each of their chunks is dealt to
those that learn. Where none of them learns they wait for no update, nor need they be of the same
kind: a network that is small enough acts on the processor, beside its environments. With several
processes, each has its own groups and brings its share of every batch; all make the same updates.
"""

from __future__ import annotations

import queue
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jax.sharding import SingleDeviceSharding

from muesli import keys
from muesli import replay as ring
from muesli.envs.base import EnvError
from muesli.runners.actors import ActorGroup, Arrays, Chunk, Failure, Ticket
from muesli.runners.collector import Collector, make_collector
from muesli.runners.faults import ActorError, NotFiniteError
from muesli.runners.host import host_envs
from muesli.runners.learner import Row, init_ring, make_learn
from muesli.runners.mesh import AXIS, dealt, lay_out, own_share, replicated, spread
from muesli.runners.parts import Parts, for_actors
from muesli.runners.patience import STARTING_TIMEOUTS
from muesli.runners.publishing import Courier, Packing, Published
from muesli.types import AgentState, Array, PRNGKey, PyTree, TimeStep, Trajectory

Measured = dict[str, np.float32]
"""The metrics of one update, fetched."""


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
        self.parts, self.config, self.topology = parts, parts.config, parts.topology
        actors, envs, peers = self.config.actors, self.config.env, parts.topology.peers
        mesh, stack = parts.topology.mesh, parts.stack
        self.groups = actors.groups
        # Groups take them in turn.
        self.acting_devices = self.topology.actors[: actors.groups]
        self.group_size = envs.num_envs // (peers.size * actors.groups)
        # Of a chunk, what each device that learns has of it, and takes from it for one update.
        self.share = self.group_size // len(self.topology.own)
        self._hand = self.config.batch.online_sequences // mesh.size
        self.seed, self.key = seed, jax.random.key(seed)
        self.collector = make_collector(for_actors(parts), self.group_size)
        self._learn = make_learn(parts)

        def store(replay: PyTree, chunk: Trajectory, slot: Array, anew: Array) -> PyTree:
            """On each device, its share of a chunk; ``anew`` where it continues none before."""
            slots = jnp.arange(replay.written.shape[0])
            here = (slots >= slot[0]) & (slots < slot[0] + self.share)
            return ring.write(ring.truncate(replay, here & anew[0]), chunk, stack, slot[0])

        self._store_all = jax.jit(
            jax.shard_map(store, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS)), donate_argnums=0
        )
        self._take_hand = jax.shard_map(
            lambda chunk, index: jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(x, index * self._hand, self._hand), chunk
            ),
            mesh=mesh,
            in_specs=(P(AXIS), P()),
            out_specs=P(AXIS),
        )
        self.layout = lay_out(self.state_shapes(), mesh)
        self._fresh = jax.jit(
            lambda seed: self.init(jax.random.key(seed)), out_shardings=self.layout
        )
        self.restarts = 0
        # In lock-step every group then waits for leave to collect its next chunk.
        self.between_iterations = False
        # Actors on devices of their own are sent their parameters.
        self._packing: Packing | None = None
        if not set(self.acting_devices) & set(self.topology.own):
            agent = self.state_shapes().agent
            self._packing = Packing(jax.eval_shape(parts.agent.acting, agent))
            self._unpack = jax.jit(self._packing.unpack)
        self._courier: Courier | None = None
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
            init_ring(one, self.parts),
            key,
            jnp.zeros((), jnp.int32),
        )

    def state_shapes(self) -> SebulbaState:
        """The shapes of a run's state."""
        return jax.eval_shape(self.init, self.key)

    def fresh_state(self) -> SebulbaState:
        """A fresh run's state, on the devices that learn."""
        return self._fresh(np.uint32(self.seed))

    def _learn_slice(
        self,
        agent: AgentState,
        replay: PyTree,
        chunk: Trajectory,
        index: Array,
        key: PRNGKey,
        lag: Array,
    ) -> tuple[AgentState, PyTree, Row]:
        """One update on slice ``index`` of a chunk; also what to send to those who act."""
        fresh = self._take_hand(chunk, index)
        agent, metrics, _ = self._learn(agent, replay, fresh, key, lag)
        return agent, self._sent(agent), Row.of(metrics)

    def _sent(self, agent: AgentState) -> PyTree:
        acting = self.parts.agent.acting(agent)
        return acting if self._packing is None else self._packing.pack(acting)

    def _batch_of_last_update(self, chunk: PyTree, index: int) -> PyTree:
        """The sequences that the newest update, on a slice of ``chunk``, was to learn from; of
        several processes, those of this one.
        """

        def assemble(
            agent: AgentState, replay: PyTree, chunk: Trajectory, key: PRNGKey
        ) -> Trajectory:
            agent = agent._replace(step=agent.step - 1)
            fresh = self._take_hand(chunk, jnp.int32(index))
            return self._learn(agent, replay, fresh, key, jnp.zeros(()))[2]

        state = self.state
        assembled = jax.jit(assemble, out_shardings=dealt(self.topology.mesh))
        return own_share(assembled(state.agent, state.replay, chunk, state.key))

    def _for_each_device(self, value: Any, dtype: Any) -> Array:
        """A number of this process's, one for each of its devices that learn."""
        own = np.full(len(self.topology.own), value, dtype)
        return spread(own, self.topology)

    # --- starting and stopping ---

    def prepare(
        self, env_seed: int | None = None, saved: list[Arrays | None] | None = None
    ) -> None:
        """Starts the environments in their threads, and compiles everything in the meantime.

        saved: what each group's ``save`` answered, for those that go on from there.
        """
        seed = self.config.seed if env_seed is None else env_seed
        saved = saved or [None] * self.groups
        self.actors = [
            ActorGroup(
                index, self.parts, lambda: self.published, self.chunks, self.key, seed, saved[index]
            )
            for index in range(self.groups)
        ]
        for actor in self.actors:
            actor.life.thread.start()
        self._compile_learner()
        # On each device that acts.
        self.functions = [self._compile_collector(device) for device in self.acting_devices]

    def _compile_learner(self) -> None:
        mesh, state = self.topology.mesh, self.state_shapes()

        def lying(shapes: PyTree, layout: PyTree) -> PyTree:
            return jax.tree.map(
                lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, layout
            )

        cut, whole = dealt(mesh), replicated(mesh)
        processes = self.topology.peers.size
        chunk = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(
                (x.shape[0] * processes, *x.shape[1:]), x.dtype, sharding=cut
            ),
            self.example_chunk(),
        )
        laid = lying(state, self.layout)
        lag = jax.ShapeDtypeStruct((mesh.size,), jnp.float32, sharding=cut)
        self.learn_slice = (
            jax.jit(self._learn_slice, donate_argnums=0, out_shardings=whole)
            .lower(laid.agent, laid.replay, chunk, np.int32(0), laid.key, lag)
            .compile()
        )

    def _compile_collector(self, device: jax.Device) -> Collector:
        there = SingleDeviceSharding(device)

        def lying(shapes: PyTree) -> PyTree:
            return jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), shapes
            )

        timestep, now = lying(self.example_timestep()), np.int32(0)
        acting = jax.eval_shape(self.parts.agent.acting, self.state_shapes().agent)
        carry = lying(jax.eval_shape(self.collector.begin, timestep))
        slots = jax.ShapeDtypeStruct((self.group_size,), jnp.int32, sharding=there)
        fixed = (lying(acting), lying(jax.eval_shape(lambda: self.key)), slots, carry)
        act = jax.jit(self.collector.act, donate_argnums=3)
        advance = jax.jit(self.collector.advance, donate_argnums=3)
        finish = jax.jit(self.collector.finish, donate_argnums=0)
        self._between_chunks = (carry.memory, carry.seen)
        return Collector(
            jax.jit(self.collector.begin).lower(timestep).compile(),
            act.lower(*fixed, now, now).compile(),
            advance.lower(*fixed, timestep, now, now).compile(),
            finish.lower(carry, timestep).compile(),
            jax.jit(self.collector.go_on).lower(carry.memory, carry.seen).compile(),
        )

    def _publish(self, update: int, sent: PyTree) -> None:
        """Lets actors have new parameters: at once, or once they have been brought to them."""
        self.updates = update
        unpack = None if self._packing is None else self._unpack
        published = Published(update, sent, self.acting_devices, unpack)
        if self._courier is None:
            self._deliver(published)
        else:
            self._courier.send(published)

    def _deliver(self, published: Published) -> None:
        self.published = published

    def start(self, state: SebulbaState, resumed: bool = False) -> None:
        """Lets the actors begin; the ring may be empty. resumed: some go on from what was saved."""
        self.state = state
        self._publish(int(state.agent.step), jax.jit(self._sent)(state.agent))
        if self._packing is not None and not self.config.actors.lockstep:
            self._courier = Courier(self._deliver, self.acting_devices)
        for actor in self.actors:
            step = int(state.iteration) * self.config.batch.sequence_length
            actor.begin(self.functions[actor.device_index], step)
            if resumed:
                while not actor.ready.wait(0.1):
                    self._look_for_hung_groups()
                    self._look_for_failures()
                actor.go_on(self._between_chunks)
            if not self.config.actors.lockstep:
                for _ in range(1 + self.config.actors.queue_chunks):
                    actor.tickets.put(Ticket(None))

    def close(self) -> None:
        """Asks every group to stop and waits for those that can."""
        for actor in self.actors:
            actor.stopping.set()
            actor.tickets.put(None)
        for life in [actor.life for actor in self.actors]:
            if life.thread.ident is not None:
                life.thread.join(timeout=10.0 if life.waiting_since is None else 1.0)
            # What hangs in worker processes is killed with them; a thread that hangs in this one
            # is left behind, and ends with it.
            if life.thread.is_alive() and self.config.env.processes:
                life.close_env()
        self.actors = []
        if self._courier is not None:
            self._courier.close()

    # --- running ---

    def collect_iteration(self) -> list[Chunk]:
        """One chunk of each group, stored but not trained on."""
        chunks = []
        for chunk in self._iteration():
            self._store(chunk)
            self._release(chunk)
            chunks.append(chunk._replace(trajectory=None))
        self._end_iteration()
        return chunks

    def train_iteration(self) -> tuple[list[Measured], list[Chunk], float]:
        """Takes in as many chunks as there are groups and trains on each of their sequences once.

        Returns the metrics of every update, the chunks, and the seconds spent waiting for actors.
        """
        metrics: list[Measured] = []
        chunks, waited = [], 0.0
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
        self._end_iteration()
        return metrics, chunks, waited

    def _end_iteration(self) -> None:
        self.state = self.state._replace(iteration=self.state.iteration + 1)
        self.between_iterations = True

    def _iteration(self) -> Any:
        """The chunks of one iteration: as they come, or in lock-step, in the groups' order."""
        self.between_iterations = False
        if not self.config.actors.lockstep:
            for _ in range(self.groups):
                yield self._take()
            return
        for actor in self.actors:
            actor.tickets.put(Ticket(self.published))
        yield from sorted((self._take() for _ in self.actors), key=lambda chunk: chunk.group)

    def _train_on(self, chunk: Chunk) -> list[Measured]:
        trajectory = self._store(chunk)
        metrics: list[Measured] = []
        for index in range(self.share // self._hand):
            state, update = self.state, self.updates
            lag = self._for_each_device(update - chunk.update, np.float32)
            agent, sent, row = self.learn_slice(
                state.agent, state.replay, trajectory, np.int32(index), state.key, lag
            )
            self.state = state._replace(agent=agent)
            self._publish(update + 1, sent)
            # One update at a time: what actors ask for now is computed before the next one.
            metrics.append(row.fetch())
            if metrics[-1]["update_skipped"]:
                self._look_for_the_end(trajectory, index)
        return metrics

    def _look_for_the_end(self, trajectory: Trajectory, index: int) -> None:
        limit = self.config.optimiser.max_skipped_updates
        if int(self.state.agent.faults.in_a_row) >= limit:
            batch = lambda: self._batch_of_last_update(trajectory, index)  # noqa: E731
            raise NotFiniteError(limit, self.updates, batch)

    def _store(self, chunk: Chunk) -> Trajectory:
        """Deals a chunk to the devices that learn and writes it to their rings."""
        trajectory = spread(chunk.trajectory, self.topology)
        if self.state.replay is not None:
            slot = self._for_each_device(chunk.group * self.share, np.int32)
            anew = self._for_each_device(chunk.anew, np.bool_)
            replay = self._store_all(self.state.replay, trajectory, slot, anew)
            self.state = self.state._replace(replay=replay)
        return trajectory

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
            if not isinstance(item, Failure):
                return item
            self._hear_of(item)

    def _hear_of(self, failure: Failure) -> None:
        """Ends the run with a failure that is final; tells of another."""
        what = (
            f"environment group {failure.group} of {self.config.env.name} failed: "
            f"{type(failure.error).__name__}: {failure.error}"
        )
        if failure.final:
            raise ActorError(what) from failure.error
        self.restarts += 1
        again = f"it is started again ({failure.restarts} of {self.config.actors.max_restarts})"
        print(f"{what}; {again}", flush=True)  # noqa: T201

    def _look_for_failures(self) -> None:
        """Hears of groups that fail before there are chunks."""
        while not self.chunks.empty():
            item = self.chunks.get()
            if isinstance(item, Failure):
                self._hear_of(item)

    def _look_for_hung_groups(self) -> None:
        actors = self.config.actors
        for actor in self.actors:
            life, allowed = actor.life, actors.step_timeout_seconds
            making, since = life.making, life.waiting_since
            if making:
                allowed *= STARTING_TIMEOUTS
            if since is None or time.monotonic() - since <= allowed:
                continue
            if not life.leave(since):
                continue  # it has answered in the meantime
            silent = f"has not answered for {allowed:g} s (actors.step_timeout_seconds)"
            if making or life.restarts >= actors.max_restarts:
                raise ActorError(
                    f"environment group {actor.index} of {self.config.env.name} {silent}"
                )
            actor.replace_thread(EnvError(silent))
