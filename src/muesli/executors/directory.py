"""A suite's directory: ``suite.json`` says what it is, ``runs/ROW/ENV/seed-N`` hold the runs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from muesli.config import ConfigError
from muesli.executors.jobs import state_of, write_whole
from muesli.fields import differences
from muesli.suites import Run, Selection, Suite

FILE = "suite.json"


def describe(
    name: str,
    suite: Suite,
    selection: Selection,
    runs: Sequence[Run],
    command: Sequence[str],
    plugins: Sequence[str],
) -> dict[str, Any]:
    """What a report needs to know of a suite besides its runs."""
    used = list(dict.fromkeys(run.row for run in runs))
    return {
        "suite": name,
        "title": suite.title,
        "figure": suite.figure,
        "remark": suite.remark,
        "published": {e: t for e, t in suite.published.items() if e in {run.env for run in runs}},
        "scale": selection.scale,
        "preset": suite.scales[selection.scale].preset,
        "fields": {k: _plain(v) for k, v in selection.fields.items()},
        "command": list(command),
        "earlier_commands": [],
        "plugins": list(plugins),
        "seeds": len({run.seed for run in runs}),
        "envs": list(dict.fromkeys(run.env for run in runs)),
        "rows": [
            {
                "name": row.name,
                "fields": {k: _plain(v) for k, v in row.fields.items()},
                "published": row.published,
            }
            for row in suite.rows
            if row.name in used
        ],
        # All of them: rows that come later bring theirs to life, and a report drops the others.
        "claims": [
            {"kind": c.kind, "first": c.first, "second": c.second, "text": c.text}
            for c in suite.claims
        ],
        "runs": [
            {
                "row": run.row,
                "env": run.env,
                "seed": run.seed,
                "path": f"runs/{run.path}",
                "missing": run.missing,
            }
            for run in runs
        ],
    }


def _plain(value: Any) -> Any:
    return "(computed)" if callable(value) else value


def write_description(out: Path, description: dict[str, Any], runs: Sequence[Run]) -> None:
    """Writes ``suite.json``; refuses the directory of another suite or scale, and one whose runs
    have other configurations than ``runs``: before anything is written.

    What several commands at once add is all there in the end.
    """
    out.mkdir(parents=True, exist_ok=True)
    with _alone(out):
        file = out / FILE
        known = _read_known(file) if file.exists() else None
        for key in ("suite", "scale"):
            if known is not None and known[key] != description[key]:
                raise ConfigError(
                    f"out: {out} holds the suite {known['suite']} at scale "
                    f"{known['scale']}; choose another directory"
                )
        _refuse_changed(out, runs)
        if known is not None:
            _refuse_other_fields(out, known, description)
            description = _merge(known, description, _something_to_do(out, runs))
        write_whole(file, json.dumps(description, indent=1) + "\n")


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Until it is left, no other command is in here for the same directory."""
    lock = os.open(out / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _read_known(file: Path) -> dict[str, Any]:
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"out: {file} cannot be read ({error})") from error
    lacking = {"suite", "scale", "command", "runs"} - set(known if isinstance(known, dict) else ())
    if lacking:
        raise ConfigError(f"out: {file} describes no suite (it lacks {min(lacking)})")
    return dict(known)


def _refuse_changed(out: Path, runs: Sequence[Run]) -> None:
    """A run of which something is kept is this run only if it has this configuration."""
    from muesli.runners.rundir import read_config

    changed: dict[str, str] = {}
    paths = []
    for run in runs:
        path = out / "runs" / run.path
        if run.config is None or state_of(path) == "fresh":
            continue
        try:
            begun = read_config(path)
        except ConfigError as error:
            raise ConfigError(f"out: {error}; choose another directory with --out") from error
        was = differences(begun, run.config)
        for name, now in differences(run.config, begun).items():
            changed.setdefault(name, f"{name} is {was[name]} there and {now} here")
        if was:
            paths.append(run.path)
    if paths:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        raise _other(out, f"{paths[0]}{more}: {', '.join(changed.values())}")


def _refuse_other_fields(out: Path, known: dict[str, Any], new: dict[str, Any]) -> None:
    """Rows or seeds that come later are to be compared with those that are there."""
    if "fields" not in known:  # written before they were
        return
    theirs, ours = known["fields"], json.loads(json.dumps(new["fields"]))
    unset = "as the scale says"
    differing = [
        f"{name} is {theirs.get(name, unset)} there and {ours.get(name, unset)} here"
        for name in theirs | ours
        if theirs.get(name, unset) != ours.get(name, unset)
    ]
    if differing and any(state_of(out / run["path"]) != "fresh" for run in known["runs"]):
        raise _other(out, ", ".join(differing))


def _other(out: Path, why: str) -> ConfigError:
    return ConfigError(
        f"out: {out} holds runs of another configuration ({why}); "
        "choose another directory with --out"
    )


def _something_to_do(out: Path, runs: Sequence[Run]) -> bool:
    able = (run for run in runs if run.config is not None)
    return any(state_of(out / "runs" / run.path) != "finished" for run in able)


def _merge(known: dict[str, Any], new: dict[str, Any], runs: bool) -> dict[str, Any]:
    """What was run before stays described when only some rows, or more seeds, are run now.

    A command that runs nothing made none of the data.
    """
    merged = dict(new)
    commands = [*known.get("earlier_commands", []), known["command"]]
    if runs:
        commands = [c for c in commands if c != new["command"]] + [new["command"]]
    *merged["earlier_commands"], merged["command"] = commands
    for key, name in (("rows", "name"), ("claims", "text"), ("runs", "path")):
        kept = {entry[name]: entry for entry in known.get(key, [])}
        merged[key] = list((kept | {entry[name]: entry for entry in new[key]}).values())
    merged["envs"] = list(dict.fromkeys([*known.get("envs", []), *new["envs"]]))
    merged["seeds"] = len({run["seed"] for run in merged["runs"]})
    return merged
