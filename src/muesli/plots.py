"""Pictures of runs."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from muesli.config import ConfigError
from muesli.metrics import read_jsonl

# Okabe and Ito's colours, told apart by everyone.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# The circle last: a row without a marker is one where no line is drawn.
MARKERS = ("s", "^", "D", "v", "P", "X", "o")
LEGEND_INSIDE = 4
"""Names that a legend within a picture of single runs has room for."""
DASHES = ("-", (0, (6, 3)), (0, (9, 3, 2, 3)))


def style(axes: Any) -> None:
    """The house style: no box, a faint grid."""
    axes.grid(alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def picture_file(output: Path) -> Path:
    """The file that a picture goes to, a PNG unless it says otherwise; refuses other formats."""
    from matplotlib.figure import Figure

    output = output if output.suffix else output.with_suffix(".png")
    known = Figure().canvas.get_supported_filetypes()
    if output.suffix[1:].lower() not in known:
        raise ConfigError(f"output: no picture ends in {output.suffix}; {', '.join(known)} do")
    return output


def plot_runs(runs: Mapping[Path, str], output: Path) -> None:
    """Training returns and evaluations of runs, each with its name, against environment steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.0, 4.2), dpi=130, layout="constrained")
    drawn = looks(list(runs.values()))
    for run_dir, name in runs.items():
        rows = read_jsonl(run_dir / "metrics.jsonl")
        look = drawn[name]
        colour = _colour(look)
        curve = [
            (r["env_steps"], r["episode_return_mean"])
            for r in rows
            if r.get("episode_return_mean") is not None
        ]
        if curve:
            steps, returns = np.array(curve).T
            axes.plot(steps, returns, label=name, **_line(look, len(steps)))
        evaluated = [r for r in rows if "eval_return_mean" in r]
        if evaluated:
            axes.errorbar(
                [r["env_steps"] for r in evaluated],
                [r["eval_return_mean"] for r in evaluated],
                yerr=[1.96 * r["eval_return_stderr"] for r in evaluated],
                fmt="o",
                markersize=4,
                capsize=2,
                color=colour,
                alpha=0.75,
            )
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episode return")
    axes.set_title("line: training episodes (last 100) · dots: evaluation ± 95%", fontsize=9)
    handles, names = axes.get_legend_handles_labels()
    if len(names) > LEGEND_INSIDE:
        _legend_below(figure, dict(zip(names, handles, strict=True)))
    elif names:
        axes.legend(frameon=False, fontsize=8)
    style(axes)
    figure.savefig(output)
    plt.close(figure)


class Look(NamedTuple):
    """How a row is drawn wherever it is: numbers of a hue, a marker (None: none) and a dash.

    shade: from -1, towards the paper, to 1, towards the ink.
    """

    hue: int
    shade: float
    marker: int | None
    dash: int


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for every row, no two alike: a hue each while there are enough; in many rows, or in
    several sweeps, a hue for each sweep.
    """
    families: dict[str, list[str]] = {}
    for name in names:
        number = swept(name)
        families.setdefault(number[0] if number else name, []).append(name)
    hues, marks = len(COLOURS), len(MARKERS)
    many = len(names) > hues or all(map(swept, names))
    longest = max(map(len, families.values()), default=0)
    if many and 1 < len(families) <= hues and 1 < longest <= marks * len(DASHES):
        return {
            name: Look(hue, 2.0 * k / max(1, len(family) - 1) - 1.0, k % marks, k // marks)
            if len(family) > 1
            else Look(hue, 0.0, None, 0)
            for hue, family in enumerate(families.values())
            for k, name in enumerate(family)
        }
    # Every hue plain, then with each of the markers but the circle, then dashed.
    found = {}
    for k, name in enumerate(names):
        dash, marker = divmod(k // hues, marks)
        found[name] = Look(k % hues, 0.0, marker - 1 if marker else None, dash % len(DASHES))
    return found


class Panel(NamedTuple):
    """Rows that sweep one number.

    field: of the configuration, empty where no single one holds the number in the rows' names;
    series: by name, the numbers in order, each with its row.
    """

    field: str
    scale: Literal["linear", "log", "symlog"]
    series: dict[str, list[tuple[float, str]]]


def swept(name: str) -> tuple[str, float] | None:
    """A row's series and number, if it is named ``series_number``."""
    match = re.fullmatch(r"(.+)_(-?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?)", name)
    return None if match is None else (match[1], float(match[2]))


