"""Draws docs/images/minatar_gpu.png from the result files in results/."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from muesli.plots import COLOURS, style

ROOT = Path(__file__).resolve().parent.parent
# pgx's own PPO at 20M steps, as its authors publish it.
PPO = {"breakout": 50, "asterix": 23, "space_invaders": 149, "freeway": 63, "seaquest": 54}


def main() -> None:
    figure, panels = plt.subplots(1, 5, figsize=(15.0, 3.2), dpi=110)
    for axes, (game, ppo) in zip(panels, PPO.items(), strict=True):
        files = sorted((ROOT / "results").glob(f"minatar_gpu_{game}*.json"))
        for colour, file in zip(COLOURS, files, strict=False):
            result = json.loads(file.read_text())
            label = "128 environments" if "128envs" in file.name else "minatar_gpu"
            steps, returns = zip(*result["curve"], strict=True)
            axes.plot([s / 1e6 for s in steps], returns, color=colour, linewidth=1.8, label=label)
            at, mean, error = zip(*result["evaluations"], strict=True)
            axes.errorbar(
                [s / 1e6 for s in at], mean, yerr=[1.96 * e for e in error], fmt="o", color=colour,
                markersize=4, capsize=2, alpha=0.75,
            )  # fmt: skip
        axes.axhline(ppo, color="0.4", linestyle="--", linewidth=1.2, label="PPO (pgx) at 20M")
        axes.set_title(game.replace("_", " "), fontsize=10)
        axes.set_xlabel("million steps")
        axes.set_xlim(0, 20.5)
        axes.legend(frameon=False, fontsize=7)
        style(axes)
    panels[0].set_ylabel("episode return")
    figure.tight_layout()
    output = ROOT / "docs" / "images" / "minatar_gpu.png"
    figure.savefig(output)
    print(output)


if __name__ == "__main__":
    main()
