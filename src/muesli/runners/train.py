"""A whole run: build it, train it, measure it, save it, and pick it up again."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from muesli import checkpoint
from muesli.agent import Agent, make_act, make_agent
from muesli.config import Config, ConfigError, validate
from muesli.envs import make as make_env
from muesli.envs.base import JaxEnv, stack_frames
from muesli.metrics import RunLog
from muesli.networks import NETWORKS, Network
from muesli.policy_updates import UPDATES
from muesli.runners.anakin import Anakin, FinishedEpisodes, make_anakin
from muesli.runners.evaluate import make_evaluate
from muesli.runners.rundir import RunDirectory, read_config
from muesli.types import PyTree, RunState

Callback = Callable[[Mapping[str, Any]], None]

# Episode lengths and returns shown in the metrics are means over this many of the newest episodes.
_WINDOW = 100
_EVAL_STREAM = 2**31 - 4


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How a run is cut into calls of the jitted loop. Everything is counted in iterations."""

    warm_up: int
    """Iterations that only collect, before the first update."""
    per_call: int
    """Iterations of one call."""
    calls: int
    """Calls of the whole run."""
    steps_per_iteration: int
    updates_per_iteration: int
    eval_every: int
    """Calls between two evaluations."""
    checkpoint_every: int
    """Calls between two checkpoints."""

    @property
    def total_updates(self) -> int:
        """Updates of the whole run: what the learning rate falls over."""
        return self.calls * self.per_call * self.updates_per_iteration

    def env_steps(self, calls_done: int) -> int:
        """Environment steps after so many calls."""
        return (self.warm_up + calls_done * self.per_call) * self.steps_per_iteration


class Parts(NamedTuple):
    """Everything a run is made of, built from its configuration."""

    config: Config
    env: JaxEnv
    network: Network
    agent: Agent
    anakin: Anakin
    schedule: Schedule


