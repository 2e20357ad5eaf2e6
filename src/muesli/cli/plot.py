"""``muesli plot``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muesli.cli.main import UsageError
from muesli.cli.options import Parser, prepare_output


def plot_command(argv: Sequence[str]) -> int:
    """``muesli plot RUN_DIR… [-o FILE.png]``, or ``muesli plot SUITE_DIR [--sweep]``."""
    parser = Parser(prog="muesli plot")
    parser.add_argument(
        "run_dirs",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="runs, directories of runs (a curve with a band each), or one suite's directory",
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("curves.png"))
    parser.add_argument("--sweep", action="store_true", help="a suite's scores over its number")
    args = parser.parse_args(list(argv))
    suite = (args.run_dirs[0] / "suite.json").exists()
    if suite and len(args.run_dirs) > 1:
        raise UsageError("one suite at a time")
    if args.sweep and not suite:
        raise UsageError("--sweep: needs the directory of a suite")
    for run_dir in args.run_dirs:
        if not suite and next(run_dir.rglob("metrics.jsonl"), None) is None:
            raise UsageError(f"{run_dir} holds no run (there is no metrics.jsonl)")

    from muesli.plots import picture_file

    output = picture_file(args.output)
    prepare_output(output)
    _draw(args.run_dirs, args.sweep, output)
    print(output)
    return 0


def _draw(directories: Sequence[Path], sweep: bool, output: Path) -> None:
    """A curve for each run; a band for each row, where there are seeds below a directory; or
    scores over the number that rows sweep.
    """
    from muesli.plots import plot_runs, plot_study, plot_sweep, swept
    from muesli.report.study import distinct_names, read_study

    if all((directory / "metrics.jsonl").exists() for directory in directories):
        plot_runs(distinct_names(directories), output)
        return
    study = read_study(directories)
    if sweep:
        odd = [r["name"] for r in study["rows"] if swept(r["name"]) is None]
        if odd:
            raise UsageError(f"--sweep: the row {odd[0]} has no number in its name")
        plot_sweep(study, output)
    else:
        plot_study(study, output)
