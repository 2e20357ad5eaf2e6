"""A whole run: train it, measure it, save it, and pick it up again."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from muesli import checkpoint, keys
from muesli.agent import make_act
from muesli.config import Config, ConfigError, validate
from muesli.envs.base import JaxEnv
from muesli.metrics import RunLog
from muesli.runners.engines import Engine, Episodes, make_engine
from muesli.runners.evaluate import Evaluation, make_evaluate
from muesli.runners.host import ActorError, evaluate_on_host
from muesli.runners.numbers import Numbers, families, varying, with_numbers
from muesli.runners.parts import Parts, build
from muesli.runners.rundir import RunDirectory, read_config
from muesli.types import AgentState, PRNGKey

Callback = Callable[[Mapping[str, Any]], None]

# Episode lengths and returns shown in the metrics are means over this many of the newest episodes.
_WINDOW = 100
# Evaluations draw from a key of their own, the same for every seed of a run.
_EVAL_SEED = 2**31 - 4


class Result(NamedTuple):
    """How a run ended. run_dirs: one per seed; evaluations: the last one of each, or empty without
    any; returns: the mean of each seed's newest training episodes, or None; stopped_by: the signal
    that ended it early, or None.
    """

    run_dirs: list[Path]
    evaluations: list[dict[str, Any]]
    returns: list[float | None]
    stopped_by: int | None


def train(
    config: Config,
    run_dir: str | Path | Sequence[Path],
    callbacks: Sequence[Callback] = (),
    init_from: str | Path | None = None,
) -> Result:
    """Trains ``config`` in a fresh ``run_dir``. With several directories, one seed in each.

    The seeds are ``config.seed``, ``config.seed + 1``, … and train together, as one program.
    Each callback is handed every row of metrics (of the first seed) as it is written.
    """
    paths = [Path(run_dir)] if isinstance(run_dir, str | Path) else [Path(p) for p in run_dir]
    configs = [dataclasses.replace(config, seed=config.seed + k) for k in range(len(paths))]
    return train_many(configs, paths, callbacks, init_from)


def train_many(
    configs: Sequence[Config],
    run_dirs: Sequence[Path],
    callbacks: Sequence[Callback] = (),
    init_from: str | Path | None = None,
) -> Result:
    """Trains runs that differ in their seeds and numbers only (see ``numbers``), as one program."""
    if len(families(configs)) != 1:
        raise ConfigError("configs: only seeds and traceable numbers may differ within a program")
    for config in configs[1:]:
        validate(config)
    parts, numbers = build(configs[0]), varying(configs)
    engine = make_engine(parts, [c.seed for c in configs], numbers)
    directories = [RunDirectory.create(p, c) for p, c in zip(run_dirs, configs, strict=True)]
    try:
        run = _Run(parts, engine, directories, callbacks, numbers)
        try:
            run.start(init_from)
        except BaseException:
            for log in run.logs:
                log.close()
            for directory in directories:
                directory.forget()
            raise
        return run.finish()
    finally:
        engine.close()
        for directory in directories:
            directory.release()


def resume(run_dir: str | Path, callbacks: Sequence[Callback] = ()) -> Result:
    """Continues a run from its newest good checkpoint. A finished run is left as it is."""
    path = Path(run_dir)
    config = read_config(path)
    parts = build(config)
    engine = make_engine(parts, [config.seed])
    directory = RunDirectory.open(path)
    try:
        run = _Run(parts, engine, [directory], callbacks)
        run.restore()
        return run.finish()
    finally:
        engine.close()
        directory.release()


class _Run:
    """One run under way: its engine, its logs, and the loop over calls."""

    def __init__(
        self,
        parts: Parts,
        engine: Engine,
        directories: Sequence[RunDirectory],
        callbacks: Sequence[Callback],
        numbers: Numbers | None = None,
    ):
        self.parts, self.engine, self.directories = parts, engine, directories
        self.callbacks = callbacks
        self.seeds = len(directories)
        self.calls_done = 0
        self.best = [-np.inf] * self.seeds
        self.recent: list[list[tuple[float, int]]] = [[] for _ in directories]
        self.evaluations: list[dict[str, Any]] = [{} for _ in directories]
        self.logs: list[RunLog] = []
        self.stopped_by: int | None = None
        self._evaluate = _evaluator(parts, numbers or {})

    # --- starting ----------------------------------------------------------------------------

    def start(self, init_from: str | Path | None) -> None:
        """A fresh run, from new parameters or another run's."""
        parameters = None
        if init_from is not None:
            parameters = load_agent_state(Path(init_from), self.parts)
        self.logs = [RunLog(d.path) for d in self.directories]
        self._record_episodes(self.engine.start(parameters))

    def restore(self) -> None:
        """The newest good checkpoint of the (one) run directory."""
        directory = self.directories[0]
        say = lambda line: print(line, flush=True)  # noqa: E731, T201
        snapshot, meta, _ = checkpoint.load_newest(
            directory.checkpoints, self.engine.template(), say
        )
        remark = self.engine.restore(snapshot)
        if remark is not None:
            say(f"{directory.path}: {remark}")
        self.calls_done = int(meta["calls_done"])
        self.best = [float(meta["best"])]
        self.recent = [[(float(r), int(n)) for r, n in meta["recent"]]]
        self.evaluations = [dict(meta["evaluation"])]
        self.logs = [RunLog(directory.path, meta["position"])]

    # --- the loop ----------------------------------------------------------------------------

    def finish(self) -> Result:
        """Calls the engine until the run is complete or a signal asks it to stop."""
        schedule = self.parts.schedule
        with _Signals() as signals:
            try:
                while self.calls_done < schedule.calls and signals.received is None:
                    self._one_call()
                    done = self.calls_done == schedule.calls
                    if done or self.calls_done % schedule.checkpoint_every == 0:
                        self._save()
                if signals.received is not None and self.calls_done < schedule.calls:
                    self.stopped_by = signals.received
                    self._save()
            except ActorError as error:
                # The learner is as good as it was: what it has learnt is kept.
                self._save()
                error.add_note("what was learnt until then is saved")
                raise
            finally:
                for log in self.logs:
                    log.close()
        returns = [float(np.mean([r for r, _ in rs])) if rs else None for rs in self.recent]
        paths = [d.path for d in self.directories]
        return Result(paths, self.evaluations, returns, self.stopped_by)

    def _one_call(self) -> None:
        schedule = self.parts.schedule
        began = time.monotonic()
        progress = self.engine.advance()
        elapsed = time.monotonic() - began
        steps_before = schedule.env_steps(self.calls_done)
        self.calls_done += 1
        steps = schedule.env_steps(self.calls_done)
        self._record_episodes(progress.episodes)
        due = self.calls_done % schedule.eval_every == 0 or self.calls_done == schedule.calls
        due = due and self.parts.config.log.eval_episodes > 0
        evaluations = self._evaluate_now() if due else None
        for k in range(self.seeds):
            row = self._row(k, steps, progress.metrics[k])
            frames = (steps - steps_before) * self.parts.frames_per_step
            row["frames_per_second"] = frames / elapsed
            row["elapsed_seconds"] = elapsed
            if evaluations is not None:
                row |= {f"eval_{name}": value for name, value in evaluations[k].items()}
            self.logs[k].write(row)
            if k == 0:
                for callback in self.callbacks:
                    callback(row)

    def _row(self, k: int, steps: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
        batch = self.parts.config.batch
        recent = self.recent[k]
        return {
            "env_steps": steps,
            "env_frames": steps * self.parts.frames_per_step,
            "updates": self.engine.updates(),
            "episode_return_mean": float(np.mean([r for r, _ in recent])) if recent else None,
            "episode_length_mean": float(np.mean([n for _, n in recent])) if recent else None,
            "replay_fraction": 1.0 - batch.online_sequences / batch.batch_sequences,
            **metrics,
        }

    def _record_episodes(self, episodes: list[Episodes]) -> None:
        for k, rows in enumerate(episodes):
            self.logs[k].episodes.write(rows)
            newest = [(row["return"], row["length"]) for row in rows]
            self.recent[k] = (self.recent[k] + newest)[-_WINDOW:]

    def _evaluate_now(self) -> list[dict[str, Any]]:
        """Evaluates every seed; the best result so far is saved as the best agent."""
        for k in range(self.seeds):
            agent = self.engine.agent(k)
            summary = summarise(*self._evaluate(agent, self.calls_done, k))
            self.evaluations[k] = summary
            if summary["return_mean"] > self.best[k]:
                self.best[k] = summary["return_mean"]
                checkpoint.save(
                    self.directories[k].checkpoints,
                    "best",
                    agent,
                    {"evaluation": summary, "calls_done": self.calls_done},
                )
        return self.evaluations

    def _save(self) -> None:
        for k, directory in enumerate(self.directories):
            meta = {
                "calls_done": self.calls_done,
                "complete": self.calls_done == self.parts.schedule.calls,
                "best": self.best[k],
                "recent": self.recent[k],
                "evaluation": self.evaluations[k],
                "position": self.logs[k].position(),
            }
            snapshot = self.engine.snapshot(k)
            name = f"step-{int(np.asarray(snapshot.agent.step))}"
            checkpoint.save(directory.checkpoints, name, snapshot, meta)
            checkpoint.prune(directory.checkpoints, self.parts.config.log.keep_checkpoints)


def _evaluator(parts: Parts, numbers: Numbers) -> Callable[[AgentState, int, int], Evaluation]:
    """evaluate(AgentState, number, seed's index): fresh episodes, inside JAX where the environment
    is.
    """
    episodes = parts.config.log.eval_episodes
    if not isinstance(parts.env, JaxEnv):
        act = make_act(parts.spec, parts.network, parts.config, parts.config.agent.act_with)
        return lambda agent, number, k: evaluate_on_host(
            parts, act, parts.agent.acting(agent), episodes, seed=_EVAL_SEED - number
        )
    env = parts.env

    def play(own: Numbers, agent: AgentState, key: PRNGKey) -> Evaluation:
        mine = with_numbers(parts, own)
        act = make_act(mine.spec, mine.network, mine.config, mine.config.agent.act_with)
        scale = mine.config.env.reward_scale
        run = make_evaluate(env, act, mine.agent.initial_actor, episodes, reward_scale=scale)
        return run(mine.agent.acting(agent), key)

    compiled, run_key = jax.jit(play), jax.random.key(_EVAL_SEED)
    return lambda agent, number, k: jax.device_get(
        compiled(
            {name: values[k] for name, values in numbers.items()},
            agent,
            keys.eval_key(run_key, number),
        )
    )


def summarise(returns: Any, lengths: Any, finished: Any) -> dict[str, Any]:
    """The numbers of one evaluation, as ``muesli eval --json`` prints them."""
    returns = np.asarray(returns, np.float64)
    error = float(returns.std(ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else 0.0
    return {
        "episodes": len(returns),
        "return_mean": float(returns.mean()),
        "return_stderr": error,
        "length_mean": float(np.mean(lengths)),
        "finished_share": float(np.mean(finished)),
    }


def load_agent_state(run_dir: Path, parts: Parts, best: bool = False) -> AgentState:
    """The AgentState of a run: of its newest good checkpoint, or of its best evaluation."""
    directory = run_dir / "checkpoints"
    agent = jax.eval_shape(parts.agent.init, jax.random.key(0))
    if best:
        return checkpoint.load(directory / "best", agent)[0]
    state, _, _ = checkpoint.load_newest(directory, agent, lambda line: None, within=".agent")
    return state


class _Signals:
    """Remembers the first SIGINT or SIGTERM; the second one ends the process at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._receive)
            except ValueError:  # not the main thread: whoever called us handles signals
                break
        return self

    def _receive(self, number: int, frame: Any) -> None:
        del frame
        if self.received is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.received = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
