"""Pictures of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from muesli.config import ConfigError
from muesli.metrics import read_jsonl

# Okabe and Ito's colours, told apart by everyone.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


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


def _marker(steps: Sequence[float]) -> str | None:
    """A line through a single point cannot be seen."""
    return "o" if len(steps) == 1 else None


def plot_runs(runs: Mapping[Path, str], output: Path) -> None:
    """Training returns and evaluations of runs, each with its name, against environment steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.0, 4.2), dpi=130)
    for index, (run_dir, name) in enumerate(runs.items()):
        rows = read_jsonl(run_dir / "metrics.jsonl")
        colour = COLOURS[index % len(COLOURS)]
        curve = [
            (r["env_steps"], r["episode_return_mean"])
            for r in rows
            if r.get("episode_return_mean") is not None
        ]
        if curve:
            steps, returns = np.array(curve).T
            mark = _marker(steps)
            axes.plot(steps, returns, color=colour, label=name, linewidth=1.8, marker=mark)
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
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=8)
    style(axes)
    figure.tight_layout()
    figure.savefig(output)
    plt.close(figure)


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
    size = (max(7.0, 4.2 * columns), 3.6 * lines)
    figure, panels = plt.subplots(lines, columns, figsize=size, dpi=130, squeeze=False)
    for axes in panels.flat[len(envs) :]:
        axes.set_axis_off()
    for env, axes in zip(envs, panels.flat, strict=False):
        for index, row in enumerate(study["rows"]):
            curve = row["curves"].get(env)
            if curve is None:
                continue
            colour = COLOURS[index % len(COLOURS)]
            dashes = ("-", "--", ":")[index // len(COLOURS) % 3]
            steps = curve["steps"]
            if curve["low"] is not None:
                low, high = curve["low"], curve["high"]
                axes.fill_between(steps, low, high, color=colour, alpha=0.14, lw=0)
            axes.plot(
                steps,
                curve["value"],
                dashes,
                color=colour,
                linewidth=1.8,
                marker=_marker(steps),
                label=row["name"].replace("_", " "),
            )
        axes.set_title(env, fontsize=9)
        axes.set_xlabel("environment steps")
        style(axes)
    panels[0, 0].set_ylabel("episode return")
    if panels[0, 0].get_legend_handles_labels()[1]:
        panels[0, 0].legend(frameon=False, fontsize=7, ncols=1 + len(study["rows"]) // 8)
    each = (env["runs"] for row in study["rows"] for env in row["envs"].values())
    seeds = max(each, default=0)
    of = f"mean of {seeds} seeds, 95% bootstrap intervals" if seeds > 1 else "one seed"
    figure.suptitle(f"{study['title']} · {of}", fontsize=10)
    figure.tight_layout()
    figure.savefig(output)
    plt.close(figure)


def plot_sweep(study: Mapping[str, Any], output: Path) -> None:
    """Scores over a swept number, for rows named ``series_number``: IQM and 95% intervals."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    series: dict[str, list[tuple[float, Mapping[str, float]]]] = {}
    for row in study["rows"]:
        name, _, number = row["name"].rpartition("_")
        if "iqm" in row["aggregates"]:
            series.setdefault(name, []).append((float(number), row["aggregates"]["iqm"]))
    figure, axes = plt.subplots(figsize=(7.0, 3.8), dpi=130)
    for index, (name, points) in enumerate(series.items()):
        points.sort(key=lambda point: point[0])
        x = [at for at, _ in points]
        value = np.array([e["value"] for _, e in points])
        # A single run has no interval.
        low, high = (
            np.array([e["value"] if e[k] is None else e[k] for _, e in points])
            for k in ("low", "high")
        )
        colour = COLOURS[index % len(COLOURS)]
        errors = np.maximum(0.0, [value - low, high - value])
        axes.errorbar(x, value, yerr=errors, color=colour, marker="o", capsize=3, label=name)
    axes.set_xscale("log")
    axes.set_ylabel("normalised score (IQM)")
    axes.set_title(study["title"], fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    style(axes)
    figure.tight_layout()
    figure.savefig(output)
    plt.close(figure)
