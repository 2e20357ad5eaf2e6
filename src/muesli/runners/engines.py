"""Both runners behind one small interface, so that logging, measuring and saving are written once.

An engine holds the state of one run (or, inside JAX, of several seeds of it) and advances it by one
call of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from muesli.config import ConfigError
from muesli.envs.base import slot_seeds
from muesli.replay import truncate
from muesli.runners.anakin import Anakin, FinishedEpisodes, make_anakin
from muesli.runners.memory import check_memory, compiled_bytes
from muesli.runners.numbers import Numbers, with_numbers
from muesli.runners.parts import Parts
from muesli.runners.sebulba import Chunk, Sebulba, SebulbaState, mean_metrics
from muesli.types import AgentState, PyTree, RunState

Episodes = list[dict[str, Any]]


class Advance(NamedTuple):
    """What one call brought, for each seed. metrics: numbers by name; episodes: those that ended,
    as rows of ``episodes.jsonl``.
    """

    metrics: list[dict[str, Any]]
    episodes: list[Episodes]


class Engine(Protocol):
    """One run under way.

    start(parameters) begins afresh, from new parameters or another run's AgentState, fills the ring
    and returns the episodes of that; advance() is one call; agent(k) is seed k's AgentState;
    updates() counts those made so far;
    snapshot(k) is what a checkpoint holds, shaped like template(); restore(snapshot) goes on from
    one and returns a remark for the user, or None.
    """

    def start(self, parameters: AgentState | None) -> list[Episodes]: ...
    def advance(self) -> Advance: ...
    def agent(self, k: int) -> AgentState: ...
    def updates(self) -> int: ...
    def snapshot(self, k: int) -> PyTree: ...
    def template(self) -> PyTree: ...
    def restore(self, snapshot: PyTree) -> str | None: ...
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
    return state._replace(online=source.online, prior=source.prior)


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
        per_call = parts.schedule.per_call

        def anakin(own: Numbers) -> Anakin:
            return make_anakin(with_numbers(parts, own))

        def compiled(function: Callable[..., Any], donate: bool = True) -> Callable[..., Any]:
            mapped = _over_runs(function) if len(seeds) > 1 else function
            program = jax.jit(mapped, donate_argnums=(1,) if donate else ())
            return lambda *arguments: program(dict(numbers or {}), *arguments)

        self._init = compiled(lambda own, key: anakin(own).init(key), donate=False)
        self._warm_up = compiled(lambda own, state: anakin(own).warm_up(state))
        self._iterate = compiled(lambda own, state: anakin(own).iterate(state, per_call))

    def start(self, parameters: AgentState | None) -> list[Episodes]:
        keys = jnp.stack([jax.random.key(seed) for seed in self.seeds])
        self.state: RunState = self._init(keys if len(self.seeds) > 1 else keys[0])
        if parameters is not None:
            place = lambda s: with_parameters(s, parameters)  # noqa: E731
            agent = (
                jax.vmap(place)(self.state.agent)
                if len(self.seeds) > 1
                else place(self.state.agent)
            )
            self.state = self.state._replace(agent=agent)
        episodes: list[Episodes] = [[] for _ in self.seeds]
        for _ in range(self.parts.schedule.warm_up):
            self.state, finished = self._warm_up(self.state)
            rows = self._rows(jax.tree.map(lambda x: x[..., None, :, :], finished))
            episodes = [a + b for a, b in zip(episodes, rows, strict=True)]
        return episodes

    def advance(self) -> Advance:
        self.state, metrics, finished = self._iterate(self.state)
        metrics = jax.device_get(metrics)
        several = len(self.seeds) > 1
        each = [
            {name: value[k] if several else value for name, value in metrics.items()}
            for k in range(len(self.seeds))
        ]
        return Advance(each, self._rows(finished))

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
        return self._one(self.state.agent, k)

    def updates(self) -> int:
        return int(np.asarray(self.state.agent.step).flat[0])

    def snapshot(self, k: int) -> RunState:
        state = self._one(self.state, k)
        schedule = self.parts.schedule
        complete = self.iterations == schedule.warm_up + schedule.calls * schedule.per_call
        # A run that is over replays nothing more; one that is not resumes to the bit.
        drop = complete and not self.parts.config.log.save_replay
        return state._replace(replay=None) if drop else state

    def template(self) -> RunState:
        return jax.eval_shape(self._init, jax.random.key(0))

    def restore(self, snapshot: RunState) -> None:
        self.state, self.iterations = snapshot, int(snapshot.iteration)

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
        check_memory(self.sebulba)

    def _prepare(self, env_seed: int | None = None) -> None:
        self.sebulba.prepare(env_seed)
        plan = check_memory(self.sebulba, compiled_bytes(self.sebulba.learn_slice))
        if jax.default_backend() != "cpu":
            print(plan.describe(), flush=True)  # noqa: T201

    def start(self, parameters: AgentState | None) -> list[Episodes]:
        self._prepare()
        state = jax.jit(self.sebulba.init)(self.sebulba.key)
        if parameters is not None:
            state = state._replace(agent=with_parameters(state.agent, parameters))
        self.sebulba.start(state)
        return [self._fill()]

    def _fill(self) -> Episodes:
        chunks: list[Chunk] = []
        for _ in range(self.parts.schedule.warm_up):
            chunks += self.sebulba.collect_iteration()
        return [row for chunk in chunks for row in chunk.episodes]

    def advance(self) -> Advance:
        metrics, chunks, waited = [], [], 0.0
        for _ in range(self.parts.schedule.per_call):
            rows, taken, seconds = self.sebulba.train_iteration()
            metrics += rows
            chunks += taken
            waited += seconds
        row: dict[str, Any] = mean_metrics(metrics)
        steps = len(chunks) * self.parts.config.batch.sequence_length
        row["learner_waited_seconds"] = waited
        row["env_step_seconds"] = sum(c.env_seconds for c in chunks) / steps
        row["act_seconds"] = sum(c.act_seconds for c in chunks) / steps
        return Advance([row], [[e for chunk in chunks for e in chunk.episodes]])

    def agent(self, k: int) -> AgentState:
        return self.sebulba.state.agent

    def updates(self) -> int:
        return self.sebulba.published.update

    def snapshot(self, k: int) -> SebulbaState:
        state = self.sebulba.state
        return state if self.parts.config.log.save_replay else state._replace(replay=None)

    def template(self) -> SebulbaState:
        state = jax.eval_shape(self.sebulba.init, self.sebulba.key)
        return state if self.parts.config.log.save_replay else state._replace(replay=None)

    def restore(self, snapshot: SebulbaState) -> str:
        # Other episodes than those the run began with.
        step = int(snapshot.agent.step)
        self._prepare(int(slot_seeds(range(step, step + 1), self.seed)[0]))
        remark = "episodes under way were not saved and begin anew"
        if snapshot.replay is not None:
            self.sebulba.start(snapshot._replace(replay=truncate(snapshot.replay)))
            return remark
        ring = jax.jit(lambda key: self.sebulba.init(key).replay)(self.sebulba.key)
        self.sebulba.start(snapshot._replace(replay=ring))
        if ring is not None:
            self._fill()
            remark += "; the replay was not saved and fills anew"
        return remark

    def close(self) -> None:
        self.sebulba.close()
