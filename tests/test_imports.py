"""Dependencies point one way: every import of the package, held to the table below.

A *room* is a module or subpackage directly under ``muesli``: ``types``, ``ops``, ``cli``, ...
Imports count wherever they stand: at the top of a file, inside a function, or under
``TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "muesli"

# ------------------------------------------------------------------------------------------
# The table. A new room gets one row in MAY_IMPORT; the tests need no change.
# ------------------------------------------------------------------------------------------

_BASE = {"types", "checks"}
_MATHS = _BASE | {"config", "distributions", "ops"}
_LEARNER = _MATHS | {
    *("policy_updates", "losses", "diagnostics", "networks", "optim", "search", "symmetry"),
}
_RECORDS = _BASE | {"config", "checkpoint", "metrics", "plots", "report", "video"}
_EVERYTHING = (
    _LEARNER
    | _RECORDS
    | {"agent", "envs", "frames", "go", "keys", "presets", "replay", "runners", "suites"}
    | {"executors", "fields", "statistics"}
)

# room -> the other rooms it may import. A row whose room does not exist yet is fine.
MAY_IMPORT: dict[str, set[str]] = {
    # types <- distributions <- ops <- policy_updates <- losses <- agent <- runners <- cli
    "types": set(),
    "checks": {"types"},
    "distributions": _BASE,
    "ops": _BASE | {"distributions"},
    "policy_updates": _MATHS,
    "losses": _MATHS | {"policy_updates", "networks"},
    "diagnostics": _MATHS | {"policy_updates", "losses"},
    "agent": _LEARNER,
    "runners": _EVERYTHING
    - {"executors", "go", "runners", "suites", "report", "plots", "statistics", "video"},
    "cli": _EVERYTHING,
    # beside the chain
    "config": set(),
    "presets": {"config"},
    "networks": _MATHS,
    "optim": _BASE | {"config"},
    "search": _MATHS | {"networks"},
    "keys": _BASE,
    "frames": _BASE,
    "symmetry": _BASE | {"config", "distributions"},
    "envs": _BASE | {"config", "frames", "keys"},
    "replay": _BASE | {"config", "frames"},
    # what a run leaves behind, and what is made of it
    "checkpoint": _BASE | {"config"},
    "metrics": _BASE | {"config"},
    "plots": {"config", "metrics"},
    "statistics": set(),
    "report": {"config", "envs", "fields", "metrics", "plots", "presets", "statistics", "suites"},
    "video": _BASE | {"config", "envs", "plots", "runners"},
    "fields": {"config"},
    "suites": {"config", "fields", "presets"},
    "executors": {"config", "checkpoint", "envs", "fields", "metrics", "runners", "suites"},
    # Go at the board: referee, GTP, matches, diagrams
    "go": _BASE | {"config", "distributions", "agent", "envs", "plots", "runners"},
    # the front doors
    "__init__": _EVERYTHING,
    "__main__": {"cli"},
}

# Names of the package itself that every room may ask for.
FROM_PACKAGE = {"__version__"}

# Files, threads, processes and clocks: these modules and the builtin `open` belong to these rooms.
HOST_MODULES = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "sched", "subprocess", "threading"),
    *("glob", "io", "os", "pathlib", "shutil", "tempfile"),
    *("select", "selectors", "signal", "socket"),
    *("datetime", "time"),
}
HOST_ROOMS = {
    "cli",
    "executors",
    "go",
    "runners",
    "checkpoint",
    "metrics",
    "plots",
    "report",
    "video",
}
# What a single module elsewhere may use: the emulators' threads are as many as the processors,
# an environment that hangs is tried out in a thread that is left behind, and worker processes are
# started, shared memory with, waited for and killed in one place.
HOST_EXCEPTIONS: dict[str, set[str]] = {
    "muesli.envs.atari": {"os"},
    "muesli.envs.trial": {"threading", "time"},
    "muesli.envs.workers": {
        *("io", "multiprocessing", "os", "selectors", "signal", "subprocess", "tempfile"),
        *("threading", "time"),
    },
}

# Third-party packages that one room wraps for all the others.
ONLY_IN: dict[str, set[str]] = {
    "flax": {"networks"},
    "mctx": {"search"},
    "orbax": {"checkpoint"},
    "tyro": {"cli"},
    "pgx": {"envs"},
    "ale_py": {"envs"},
    "gymnasium": {"envs"},
    "ray": {"executors"},
    "tensorboardX": {"metrics"},
    "wandb": {"metrics"},
}

# Oracles of the tests and other frameworks: nowhere in the package.
NOWHERE = {
    "chex",
    "distrax",
    "haiku",
    "pandas",
    "pyspiel",
    "rlax",
    "rliable",
    "tensorflow",
    "tests",
    "torch",
}

# Gradients stop at one place, where the agent makes its Targets.
NO_STOP_GRADIENT = {"losses", "policy_updates"}

# Not loaded by importing the command line, so that `muesli --help` answers at once.
LAZY = {"flax", "jax", "matplotlib", "mctx", "optax", "orbax", "pgx"}
LAZY_ENTRY = "muesli.cli.main"

# ------------------------------------------------------------------------------------------
# The reader
# ------------------------------------------------------------------------------------------


class Import(NamedTuple):
    """One imported dotted name, ``muesli.ops.returns.retrace`` or ``numpy``, and its line."""

    name: str
    line: int


def room_of(module: str) -> str:
    """``muesli.ops.returns`` -> ``ops``; the package's own ``__init__`` -> ``__init__``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports_of(tree: ast.AST, module: str, is_package: bool) -> Iterator[Import]:
    """Every import in a file, relative ones resolved, ``import_module("...")`` included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".")
                if not is_package:
                    package = package[:-1]
                package = package[: len(package) - (node.level - 1)]
                base = ".".join([*package, base]) if base else ".".join(package)
            yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield Import(argument.value, node.lineno)


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What the table forbids in ``source``, the text of ``module``: one sentence each."""
    room = room_of(module)
    if room not in MAY_IMPORT:
        return [f"{module}: `{room}` has no row in MAY_IMPORT (tests/test_imports.py)"]
    tree = ast.parse(source)
    found = []
    for name, line in imports_of(tree, module, is_package):
        where = f"{module}:{line}"
        top, *rest = name.split(".")
        if top == "muesli":
            target = rest[0] if rest and rest[0] not in FROM_PACKAGE else None
            if target is not None and target != room and target not in MAY_IMPORT[room]:
                found.append(f"{where}: `{room}` may not import `{target}`")
        elif top in NOWHERE:
            found.append(f"{where}: `{top}` is no dependency of the package")
        elif room not in ONLY_IN.get(top, {room}):
            found.append(f"{where}: only {sorted(ONLY_IN[top])} may import `{top}`")
        elif (
            top in HOST_MODULES
            and room not in HOST_ROOMS
            and top not in HOST_EXCEPTIONS.get(module, set())
        ):
            found.append(f"{where}: `{room}` may not touch the host through `{top}`")
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "open"
        ):
            if room not in HOST_ROOMS:
                found.append(f"{module}:{node.lineno}: `{room}` may not open files")
        elif room in NO_STOP_GRADIENT and (
            (isinstance(node, ast.Attribute) and node.attr == "stop_gradient")
            or (isinstance(node, ast.Name) and node.id == "stop_gradient")
        ):
            found.append(f"{module}:{node.lineno}: `{room}` may not stop gradients")
    return list(dict.fromkeys(found))


