"""A saved agent: out of a run's checkpoints, or of a file to share."""

from __future__ import annotations

from pathlib import Path

import jax

from muesli import checkpoint
from muesli.runners.export import exported_agent
from muesli.runners.parts import Parts
from muesli.runners.saving import kept_checkpoints, load_kept
from muesli.types import AgentState


def load_agent_state(
    run_dir: Path, parts: Parts, best: bool = False, name: str | None = None
) -> AgentState:
    """The AgentState of a run: of its newest good checkpoint, of its best evaluation, or of the
    checkpoint ``name``. Of a run of which only those kept for good are there, the newest of them.
    Or of a file that ``muesli export`` wrote.
    """
    agent = jax.eval_shape(parts.agent.init, jax.random.key(0))
    if run_dir.is_file():
        return exported_agent(run_dir, agent)
    folder = run_dir / "checkpoints"
    kept = kept_checkpoints(run_dir)
    if name is None and not best and kept and not checkpoint.newest_first(folder):
        name = kept[-1]
    if name is not None and name.startswith("kept-"):
        return load_kept(folder / name, agent)
    if name is not None and name.startswith("step-"):
        return checkpoint.load(folder / name, agent, ".agent").tree
    within, prefix = ("", "best") if best or name == "best" else (".agent", "step")
    state, _, _ = checkpoint.load_newest(folder, agent, lambda line: None, within, prefix)
    return state
