"""``muesli suite`` and ``muesli job``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from muesli.cli import plugins
from muesli.cli.main import INTERRUPTED, UsageError, nearest

FAILED = 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="muesli suite",
        allow_abbrev=False,
        epilog="Any field of a configuration, as of 'muesli train', is set in every run: "
        "--batch.replay-capacity-steps 3600000.",
    )
    parser.add_argument("name", metavar="NAME", help="'muesli list suites' shows them all")
    parser.add_argument("--scale", choices=("laptop", "gpu", "paper"), default="laptop")
    parser.add_argument("--seeds", type=int, help="seeds of each row (default: the scale's)")
    parser.add_argument("--rows", default="", help="only these, separated by commas")
    parser.add_argument("--envs", default="", help="only these, separated by commas")
    parser.add_argument("--total-env-steps", type=int, help="steps of every run")
    parser.add_argument("--out", type=Path, help="default: runs/suites/NAME-SCALE")
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--jobs", type=int, default=1, help="local: jobs at once")
    parser.add_argument("--width", type=int, default=16, help="runs that share a program at most")
    parser.add_argument("--ray-address", help="ray: the cluster to join (default: this machine)")
    parser.add_argument("--cpus-per-job", type=float, default=1.0, help="ray")
    parser.add_argument("--gpus-per-job", type=float, default=0.0, help="ray")
    parser.add_argument("--retries", type=int, default=2, help="ray: times a failed job is retried")
    parser.add_argument("--dry-run", action="store_true", help="print every run and its cost")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser


def suite_command(argv: Sequence[str]) -> int:
    """``muesli suite NAME [--scale S] [--seeds N] [--FIELD VALUE …] [--out DIR] [--dry-run]``."""
    parser = _parser()
    args, rest = parser.parse_known_args(list(argv))
    for flag, value in (("--jobs", args.jobs), ("--width", args.width)):
        if value < 1:
            raise UsageError(f"{flag}: must be at least 1, got {value}")

    from muesli.suites import SUITES, Selection, expand

    if args.name not in SUITES:
        hint = nearest(args.name, list(SUITES))
        raise UsageError(f"unknown suite '{args.name}'{hint}; 'muesli list suites' shows them all")
    suite = SUITES[args.name]
    split = lambda text: tuple(part for part in text.split(",") if part)  # noqa: E731
    selection = Selection(args.scale, args.seeds, split(args.rows), split(args.envs))
    fields = _fields(suite, selection, rest, list(parser._option_string_actions))
    if args.total_env_steps is not None:
        fields["total_env_steps"] = args.total_env_steps
    selection = replace(selection, fields=fields)

    from muesli.executors.jobs import plan, probe
    from muesli.runners.device import look_at_device

    device = look_at_device()
    runs, inside_jax = probe(expand(suite, selection))
    jobs = plan(runs, suite.scales[args.scale].preset, inside_jax, args.width)
    missing = _missing(runs)
    if not jobs:
        why = "; ".join(dict.fromkeys(run.missing for run in runs))
        raise UsageError(f"nothing of the suite {args.name} can run here: {why}")
    if args.dry_run:
        return _dry_run(runs, jobs, missing, device, args.json)
    for line in missing:
        print(f"not here: {line}", flush=True)

    from muesli.executors.directory import describe, write_description

    out = args.out or Path("runs") / "suites" / f"{args.name}-{args.scale}"
    command = ["muesli", *plugins.flags(), "suite", *argv]
    description = describe(args.name, suite, selection, runs, command, plugins.LOADED)
    write_description(out, description, runs)
    outcomes = _execute(args, jobs, out)
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
    print(f"{out}: " + ", ".join(f"{n} jobs {status}" for status, n in counts.items()))
    print(f"table: muesli compare {out}   page: muesli report {out}")
    if args.json:
        print(json.dumps({"out": str(out), **counts}))
    if "stopped" in counts:
        return INTERRUPTED
    return FAILED if "failed" in counts else 0


def _fields(
    suite: Any, selection: Any, arguments: Sequence[str], options: Sequence[str]
) -> dict[str, Any]:
    """The ``--FIELD VALUE`` pairs, for every run of the suite; none may undo what its rows are."""
    if not arguments:
        return {}
    from muesli.cli.train import parse_fields
    from muesli.fields import get_field
    from muesli.suites import base_config, scale_of

    base = base_config(scale_of(suite, selection.scale))
    config = parse_fields(base, arguments, "muesli suite", also=options)
    flags = [argument.split("=")[0] for argument in arguments if argument.startswith("--")]
    fields = {name: get_field(config, name) for name in (f[2:].replace("-", "_") for f in flags)}
    rows = [row for row in suite.rows if not selection.rows or row.name in selection.rows]
    owners = {field: f"the rows differ in it ({row.name})" for row in rows for field in row.fields}
    owners |= {
        "seed": "--seeds N gives every row the seeds 0 to N - 1",
        "env.name": "is --envs here",
    }
    for name in fields:
        if name in owners:
            raise UsageError(f"--{name.replace('_', '-')}: {owners[name]}")
    return fields


def _missing(runs: Sequence[Any]) -> list[str]:
    """What keeps runs from being done, each reason once, with whom it keeps."""
    kept: dict[str, list[Any]] = {}
    for run in runs:
        if run.missing:
            kept.setdefault(run.missing, []).append(run)

    def some(names: Sequence[str]) -> str:
        distinct = list(dict.fromkeys(names))
        more = f" and {len(distinct) - 3} more" if len(distinct) > 3 else ""
        return ", ".join(distinct[:3]) + more

    return [
        f"{reason} ({some([r.row for r in those])} on {some([r.env for r in those])})"
        for reason, those in kept.items()
    ]


def _execute(args: argparse.Namespace, jobs: Sequence[Any], out: Path) -> list[Any]:
    say = lambda line: print(line, flush=True)  # noqa: E731
    if args.executor == "local":
        from muesli.executors.local import run_locally

        return run_locally(jobs, out, plugins.LOADED, args.jobs, say)
    from muesli.executors.cluster import run_on_ray

    return run_on_ray(
        jobs,
        out,
        plugins.LOADED,
        cpus_per_job=args.cpus_per_job,
        gpus_per_job=args.gpus_per_job,
        retries=args.retries,
        address=args.ray_address,
        say=say,
    )


def _dry_run(
    runs: Sequence[Any], jobs: Sequence[Any], missing: Sequence[str], device: str, as_json: bool
) -> int:
    """Every run with its frames, and hours at the last rate measured here."""
    from muesli.executors.jobs import frames_of
    from muesli.executors.rates import estimated_hours

    job_of = {run.path: job for job in jobs for run in job.runs}
    entries = []
    for run in runs:
        entry: dict[str, Any] = {"run": run.path, "missing": run.missing or None}
        if run.config is not None:
            job = job_of[run.path]
            frames = frames_of(run.config)
            hours = estimated_hours(job.preset, run.env, device, frames)
            entry |= {"frames": frames, "hours": hours, "job": job.number}
        entries.append(entry)
    able = [e for e in entries if not e["missing"]]
    width = max(len(e["run"]) for e in able)
    for e in able:
        cost = f"{e['frames']:>13,} frames  {_hours(e['hours'])}"
        print(f"{e['run']:<{width}}  {cost}  job {e['job']}")
    for line in missing:
        print(f"not here: {line}")
    known = [e["hours"] for e in able if e["hours"] is not None]
    total = sum(known) if len(known) == len(able) else None
    frames = sum(e["frames"] for e in able)
    note = "" if total is not None else " (no rate measured here yet)"
    cost = f"{frames:,} frames, {_hours(total).strip()} on {device}{note}"
    print(f"{len(able)} runs in {len(jobs)} jobs, {cost}")
    if as_json:
        print(json.dumps({"runs": entries, "frames": frames, "hours": total}))
    return 0


def _hours(hours: float | None) -> str:
    return "hours unknown" if hours is None else f"{hours:7.3f} hours"


def job_command(argv: Sequence[str]) -> int:
    """``muesli job FILE``: does one job of a suite, as the executors ask for it."""
    parser = argparse.ArgumentParser(prog="muesli job", allow_abbrev=False)
    parser.add_argument("file", type=Path)
    file = parser.parse_args(list(argv)).file
    try:
        job = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read ({error})") from None

    from muesli.executors.jobs import execute
    from muesli.runners.device import prepare_device

    prepare_device()
    stopped_by = execute(job, lambda line: print(line, flush=True))
    sys.stdout.flush()
    return 128 + stopped_by if stopped_by else 0
