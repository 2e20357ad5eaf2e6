"""What is asked of JAX before its first use: room for the replay, and a memory of compilations."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax


def prepare_device() -> None:
    """Lets JAX take nearly all of a GPU, and keeps what it compiles and tunes in the user's cache.

    What the user has set in the environment stays. On CPUs nothing is cached: compiled code fits
    one kind of processor, and a home directory may be shared by several.
    """
    if "XLA_CLIENT_MEM_FRACTION" not in os.environ:
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    if jax.default_backend() == "cpu" or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(base / "muesli" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def look_at_device() -> str:
    """The kind of device there is, without taking its memory: the processes to come need it."""
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        return jax.devices()[0].device_kind
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@cache
def finds_accelerator() -> bool:
    """Whether JAX would compute on something else than the processor. It is not started here for
    that: what has to come before its first use may still be to come.
    """
    if platforms := _asked_for():
        return not platforms.startswith("cpu")
    if not _may_have_accelerator():
        return False
    question = "import jax, sys; sys.exit(jax.default_backend() == 'cpu')"
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    asked = subprocess.run(
        [sys.executable, "-c", question], env=environment, capture_output=True, check=False
    )
    return asked.returncode == 0


def _asked_for() -> str:
    """The kinds of device that ``JAX_PLATFORMS`` names, if it does."""
    config: Any = jax.config  # whose options its type does not name
    return str(config.jax_platforms or "")


def _may_have_accelerator() -> bool:
    """Whether something is installed by which JAX could reach one."""
    return bool(
        find_spec("jax_plugins") or find_spec("libtpu") or entry_points(group="jax_plugins")
    )
