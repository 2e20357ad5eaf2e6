"""Numbers on disk: one JSON object per line, flushed, and TensorBoard events beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def to_plain(value: Any) -> Any:
    """A number that JSON can hold: what is not finite becomes a string."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


class JsonLines:
    """An append-only file of JSON objects that knows how long it is."""

    def __init__(self, path: Path, keep_bytes: int | None = None):
        """Opens ``path``; with ``keep_bytes``, drops whatever was written after that position."""
        self.path = path
        if keep_bytes is not None and path.exists():
            with path.open("r+b") as file:
                file.truncate(keep_bytes)
        self._file = path.open("a", encoding="utf-8")

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends objects and flushes them."""
        for row in rows:
            plain = {key: to_plain(value) for key, value in row.items()}
            self._file.write(json.dumps(plain) + "\n")
        self._file.flush()

    def position(self) -> int:
        """Bytes written so far."""
        self._file.flush()
        return self.path.stat().st_size

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class RunLog:
    """The logs of one run: ``metrics.jsonl``, ``episodes.jsonl`` and TensorBoard events."""

    def __init__(self, run_dir: Path, position: Mapping[str, int] | None = None):
        """Opens the logs of ``run_dir``, cut back to ``position`` when a run is resumed."""
        from tensorboardX import SummaryWriter

        position = position or {}
        self.metrics = JsonLines(run_dir / "metrics.jsonl", position.get("metrics"))
        self.episodes = JsonLines(run_dir / "episodes.jsonl", position.get("episodes"))
        self._events = SummaryWriter(str(run_dir / "tensorboard"))

    def write(self, row: Mapping[str, Any]) -> None:
        """Logs one row of metrics; ``env_steps`` is its time axis in TensorBoard."""
        self.metrics.write([row])
        step = int(row["env_steps"])
        for key, value in row.items():
            plain = to_plain(value)
            if isinstance(plain, (int, float)):
                self._events.add_scalar(key, plain, step)
        self._events.flush()

    def position(self) -> dict[str, int]:
        """Where both files stand, for a checkpoint."""
        return {"metrics": self.metrics.position(), "episodes": self.episodes.position()}

    def close(self) -> None:
        """Closes every file."""
        self.metrics.close()
        self.episodes.close()
        self._events.close()


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Every object of a file of JSON lines; an unfinished last line is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
