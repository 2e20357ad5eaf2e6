"""Draws docs/images/minatar_gpu.png, atari_h200.png, mujoco_h200.png, go_h200.png from results/."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from muesli.plots import COLOURS, style

ROOT = Path(__file__).resolve().parent.parent
# pgx's own PPO at 20M steps, as its authors publish it.
PPO = {"breakout": 50, "asterix": 23, "space_invaders": 149, "freeway": 63, "seaquest": 54}


# Ms. Pacman at 10M and 40M frames: dopamine's Rainbow with IMPALA's network and sticky actions.
RAINBOW = (2593, 3609)
# At 1M steps, as CleanRL publishes them (v4 of the tasks); it has no Ant.
CLEANRL = {
    "HalfCheetah": {"PPO": 1443, "SAC": 9635, "TD3": 9583},
    "Walker2d": {"PPO": 2288, "SAC": 3591, "TD3": 4058},
    "Hopper": {"PPO": 2383, "SAC": 2310, "TD3": 3135},
    "Ant": {},
    "Humanoid": {"PPO": 716, "SAC": 4996, "TD3": 5035},
}


def main() -> None:
    for name, draw in (
        ("minatar_gpu", minatar), ("atari_h200", atari), ("mujoco_h200", mujoco), ("go_h200", go),
    ):  # fmt: skip
        figure = draw()
        figure.tight_layout()
        output = ROOT / "docs" / "images" / f"{name}.png"
        figure.savefig(output)
        print(output)


def atari() -> Figure:
    """Returns of two games, and what the network knew meanwhile."""
    figure, (breakout, pacman, knows) = plt.subplots(1, 3, figsize=(13.0, 3.6), dpi=110)
    for axes, file, label, colour in (
        (breakout, "atari_h200_breakout", "LSTM, a still earlier network", COLOURS[1]),
        (pacman, "atari_feedforward_ms_pacman", "no LSTM, four frames, λ 0.95", COLOURS[0]),
        (pacman, "atari_h200_ms_pacman", "LSTM, an earlier network", COLOURS[1]),
        (pacman, "atari_h200_ms_pacman_core", "LSTM, stopped", COLOURS[2]),
    ):
        rows = json.loads((ROOT / "results" / f"{file}.json").read_text())["rows"]

        def curve(key: str, rows: list[dict[str, float]] = rows) -> tuple[list[float], list[float]]:
            known = [row for row in rows if key in row]
            return [row["env_frames"] / 1e6 for row in known], [row[key] for row in known]

        line = {"color": colour, "linewidth": 1.8, "label": label}
        axes.plot(*curve("episode_return_mean"), **line)
        if axes is pacman:
            knows.plot(*curve("value_explained_variance"), **line)
    breakout.set_title("Breakout: return", fontsize=10)
    pacman.set_title("Ms. Pacman: return", fontsize=10)
    pacman.plot([10, 40], RAINBOW, "o", color="0.4", label="Rainbow-IMPALA at 10M, 40M")
    knows.set_title("Ms. Pacman: explained variance of returns", fontsize=10)
    knows.set_ylim(-0.1, 1.0)
    for axes in (breakout, pacman, knows):
        axes.set_xlabel("million frames")
        axes.set_xlim(left=0.0)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.legend(frameon=False, fontsize=8, loc="lower right")
        style(axes)
    return figure


def minatar() -> Figure:
    figure, panels = plt.subplots(1, 5, figsize=(15.0, 3.2), dpi=110)
    for axes, (game, ppo) in zip(panels, PPO.items(), strict=True):
        files = sorted((ROOT / "results").glob(f"minatar_gpu_{game}*.json"))
        for file in files:
            result = json.loads(file.read_text())
            few = "128envs" in file.name
            colour = COLOURS[int(few)]
            label = "128 environments" if few else "minatar_gpu"
            steps, returns = zip(*result["curve"], strict=True)
            axes.plot(
                [s / 1e6 for s in steps], returns, color=colour, linewidth=1.8,
                label=label if "_seed" not in file.name else None,
            )  # fmt: skip
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
    return figure


def mujoco() -> Figure:
    figure, panels = plt.subplots(1, 5, figsize=(15.0, 3.2), dpi=110)
    for axes, (task, others) in zip(panels, CLEANRL.items(), strict=True):
        for file in sorted((ROOT / "results").glob(f"mujoco_h200_{task.lower()}*.json")):
            result = json.loads(file.read_text())
            steps, returns = zip(*result["curve"], strict=True)
            seed = result["seed"]
            axes.plot(
                [s / 1e6 for s in steps], returns, color=COLOURS[seed], linewidth=1.8,
                label=f"seed {seed}",
            )  # fmt: skip
        for i, (name, score) in enumerate(others.items()):
            colour = f"C{i + 1}"
            axes.plot([1.0], [score], "o", color=colour, markersize=5)
            # SAC and TD3 are often side by side.
            side = "right" if name == "TD3" else "left"
            shift = -6 if side == "right" else 6
            axes.annotate(
                name, (1.0, score), (shift, 0), textcoords="offset points", ha=side, va="center",
                fontsize=7, color=colour,
            )  # fmt: skip
        axes.legend(frameon=False, fontsize=7, loc="lower right")
        axes.set_title(f"{task}-v5", fontsize=10)
        axes.set_xlabel("million steps")
        axes.set_xlim(0, 2.05)
        style(axes)
    panels[0].set_ylabel("training return")
    return figure


def go() -> Figure:
    """Strength over training, and what the agent knew meanwhile."""
    figure, (strength, random, knows) = plt.subplots(1, 3, figsize=(13.0, 3.6), dpi=110)
    result = json.loads((ROOT / "results" / "go_h200.json").read_text())
    line = {"color": COLOURS[0], "linewidth": 1.8}
    moves, elo = zip(*result["elo"], strict=True)
    strength.plot([m / 1e6 for m in moves], elo, "o-", **line)
    strength.set_title("Elo among its checkpoints (random: 0)", fontsize=10)
    moves, returns = zip(*result["evaluations"], strict=True)
    random.plot([m / 1e6 for m in moves], [50.0 * (1.0 + r) for r in returns], "o-", **line)
    random.set_title("% of 128 games won against random", fontsize=10)
    for colour, key, label in (
        (COLOURS[0], "value_explained", "explained by v̂"),
        (COLOURS[1], "policy_entropy", "entropy of the policy, nats"),
        (COLOURS[2], "q_error_ratio", "error of q̂ / error of v̂"),
    ):
        rows = result["rows"][2:]
        at = [row["env_steps"] / 1e6 for row in rows]
        knows.plot(at, [row[key] for row in rows], color=colour, linewidth=1.8, label=label)
    knows.set_ylim(0.0, 3.5)
    knows.legend(frameon=False, fontsize=8)
    knows.set_title("what it knows", fontsize=10)
    for axes in (strength, random, knows):
        axes.set_xlabel("million moves")
        axes.set_xlim(left=0.0)
        style(axes)
    return figure


if __name__ == "__main__":
    main()
