"""A whole run: train it, measure it, save it, and pick it up again."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from muesli import checkpoint, keys
from muesli.agent import make_act
from muesli.config import Config, ConfigError, validate
from muesli.envs import EnvError, is_own, register
from muesli.envs.base import HostEnvs, JaxEnv
from muesli.envs.check import check_env
from muesli.fields import plain
from muesli.metrics import RunLog
from muesli.runners.engines import Engine, Episodes, Stop, make_engine
from muesli.runners.evaluate import Evaluation, make_evaluate, summarise
from muesli.runners.faults import ActorError, NotFiniteError, TrainingError, dump
from muesli.runners.host import make_evaluate_on_host
from muesli.runners.loading import load_agent_state
from muesli.runners.mesh import Topology
from muesli.runners.numbers import Numbers, families, varying, with_numbers
from muesli.runners.parts import Parts, build
from muesli.runners.rundir import RunDirectory, read_config
from muesli.runners.saving import Saver
from muesli.runners.signals import Signals
from muesli.types import AgentState, PRNGKey

Callback = Callable[[Mapping[str, Any]], None]
OnStart = Callable[[int], None]

# Episode lengths and returns shown in the metrics are means over this many of the newest episodes.
_WINDOW = 100
# A last checkpoint that cannot be written is tried again after these pauses.
_LAST_TRIES_SECONDS = (1.0, 3.0)
# Steps played in a copy of the environment before a run begins.
_TRIAL_STEPS = 20
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
    run_dir: str | Path | Sequence[str | Path],
    callbacks: Sequence[Callback] = (),
    init_from: str | Path | None = None,
    env: Callable[[], Any] | None = None,
    signals: Signals | None = None,
    topology: Topology | None = None,
    on_start: OnStart | None = None,
) -> Result:
    """Trains ``config`` in a fresh ``run_dir``. With several directories, one seed in each.

    ``env`` makes the environment, ours or a Gymnasium one: short for ``ENVS[config.env.name] =
    env``, which who resumes or loads the run in another process does before; a name that means an
    environment already is refused.

    The seeds are ``config.seed``, ``config.seed + 1``, … and train together, as one program.
    Each callback is handed every row of metrics (of the first seed) as it is written; one that
    raises ends the run, which is saved and can be resumed. SIGINT and SIGTERM are looked after
    while it trains; with ``signals``, which the caller has entered, also while it starts.
    ``topology`` says on which devices and with which processes (on one).
    ``on_start`` is handed the step it starts at, once everything was found to fit together.
    """
    paths = [Path(run_dir)] if isinstance(run_dir, str | Path) else [Path(p) for p in run_dir]
    configs = [dataclasses.replace(config, seed=config.seed + k) for k in range(len(paths))]
    if env is not None:
        register(config.env.name, env)
    return train_many(configs, paths, callbacks, init_from, signals, topology, on_start)


def train_many(
    configs: Sequence[Config],
    run_dirs: Sequence[Path],
    callbacks: Sequence[Callback] = (),
    init_from: str | Path | None = None,
    signals: Signals | None = None,
    topology: Topology | None = None,
    on_start: OnStart | None = None,
) -> Result:
    """Trains runs that differ in their seeds and numbers only (see ``numbers``), as one program."""
    for config in configs:
        validate(config)
    configs = [plain(config) for config in configs]
    if len(families(configs)) != 1:
        raise ConfigError("configs: only seeds and traceable numbers may differ within a program")
    parts, numbers = build(configs[0], topology), varying(configs)
    _try_out(parts)
    engine = make_engine(parts, [c.seed for c in configs], numbers)
    directories: list[RunDirectory] = []

    def forget() -> None:
        for directory in directories:
            directory.forget()

    if signals is not None:
        signals.leave = forget
    try:
        for path, config in zip(run_dirs, configs, strict=True):
            if parts.topology.peers.rank == 0:
                with signals.undivided if signals is not None else contextlib.nullcontext():
                    directories.append(RunDirectory.create(path, config))
            _agree_on_directory(path, parts, directories)
        run = _Run(parts, engine, configs, directories, callbacks, numbers, on_start)
        try:
            run.start(init_from)
        except BaseException:
            for log in run.logs:
                log.close()
            raise
    except BaseException:
        forget()
        _let_go(engine, directories)
        raise
    try:
        return run.finish(signals)
    finally:
        _let_go(engine, directories)


def _agree_on_directory(path: Path, parts: Parts, directories: list[RunDirectory]) -> None:
    """Processes that do not hold the directory wait until process 0 does, and visit it."""
    peers = parts.topology.peers
    peers.gather(None)
    if peers.rank > 0:
        directories.append(RunDirectory.visit(path))


def _let_go(engine: Engine, directories: Sequence[RunDirectory]) -> None:
    engine.close()
    for directory in directories:
        directory.release()


def _try_out(parts: Parts) -> None:
    """A few steps before anything is started: what is wrong at once is told in one line."""
    env, name = parts.env, parts.config.env.name
    try:
        if isinstance(env, HostEnvs) and env.trial is not None:
            env.trial(_TRIAL_STEPS, parts.config.actors.step_timeout_seconds)
        elif isinstance(env, JaxEnv) and is_own(name):
            check_env(env, _TRIAL_STEPS)
    except EnvError as error:
        about = "" if str(error).startswith(f"{name}: ") else f"{name}: "
        raise ConfigError(f"env.name: {about}{error}") from error


def resume(
    run_dir: str | Path,
    callbacks: Sequence[Callback] = (),
    signals: Signals | None = None,
    topology: Topology | None = None,
    on_start: OnStart | None = None,
) -> Result:
    """Continues a run from its newest good checkpoint. A finished run is left as it is."""
    path = Path(run_dir)
    config = read_config(path)
    parts = build(config, topology)
    engine = make_engine(parts, [config.seed])
    directories = [RunDirectory.open(path)] if parts.topology.peers.rank == 0 else []
    try:
        _agree_on_directory(path, parts, directories)
        run = _Run(parts, engine, [config], directories, callbacks, on_start=on_start)
        run.restore()
        return run.finish(signals)
    finally:
        _let_go(engine, directories)


class _Run:
    """One run under way: its engine, its logs, and the loop over calls."""

    def __init__(
        self,
        parts: Parts,
        engine: Engine,
        configs: Sequence[Config],
        directories: Sequence[RunDirectory],
        callbacks: Sequence[Callback],
        numbers: Numbers | None = None,
        on_start: OnStart | None = None,
    ):
        self.parts, self.engine, self.directories = parts, engine, directories
        self.peers = parts.topology.peers
        # Process 0 writes the logs and shows how it goes.
        self.callbacks = tuple(callbacks) if self.peers.rank == 0 else ()
        self._on_start = on_start if self.peers.rank == 0 and on_start else lambda steps: None
        self.seeds = len(directories)
        self.calls_done = 0
        self.best = [-np.inf] * self.seeds
        self.recent: list[list[tuple[float, int]]] = [[] for _ in directories]
        self.evaluations: list[dict[str, Any]] = [{} for _ in directories]
        self.logs: list[RunLog] = []
        self.stopped_by: int | None = None
        self.savers = [
            Saver(d.checkpoints, config, self.peers)
            for d, config in zip(directories, configs, strict=True)
        ]
        self._unsaved = False
        self._interrupted: Stop = lambda: False
        self._evaluate = _evaluator(parts, numbers or {})

    # --- starting ----------------------------------------------------------------------------

    def start(self, init_from: str | Path | None) -> None:
        """A fresh run, from new parameters or another run's."""
        parameters = None
        if init_from is not None:
            parameters = load_agent_state(Path(init_from), self.parts)
        self.logs = [RunLog(d.path) for d in self.directories] if self.peers.rank == 0 else []
        self._on_start(0)
        self._record_episodes(self.engine.start(parameters))

    def restore(self) -> None:
        """The newest good checkpoint of the (one) run directory."""
        directory = self.directories[0]
        say = partial(print, flush=True) if self.peers.rank == 0 else lambda line: None
        loaded, ring = self.savers[0].restore(self.engine, say)
        meta = loaded.meta
        for remark in self.engine.restore(loaded.tree, loaded.extras, ring):
            say(f"{directory.path}: {remark}")
        self.calls_done = int(meta["calls_done"])
        self.best = [float(meta["best"])]
        self.recent = [[(float(r), int(n)) for r, n in meta["recent"]]]
        self.evaluations = [dict(meta["evaluation"])]
        if self.peers.rank == 0:
            self.logs = [RunLog(directory.path, meta["position"])]
        self._on_start(self.parts.schedule.env_steps(self.calls_done))

    # --- the loop ----------------------------------------------------------------------------

    def finish(self, signals: Signals | None = None) -> Result:
        """Calls the engine until the run is complete or a signal asks it to stop."""
        try:
            if signals is None:
                with Signals() as signals:
                    self._finish(signals)
            else:
                signals.running = True
                self._finish(signals)
        except ActorError as error:
            if self.parts.sebulba and self.peers.size == 1:
                # The learner is as good as it was: what it has learnt is kept.
                self._save_at_last()
                error.add_note("what was learnt until then is saved")
            raise
        except NotFiniteError as error:
            # All processes are here and work the batch out; process 0 keeps its share.
            file, batch = self.directories[error.seed].path / "not_finite_batch.npz", error.batch()
            if self.peers.rank == 0:
                try:
                    dump(file, batch)
                    error.add_note(f"the batch is in {file}")
                except OSError as why:
                    error.add_note(f"the batch could not be written ({why})")
            self.peers.gather(None)
            raise
        finally:
            for log in self.logs:
                log.close()
        returns = [float(np.mean([r for r, _ in rs])) if rs else None for rs in self.recent]
        paths = [d.path for d in self.directories]
        return Result(paths, self.evaluations, returns, self.stopped_by)

    def _finish(self, signals: Signals) -> None:
        schedule = self.parts.schedule
        stopped_by: int | None = None

        def stop() -> bool:
            """Whether any process has been asked to stop; all ask at the same places."""
            nonlocal stopped_by
            stopped_by = stopped_by or self.peers.any(signals.received)
            return stopped_by is not None

        self._interrupted = lambda: signals.received is not None
        while self.calls_done < schedule.calls and not stop():
            if not self._one_call(stop):
                break
            if self.calls_done == schedule.calls:
                self._save_at_last()
            elif self.calls_done % schedule.checkpoint_every == 0 or self._unsaved:
                self._try_to_save()
        if self.calls_done < schedule.calls:
            stop()  # an evaluation may have been left since it was asked last
            self.stopped_by = stopped_by
            self._save_at_last()

    def _one_call(self, stop: Stop) -> bool:
        """One call of the schedule and its row; False if it was left in the middle."""
        schedule = self.parts.schedule
        began = time.monotonic()
        progress = self.engine.advance(stop)
        elapsed = time.monotonic() - began
        self._record_episodes(progress.episodes)
        if progress.metrics is None:
            return False
        number = self.calls_done + 1
        steps = schedule.env_steps(number)
        due = number % schedule.eval_every == 0 or number == schedule.calls
        due = due and self.parts.config.log.eval_episodes > 0
        evaluations = self._evaluate_now(number) if due else []
        if evaluations is None:
            return False
        self.engine.end_call()
        self.calls_done = number
        rows = []
        for k in range(self.seeds):
            row = self._row(k, steps, progress.metrics[k])
            frames = progress.iterations * schedule.steps_per_iteration * self.parts.frames_per_step
            row["frames_per_second"] = frames / elapsed
            row["elapsed_seconds"] = elapsed
            if evaluations:
                row |= {f"eval_{name}": value for name, value in evaluations[k].items()}
            for log in self.logs[k : k + 1]:
                log.write(row)
            rows.append(row)
        self._show(rows[0])
        return True

    def _show(self, row: dict[str, Any]) -> None:
        """Hands a row to the callbacks. What one of them ends by raising is saved first."""
        try:
            for callback in self.callbacks:
                callback(row)
        except BaseException as error:
            if self.peers.size == 1:
                self._save_at_last()
                error.add_note("what was learnt until then is saved")
            raise

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
            **self.engine.counters(k),
            **metrics,
        }

    def _record_episodes(self, episodes: list[Episodes]) -> None:
        for k, rows in enumerate(episodes):
            for log in self.logs[k : k + 1]:
                log.episodes.write(rows)
            newest = [(row["return"], row["length"]) for row in rows]
            self.recent[k] = (self.recent[k] + newest)[-_WINDOW:]

    def _evaluate_now(self, number: int) -> list[dict[str, Any]] | None:
        """Evaluates every seed; the best result so far is saved as the best agent. None if it was
        to stop in the middle. Process 0 does it while the others wait.
        """
        found = self._evaluate_here(number) if self.peers.rank == 0 else None
        found, self.best = self.peers.first((found, self.best))
        if found is not None:
            self.evaluations = found
        return found

    def _evaluate_here(self, number: int) -> list[dict[str, Any]] | None:
        found = []
        for k in range(self.seeds):
            evaluation = self._evaluate(self.engine.agent(k), number, k, self._interrupted)
            if evaluation is None:
                return None
            found.append(summarise(*evaluation))
        for k, summary in enumerate(found):
            if summary["return_mean"] > self.best[k]:
                meta = {"evaluation": summary, "calls_done": number}
                try:
                    self.savers[k].save_best(self.engine.agent(k), meta)
                    self.best[k] = summary["return_mean"]
                except OSError as error:
                    self._tell(k, error)
        return found

    def _try_to_save(self) -> bool:
        """Saves every seed, or says why not and leaves it to a later call."""
        self._unsaved = False
        for k in range(self.seeds):
            try:
                self._save(k)
            except OSError as error:
                self._unsaved = True
                self._tell(k, error)
        return not self._unsaved

    def _save_at_last(self) -> None:
        """Saves when there is no later call to leave it to; raises if it cannot be done."""
        for pause in (*_LAST_TRIES_SECONDS, None):
            if self._try_to_save():
                return
            if pause is not None:
                time.sleep(pause)
        raise TrainingError("the last checkpoint could not be written; those before it are intact")

    def _tell(self, k: int, error: OSError) -> None:
        if self.peers.rank > 0:
            return
        newest = checkpoint.newest_first(self.directories[k].checkpoints)
        kept = f"{newest[0].name} is intact" if newest else "there is none yet"
        print(  # noqa: T201
            f"muesli: WARNING: a checkpoint of {self.directories[k].path} could not be written "
            f"({error}); {kept}; training goes on and tries again",
            file=sys.stderr,
            flush=True,
        )

    def _save(self, k: int) -> None:
        meta = {
            "calls_done": self.calls_done,
            "complete": self.calls_done == self.parts.schedule.calls,
            "best": self.best[k],
            "recent": self.recent[k],
            "evaluation": self.evaluations[k],
            "position": self._position(k),
        }
        snapshot = self.engine.snapshot(k)
        self.savers[k].save(snapshot, meta)
        keep_every = self.parts.config.log.keep_every * self.parts.schedule.checkpoint_every
        ending = meta["complete"] or self.stopped_by is not None
        if keep_every and (ending or self.calls_done % keep_every == 0):
            steps = {"env_steps": self.parts.schedule.env_steps(self.calls_done)}
            self.savers[k].save_for_good(snapshot.tree.agent, steps)

    def _position(self, k: int) -> dict[str, int]:
        """Where process 0's logs stand; an OSError of all where they lag behind."""
        position, problem = {}, None
        try:
            position = self.logs[k].position() if self.peers.rank == 0 else {}
        except OSError as error:
            problem = str(error)
        position, problem = self.peers.first((position, problem))
        if problem is not None:
            raise OSError(problem)
        return position


