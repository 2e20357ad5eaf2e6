"""``muesli compare`` and ``muesli report``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muesli.cli.main import UsageError
from muesli.cli.options import Parser, check_at_least, prepare_output, whole_number
from muesli.config import ConfigError

ENVS_SHOWN = 6
"""Environments that a table has room for beside the aggregates."""
AGGREGATES = {
    "iqm": "IQM",
    "median": "median",
    "mean": "mean",
    "optimality_gap": "optimality gap",
}


def _check(directories: Sequence[Path]) -> None:
    for directory in directories:
        if not directory.is_dir():
            raise UsageError(f"{directory} is no directory")


def compare_command(argv: Sequence[str]) -> int:
    """``muesli compare DIR… [--json]``: suites, or one directory of runs for each row."""
    parser = Parser(
        prog="muesli compare",
        description="A table with IQM and 95% intervals: of a suite, or of directories of runs.",
    )
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args(list(argv))
    _check(args.directories)

    from muesli.report import read_study

    suites = [d for d in args.directories if (d / "suite.json").exists()]
    if len(suites) == len(args.directories):
        studies = [read_study([d]) for d in suites]
    else:
        studies = [read_study(args.directories)]
    for study in studies:
        _print_study(study)
    if args.json:
        whole = studies[0] if len(studies) == 1 else {"studies": studies}
        print(json.dumps(whole, allow_nan=False))
    return 0


def _print_study(study: Mapping[str, Any]) -> None:
    from rich.console import Console

    # What is read by a program is not cut to lines.
    console = Console(width=None if Console().is_terminal else 400)
    where = ", ".join(x for x in (study["figure"], study["scale"]) if x)
    title = f"{study['title']}{f' ({where})' if where else ''}"
    games = [env["name"] for env in study["envs"]]
    first = games[:ENVS_SHOWN]
    there = {name for row in study["rows"] for name in row["aggregates"]}
    aggregates = {name: shown for name, shown in AGGREGATES.items() if name in there}
    if study["measure"] == "raw return":
        aggregates = {name: f"{shown} (raw return)" for name, shown in aggregates.items()}
    if len(games) > 1 and aggregates:
        console.print(_table(title, study["rows"], aggregates, ()))
        console.print(_table("in each environment's own units", study["rows"], {}, first))
    else:
        console.print(_table(title, study["rows"], aggregates, first))
    if len(games) > ENVS_SHOWN:
        more = f"… and {len(games) - ENVS_SHOWN} more environments"
        console.print(f"{more}; --json and 'muesli report' have them all", highlight=False)
    unfinished = study["runs_wanted"] - study["runs_finished"]
    if unfinished:
        console.print(f"{unfinished} of {study['runs_wanted']} runs are not finished")
    for line in _remarks(study):
        console.print(line, markup=False, highlight=False)
    for claim in study["claims"]:
        chance = claim["improvement"]
        shown = f"P(improvement) {_interval(chance)}" if chance else ""
        decided = claim["provisional"] and chance
        verdict = f"{claim['verdict']}{' so far' if decided else ''}"
        console.print(f"  {verdict:<20} {claim['text']}   {shown}", markup=False)
    if study["caveat"]:
        console.print(study["caveat"], markup=False, highlight=False)


def _remarks(study: Mapping[str, Any]) -> list[str]:
    """What a reader of the table has to know of it."""
    lines = []
    for row in study["rows"]:
        if row["diverged"]:
            runs = "1 run" if row["diverged"] == 1 else f"{row['diverged']} runs"
            lines.append(f"{row['name']}: {runs} diverged (returns not finite) and has no score")
        if row["uncounted"]:
            lines.append(
                f"{row['name']}: the first {row['counted']} runs of every environment are counted, "
                f"{row['uncounted']} more of some are not"
            )
    sofar = [row["name"] for row in study["rows"] if row["provisional"] and row["aggregates"]]
    if sofar:
        lines.append(f"so far, as runs are missing: the aggregates of {', '.join(sofar)}")
    lines += _failures(study)
    lines += [f"not here: {line}" for line in study["missing"]]
    return lines


def _failures(study: Mapping[str, Any]) -> list[str]:
    return [f"failed: {f['job']} ({f['why']}; see {f['log']})" for f in study["failures"]]


def _table(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    aggregates: Mapping[str, str],
    envs: Sequence[str],
) -> Any:
    """A line for each row; aggregates: the column's title by the aggregate's name."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None)
    table.add_column("row", no_wrap=True)
    table.add_column("runs", justify="right")
    for name in (*aggregates.values(), *envs):
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        cells = [row["aggregates"].get(key) for key in aggregates]
        cells += [row["envs"].get(env) for env in envs]
        table.add_row(row["name"], str(row["finished"]), *map(_interval, cells))
    return table


