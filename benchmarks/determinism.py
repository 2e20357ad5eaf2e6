"""Whether the same run twice is the same to the bit on this machine, and a resumed one too.

Trains a preset twice and once more with a SIGTERM on the way and a resume after it, all at the
same time, and compares the final checkpoints byte by byte and the metrics (times aside). Run it
with and without the flags in question:

    python benchmarks/determinism.py --preset minatar --steps 60000
    XLA_FLAGS=--xla_gpu_deterministic_ops=true python benchmarks/determinism.py ...
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from muesli.checkpoint import newest_first
from muesli.metrics import read_jsonl

MUESLI = (sys.executable, "-m", "muesli.cli.main")


def start(*arguments: str) -> subprocess.Popen[str]:
    # Three processes share the device.
    env = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2", **os.environ}
    return subprocess.Popen([*MUESLI, *arguments], env=env, stdout=subprocess.DEVNULL, text=True)


def ended(process: subprocess.Popen[str], code: int = 0) -> None:
    if process.wait() != code:
        sys.exit(f"a run ended with exit code {process.returncode} instead of {code}")


def metrics(run: Path) -> list[dict[str, Any]]:
    """A run's rows without what tells the time."""
    timed = ("second", "time")
    rows = read_jsonl(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not any(t in k for t in timed)} for row in rows]


def arrays(run: Path) -> tuple[dict[str, Any], bytes]:
    newest = newest_first(run / "checkpoints")[0]
    manifest = json.loads((newest / "manifest.json").read_text())
    return manifest, (newest / "arrays.bin").read_bytes()


def compare(name: str, one: Path, other: Path) -> None:
    (manifest, ours), (also, theirs) = arrays(one), arrays(other)
    same = ours == theirs and manifest["ring"] == also["ring"]
    rows, others = metrics(one), metrics(other)
    first = next((r for r, o in zip(rows, others, strict=True) if r != o), None)
    line = f"{name}: {'equal to the bit' if same and first is None else 'NOT equal'}"
    if first is not None:
        line += f"; metrics part by update {first['updates']}"
    if len(ours) == len(theirs):
        different = np.frombuffer(ours, np.uint8) != np.frombuffer(theirs, np.uint8)
        line += f"; {np.mean(different):.2%} of {len(ours):,} checkpoint bytes differ"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="minatar")
    parser.add_argument("--steps", type=int, default=60_000)
    options, fields = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        names = ("first", "second", "resumed")
        runs = {name: Path(folder) / name for name in names}
        steps, every = str(options.steps), str(options.steps // 10)
        running = {
            name: start(
                *("train", options.preset, "--run-dir", str(run), "--total-env-steps", steps),
                *("--log.log-every-steps", every, "--log.checkpoint-every-steps", every, *fields),
            )
            for name, run in runs.items()
        }
        while running["resumed"].poll() is None:
            if len(newest_first(runs["resumed"] / "checkpoints")) >= 2:
                running["resumed"].send_signal(signal.SIGTERM)
                break
            time.sleep(0.05)
        ended(running["resumed"], 143)
        ended(start("resume", str(runs["resumed"])))
        ended(running["first"])
        ended(running["second"])
        print(f"{options.preset}, {steps} steps, XLA_FLAGS={os.environ.get('XLA_FLAGS', '')!r}")
        compare("the same run twice", runs["first"], runs["second"])
        compare("stopped and resumed", runs["first"], runs["resumed"])


if __name__ == "__main__":
    main()
