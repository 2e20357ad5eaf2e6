"""A suite's directory: ``suite.json`` says what it is, ``runs/ROW/ENV/seed-N`` hold the runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muesli.config import ConfigError
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
        "command": list(command),
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
        "claims": [
            {"kind": c.kind, "first": c.first, "second": c.second, "text": c.text}
            for c in suite.claims
            if c.first in used and c.second in used
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


def write_description(out: Path, description: dict[str, Any]) -> None:
    """Writes ``suite.json``; refuses the directory of another suite or scale."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / FILE
    if file.exists():
        known = json.loads(file.read_text(encoding="utf-8"))
        for key in ("suite", "scale"):
            if known.get(key) != description[key]:
                raise ConfigError(
                    f"out: {out} holds the suite {known.get('suite')} at scale "
                    f"{known.get('scale')}; choose another directory"
                )
        description = _merge(known, description)
    file.write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def _merge(known: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What was run before stays described when only some rows, or more seeds, are run now."""
    merged = dict(new)
    for key, name in (("rows", "name"), ("claims", "text"), ("runs", "path")):
        kept = {entry[name]: entry for entry in known.get(key, [])}
        merged[key] = list((kept | {entry[name]: entry for entry in new[key]}).values())
    merged["envs"] = list(dict.fromkeys([*known.get("envs", []), *new["envs"]]))
    merged["seeds"] = len({run["seed"] for run in merged["runs"]})
    rows = {row["name"] for row in merged["rows"]}
    merged["claims"] = [c for c in merged["claims"] if {c["first"], c["second"]} <= rows]
    return merged
