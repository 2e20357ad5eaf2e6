"""``muesli suite`` and ``muesli job``."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from muesli.cli import plugins
from muesli.cli.main import INTERRUPTED, UsageError, nearest
from muesli.cli.options import Parser, check_at_least, whole_number

FAILED = 3


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="muesli suite",
        epilog="Any field of a configuration, as of 'muesli train', is set in every run: "
        "--batch.replay-capacity-steps 3600000.",
    )
    parser.add_argument("name", metavar="NAME", help="'muesli list suites' shows them all")
    parser.add_argument("--scale", choices=("laptop", "gpu", "paper"), default="laptop")
    parser.add_argument(
        "--seeds", type=whole_number, help="seeds of each row (default: the scale's)"
    )
    parser.add_argument("--rows", help="only these, separated by commas")
    parser.add_argument("--envs", help="only these, separated by commas")
    parser.add_argument("--total-env-steps", type=whole_number, help="steps of every run")
    parser.add_argument("--out", type=Path, help="default: runs/suites/NAME-SCALE")
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--jobs", type=whole_number, help="local: jobs at once (1)")
    parser.add_argument(
        "--width", type=whole_number, default=16, help="runs that share a program at most"
    )
    parser.add_argument("--ray-address", help="ray: the cluster to join (default: this machine)")
    parser.add_argument("--cpus-per-job", type=float, help="ray (1)")
    parser.add_argument("--gpus-per-job", type=float, help="ray (0)")
    parser.add_argument(
        "--retries", type=whole_number, help="ray: times a failed job is retried (2)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print every run and its cost")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser


def suite_command(argv: Sequence[str]) -> int:
    """``muesli suite NAME [--scale S] [--seeds N] [--FIELD VALUE …] [--out DIR] [--dry-run]``."""
    parser = _parser()
    args, rest = parser.parse_known_args(list(argv))
    check_at_least(1, args, "jobs", "width", "seeds", "total_env_steps")
    _check_executor(args)

    from muesli.suites import SUITES, Selection, expand

    if args.name not in SUITES:
        hint = nearest(args.name, list(SUITES))
        raise UsageError(f"unknown suite '{args.name}'{hint}; 'muesli list suites' shows them all")
    suite = SUITES[args.name]
    rows, envs = _names("--rows", args.rows), _names("--envs", args.envs)
    selection = Selection(args.scale, args.seeds, rows, envs)
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
        print(json.dumps({"out": str(out), **counts}, allow_nan=False))
    if "stopped" in counts:
        return INTERRUPTED
    return FAILED if "failed" in counts else 0


def _names(flag: str, text: str | None) -> tuple[str, ...]:
    """What is named between commas, each once; nothing where the option was not given."""
    names = [part.strip() for part in (text or "").split(",") if part.strip()]
    if text is not None and not names:
        raise UsageError(f"{flag}: names nothing; leave it out for all of them")
    return tuple(dict.fromkeys(names))


_FOR_RAY = ("ray_address", "cpus_per_job", "gpus_per_job", "retries")


def _check_executor(args: argparse.Namespace) -> None:
    """Refuses options that the executor would ignore, or could not follow."""
    if args.executor == "local":
        for name in _FOR_RAY:
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')}: is for --executor ray")
        return
    if args.jobs is not None:
        raise UsageError(
            "--jobs: is for --executor local; Ray does as many at once as there is room for "
            "(--cpus-per-job, --gpus-per-job)"
        )
    check_at_least(0, args, "cpus_per_job", "gpus_per_job", "retries")
    for name in ("cpus_per_job", "gpus_per_job"):
        value = getattr(args, name)
        flag = f"--{name.replace('_', '-')}"
        if value is not None and not math.isfinite(value):
            raise UsageError(f"{flag}: must be finite, got {value}")
        if value is not None and value > 1.0 and not value.is_integer():
            raise UsageError(f"{flag}: must be a whole number above 1, got {value}")
    if find_spec("ray") is None:
        raise UsageError("--executor: ray is not installed; pip install 'muesli-rl[cluster]'")


def _fields(
    suite: Any, selection: Any, arguments: Sequence[str], options: Sequence[str]
) -> dict[str, Any]:
    """The ``--FIELD VALUE`` pairs, for every run of the suite; none may undo what its rows are."""
    if not arguments:
        return {}
    from muesli.cli.configure import parse_fields
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

        return run_locally(jobs, out, plugins.LOADED, args.jobs or 1, say)
    from muesli.executors.cluster import run_on_ray

    return run_on_ray(
        jobs,
        out,
        plugins.LOADED,
        address=args.ray_address,
        say=say,
        **{name: getattr(args, name) for name in _FOR_RAY[1:] if getattr(args, name) is not None},
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
    parser = Parser(prog="muesli job")
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
