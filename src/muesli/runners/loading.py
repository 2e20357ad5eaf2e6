"""A saved agent: out of a run's checkpoints, or of a file to share."""

from __future__ import annotations

from pathlib import Path

import jax

from muesli import checkpoint
from muesli.config import ConfigError
from muesli.runners.export import exported_agent
from muesli.runners.parts import Parts
from muesli.runners.saving import load_kept
from muesli.types import AgentState


def load_agent_state(run_dir: Path, parts: Parts, name: str | None = None) -> AgentState:
    """The AgentState of a run: of its newest good checkpoint, or of the checkpoint ``name``; "best"
    is the one that evaluated best. Of a run of which only those kept for good are there, the newest
    of them. Or of a file that ``muesli export`` wrote.
    """
    agent = jax.eval_shape(parts.agent.init, jax.random.key(0))
    if run_dir.is_file():
        if name is not None:
            raise ConfigError(
                f"checkpoint: {run_dir} is an exported agent, of which no '{name}' can be chosen"
            )
        return exported_agent(run_dir, agent)
    folder = run_dir / "checkpoints"
    best, step, kept = (
        [path.name for path in checkpoint.newest_first(folder, prefix)]
        for prefix in ("best", "step", "kept")
    )
    if name is None:
        if step or not kept:
            return checkpoint.load_newest(folder, agent, lambda line: None, ".agent")[0]
        name = kept[0]
    if name == "best" and best:
        return checkpoint.load_newest(folder, agent, lambda line: None, prefix="best")[0]
    if name in kept:
        return load_kept(folder / name, agent)
    if name in step or name in best:
        return checkpoint.load(folder / name, agent, ".agent" if name in step else "").tree
    there = ", ".join([*(["best"] if best else []), *best, *step, *kept])
    raise ConfigError(f"checkpoint: {run_dir} has no '{name}'; it has {there or 'none'}")
