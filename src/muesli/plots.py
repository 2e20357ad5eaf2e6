"""Pictures of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from muesli.metrics import read_jsonl

# Okabe and Ito's colours, told apart by everyone.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def style(axes: Any) -> None:
    """The house style: no box, a faint grid."""
    axes.grid(alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def plot_runs(run_dirs: Sequence[Path], output: Path, title: str | None = None) -> None:
    """Training returns and evaluations of runs against environment steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.0, 4.2), dpi=130)
    for index, run_dir in enumerate(run_dirs):
        rows = read_jsonl(run_dir / "metrics.jsonl")
        colour = COLOURS[index % len(COLOURS)]
        curve = [
            (r["env_steps"], r["episode_return_mean"])
            for r in rows
            if r.get("episode_return_mean") is not None
        ]
        if curve:
            steps, returns = np.array(curve).T
            axes.plot(steps, returns, color=colour, label=run_dir.name, linewidth=1.8)
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
    axes.set_title(
        title or "line: training episodes (last 100) · dots: evaluation ± 95%", fontsize=9
    )
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=8)
    style(axes)
    figure.tight_layout()
    figure.savefig(output)
    plt.close(figure)
