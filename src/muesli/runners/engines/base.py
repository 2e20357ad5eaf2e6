"""What an engine is, and what of it a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from muesli.checkpoint import RingView
from muesli.config import ConfigError
from muesli.runners.actors import Arrays
from muesli.runners.mesh import EVERYWHERE, own_share
from muesli.runners.ringview import RingBuilder
from muesli.types import AgentState, PyTree

Episodes = list[dict[str, Any]]
Stop = Callable[[], bool]

PENDING = "pending/"
"""How the names of extras begin that hold the metrics of a call under way."""


def never() -> bool:
    """For runs that nothing stops."""
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


def with_parameters(state: AgentState, source: AgentState) -> AgentState:
    """A fresh agent with another run's parameters; raises a ConfigError where they do not fit."""
    if jax.tree.map(jnp.shape, state.online) != jax.tree.map(jnp.shape, source.online):
        raise ConfigError("init_from: that run's network has other parameters than this one's")
    # Of agents that were kept for good both are the same arrays, which cannot be given away twice.
    prior = jax.tree.map(jnp.copy, source.prior)
    return state._replace(online=source.online, prior=prior, normaliser=source.normaliser)


def without_ring(state: Any) -> Any:
    """A run's state, or its shapes, with no more of the ring than how much was written to it."""
    return state._replace(replay=None if state.replay is None else state.replay.written)


def pending_in(extras: Arrays) -> Arrays:
    """The metrics of a call that a checkpoint was saved in the middle of."""
    start = len(PENDING)
    return {name[start:]: x for name, x in extras.items() if name.startswith(PENDING)}
