"""The engine of runs inside JAX, of one seed or of several at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from muesli.config import ConfigError
from muesli.runners.actors import Arrays
from muesli.runners.anakin import Anakin, FinishedEpisodes, Some, make_anakin
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
from muesli.runners.faults import ActorError, NotFiniteError
from muesli.runners.memory import check_memory, plan_inside
from muesli.runners.mesh import dealt, lay_out, one_copy, own_share, place, replicated
from muesli.runners.numbers import Numbers, with_numbers
from muesli.runners.parts import Parts
from muesli.runners.ringview import RingBuilder, ring_view
from muesli.types import AgentState, PyTree, RunState

# A run looks for signals about this often.
_PIECE_SECONDS = 0.5


def over_runs(function: Callable[..., Any]) -> Callable[..., Any]:
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
            return over_runs(function) if len(seeds) > 1 else function

        def compiled(function: Callable[..., Any], out: PyTree, donate: bool = True) -> Any:
            program = jax.jit(function, donate_argnums=(1,) if donate else (), out_shardings=out)
            return lambda *arguments: program(own_numbers, *arguments)

        # Every process passes its seeds as plain numbers: keys are made inside.
        own_numbers = dict(numbers or {})
        init = over(lambda own, seed: anakin(own).init(jax.random.key(seed)))
        warm_up = over(lambda own, state: anakin(own).warm_up(state))
        iterate = over(lambda own, state, n: anakin(own).iterate_some(state, n, per_call))
        state = jax.eval_shape(init, own_numbers, self._seeds())
        check_memory(plan_inside(state, mesh.size), parts.config, len(seeds))
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

    def advance(self, stop: Stop = never) -> Advance:
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
