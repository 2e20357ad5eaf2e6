"""How a run directory's checkpoints are written and found again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from muesli import checkpoint
from muesli.checkpoint import Loaded, RingFiles
from muesli.config import Config, ConfigError
from muesli.runners.engines import Engine, Snapshot
from muesli.runners.rundir import config_from_json
from muesli.types import AgentState, PyTree

# Fields that a run may go on with changed: none of them is part of what it computes.
_MAY_CHANGE = frozenset(
    {
        "actors.max_restarts",
        "actors.restart_seconds",
        "actors.step_timeout_seconds",
        "env.processes",
        "env.threads",
        "log.checkpoint_every_steps",
        "log.eval_episodes",
        "log.eval_every_steps",
        "log.keep_checkpoints",
        "log.keep_every",
    }
)


class Saver:
    """The checkpoints of one run directory."""

    def __init__(self, folder: Path, config: Config):
        self.folder, self.config = folder, config
        self._ring = RingFiles(folder / "ring")

    def save(self, snapshot: Snapshot, meta: Mapping[str, Any]) -> None:
        """Writes a checkpoint and removes what is not kept; an OSError leaves all as it was."""
        try:
            ring = None if snapshot.ring is None else self._ring.save(snapshot.ring)
            name = f"step-{int(np.asarray(snapshot.tree.agent.step))}"
            about = {**meta, "config": dataclasses.asdict(self.config)}
            checkpoint.save(self.folder, name, snapshot.tree, about, snapshot.extras, ring)
        except OSError:
            with suppress(OSError):
                self._ring.keep_only(checkpoint.listed_segments(self.folder))
            raise
        if snapshot.ring is not None:
            self._ring.commit(ring, snapshot.ring.written)
        checkpoint.prune(self.folder, self.config.log.keep_checkpoints)
        self._ring.keep_only(checkpoint.listed_segments(self.folder))

    def save_best(self, agent: AgentState, meta: Mapping[str, Any]) -> None:
        """Keeps the agent that evaluated best."""
        name = f"best-{int(np.asarray(agent.step))}"
        checkpoint.save(self.folder, name, agent, meta)
        checkpoint.prune(self.folder, 1, "best")

    def save_for_good(self, agent: AgentState, meta: Mapping[str, Any]) -> None:
        """Keeps what is needed to act, beside the checkpoints that come and go."""
        name = f"kept-{int(np.asarray(agent.step))}"
        checkpoint.save(self.folder, name, _light(agent), meta)

    def restore(self, engine: Engine, say: Callable[[str], None]) -> tuple[Loaded, PyTree]:
        """The newest good checkpoint and its ring; what is skipped is told to ``say``."""
        checkpoint.sweep(self.folder)
        template = engine.template()

        def attempt(path: Path) -> tuple[Loaded, PyTree]:
            self._compare(path, checkpoint.read_manifest(path)["meta"], say)
            loaded = checkpoint.load(path, template)
            ring = engine.read_ring(
                loaded.tree,
                lambda view, place: self._ring.load(path, loaded.ring, view, place),
            )
            return loaded, ring

        return checkpoint.first_good(self.folder, attempt, say)

    def _compare(self, path: Path, meta: Mapping[str, Any], say: Callable[[str], None]) -> None:
        """Refuses to go on with another configuration than the checkpoint's."""
        # As a Config, so that a field that is newer than the checkpoint has its default there.
        there = config_from_json(meta.get("config"))
        changed = differences(dataclasses.asdict(there), dataclasses.asdict(self.config))
        fatal = {name: pair for name, pair in changed.items() if name not in _MAY_CHANGE}
        if fatal:
            raise ConfigError(
                f"config.json differs from {path}: {tell(fatal)}; a run goes on with the "
                "configuration it had (a new one can start from its agent: --init-from)"
            )
        if changed:
            say(f"configuration changed since {path}: {tell(changed)}")


def _light(agent: AgentState) -> AgentState:
    """What is needed to act with the prior parameters, and no more."""
    return agent._replace(online=(), optimiser=(), dual=())


def load_kept(path: Path, template: AgentState) -> AgentState:
    """An agent that was kept for good: it acts, and its online parameters are the prior ones."""
    light = checkpoint.load(path, _light(template)).tree
    return light._replace(online=light.prior)


def kept_checkpoints(run_dir: Path) -> list[str]:
    """Names of the checkpoints a run kept for good, oldest first."""
    found = checkpoint.newest_first(run_dir / "checkpoints", "kept")
    return [path.name for path in reversed(found)]


def differences(there: Any, here: Any, where: str = "") -> dict[str, tuple[Any, Any]]:
    """Fields of two configurations, as dictionaries, that differ: dotted name -> (there, here)."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        return {} if there == here else {where: (there, here)}
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted(set(there) | set(here)):
        dotted = f"{where}.{name}" if where else name
        found |= differences(there.get(name), here.get(name), dotted)
    return found


def tell(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Differences in one line."""
    return ", ".join(
        f"{name} ({there} there, {here} here)" for name, (there, here) in changed.items()
    )
