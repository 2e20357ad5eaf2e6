"""How fast runs were on this machine, remembered in the user's cache to estimate the next ones."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


def rates_file() -> Path:
    """Where the rates are kept."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "muesli" / "rates.json"


def read_rates() -> dict[str, dict[str, Any]]:
    """Every measured rate by key; none where there is no file, or it cannot be read."""
    try:
        found = json.loads(rates_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def rate_key(preset: str, env: str, device: str) -> str:
    """What a rate belongs to."""
    return f"{preset} | {env} | {device}"


def record_rate(preset: str, env: str, device: str, frames: int, seconds: float) -> None:
    """Remembers frames per second of a finished program, all its runs included.

    A cache that cannot be written is no reason to fail.
    """
    if seconds <= 0.0 or frames <= 0:
        return
    rates = read_rates()
    rates[rate_key(preset, env, device)] = {
        "frames_per_second": frames / seconds,
        "measured_time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    file = rates_file()
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(rates, indent=1), encoding="utf-8")
        temporary.replace(file)
    except OSError:
        return


def estimated_hours(preset: str, env: str, device: str, frames: int) -> float | None:
    """Hours that so many frames take at the last measured rate; None if there is none."""
    found = read_rates().get(rate_key(preset, env, device))
    if not found:
        return None
    return frames / float(found["frames_per_second"]) / 3600.0