def sweep_panels(study: Mapping[str, Any]) -> list[Panel]:
    """A panel for each number swept over; none unless every row has one."""
    series: dict[str, list[tuple[float, str]]] = {}
    for row in study["rows"]:
        number = swept(row["name"])
        if number is None:
            return []
        series.setdefault(number[0], []).append((number[1], row["name"]))
    fields: dict[str, dict[str, list[tuple[float, str]]]] = {}
    for name, points in series.items():
        field = _swept_field(study["settings"]["rows"], points)
        # Runs side by side may end in numbers that mean nothing, as seed_1 does.
        if not field and study["suite"] == "comparison":
            return []
        fields.setdefault(field, {})[name] = sorted(points)
    return [
        Panel(field, _scale([x for points in mine.values() for x, _ in points]), mine)
        for field, mine in fields.items()
    ]


def _swept_field(settings: Mapping[str, Any], points: Sequence[tuple[float, str]]) -> str:
    """The one field that holds every row's number."""
    known = [(number, settings[row]) for number, row in points if row in settings]
    fields = [
        field
        for field in (known[0][1] if known else ())
        if all(type(row.get(field)) in (int, float) and row[field] == x for x, row in known)
    ]
    return fields[0] if len(fields) == 1 else ""


def _scale(numbers: Sequence[float]) -> Literal["linear", "log", "symlog"]:
    """Logarithmic over a wide range, with a place for 0 where there is one."""
    above = [x for x in numbers if x > 0.0]
    if min(numbers) < 0.0 or not above:
        return "linear"
    if min(numbers) == 0.0:
        return "symlog" if max(above) >= 30.0 * min(above) else "linear"
    return "log" if max(above) >= 3.0 * min(above) else "linear"


def _colour(look: Look) -> tuple[float, float, float]:
    """A look's colour on white paper."""
    from matplotlib.colors import to_rgb

    ground, share = (0.0, 0.5 * look.shade) if look.shade > 0.0 else (1.0, -0.35 * look.shade)
    red, green, blue = (c + share * (ground - c) for c in to_rgb(COLOURS[look.hue]))
    return red, green, blue


