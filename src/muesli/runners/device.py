"""What is asked of JAX before its first use: room for the replay, and a memory of compilations."""

from __future__ import annotations

import os
from pathlib import Path

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
