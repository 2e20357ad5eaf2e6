"""Muesli: policy optimisation with a clipped MPO regulariser and a learned model, on JAX.

From Python: ``muesli.train(config, run_dir)``, ``muesli.resume(run_dir)``,
``muesli.load(run_dir)``, ``muesli.presets``, ``muesli.envs.check``. What they need is imported when
it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "config",
    "envs",
    "load",
    "networks",
    "policy_updates",
    "presets",
    "resume",
    "train",
]

_LAZY = {
    "train": "muesli.runners.train",
    "resume": "muesli.runners.train",
    "load": "muesli.runners.player",
}


if TYPE_CHECKING:
    from muesli import config, envs, networks, policy_updates, presets
    from muesli.runners.player import load
    from muesli.runners.train import resume, train
else:  # or every misspelt name would have a type

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            return getattr(importlib.import_module(_LAZY[name]), name)
        if name in __all__:
            return importlib.import_module(f"muesli.{name}")
        raise AttributeError(f"module 'muesli' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