def _evaluator(
    parts: Parts, numbers: Numbers
) -> Callable[[AgentState, int, int, Stop], Evaluation | None]:
    """evaluate(AgentState, number, seed's index, stop): fresh episodes, inside JAX where the
    environment is.
    """
    episodes = parts.config.log.eval_episodes
    if not isinstance(parts.env, JaxEnv):
        act = make_act(parts.spec, parts.network, parts.config, parts.config.agent.act_with)
        outside = make_evaluate_on_host(parts, act, episodes)
        return lambda agent, number, k, stop: outside(
            parts.agent.acting(agent), _EVAL_SEED - number, stop
        )
    env = parts.env

    def play(own: Numbers, agent: AgentState, key: PRNGKey) -> Evaluation:
        mine = with_numbers(parts, own)
        act = make_act(mine.spec, mine.network, mine.config, mine.config.agent.act_with)
        scale = mine.config.env.reward_scale
        run = make_evaluate(env, act, mine.agent.initial_actor, episodes, reward_scale=scale)
        return run(mine.agent.acting(agent), key)

    compiled, run_key = jax.jit(play), jax.random.key(_EVAL_SEED)
    return lambda agent, number, k, stop: jax.device_get(
        compiled(
            {name: values[k] for name, values in numbers.items()},
            agent,
            keys.eval_key(run_key, number),
        )
    )
