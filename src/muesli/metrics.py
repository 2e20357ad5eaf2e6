"""Numbers on disk: one JSON object per line, flushed, and TensorBoard events beside them; and, for
those who ask, on Weights & Biases.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from muesli.config import ConfigError


def to_plain(value: Any) -> Any:
    """A number that JSON can hold: what is not finite becomes a string."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


class JsonLines:
    """An append-only file of JSON objects that knows how long it is.

    What cannot be written, because the disk is full, is kept and written later.
    """

    def __init__(self, path: Path, keep_bytes: int | None = None):
        """Opens ``path``; with ``keep_bytes``, drops whatever was written after that position."""
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._waiting = b""
        # (Truncating a file that is shorter would fill it up with zeros.)
        if keep_bytes is not None and keep_bytes < os.fstat(self._file).st_size:
            os.ftruncate(self._file, keep_bytes)

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends objects, as far as there is room."""
        for row in rows:
            plain = {key: to_plain(value) for key, value in row.items()}
            self._waiting += (json.dumps(plain) + "\n").encode()
        try:
            self._flush()
        except OSError as error:
            _warn(f"{self.path} cannot be written ({error}); its lines wait")

    def _flush(self) -> None:
        while self._waiting:
            self._waiting = self._waiting[os.write(self._file, self._waiting) :]

    def position(self) -> int:
        """Bytes written so far, on the disk for good; raises an OSError where some are not."""
        self._flush()
        os.fsync(self._file)
        return os.fstat(self._file).st_size

    def close(self) -> None:
        """Closes the file."""
        with suppress(OSError):
            self._flush()
        os.close(self._file)


class Events:
    """TensorBoard's events, written at once by whoever calls: no thread that could die unseen."""

    def __init__(self, folder: Path, from_step: int | None = None):
        """With ``from_step``, TensorBoard drops what an earlier process wrote from there on."""
        from tensorboardX.event_file_writer import EventsWriter

        self._writer: Any = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(folder / "events"))
            if from_step is not None:
                self._write(from_step, session_log={"status": 1})
        except OSError as error:
            self._give_up(error)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One number for each name."""
        if self._writer is None:
            return
        try:
            listed = [{"tag": n, "simple_value": float(x)} for n, x in values.items()]
            self._write(step, summary={"value": listed})
        except OSError as error:
            self._give_up(error)

    def _write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write_event(Event(wall_time=time.time(), step=step, **content))
        self._writer.flush()

    def _give_up(self, error: OSError) -> None:
        # A file of records with a hole in it cannot be read behind the hole.
        self._writer = None
        _warn(f"TensorBoard's events cannot be written any more ({error}); metrics.jsonl has all")

    def close(self) -> None:
        """Closes the file."""
        with suppress(OSError):
            if self._writer is not None:
                self._writer.close()


class RunLog:
    """The logs of one run: ``metrics.jsonl``, ``episodes.jsonl`` and TensorBoard events."""

    def __init__(self, run_dir: Path, position: Mapping[str, int] | None = None):
        """Opens the logs of ``run_dir``, cut back to ``position`` when a run is resumed."""
        position = position or {}
        self.metrics = JsonLines(run_dir / "metrics.jsonl", position.get("metrics"))
        self.episodes = JsonLines(run_dir / "episodes.jsonl", position.get("episodes"))
        self._step = position.get("env_steps", 0)
        self._events = Events(run_dir / "tensorboard", self._step + 1 if position else None)

    def write(self, row: Mapping[str, Any]) -> None:
        """Logs one row of metrics; ``env_steps`` is its time axis in TensorBoard."""
        self.metrics.write([row])
        self._step = int(row["env_steps"])
        self._events.scalars(self._step, _numbers(row))

    def position(self) -> dict[str, int]:
        """Where the files stand, for a checkpoint; raises an OSError where they lag behind."""
        return {
            "metrics": self.metrics.position(),
            "episodes": self.episodes.position(),
            "env_steps": self._step,
        }

    def close(self) -> None:
        """Closes every file."""
        self.metrics.close()
        self.episodes.close()
        self._events.close()


_TRACKED_AS = "track.json"


class Tracker:
    """Rows of metrics sent to a project on Weights & Biases: a callback of a training.

    A run that is resumed goes on as the same run there. Whatever becomes of it, training goes on.
    """

    def __init__(self, project: str, run_dir: Path, config: Mapping[str, Any]):
        """config: what is shown as the run's configuration."""
        self._project, self._run_dir, self._config = project, run_dir, config
        self._run: Any = None

    def __enter__(self) -> Tracker:
        return self

    def begin(self, env_steps: int) -> None:
        """Begins a run there, or goes on with the one that came so far."""
        import wandb

        file = self._run_dir / _TRACKED_AS
        same: dict[str, str] = {}
        if env_steps:
            same = {"id": json.loads(file.read_text(encoding="utf-8"))["id"], "resume": "allow"}
        try:
            self._run = wandb.init(
                project=self._project,
                name=self._run_dir.name,
                dir=str(self._run_dir),
                config=dict(self._config),
                **same,
            )
        except wandb.Error as error:
            raise ConfigError(f"track: {' '.join(str(error).split())}") from error
        record = {"project": self._project, "id": self._run.id}
        file.write_text(json.dumps(record) + "\n", encoding="utf-8")

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Sends one row. What a resumed run repeats is there already, and is left out there."""
        if self._run is None:
            return
        try:
            self._run.log(_numbers(row), step=int(row["env_steps"]))
        except Exception as error:
            self._run = None
            _warn(f"rows are not tracked any more ({error}); metrics.jsonl has all")

    def __exit__(self, kind: object, *_: object) -> None:
        if self._run is not None:
            with suppress(Exception):
                self._run.finish(exit_code=0 if kind is None else 1)


def tracked_project(run_dir: Path) -> str | None:
    """The project in which a run is tracked, if it is."""
    with suppress(OSError, ValueError, KeyError):
        return json.loads((run_dir / _TRACKED_AS).read_text(encoding="utf-8"))["project"]
    return None


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    plain = {key: to_plain(value) for key, value in row.items()}
    return {key: x for key, x in plain.items() if isinstance(x, (int, float))}


def _warn(line: str) -> None:
    print(f"muesli: WARNING: {line}", file=sys.stderr, flush=True)  # noqa: T201


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Every object of a file of JSON lines; an unfinished last line is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
