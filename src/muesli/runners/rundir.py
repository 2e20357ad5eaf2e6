"""A run's directory: its configuration, its lock, and where its parts lie."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import platform
import shutil
import subprocess
import time
import typing
from pathlib import Path
from typing import Any

import jax

import muesli
from muesli.config import Config, ConfigError, validate

_LATE_SECONDS = 10.0


class RunDirectory:
    """A run directory that this process holds; a second process is refused."""

    def __init__(self, path: Path, lock: int | None):
        """Use ``create``, ``open`` or ``visit``."""
        self.path, self._lock = path, lock
        self.checkpoints = path / "checkpoints"

    @classmethod
    def create(cls, path: Path, config: Config) -> RunDirectory:
        """A new run directory with its configuration written down."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = _acquire(path)
        except OSError as error:
            raise ConfigError(f"run_dir: cannot write to {path} ({error.strerror})") from error
        if any((path / "checkpoints").glob("step-*")):
            os.close(lock)
            raise ConfigError(
                f"run_dir: {path} already holds a run; continue it with 'muesli resume {path}'"
            )
        directory = cls(path, lock)
        directory.forget()  # what a run left that was killed before its first checkpoint
        shutil.rmtree(directory.checkpoints, ignore_errors=True)
        _write_json(path / "config.json", dataclasses.asdict(config))
        _write_json(path / "run.json", describe_machine())
        return directory

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run directory."""
        return cls(path, _acquire(path))

    @classmethod
    def visit(cls, path: Path) -> RunDirectory:
        """The directory of a run whose process 0 holds it."""
        # A network's file system may show a moment late what another host has written.
        until = time.monotonic() + _LATE_SECONDS
        while not (path / "config.json").is_file() and time.monotonic() < until:
            time.sleep(0.1)
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"run_dir: {path} is not there for this process; all processes of a run need one "
                "directory that they share"
            )
        return cls(path, None)

    def forget(self) -> None:
        """Leaves no trace of a run that ended before it had anything to keep."""
        if self._lock is None:
            return
        for name in ("config.json", "run.json", "metrics.jsonl", "episodes.jsonl"):
            (self.path / name).unlink(missing_ok=True)

    def release(self) -> None:
        """Lets another process have it."""
        if self._lock is not None:
            os.close(self._lock)


def _acquire(path: Path) -> int:
    lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(f"run_dir: {path} is in use by another process") from None
    return lock


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def read_config(path: Path) -> Config:
    """The configuration of a run directory."""
    file = path / "config.json"
    try:
        return config_from_json(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigError(f"run_dir: {path} holds no run (there is no config.json)") from None
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"run_dir: {file} cannot be read ({error})") from error


def config_from_json(values: Any) -> Config:
    """A Config from the object ``dataclasses.asdict`` made of one; anything else is refused."""
    config = _from_dict(Config, values, "")
    validate(config)
    return config


def _from_dict(cls: Any, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise ConfigError(f"{where or 'configuration'}: must be an object of fields")
    hints = typing.get_type_hints(cls)
    unknown = set(values) - {f.name for f in dataclasses.fields(cls)}
    if unknown:
        raise ConfigError(f"{where}{min(unknown)}: this version knows no such field")
    arguments = {}
    for name, value in values.items():
        if dataclasses.is_dataclass(hints[name]):
            value = _from_dict(hints[name], value, f"{where}{name}.")
        elif isinstance(value, list):
            value = tuple(value)
        arguments[name] = value
    return cls(**arguments)


def describe_machine() -> dict[str, Any]:
    """Versions, devices and commit, for ``run.json``. commit_modified: whether files of the package
    were changed since; both None where the package is no part of a repository.
    """
    commit, modified = _commit(Path(__file__))
    return {
        "muesli": muesli.__version__,
        "commit": commit,
        "commit_modified": modified,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "devices": [d.device_kind for d in jax.devices()],
        "processes": jax.process_count(),
        "platform": platform.platform(),
    }


def _commit(file: Path) -> tuple[str | None, bool | None]:
    """The commit of the repository that holds this file of ours, and whether the package differs
    from it.
    """
    package = str(file.parents[1])
    # Installed, the package may lie inside somebody else's repository.
    ours = _git(package, "ls-files", "--error-unmatch", "--", str(file)) is not None
    commit = _git(package, "rev-parse", "HEAD") if ours else None
    if commit is None:
        return None, None
    changed = _git(package, "status", "--porcelain", "--untracked-files=no", "--", package)
    return commit, None if changed is None else changed != ""


def _git(folder: str, *arguments: str) -> str | None:
    """What git answers in a folder; None where it refuses, or is not there."""
    try:
        answer = subprocess.run(
            # A look must not stand in the way of who works there.
            ["git", "--no-optional-locks", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
