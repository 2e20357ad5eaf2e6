"""``muesli plot``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from muesli.cli.main import UsageError
from muesli.cli.options import prepare_output

PICTURES = (".png", ".svg", ".pdf", ".jpg", ".webp")


def plot_command(argv: Sequence[str]) -> int:
    """``muesli plot RUN_DIR… [-o FILE.png]``, or ``muesli plot SUITE_DIR [--sweep]``."""
    parser = argparse.ArgumentParser(prog="muesli plot", allow_abbrev=False)
    parser.add_argument("run_dirs", type=Path, nargs="+", help="runs, or one suite's directory")
    parser.add_argument("-o", "--output", type=Path, default=Path("curves.png"))
    parser.add_argument("--sweep", action="store_true", help="a suite's scores over its number")
    args = parser.parse_args(list(argv))
    prepare_output(args.output, PICTURES)
    if (args.run_dirs[0] / "suite.json").exists():
        return _plot_suite(args)
    if args.sweep:
        raise UsageError("--sweep: needs the directory of a suite")
    for run_dir in args.run_dirs:
        if not (run_dir / "metrics.jsonl").exists():
            raise UsageError(f"{run_dir} holds no run (there is no metrics.jsonl)")

    from muesli.plots import plot_runs

    plot_runs(args.run_dirs, args.output)
    print(args.output)
    return 0


def _plot_suite(args: argparse.Namespace) -> int:
    """A band for each row, or its scores over the number its rows sweep."""
    import re

    from muesli.plots import plot_study, plot_sweep
    from muesli.report import read_study

    if len(args.run_dirs) > 1:
        raise UsageError("one suite at a time")
    study = read_study(args.run_dirs)
    if args.sweep:
        odd = [r["name"] for r in study["rows"] if not re.search(r"_[0-9.]+$", r["name"])]
        if odd:
            raise UsageError(f"--sweep: the row {odd[0]} has no number in its name")
        plot_sweep(study, args.output)
    else:
        plot_study(study, args.output)
    print(args.output)
    return 0
