"""``muesli --plugin FILE COMMAND …``: a user's own file, run before the command.

It adds to the registries (``UPDATES``, ``ENVS``, ``NETWORKS``, ``PRESETS``, ``SUITES``), so that
what it brings can be named wherever the package's own can.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

LOADED: list[str] = []
"""Absolute paths of the files loaded so far, in order."""


def load(path: str) -> None:
    """Runs a plug-in file; raises a ValueError naming it where there is none, or it raises."""
    file = Path(path).resolve()
    if str(file) in LOADED:
        return
    name = f"muesli_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"--plugin: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        from muesli.envs.trial import place_of, told

        del sys.modules[name]
        raise ValueError(f"--plugin: {path} raised {told(error)}{place_of(error)}") from error
    LOADED.append(str(file))


def flags() -> list[str]:
    """The flags that load the same files again."""
    return [part for path in LOADED for part in ("--plugin", path)]
