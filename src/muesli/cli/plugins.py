"""``muesli --plugin FILE COMMAND …``: a user's own file, run before the command.

It adds to the registries (``UPDATES``, ``ENVS``, ``NETWORKS``, ``PRESETS``, ``SUITES``), so that
what it brings can be named wherever the package's own can.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

LOADED: list[str] = []
"""Absolute paths of the files loaded so far, in order."""


def take(arguments: list[str]) -> None:
    """Loads the plug-ins that a command line begins with, and takes them off it.

    Raises a ValueError that says in one line what is wrong.
    """
    while arguments and arguments[0].partition("=")[0] == "--plugin":
        flag, equals, path = arguments.pop(0).partition("=")
        if not equals and arguments:
            path = arguments.pop(0)
        if not path:
            raise ValueError(f"{flag}: needs a Python file behind it")
        load(path)


def load(path: str) -> None:
    """Runs a plug-in file; raises a ValueError naming it where there is none, or it fails."""
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
        del sys.modules[name]
        said = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
        why = f"{type(error).__name__}: {said}" if said else type(error).__name__
        raise ValueError(f"--plugin: {path}{_line(error, file)}: {why}") from error
    LOADED.append(str(file))


def _line(error: BaseException, file: Path) -> str:
    """Where in a plug-in an error arose: the last line of its own on the way there."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    if isinstance(error, SyntaxError) and error.filename == str(file):
        lines.append(error.lineno)
    return f" line {lines[-1]}" if lines and lines[-1] else ""


def flags() -> list[str]:
    """The flags that load the same files again."""
    return [part for path in LOADED for part in ("--plugin", path)]
