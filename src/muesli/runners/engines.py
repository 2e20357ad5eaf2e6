"""Both runners behind one small interface, so that logging, measuring and saving are written once.

An engine holds the state of one run (or, inside JAX, of several seeds of it) and advances it by one
call of the schedule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from muesli.checkpoint import RingView
from muesli.config import ConfigError
from muesli.envs.base import slot_seeds
from muesli.runners.actors import Arrays, Chunk
from muesli.runners.anakin import Anakin, FinishedEpisodes, Some, make_anakin
from muesli.runners.faults import ActorError, NotFiniteError
from muesli.runners.memory import check_memory, compiled_bytes
from muesli.runners.mesh import EVERYWHERE, dealt, lay_out, one_copy, own_share, place, replicated
from muesli.runners.numbers import Numbers, with_numbers
from muesli.runners.parts import Parts
from muesli.runners.ringview import RingBuilder, ring_view
from muesli.runners.sebulba import Sebulba, SebulbaState
from muesli.types import AgentState, PyTree, RunState

Episodes = list[dict[str, Any]]
Stop = Callable[[], bool]

# Inside JAX, a run looks for signals about this often.
_PIECE_SECONDS = 0.5
PENDING = "pending/"
"""How the names of extras begin that hold the metrics of a call under way."""


def _never() -> bool:
    return False


class Advance(NamedTuple):
    """What was done since the last one, for each seed. metrics: numbers by name, or None where the
    call was left unfinished; episodes: those that ended, as rows of ``episodes.jsonl``; iterations:
    how many.
    """

    metrics: list[dict[str, Any]] | None
    episodes: list[Episodes]
    iterations: int


class Snapshot(NamedTuple):
    """What a checkpoint holds. tree: shaped like ``template()``, the ring aside; extras and
    own_extras: arrays by name, of shapes that only the run knows; ring: the replay ring, or None.
    Of several processes each has a ring and own_extras, and its share of what the tree deals out.
    """

    tree: PyTree
    extras: Arrays
    own_extras: Arrays
    ring: RingView | None

    def common(self) -> PyTree:
        """What every process has alike, with None for the rest."""
        return _keep(self.tree, lambda name: name in EVERYWHERE)

    def own(self) -> PyTree:
        """What this process has alone, as NumPy arrays, with None for the rest."""
        return own_share(_keep(self.tree, lambda name: name not in EVERYWHERE))


def _keep(state: Any, wanted: Callable[[str], bool]) -> Any:
    return state._replace(**{name: None for name in state._fields if not wanted(name)})


def parted(template: Any, processes: int) -> tuple[Any, Any]:
    """The shapes of ``Snapshot.common`` and of one process's ``Snapshot.own``."""

    def share(x: Any) -> Any:
        return jax.ShapeDtypeStruct((x.shape[0] // processes, *x.shape[1:]), x.dtype)

    own = _keep(template, lambda name: name not in EVERYWHERE)
    return _keep(template, lambda name: name in EVERYWHERE), jax.tree.map(share, own)


def put_together(common: Any, own: Sequence[Any]) -> Any:
    """A whole tree from what all processes had alike and what each had alone."""
    joined = jax.tree.map(lambda *xs: jnp.concatenate(xs), *own)
    fields = {name: getattr(joined, name) for name in common._fields if name not in EVERYWHERE}
    return common._replace(**fields)


class Engine(Protocol):
    """One run under way.

    start(parameters) begins afresh, from new parameters or another run's AgentState, fills the ring
    and returns the episodes of that. advance(stop) is one call of the schedule, or the rest of one;
    it looks at ``stop`` often and leaves the call unfinished if it must; end_call() makes the next
    advance another call. agent(k) is seed k's AgentState; updates() counts those made so far;
    counters(k) are numbers of the whole run for each row.
    snapshot(k) is what a checkpoint holds, its tree shaped like template(); new_ring(tree) takes
    in the ring that belongs to it, or is None; restore(tree, extras, ring) goes on from them and
    returns remarks for the user.
    """

    def start(self, parameters: AgentState | None) -> list[Episodes]: ...
    def advance(self, stop: Stop = ...) -> Advance: ...
    def end_call(self) -> None: ...
    def agent(self, k: int) -> AgentState: ...
    def updates(self) -> int: ...
    def counters(self, k: int) -> dict[str, Any]: ...
    def snapshot(self, k: int) -> Snapshot: ...
    def template(self) -> PyTree: ...
    def new_ring(self, tree: PyTree) -> RingBuilder | None: ...
    def restore(self, tree: PyTree, extras: Arrays, ring: PyTree) -> list[str]: ...
    def close(self) -> None: ...


def make_engine(parts: Parts, seeds: Sequence[int], numbers: Numbers | None = None) -> Engine:
    """The engine for a run's environment and configuration; ``numbers`` are each seed's own."""
    if not parts.sebulba:
        return AnakinEngine(parts, seeds, numbers)
    if len(seeds) > 1:
        raise ConfigError(
            f"seeds: several at once need an environment inside JAX, which {parts.config.env.name} "
            "is not under this runner; train them one after another with --seed"
        )
    return SebulbaEngine(parts, seeds[0])


def with_parameters(state: AgentState, source: AgentState) -> AgentState:
    """A fresh agent with another run's parameters; raises a ConfigError where they do not fit."""
    if jax.tree.map(jnp.shape, state.online) != jax.tree.map(jnp.shape, source.online):
        raise ConfigError("init_from: that run's network has other parameters than this one's")
    return state._replace(online=source.online, prior=source.prior, normaliser=source.normaliser)


def _over_runs(function: Callable[..., Any]) -> Callable[..., Any]:
    """function(numbers, state, *shared) for every run of a program: side by side, or in turn on
    CPUs, where small batched products and scattered writes are slower than plain ones.
    """

    def mapped(numbers: Numbers, states: PyTree, *shared: Any) -> PyTree:
        each = lambda run: function(*run, *shared)  # noqa: E731
        over = jax.lax.map if jax.default_backend() == "cpu" else lambda f, x: jax.vmap(f)(x)
        return over(each, (numbers, states))

    return mapped


class AnakinEngine:
    """Everything inside one jitted function, mapped over seeds and their numbers if there are
    several.
    """

    def __init__(self, parts: Parts, seeds: Sequence[int], numbers: Numbers | None = None):
        self.parts, self.seeds, self.iterations = parts, seeds, 0
        # Metrics of the call under way, [iterations] (with several seeds: [seeds, iterations]).
        self._pending: Arrays = {}
        self._piece = 1
        per_call, mesh = parts.schedule.per_call, parts.topology.mesh
        seed_axis = int(len(seeds) > 1)
        cut, whole = dealt(mesh, seed_axis), replicated(mesh)
        if seed_axis and parts.topology.peers.size > 1:
            raise ConfigError("seeds: several at once are for a run of one process")

        def anakin(own: Numbers) -> Anakin:
            return make_anakin(with_numbers(parts, own))

        def over(function: Callable[..., Any]) -> Callable[..., Any]:
            return _over_runs(function) if len(seeds) > 1 else function

        def compiled(function: Callable[..., Any], out: PyTree, donate: bool = True) -> Any:
            program = jax.jit(function, donate_argnums=(1,) if donate else (), out_shardings=out)
            return lambda *arguments: program(own_numbers, *arguments)

        # Every process passes its seeds as plain numbers: keys are made inside.
        own_numbers = dict(numbers or {})
        init = over(lambda own, seed: anakin(own).init(jax.random.key(seed)))
        warm_up = over(lambda own, state: anakin(own).warm_up(state))
        iterate = over(lambda own, state, n: anakin(own).iterate_some(state, n, per_call))
        state = jax.eval_shape(init, own_numbers, self._seeds())
        self._layout = lay_out(state, mesh, seed_axis)
        brought = Some(whole, whole, whole, cut)  # type: ignore[arg-type]
        self._init = compiled(init, self._layout, donate=False)
        self._warm_up = compiled(warm_up, (self._layout, whole))
        self._iterate = compiled(iterate, (self._layout, brought))

    def _seeds(self) -> np.ndarray:
        seeds = np.asarray(self.seeds, np.uint32)
        return seeds if len(seeds) > 1 else seeds[0]

    def start(self, parameters: AgentState | None) -> list[Episodes]:
        self.state: RunState = self._init(self._seeds())
        if parameters is not None:
            begin = lambda s: with_parameters(s, parameters)  # noqa: E731
            agent = (
                jax.vmap(begin)(self.state.agent)
                if len(self.seeds) > 1
                else begin(self.state.agent)
            )
            self.state = place(self.state._replace(agent=agent), self._layout)
        episodes: list[Episodes] = [[] for _ in self.seeds]
        for _ in range(self.parts.schedule.warm_up):
            self.state, finished = self._warm_up(self.state)
            rows = self._rows(jax.tree.map(lambda x: x[..., None, :, :], finished))
            episodes = [a + b for a, b in zip(episodes, rows, strict=True)]
        return episodes

    def advance(self, stop: Stop = _never) -> Advance:
        episodes: list[Episodes] = [[] for _ in self.seeds]
        per_call, before = self.parts.schedule.per_call, self.iterations
        while (left := per_call - self._done()) > 0 and not stop():
            # Process 0 says how many, since clocks differ.
            n = min(self.parts.topology.peers.first(self._piece), left)
            began = time.monotonic()
            self.state, some = self._iterate(self.state, n)
            fetched = jax.device_get(some._replace(skipped=None))
            seconds = time.monotonic() - began
            self._piece = max(1, min(2 * n, int(n * _PIECE_SECONDS / max(seconds, 1e-9))))
            self._pending = {
                name: np.concatenate([self._pending.get(name, x[..., :0]), x[..., :n]], axis=-1)
                for name, x in fetched.metrics.items()
            }
            rows = self._rows(self._first(fetched.episodes, n))
            episodes = [a + b for a, b in zip(episodes, rows, strict=True)]
            self._look_for_faults(fetched.strange, some.skipped)
        if self._done() < per_call:
            return Advance(None, episodes, self.iterations - before)
        means = {name: np.mean(x, axis=-1) for name, x in self._pending.items()}
        several = len(self.seeds) > 1
        each = [
            {name: value[k] if several else value for name, value in means.items()}
            for k in range(len(self.seeds))
        ]
        return Advance(each, episodes, self.iterations - before)

    def _done(self) -> int:
        """Iterations of the call under way."""
        return next((x.shape[-1] for x in self._pending.values()), 0)

    def _first(self, finished: FinishedEpisodes, n: int) -> FinishedEpisodes:
        """The first ``n`` of [(seeds,) most, T, E]."""
        several = len(self.seeds) > 1
        return jax.tree.map(lambda x: x[:, :n] if several else x[:n], finished)

    def _look_for_faults(self, strange: np.ndarray, skipped: PyTree) -> None:
        if strange.any():
            raise ActorError(
                f"{self.parts.config.env.name} gave an observation or a reward that is not finite"
            )
        in_a_row = np.atleast_1d(np.asarray(self.state.agent.faults.in_a_row))
        limit = self.parts.config.optimiser.max_skipped_updates
        if (in_a_row >= limit).any():
            k = int(np.argmax(in_a_row >= limit))
            batch = lambda: own_share(self._one(skipped, k))  # noqa: E731
            raise NotFiniteError(limit, self.updates(), batch, k)

    def end_call(self) -> None:
        self._pending = {}

    def _rows(self, finished: FinishedEpisodes) -> list[Episodes]:
        """The episodes that ended in a call, in order. finished: [(seeds,) n, T, E]."""
        finished = jax.device_get(finished)
        num_envs = self.parts.config.env.num_envs
        before = self.iterations * self.parts.schedule.steps_per_iteration
        episodes = []
        for k in range(len(self.seeds)):
            ended, total, length = self._one(finished, k)
            where = np.argwhere(ended)
            steps = where[:, 0] * ended.shape[1] + where[:, 1] + 1
            episodes.append(
                [
                    {
                        "env_steps": int(before + s * num_envs),
                        "return": float(r),
                        "length": int(n),
                        "slot": int(e),
                    }
                    for s, e, r, n in zip(
                        steps, where[:, 2], total[ended], length[ended], strict=True
                    )
                ]
            )
        self.iterations += ended.shape[0]
        return episodes

    def agent(self, k: int) -> AgentState:
        return self._one(one_copy(self.state.agent), k)

    def updates(self) -> int:
        return int(np.asarray(self.state.agent.step).flat[0])

    def counters(self, k: int) -> dict[str, Any]:
        return {"updates_skipped": int(self._one(self.state.agent.faults.skipped, k))}

    def snapshot(self, k: int) -> Snapshot:
        several, replay = len(self.seeds) > 1, self.state.replay
        schedule = self.parts.schedule
        complete = self.iterations == schedule.warm_up + schedule.calls * schedule.per_call
        # A run that is over replays nothing more; one that is not resumes to the bit.
        if complete and not self.parts.config.log.save_replay:
            replay = None
        ring = None if replay is None else ring_view(replay, k if several else None)
        state = self.state._replace(replay=None if replay is None else replay.written)
        pending = {PENDING + n: x[k] if several else x for n, x in self._pending.items()}
        return Snapshot(self._one(state, k), pending, {}, ring)

    def template(self) -> RunState:
        return without_ring(jax.eval_shape(self._init, self._seeds()))

    def new_ring(self, tree: RunState) -> RingBuilder | None:
        if tree.replay is None:
            return None
        like = jax.eval_shape(self._init, self._seeds()).replay
        return RingBuilder(like, tree.replay, self.parts.topology)

    def restore(self, tree: RunState, extras: Arrays, ring: PyTree) -> list[str]:
        layout = self._layout._replace(replay=None)
        self.state = place(tree._replace(replay=None), layout)._replace(replay=ring)
        self.iterations = int(tree.iteration)
        self._pending = pending_in(extras)
        return []

    def close(self) -> None:
        pass

    def _one(self, tree: PyTree, k: int) -> PyTree:
        """Seed k's part of a tree that carries a seed axis when there are several."""
        return jax.tree.map(lambda x: x[k], tree) if len(self.seeds) > 1 else tree


class SebulbaEngine:
    """Actor threads beside a learner, for one seed."""

    def __init__(self, parts: Parts, seed: int):
        self.parts, self.seed = parts, seed
        self.sebulba = Sebulba(parts, seed)
        self._pending: Arrays = {}
        check_memory(self.sebulba)

    def _prepare(
        self, env_seed: int | None = None, saved: list[Arrays | None] | None = None
    ) -> None:
        self.sebulba.prepare(env_seed, saved)
        plan = check_memory(self.sebulba, compiled_bytes(self.sebulba.learn_slice))
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

    def advance(self, stop: Stop = _never) -> Advance:
        chunks, waited = list[Chunk](), 0.0
        schedule = self.parts.schedule
        per_call = schedule.per_call * schedule.updates_per_iteration
        while self._done() < per_call and not stop():
            rows, taken, seconds = self.sebulba.train_iteration()
            fetched: list[dict[str, Any]] = jax.device_get(rows)
            self._pending = {
                name: np.concatenate(
                    [self._pending.get(name, np.zeros(0, np.float32)), [r[name] for r in fetched]]
                ).astype(np.float32)
                for name in fetched[0]
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
        return self.sebulba.published.update

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
            if actor.anew_because is not None:
                remarks.append(
                    f"the episodes of environment group {actor.index} begin anew: "
                    f"{actor.anew_because}"
                )
        if fills:
            remarks.append("the replay was not saved and fills anew")
            self._fill()
        return remarks

    def close(self) -> None:
        self.sebulba.close()


def without_ring(state: Any) -> Any:
    """A run's state, or its shapes, with no more of the ring than how much was written to it."""
    return state._replace(replay=None if state.replay is None else state.replay.written)


def pending_in(extras: Arrays) -> Arrays:
    """The metrics of a call that a checkpoint was saved in the middle of."""
    start = len(PENDING)
    return {name[start:]: x for name, x in extras.items() if name.startswith(PENDING)}
