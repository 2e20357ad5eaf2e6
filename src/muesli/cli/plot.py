"""``muesli plot``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from muesli.cli.main import UsageError


def plot_command(argv: Sequence[str]) -> int:
    """``muesli plot RUN_DIR… [-o FILE.png]``."""
    parser = argparse.ArgumentParser(prog="muesli plot", allow_abbrev=False)
    parser.add_argument("run_dirs", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, default=Path("curves.png"))
    args = parser.parse_args(list(argv))
    for run_dir in args.run_dirs:
        if not (run_dir / "metrics.jsonl").exists():
            raise UsageError(f"{run_dir} holds no run (there is no metrics.jsonl)")

    from muesli.plots import plot_runs

    plot_runs(args.run_dirs, args.output)
    print(args.output)
    return 0
