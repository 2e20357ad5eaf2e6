"""How a run directory's checkpoints are written and found again."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from muesli import checkpoint
from muesli.checkpoint import CheckpointError, Loaded, RingFiles
from muesli.config import Config, ConfigError
from muesli.runners.engines import PENDING, Engine, Snapshot, parted, put_together
from muesli.runners.faults import TrainingError
from muesli.runners.peers import ALONE, Peers
from muesli.runners.rundir import config_from_json
from muesli.types import AgentState, PyTree

T = TypeVar("T")

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
    """The checkpoints of one run directory; of several processes, each has one."""

    def __init__(self, folder: Path, config: Config, peers: Peers = ALONE):
        self.folder, self.config, self.peers = folder, config, peers
        alone = peers.size == 1
        self._own = folder if alone else checkpoint.part_folder(folder, peers.rank, peers.size)
        self._ring = RingFiles(self._own / "ring")

    def save(self, snapshot: Snapshot, meta: Mapping[str, Any]) -> None:
        """Writes a checkpoint and removes what is not kept; an OSError leaves all as it was.

        All processes save together, and where one cannot, none has.
        """
        name = f"step-{int(np.asarray(snapshot.tree.agent.step))}"
        about = {**meta, "config": dataclasses.asdict(self.config)}
        ring: dict[str, Any] | None = None

        def own_part() -> tuple[str, str]:
            nonlocal ring
            ring = None if snapshot.ring is None else self._ring.save(snapshot.ring)
            if self.peers.size == 1:
                extras = snapshot.extras | snapshot.own_extras
                checkpoint.save(self._own, name, snapshot.tree, about, extras, ring)
                return "", ""
            own = snapshot.own()
            path = checkpoint.save(self._own, name, own, {}, snapshot.own_extras, ring)
            try:
                return checkpoint.digest(path), fingerprint(snapshot.common())
            except CheckpointError as error:
                raise OSError(str(error)) from error

        def whole(parts: Sequence[str]) -> None:
            if self.peers.size > 1:
                tree, extras = snapshot.common(), snapshot.extras
                checkpoint.save(self.folder, name, tree, about, extras, parts=parts)
            checkpoint.prune(self.folder, self.config.log.keep_checkpoints)
            checkpoint.prune_parts(self.folder)

        if self.peers.first(self._is_there(name, meta)):
            return
        try:
            parts, agents = zip(*self._together(own_part), strict=True)
            if len(set(agents)) > 1:
                raise TrainingError("the processes do not hold the same parameters any more")
            self._together(lambda: whole(parts) if self.peers.rank == 0 else None)
        except OSError:
            with suppress(OSError):
                self._ring.keep_only(checkpoint.listed_segments(self._own))
            raise
        if snapshot.ring is not None:
            self._ring.commit(ring, snapshot.ring.written)
        # What cannot be removed now is removed next time.
        with suppress(OSError):
            self._ring.keep_only(checkpoint.listed_segments(self._own))
            if self.peers.size > 1 and self.peers.rank == 0:
                old = RingFiles(self.folder / "ring")  # from when it was a run of one process
                old.keep_only(checkpoint.listed_segments(self.folder))

    def _is_there(self, name: str, meta: Mapping[str, Any]) -> bool:
        """Whether several processes would only write once more what is saved already: a part that
        is replaced while the whole is not would spoil both.
        """
        if self.peers.size == 1:
            return False
        with suppress(CheckpointError):
            manifest = checkpoint.read_manifest(self.folder / name)
            there = manifest["meta"].get("calls_done"), len(manifest.get("parts") or [])
            return there == (meta["calls_done"], self.peers.size)
        return False

    def _together(self, work: Callable[[], T]) -> list[T]:
        """What every process answers; an OSError of one is an OSError of all."""
        answer, failure = None, None
        try:
            answer = work()
        except OSError as error:
            if self.peers.size == 1:
                raise
            failure = f"process {self.peers.rank}: {error}"
        answers = self.peers.gather([answer, failure])
        for _, problem in answers:
            if problem is not None:
                raise OSError(problem)
        return [value for value, _ in answers]

    def save_best(self, agent: AgentState, meta: Mapping[str, Any]) -> None:
        """Keeps the agent that evaluated best."""
        name = f"best-{int(np.asarray(agent.step))}"
        checkpoint.save(self.folder, name, agent, meta)
        checkpoint.prune(self.folder, 1, "best")

    def save_for_good(self, agent: AgentState, meta: Mapping[str, Any]) -> None:
        """Keeps what is needed to act, beside the checkpoints that come and go."""
        name = f"kept-{int(np.asarray(agent.step))}"

        def keep() -> None:
            if self.peers.rank == 0:
                checkpoint.save(self.folder, name, _light(agent), meta)

        self._together(keep)

    def restore(self, engine: Engine, say: Callable[[str], None]) -> tuple[Loaded, PyTree]:
        """The newest good checkpoint and its ring; what is skipped is told to ``say``.

        All processes take the same one: one that is bad for one of them is skipped by all. It may
        have been saved by another number of processes.
        """
        if self.peers.rank == 0:
            for folder in (self.folder, *self.folder.glob("part-*-of-*")):
                checkpoint.sweep(folder)
        template = engine.template()
        newest = [path.name for path in checkpoint.newest_first(self.folder)]
        listed = [self.folder / name for name in self.peers.first(newest)]

        def attempt(path: Path) -> tuple[Loaded, PyTree]:
            loaded, problem = None, None
            self._ring = RingFiles(self._own / "ring")
            try:
                loaded = self._load(path, template, engine, say)
            except CheckpointError as error:
                problem = str(error)
            problem = self.peers.any(problem)
            if loaded is None or problem is not None:
                raise CheckpointError(problem)
            return loaded

        return checkpoint.first_good(self.folder, attempt, say, listed=listed)

    def _load(
        self, path: Path, template: PyTree, engine: Engine, say: Callable[[str], None]
    ) -> tuple[Loaded, PyTree]:
        manifest = checkpoint.read_manifest(path)
        self._compare(path, manifest["meta"], say)
        parts = checkpoint.parts_of(path, manifest)
        if parts:
            common, own = parted(template, len(parts))
            loaded = checkpoint.load(path, common)
            pieces = [checkpoint.load(part, own) for part in parts]
            tree = put_together(loaded.tree, [piece.tree for piece in pieces])
            # What a process alone had means nothing to another number of them.
            alike = len(parts) == self.peers.size
            extras = loaded.extras | (pieces[self.peers.rank].extras if alike else {})
            loaded = loaded._replace(tree=tree, extras=extras)
        else:
            loaded = checkpoint.load(path, template)
            parts, pieces = [path], [loaded]
            if self.peers.size > 1:
                extras = {n: x for n, x in loaded.extras.items() if n.startswith(PENDING)}
                loaded = loaded._replace(extras=extras)
        builder = engine.new_ring(loaded.tree)
        if builder is None:
            return loaded, None
        each = len(loaded.tree.replay) // len(parts)
        for k, (part, piece) in enumerate(zip(parts, pieces, strict=True)):
            slots = range(k * each, (k + 1) * each)
            if slots.start < builder.slots.stop and builder.slots.start < slots.stop:
                # Its files are gone on with only where they hold what this process will save.
                same = slots == builder.slots
                files = self._ring if same else RingFiles(part.parent / "ring")
                place = partial(builder.place, slots)
                files.load(part, piece.ring, builder.view(slots), place)
        return loaded, builder.finish()

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


def fingerprint(tree: PyTree) -> str:
    """The SHA-256 of a tree's numbers, which processes that agree have alike."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        found.update(np.ascontiguousarray(checkpoint.to_numpy(leaf)).tobytes())
    return found.hexdigest()


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
