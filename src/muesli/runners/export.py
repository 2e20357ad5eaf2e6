"""One file to share: an agent's parameters and its configuration, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import muesli
from muesli import checkpoint
from muesli.config import Config
from muesli.runners.rundir import config_from_json
from muesli.types import AgentState

# What acts: parameters, and what scales the advantages of the policies that look ahead.
_FIELDS = ("online", "prior", "moment", "normaliser", "step")


def export_agent(file: Path, agent: AgentState, config: Config) -> None:
    """Writes what ``muesli eval``, ``muesli.load`` and ``--init-from`` need of an agent."""
    meta = {"config": dataclasses.asdict(config), "muesli": muesli.__version__}
    checkpoint.write_file(file, _part(agent), meta)


def exported_config(file: Path) -> Config:
    """The configuration of an exported agent."""
    return config_from_json(checkpoint.read_file_meta(file).get("config"))


def exported_agent(file: Path, example: AgentState) -> AgentState:
    """An exported agent; its optimiser and what else only training needs is None."""
    part = checkpoint.read_file(file, _part(example))
    nothing = dict.fromkeys(AgentState._fields)
    return AgentState(**{**nothing, **part})


def _part(agent: AgentState) -> dict[str, Any]:
    return {name: getattr(agent, name) for name in _FIELDS}