def _line(look: Look, points: int) -> dict[str, Any]:
    """How a look draws a curve. A line through a single point cannot be seen."""
    marker = "o" if points == 1 else None
    return {
        "color": _colour(look),
        "linestyle": DASHES[look.dash],
        "linewidth": 1.8,
        "marker": marker if look.marker is None else MARKERS[look.marker],
        "markersize": 4.5 if points > 1 else 6.0,
        "markevery": max(1, points // 6),
    }


def _legend_below(figure: Any, handles: Mapping[str, Any], columns: int = 0) -> None:
    """Names under the panels, in as many columns as fit (or as wanted, where they do), and room
    for them: the figure grows.
    """
    if not handles:
        return
    width, height = figure.get_size_inches()
    longest = max(map(len, handles))
    fit = max(1, min(len(handles), int(width / (0.06 * longest + 0.5))))
    columns = columns if 0 < columns <= fit else fit
    figure.set_size_inches(width, height + 0.17 * -(-len(handles) // columns))
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8,
    )


def _title(figure: Any, *parts: str) -> None:
    """A title in one line, or in as many as its parts take."""
    wide = int(12.5 * figure.get_size_inches()[0])
    whole = " · ".join(parts)
    lines = [whole] if len(whole) <= wide else [x for p in parts for x in textwrap.wrap(p, wide)]
    figure.suptitle("\n".join(lines), fontsize=10)


def plot_study(study: Mapping[str, Any], output: Path) -> None:
    """The learning curves of a study: a panel for each environment, a band for each row.

    study: as ``report.read_study`` gives it.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    envs = [env["name"] for env in study["envs"]]
    columns = min(3, max(1, len(envs)))
    lines = -(-max(1, len(envs)) // columns)
    size = (max(8.0, 4.2 * columns), 3.6 * lines)
    figure, panels = plt.subplots(
        lines, columns, figsize=size, dpi=130, squeeze=False, layout="constrained"
    )
    for axes in panels.flat[len(envs) :]:
        axes.set_axis_off()
    drawn = looks([row["name"] for row in study["rows"]])
    handles: dict[str, Any] = {}
    for env, axes in zip(envs, panels.flat, strict=False):
        for row in study["rows"]:
            curve = row["curves"].get(env)
            if curve is None:
                continue
            look = drawn[row["name"]]
            steps, value = np.array(curve["steps"]), np.array(curve["value"], float)
            if curve["low"] is not None:
                low, high = np.array(curve["low"], float), np.array(curve["high"], float)
                axes.fill_between(steps, low, high, color=_colour(look), alpha=0.14, lw=0)
            (line,) = axes.plot(
                steps,
                value,
                **_line(look, len(steps)),
            )
            handles.setdefault(row["name"].replace("_", " "), line)
        axes.set_title(env, fontsize=9)
        axes.set_xlabel("environment steps")
        style(axes)
    panels[0, 0].set_ylabel("episode return")
    hues = {look.hue for look in drawn.values()}
    _legend_below(figure, handles, len(hues) if len(hues) < len(drawn) else 0)
    each = (env["runs"] for row in study["rows"] for env in row["envs"].values())
    seeds = max(each, default=0)
    of = f"mean of {seeds} seeds, 95% bootstrap intervals" if seeds > 1 else "one seed"
    _title(figure, study["title"], of)
    figure.savefig(output)
    plt.close(figure)


def plot_sweep(study: Mapping[str, Any], output: Path) -> None:
    """Scores over a swept number, for rows named ``series_number``: IQM and 95% intervals."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    scores = {row["name"]: row["aggregates"].get("iqm") for row in study["rows"]}
    # A row that diverged has no score.
    known = {n: e for n, e in scores.items() if e and np.isfinite(np.float64(e["value"]))}
    rows = [row for row in study["rows"] if row["name"] in known]
    panels = sweep_panels({**study, "rows": rows})
    columns = min(3, max(1, len(panels)))
    lines = -(-max(1, len(panels)) // columns)
    figure, grid = plt.subplots(
        lines,
        columns,
        figsize=(max(7.0, 4.0 * columns), 3.4 * lines),
        dpi=130,
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    names = [name for panel in panels for name in panel.series]
    handles: dict[str, Any] = {}
    for panel, axes in zip(panels, grid.flat, strict=False):
        for name, points in panel.series.items():
            x = [number for number, _ in points]
            estimates = [known[row] for _, row in points]
            value = np.array([e["value"] for e in estimates])
            # A single run has no interval.
            low, high = (
                np.array(
                    [v if e[k] is None else e[k] for e, v in zip(estimates, value, strict=True)]
                )
                for k in ("low", "high")
            )
            errors = np.maximum(0.0, [value - low, high - value])
            index = names.index(name)
            handles[name.replace("_", " ")] = axes.errorbar(
                x,
                value,
                yerr=errors,
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
                capsize=3,
            )
        axes.set_xlabel(_number_name(panel), fontsize=9)
        style(axes)
    raw = _is_raw(study)
    for axes in grid[:, 0]:
        axes.set_ylabel("score (IQM)" if raw else "normalised score (IQM)")
    if len(names) > 1:
        _legend_below(figure, handles)
    _title(figure, study["title"])
    for panel, axes in zip(panels, grid.flat, strict=False):
        _scale_axis(axes, panel)
    figure.draw_without_rendering()
    for panel, axes in zip(panels, grid.flat, strict=False):
        _label_numbers(axes, panel)
    figure.savefig(output)
    plt.close(figure)


def _is_raw(study: Mapping[str, Any]) -> bool:
    """Whether scores are in the environment's own units."""
    if "measure" in study:
        return str(study["measure"]).startswith("raw")
    return any(env["reference"] is None for env in study["envs"])


def _number_name(panel: Panel) -> str:
    """What a panel's numbers are."""
    named = panel.field or (next(iter(panel.series)) if len(panel.series) == 1 else "")
    return named if "." in named else named.replace("_", " ") or "number in the row's name"


def _numbers(panel: Panel) -> list[float]:
    return sorted({number for points in panel.series.values() for number, _ in points})


def _scale_axis(axes: Any, panel: Panel) -> None:
    """The panel's horizontal scale, with a little room at both ends."""
    numbers = _numbers(panel)
    above = [x for x in numbers if x > 0.0]
    if panel.scale == "linear":
        room = 0.06 * (numbers[-1] - numbers[0] or 1.0)
        axes.set_xlim(numbers[0] - room, numbers[-1] + room)
        return
    room = (above[-1] / above[0]) ** 0.06 * 1.05
    if panel.scale == "log":
        axes.set_xscale("log")
        axes.set_xlim(above[0] / room, above[-1] * room)
    else:
        axes.set_xscale("symlog", linthresh=above[0], linscale=0.5)
        axes.set_xlim(-0.3 * above[0], above[-1] * room)


def _label_numbers(axes: Any, panel: Panel) -> None:
    """Ticks at the swept numbers; a label that would touch another goes a line lower, or away."""
    labels, ends = [], [-math.inf, -math.inf]
    pixels = axes.figure.dpi / 72.0
    for number in _numbers(panel):
        text = f"{number:g}"
        at, half = axes.transData.transform((number, 0.0))[0], 2.7 * len(text) * pixels
        line = next((k for k in (0, 1) if at - half > ends[k] + 4.0 * pixels), None)
        if line is not None:
            ends[line] = at + half
        labels.append("" if line is None else "\n" * line + text)
    axes.set_xticks(_numbers(panel), labels, fontsize=8)
    axes.minorticks_off()