def make_schedule(config: Config) -> Schedule:
    """Cuts a run into calls that end where it logs, evaluates and saves."""
    per_iteration = config.env.num_envs * config.batch.sequence_length
    replays = config.batch.online_sequences < config.batch.batch_sequences
    warm_up = max(int(replays), -(-config.batch.replay_min_steps // per_iteration))
    iterations = max(1, -(-config.total_env_steps // per_iteration) - warm_up)
    wanted = max(1, round(config.log.log_every_steps / per_iteration))
    calls = max(1, round(iterations / wanted))
    per_call = -(-iterations // calls)

    def every(steps: int) -> int:
        return max(1, round(steps / (per_call * per_iteration))) if steps else calls

    return Schedule(
        warm_up=warm_up,
        per_call=per_call,
        calls=calls,
        steps_per_iteration=per_iteration,
        updates_per_iteration=config.env.num_envs // config.batch.online_sequences,
        eval_every=every(config.log.eval_every_steps),
        checkpoint_every=every(config.log.checkpoint_every_steps),
    )


def build(config: Config) -> Parts:
    """Builds a run; raises a ConfigError naming the field that does not fit the environment."""
    validate(config)
    env = make_env(config.env.name)
    if config.env.frame_stack > 1:
        env = stack_frames(env, config.env.frame_stack)
    _fit(config, env)
    schedule = make_schedule(config)
    network = NETWORKS[config.network.maker](env.spec, config.network)
    agent = make_agent(env.spec, network, config, schedule.total_updates)
    return Parts(config, env, network, agent, make_anakin(env, agent, config), schedule)


def _fit(config: Config, env: JaxEnv) -> None:
    """Checks what only the environment can decide."""
    spec, net = env.spec, config.network
    for field, name, known in (
        ("update.name", config.update.name, UPDATES),
        ("network.maker", net.maker, NETWORKS),
    ):
        if name not in known:
            raise ConfigError(f"{field}: there is no '{name}'; there are {', '.join(known)}")
    if config.update.name == "mcts":
        raise ConfigError("update.name: mcts needs a search, which this version does not have")
    if net.torso != "mlp" and len(spec.observation_shape) != 3:
        raise ConfigError(
            f"network.torso: {net.torso} needs images; the observations of {config.env.name} have "
            f"shape {list(spec.observation_shape)}: use mlp"
        )
    if spec.players == 2 and config.agent.discount != -1.0:
        raise ConfigError(
            f"agent.discount: {config.env.name} is played against oneself and needs -1, "
            f"got {config.agent.discount:g}"
        )
    if spec.players == 1 and config.agent.discount < 0.0:
        raise ConfigError(
            f"agent.discount: {config.env.name} has one player and needs a discount in [0, 1], "
            f"got {config.agent.discount:g}"
        )


class Result(NamedTuple):
    """How a run ended. run_dirs: one per seed; evaluations: the last one of each; stopped_by: the
    signal that ended it early, or None.
    """

    run_dirs: list[Path]
    evaluations: list[dict[str, Any]]
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
    parts = build(config)
    directories = [RunDirectory.create(p, c) for p, c in zip(paths, configs, strict=True)]
    try:
        run = _Run(parts, configs, directories, callbacks)
        run.start(init_from)
        return run.finish()
    finally:
        for directory in directories:
            directory.release()


def resume(run_dir: str | Path, callbacks: Sequence[Callback] = ()) -> Result:
    """Continues a run from its newest good checkpoint. A finished run is left as it is."""
    path = Path(run_dir)
    config = read_config(path)
    parts = build(config)
    directory = RunDirectory.open(path)
    try:
        run = _Run(parts, [config], [directory], callbacks)
        run.restore()
        return run.finish()
    finally:
        directory.release()


class _Run:
    """One run under way: its state, its logs, and the loop over calls."""

    def __init__(
        self,
        parts: Parts,
        configs: Sequence[Config],
        directories: Sequence[RunDirectory],
        callbacks: Sequence[Callback],
    ):
        self.parts, self.configs, self.directories = parts, configs, directories
        self.callbacks = callbacks
        self.seeds = len(configs)
        self.calls_done = 0
        self.best = [-np.inf] * self.seeds
        self.recent: list[list[tuple[float, int]]] = [[] for _ in configs]
        self.evaluations: list[dict[str, Any]] = [{} for _ in configs]
        self.logs: list[RunLog] = []
        self.stopped_by: int | None = None

        over_seeds = jax.vmap if self.seeds > 1 else (lambda f: f)
        anakin, schedule, log = parts.anakin, parts.schedule, parts.config.log
        act = make_act(parts.env.spec, parts.network, parts.config, parts.config.agent.act_with)
        evaluate = make_evaluate(
            parts.env,
            act,
            parts.agent.initial_actor,
            log.eval_episodes,
            reward_scale=parts.config.env.reward_scale,
        )
        self._init = jax.jit(over_seeds(anakin.init))
        self._warm_up = jax.jit(over_seeds(anakin.warm_up), donate_argnums=0)
        self._iterate = jax.jit(
            over_seeds(lambda state: anakin.iterate(state, schedule.per_call)), donate_argnums=0
        )
        self._evaluate = jax.jit(over_seeds(lambda s, k: evaluate(parts.agent.acting(s), k)))

    # --- starting ----------------------------------------------------------------------------

    def start(self, init_from: str | Path | None) -> None:
        """A fresh run, from new parameters or another run's."""
        keys = jnp.stack([jax.random.key(c.seed) for c in self.configs])
        self.state: RunState = self._init(keys if self.seeds > 1 else keys[0])
        if init_from is not None:
            self.state = self._with_parameters(load_agent_state(Path(init_from), self.parts))
        self.logs = [RunLog(d.path) for d in self.directories]
        for chunk in range(self.parts.schedule.warm_up):
            self.state, finished = self._warm_up(self.state)
            before = chunk * self.parts.schedule.steps_per_iteration
            self._record_episodes(jax.tree.map(lambda x: x[..., None, :, :], finished), before)

    def _with_parameters(self, source: PyTree) -> RunState:
        ours = jax.tree.map(jnp.shape, self._one(self.state.agent.online, 0))
        theirs = jax.tree.map(jnp.shape, source.online)
        if ours != theirs:
            raise ConfigError("init_from: that run's network has other parameters than this one's")
        spread = lambda x: jnp.stack([x] * self.seeds) if self.seeds > 1 else x  # noqa: E731
        online, prior = jax.tree.map(spread, (source.online, source.prior))
        return self.state._replace(agent=self.state.agent._replace(online=online, prior=prior))

    def restore(self) -> None:
        """The newest good checkpoint of the (one) run directory."""
        directory = self.directories[0]
        template = jax.eval_shape(self._init, jax.random.key(0))
        self.state, meta, _ = checkpoint.load_newest(
            directory.checkpoints,
            template,
            lambda line: print(line, flush=True),  # noqa: T201
        )
        self.calls_done = int(meta["calls_done"])
        self.best = [float(meta["best"])]
        self.recent = [[(float(r), int(n)) for r, n in meta["recent"]]]
        self.evaluations = [dict(meta["evaluation"])]
        self.logs = [RunLog(directory.path, meta["position"])]

    # --- the loop ----------------------------------------------------------------------------

    def finish(self) -> Result:
        """Calls the jitted loop until the run is complete or a signal asks it to stop."""
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
            finally:
                for log in self.logs:
                    log.close()
        return Result([d.path for d in self.directories], self.evaluations, self.stopped_by)

    def _one_call(self) -> None:
        schedule = self.parts.schedule
        began = time.monotonic()
        steps_before = schedule.env_steps(self.calls_done)
        self.state, metrics, finished = self._iterate(self.state)
        metrics = jax.device_get(metrics)
        self.calls_done += 1
        steps = schedule.env_steps(self.calls_done)
        self._record_episodes(finished, steps_before)
        elapsed = time.monotonic() - began
        due = self.calls_done % schedule.eval_every == 0 or self.calls_done == schedule.calls
        evaluations = self._evaluate_now() if due else None
        for k in range(self.seeds):
            row = self._row(k, steps, {n: self._one(v, k) for n, v in metrics.items()})
            row["frames_per_second"] = (steps - steps_before) / elapsed
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
            "env_frames": steps,
            "updates": self.calls_done
            * self.parts.schedule.per_call
            * self.parts.schedule.updates_per_iteration,
            "episode_return_mean": float(np.mean([r for r, _ in recent])) if recent else None,
            "episode_length_mean": float(np.mean([n for _, n in recent])) if recent else None,
            "replay_fraction": 1.0 - batch.online_sequences / batch.batch_sequences,
            **metrics,
        }

    def _record_episodes(self, finished: FinishedEpisodes, steps_before: int) -> None:
        """Writes the episodes that ended in a call, in order. finished: [(seeds,) n, T, E]."""
        finished = jax.device_get(finished)
        num_envs = self.parts.config.env.num_envs
        for k in range(self.seeds):
            ended, total, length = (self._one(x, k) for x in finished)
            where = np.argwhere(ended)
            steps = where[:, 0] * ended.shape[1] + where[:, 1] + 1
            rows = [
                {
                    "env_steps": int(steps_before + s * num_envs),
                    "return": float(r),
                    "length": int(n),
                    "slot": int(e),
                }
                for s, e, r, n in zip(steps, where[:, 2], total[ended], length[ended], strict=True)
            ]
            self.logs[k].episodes.write(rows)
            newest = [(r["return"], int(r["length"])) for r in rows]
            self.recent[k] = (self.recent[k] + newest)[-_WINDOW:]

    def _evaluate_now(self) -> list[dict[str, Any]]:
        """Evaluates every seed; the best result so far is saved as the best agent."""
        keys = jax.random.split(
            jax.random.fold_in(jax.random.key(_EVAL_STREAM), self.calls_done), self.seeds
        )
        result = jax.device_get(
            self._evaluate(self.state.agent, keys if self.seeds > 1 else keys[0])
        )
        for k in range(self.seeds):
            summary = summarise(*(self._one(x, k) for x in result))
            self.evaluations[k] = summary
            if summary["return_mean"] > self.best[k]:
                self.best[k] = summary["return_mean"]
                checkpoint.save(
                    self.directories[k].checkpoints,
                    "best",
                    self._one(self.state.agent, k),
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
            updates = int(np.asarray(self._one(self.state.agent.step, k)))
            checkpoint.save(
                directory.checkpoints, f"step-{updates}", self._one(self.state, k), meta
            )
            checkpoint.prune(directory.checkpoints, self.parts.config.log.keep_checkpoints)

    def _one(self, tree: PyTree, k: int) -> PyTree:
        """Seed k's part of a tree that carries a seed axis when there are several."""
        return jax.tree.map(lambda x: x[k], tree) if self.seeds > 1 else tree


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


def load_agent_state(run_dir: Path, parts: Parts, best: bool = False) -> PyTree:
    """The AgentState of a run: of its newest good checkpoint, or of its best evaluation."""
    directory = run_dir / "checkpoints"
    agent = jax.eval_shape(parts.agent.init, jax.random.key(0))
    if best:
        return checkpoint.load(directory / "best", agent)[0]
    template = jax.eval_shape(parts.anakin.init, jax.random.key(0))
    state, _, _ = checkpoint.load_newest(directory, template, lambda line: None)
    return state.agent


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