def _interval(estimate: Mapping[str, float | None] | None) -> str:
    if not estimate:
        return "–"
    if estimate["low"] is None:
        return f"{estimate['value']:.3g}"
    return f"{estimate['value']:.3g} ({estimate['low']:.3g}, {estimate['high']:.3g})"


def report_command(argv: Sequence[str]) -> int:
    """``muesli report DIR… [-o FILE.html] [--videos N] [--live]``."""
    parser = Parser(
        prog="muesli report",
        description="One self-contained page: of a suite, or of directories of runs.",
    )
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("-o", "--output", type=Path, help="default: DIR/report.html")
    parser.add_argument("--videos", type=whole_number, default=2, help="rows to show (0: none)")
    parser.add_argument("--live", action="store_true", help="serve it here while the suite runs")
    parser.add_argument(
        "--port", type=whole_number, default=0, help="live: default is any free one"
    )
    args = parser.parse_args(list(argv))
    _check(args.directories)
    check_at_least(0, args, "videos")
    if not 0 <= args.port <= 65_535:
        raise UsageError(f"--port: must be 0 (any free one) to 65535, got {args.port}")
    if args.live:
        from muesli.report.live import serve

        try:
            serve(args.directories, args.port, lambda line: print(line, flush=True))
        except OSError as error:
            raise UsageError(f"--port: cannot listen at {args.port} ({error.strerror})") from error
        return 0

    from muesli.report import read_study
    from muesli.report.page import render

    output = args.output or args.directories[0] / "report.html"
    prepare_output(output)
    study = read_study(args.directories)
    study["media"] = _media(study, args.directories[0], args.videos)
    output.write_text(render(study), encoding="utf-8")
    for line in _failures(study):
        print(line)
    print(f"{output} ({output.stat().st_size / 1024:.0f} kB)")
    return 0


def _media(study: Mapping[str, Any], directory: Path, rows: int) -> list[dict[str, str]]:
    """Short videos of the first rows' agents; what cannot be played is left out, and said."""
    if rows < 1 or not (directory / "suite.json").exists():
        return []
    from muesli.checkpoint import CheckpointError
    from muesli.report.page import embed
    from muesli.runners.player import load
    from muesli.video import first_frame, record

    suite = json.loads((directory / "suite.json").read_text(encoding="utf-8"))
    media = []
    for row in study["rows"][:rows]:
        runs = [r for r in suite["runs"] if r["row"] == row["name"] and not r["missing"]]
        if not runs or not row["finished"]:
            continue
        run_dir = directory / runs[0]["path"]
        video = run_dir / "report.mp4"
        try:
            if not video.exists():
                record(load(run_dir), video, episodes=4, max_steps=120, fps=6, seed=0)
            caption = f"{row['name']} on {runs[0]['env']}, seed {runs[0]['seed']}"
            poster = run_dir / "report.png"
            first_frame(video, poster)
            media.append({"caption": caption, "data": embed(video), "poster": embed(poster)})
        except (CheckpointError, ConfigError, AssertionError, OSError) as error:
            print(f"no video of {row['name']}: {error}")
    return media