def modules() -> list[tuple[str, Path]]:
    """Every file of the package with its dotted name."""
    files = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("muesli", *path.relative_to(PACKAGE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts = parts[:-1]
        files.append((".".join(parts), path))
    return files


# ------------------------------------------------------------------------------------------
# The package
# ------------------------------------------------------------------------------------------


def test_the_package_is_found() -> None:
    assert "muesli" in dict(modules())


@pytest.mark.parametrize(("module", "path"), [pytest.param(*m, id=m[0]) for m in modules()])
def test_imports_point_one_way(module: str, path: Path) -> None:
    found = violations(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
    assert not found, "\n".join(found)


def test_the_table_has_no_cycles() -> None:
    """The rooms can be put in an order in which each sees only earlier ones."""
    left = {room: set(sees) for room, sees in MAY_IMPORT.items()}
    while ready := {room for room, sees in left.items() if not sees & left.keys()}:
        left = {room: sees for room, sees in left.items() if room not in ready}
    assert not left, f"rooms that see each other, or are seen by those: {sorted(left)}"


def loaded_by(module: str) -> set[str]:
    """The top-level packages in memory after a fresh interpreter has imported ``module``."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


@pytest.mark.skipif(not (PACKAGE / "cli" / "main.py").exists(), reason="no command line yet")
def test_the_command_line_starts_without_jax() -> None:
    heavy = loaded_by(LAZY_ENTRY) & LAZY
    assert not heavy, f"importing {LAZY_ENTRY} also loads {sorted(heavy)}"


# ------------------------------------------------------------------------------------------
# The reader can fail: each rule, broken once
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        # the direction, however the import is written and wherever it stands
        ("muesli.types", "import muesli.agent", "`types` may not import `agent`"),
        ("muesli.ops.returns", "from muesli import losses", "`ops` may not import `losses`"),
        ("muesli.ops.returns", "from ..agent import update", "`ops` may not import `agent`"),
        ("muesli.ops.returns", "from .. import agent", "`ops` may not import `agent`"),
        ("muesli.distributions", "from . import ops", "`distributions` may not import `ops`"),
        ("muesli.agent", "def f():\n    import muesli.runners.anakin", "not import `runners`"),
        ("muesli.agent", "if TYPE_CHECKING:\n    from muesli.envs import JaxEnv", "import `envs`"),
        ("muesli.agent", "import importlib\nimportlib.import_module('muesli.cli')", "import `cli`"),
        ("muesli.config", "from muesli.types import Array", "`config` may not import `types`"),
        ("muesli.envs.catch", "from muesli.distributions import Categorical", "`distributions`"),
        ("muesli.networks.torsos", "from muesli.agent import Agent", "may not import `agent`"),
        # other people's packages
        ("muesli.agent", "from flax import nnx", "only ['networks'] may import `flax`"),
        ("muesli.ops.returns", "import rlax", "`rlax` is no dependency"),
        ("muesli.types", "from chex import Array", "`chex` is no dependency"),
        ("muesli.distributions", "import distrax as dx", "`distrax` is no dependency"),
        # the host
        ("muesli.agent", "import time", "host through `time`"),
        ("muesli.replay", "from concurrent.futures import ThreadPoolExecutor", "`concurrent`"),
        ("muesli.envs.catch", "import os.path", "host through `os`"),
        ("muesli.envs.atari", "import threading", "host through `threading`"),
        ("muesli.envs.workers", "import socket", "host through `socket`"),
        ("muesli.config", "text = open('x').read()", "`config` may not open files"),
        # gradients
        ("muesli.losses", "import jax\ny = jax.lax.stop_gradient(1.0)", "may not stop gradients"),
        ("muesli.policy_updates", "y = stop_gradient(1.0)", "may not stop gradients"),
        # a room nobody wrote down
        ("muesli.attic", "x = 1", "`attic` has no row"),
    ],
)
def test_a_violation_is_found(module: str, source: str, complaint: str) -> None:
    found = violations(source, module)
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "muesli.ops.returns",
            "from muesli.distributions import Categorical\nfrom . import values",
        ),
        ("muesli.networks.torsos", "from flax import nnx\nfrom ..types import Array"),
        ("muesli.agent", "from muesli import losses, optim\nimport jax"),
        ("muesli.envs.atari", "import os"),
        ("muesli.runners.anakin", "import time\nfrom pathlib import Path\nopen(Path('x'))"),
        ("muesli.metrics", "from muesli import __version__"),
        ("muesli.agent", "import jax\njax.lax.stop_gradient(1.0)"),
        ("muesli.types", '"""import muesli.agent"""'),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_relative_imports_of_a_package_start_at_the_package() -> None:
    source = "from . import returns\nfrom ..agent import update"
    assert violations(source, "muesli.ops", is_package=True) == [
        "muesli.ops:2: `ops` may not import `agent`"
    ]


def test_what_an_import_loads_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check on the command line sees through one module importing another."""
    (tmp_path / "eager_entry.py").write_text("import eager_helper\n")
    (tmp_path / "eager_helper.py").write_text(
        textwrap.dedent(
            """
            import colorsys

            def later():
                import wave
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    loaded = loaded_by("eager_entry")
    assert "colorsys" in loaded
    assert "wave" not in loaded
