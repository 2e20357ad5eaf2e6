"""One self-contained page: style, script and data in one file that asks the network nothing."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from muesli.plots import looks, sweep_panels
from muesli.report.study import finite

_TYPES = {".mp4": "video/mp4", ".png": "image/png", ".gif": "image/gif"}


def render(study: Mapping[str, Any], live: bool = False) -> str:
    """The page of a study; with ``live`` it asks the server that sent it for news."""
    script = _asset("page.js").replace("LIVE", "true" if live else "false", 1)
    # "</script>" inside a string of the data would end it early.
    data = as_json(study).replace("<", "\\u003c")
    parts = {
        "TITLE": html.escape(f"{study['title']} – muesli"),
        "CONNECT": "'self'" if live else "'none'",
        "STYLE": _asset("style.css"),
        "STUDY": data,
        "SCRIPT": script,
    }
    # Cut at the placeholders once, so that nothing put in is read as one.
    page = _asset("page.html")
    for name in ("CONNECT", "TITLE", "STYLE", "STUDY", "SCRIPT"):
        before, found, page = page.partition(name)
        assert found, f"page.html lacks {name}"
        parts[name] = before + parts[name]
    return "".join([*(parts[n] for n in ("CONNECT", "TITLE", "STYLE", "STUDY", "SCRIPT")), page])


def as_json(study: Mapping[str, Any]) -> str:
    """What the page's script reads: the study, how its rows look and which numbers they sweep.
    JSON knows no NaN: a number that is none becomes null.
    """
    names = [row["name"] for row in study["rows"]]
    # A line through two points says nothing that the table does not.
    panels = sweep_panels(study) if len(names) > 2 else []
    whole = {
        **study,
        "looks": {name: look._asdict() for name, look in looks(names).items()},
        "sweep": [panel._asdict() for panel in panels],
    }
    return json.dumps(finite(whole), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def embed(file: Path) -> str:
    """A picture or video as a data address."""
    return f"data:{_TYPES[file.suffix]};base64,{base64.b64encode(file.read_bytes()).decode()}"


def _asset(name: str) -> str:
    return (resources.files("muesli.report") / "assets" / name).read_text(encoding="utf-8")
