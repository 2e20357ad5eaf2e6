"""Muesli: policy optimisation with a clipped MPO regulariser and a learned model, on JAX.

From Python: ``muesli.train(config, run_dir)``, ``muesli.load(run_dir)``, ``muesli.presets``,
``muesli.envs.check``. What they need is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {"train": "muesli.runners.train", "load": "muesli.runners.player"}
_MODULES = ("presets", "envs", "config", "policy_updates", "networks")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"muesli.{name}")
    raise AttributeError(f"module 'muesli' has no attribute {name!r}")
