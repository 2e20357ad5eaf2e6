"""The engine of runs whose actors stand outside JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from muesli.envs.base import slot_seeds
from muesli.runners.actors import Arrays, Chunk
from muesli.runners.engines.base import (
    PENDING,
    Advance,
    Episodes,
    Snapshot,
    Stop,
    never,
    pending_in,
    with_parameters,
    without_ring,
)
from muesli.runners.memory import check_memory, compiled_bytes, plan_beside
from muesli.runners.mesh import one_copy, place
from muesli.runners.parts import Parts
from muesli.runners.ringview import RingBuilder, ring_view
from muesli.runners.sebulba import Sebulba, SebulbaState
from muesli.types import AgentState, PyTree


class SebulbaEngine:
    """Actor threads beside a learner, for one seed."""

    def __init__(self, parts: Parts, seed: int):
        self.parts, self.seed = parts, seed
        self.sebulba = Sebulba(parts, seed)
        self._pending: Arrays = {}
        check_memory(plan_beside(self.sebulba), parts.config)

    def _prepare(
        self, env_seed: int | None = None, saved: list[Arrays | None] | None = None
    ) -> None:
        self.sebulba.prepare(env_seed, saved)
        plan = plan_beside(self.sebulba, compiled_bytes(self.sebulba.learn_slice))
        check_memory(plan, self.parts.config)
        if jax.default_backend() != "cpu" and self.parts.topology.peers.rank == 0:
            print(plan.describe(), flush=True)  # noqa: T201

    def start(self, parameters: AgentState | None) -> list[Episodes]:
        self._prepare()
        state = self.sebulba.fresh_state()
        if parameters is not None:
            state = state._replace(agent=with_parameters(state.agent, parameters))
            state = place(state, self.sebulba.layout)
        self.sebulba.start(state)
        return [self._fill()]

    def _fill(self) -> Episodes:
        chunks: list[Chunk] = []
        for _ in range(self.parts.schedule.warm_up):
            chunks += self.sebulba.collect_iteration()
        return self._episodes(chunks)

    def _episodes(self, chunks: Sequence[Chunk]) -> Episodes:
        """Those of every process, in the order in which they ended."""
        own = [row for chunk in chunks for row in chunk.episodes]
        everyone = self.parts.topology.peers.gather(own)
        if len(everyone) == 1:
            return own
        return sorted((row for rows in everyone for row in rows), key=lambda row: row["env_steps"])

    def advance(self, stop: Stop = never) -> Advance:
        chunks, waited = list[Chunk](), 0.0
        schedule = self.parts.schedule
        per_call = schedule.per_call * schedule.updates_per_iteration
        while self._done() < per_call and not stop():
            rows, taken, seconds = self.sebulba.train_iteration()
            self._pending = {
                name: np.concatenate(
                    [self._pending.get(name, np.zeros(0, np.float32)), [row[name] for row in rows]]
                ).astype(np.float32)
                for name in rows[0]
            }
            chunks += taken
            waited += seconds
        episodes = [self._episodes(chunks)]
        iterations = len(chunks) // self.sebulba.groups
        if self._done() < per_call:
            return Advance(None, episodes, iterations)
        row: dict[str, Any] = {name: float(np.mean(x)) for name, x in self._pending.items()}
        if chunks:
            steps = len(chunks) * self.parts.config.batch.sequence_length
            row["learner_waited_seconds"] = waited
            row["env_step_seconds"] = sum(c.env_seconds for c in chunks) / steps
            row["act_seconds"] = sum(c.act_seconds for c in chunks) / steps
        return Advance([row], episodes, iterations)

    def _done(self) -> int:
        """Updates of the call under way."""
        return next((len(x) for x in self._pending.values()), 0)

    def end_call(self) -> None:
        self._pending = {}

    def agent(self, k: int) -> AgentState:
        return one_copy(self.sebulba.state.agent)

    def updates(self) -> int:
        return self.sebulba.updates

    def counters(self, k: int) -> dict[str, Any]:
        skipped = int(self.sebulba.state.agent.faults.skipped)
        restarts = self.parts.topology.peers.gather(self.sebulba.restarts)
        return {"updates_skipped": skipped, "env_restarts": sum(restarts)}

    def snapshot(self, k: int) -> Snapshot:
        state, config = self.sebulba.state, self.parts.config
        pending = {PENDING + name: x for name, x in self._pending.items()}
        devices = len(self.parts.topology.own)
        own = {
            "restarts": np.array(self.sebulba.restarts, np.int64),
            "dealt_to": np.array(devices, np.int64),
        }
        replay = state.replay if config.log.save_replay else None
        whole = config.log.save_replay or state.replay is None
        if config.actors.lockstep and whole and self.sebulba.between_iterations:
            groups = [actor.save() for actor in self.sebulba.actors]
            for index, group in enumerate(groups):
                own |= {f"group-{index}/{name}": x for name, x in (group or {}).items()}
        ring = None if replay is None else ring_view(replay)
        tree = state._replace(replay=None if replay is None else replay.written)
        return Snapshot(tree, pending, own, ring)

    def template(self) -> SebulbaState:
        state = without_ring(self.sebulba.state_shapes())
        return state if self.parts.config.log.save_replay else state._replace(replay=None)

    def new_ring(self, tree: SebulbaState) -> RingBuilder | None:
        if tree.replay is None:
            return None
        like, share = self.sebulba.state_shapes().replay, self.sebulba.share
        return RingBuilder(like, tree.replay, self.parts.topology, share)

    def restore(self, tree: SebulbaState, extras: Arrays, ring: PyTree) -> list[str]:
        groups: list[Arrays | None] = []
        # On another number of devices an environment has another slot of the ring.
        same_slots = int(extras.get("dealt_to", 0)) == len(self.parts.topology.own)
        for index in range(self.sebulba.groups):
            start = f"group-{index}/"
            own = {n[len(start) :]: x for n, x in extras.items() if n.startswith(start)}
            groups.append(own if own and same_slots else None)
        # For groups that begin anew: other episodes than those the run began with.
        step = int(tree.agent.step)
        self._prepare(int(slot_seeds(range(step, step + 1), self.seed)[0]), groups)
        self._pending, self.sebulba.restarts = pending_in(extras), int(extras.get("restarts", 0))
        fills = ring is None and self.sebulba.state_shapes().replay is not None
        if fills:
            ring = self.sebulba.fresh_state().replay
        layout = self.sebulba.layout._replace(replay=None)
        state = place(tree._replace(replay=None), layout)._replace(replay=ring)
        self.sebulba.start(state, True)
        remarks = []
        if not all(groups):
            remarks.append("episodes under way were not saved and begin anew")
        for actor in self.sebulba.actors:
            if actor.life.anew_because is not None:
                remarks.append(
                    f"the episodes of environment group {actor.index} begin anew: "
                    f"{actor.life.anew_because}"
                )
        if fills:
            remarks.append("the replay was not saved and fills anew")
            self._fill()
        return remarks

    def close(self) -> None:
        self.sebulba.close()
