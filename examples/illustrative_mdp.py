"""Draws the paper's illustrative MDP: why a policy must be stochastic and returns multi-step.

All states look the same to the agent, so its policy is one number, p = π(up). The best p is 5/8,
where both action values are equal: no greedy policy finds it. Monte-Carlo returns point there;
bootstrapping from the value of "the state as it looks" points to 3/4.

Run it with ``python examples/illustrative_mdp.py -o illustrative_mdp.png``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from muesli.ops.returns import retrace
from muesli.types import StepType

# The four episodes: up or down from state 1, then up or down from state 2 or 3.
ACTIONS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])  # 0 is up, 1 is down
REWARDS = np.array([[1, -1], [1, 1], [0, 1], [0, -1]], np.float32)
DISCOUNTS = np.array([1.0, 0.0], np.float32)
STEP_TYPE = np.array([StepType.FIRST, StepType.MID, StepType.LAST])
BEST = 5 / 8

INK, MUTED, GRID = "#22262e", "#6b7280", "#e5e7eb"
UP_COLOUR, DOWN_COLOUR, VALUE_COLOUR = "#c2410c", "#1d4ed8", "#047857"


class Curves(NamedTuple):
    """Everything there is to draw, for each p.

    start_value: [P], v(1); aliased_value: [P], v(φ); monte_carlo_q, bootstrap_q: [P, 2], the
    expected return after up and after down.
    """

    start_value: np.ndarray
    aliased_value: np.ndarray
    monte_carlo_q: np.ndarray
    bootstrap_q: np.ndarray


@jax.jit
@jax.vmap
def _analyse(p: jax.Array) -> Curves:
    policy = jnp.stack([p, 1.0 - p])
    probability = jnp.prod(policy[ACTIONS], axis=1)

    def expected_returns(q: jax.Array, lambda_: float) -> jax.Array:
        """E[G | φ, a] when all that is known of any state is q̂(φ, ·) = q."""

        def episode(actions: jax.Array, rewards: jax.Array) -> jax.Array:
            values = jnp.full(3, policy @ q)
            ratios = jnp.ones(2)
            return retrace(
                q[actions], values, rewards, DISCOUNTS, ratios, STEP_TYPE, lambda_
            ).returns

        returns = jax.vmap(episode)(ACTIONS, REWARDS)
        # Both visits of an episode look the same; given the action, both count.
        shares = probability[:, None, None] * jax.nn.one_hot(ACTIONS, 2)
        return jnp.sum(shares * returns[:, :, None], axis=(0, 1)) / jnp.sum(shares, axis=(0, 1))

    truth = expected_returns(jnp.zeros(2), 1.0)
    return Curves(
        start_value=probability @ REWARDS.sum(axis=1),
        aliased_value=policy @ truth,
        monte_carlo_q=truth,
        bootstrap_q=expected_returns(truth, 0.0),
    )


def analyse(p: np.ndarray) -> Curves:
    """Values and action values of the policies π(up) = p, each strictly between 0 and 1. p: [P]."""
    return Curves(*(np.asarray(x) for x in _analyse(jnp.asarray(p, jnp.float32))))


def draw_mdp(ax: Axes) -> None:
    """The states, the two actions of each, and their rewards."""
    places = {1: (0.0, 0.0), 2: (1.0, 0.62), 3: (1.0, -0.62), 4: (2.0, 0.0)}
    edges = [
        (1, 2, "up", "+1", 0.0, (0.40, 0.45)),
        (1, 3, "down", "0", 0.0, (0.40, -0.45)),
        (2, 4, "up", "−1", -0.38, (1.62, 0.72)),
        (2, 4, "down", "+1", 0.12, (1.13, 0.20)),
        (3, 4, "up", "+1", -0.12, (1.13, -0.20)),
        (3, 4, "down", "−1", 0.38, (1.62, -0.72)),
    ]
    for start, end, action, reward, bend, label in edges:
        colour = UP_COLOUR if action == "up" else DOWN_COLOUR
        arrow = FancyArrowPatch(
            places[start],
            places[end],
            connectionstyle=f"arc3,rad={bend}",
            arrowstyle="-|>",
            mutation_scale=14,
            shrinkA=17,
            shrinkB=17,
            linewidth=1.8,
            color=colour,
        )
        ax.add_patch(arrow)
        ax.text(*label, f"{action}  {reward}", color=colour, ha="center", va="center", fontsize=10)
    for state, (x, y) in places.items():
        ends = state == 4
        ax.plot(x, y, "o", ms=30, mfc=GRID if ends else "white", mec=INK, mew=1.6)
        ax.text(x, y, str(state), ha="center", va="center", fontsize=13, color=INK)
    ax.text(0.0, -0.27, "start", ha="center", va="top", color=MUTED, fontsize=9)
    ax.text(2.0, -0.27, "end", ha="center", va="top", color=MUTED, fontsize=9)
    ax.set(xlim=(-0.35, 2.35), ylim=(-0.95, 0.95))
    ax.axis("off")
    ax.set_title("The MDP: every state looks the same, φ(s) = ∅")


def draw_objective(ax: Axes, p: np.ndarray, curves: Curves) -> None:
    """v(1), whose maximum lies between the two deterministic policies."""
    ax.plot(p, curves.start_value, color=VALUE_COLOUR, lw=2.4)
    ax.plot([0, 1], [-1, 0], "o", mfc="white", mec=VALUE_COLOUR, mew=1.8, clip_on=False, zorder=3)
    ax.plot(BEST, 9 / 16, "o", color=VALUE_COLOUR, zorder=3)
    ax.axvline(BEST, color=MUTED, lw=1, ls=":", zorder=0)
    ax.annotate(
        "best: p = 5/8,\nv(1) = 9/16",
        (BEST, 9 / 16),
        (0.34, 0.68),
        ha="right",
        va="center",
        color=VALUE_COLOUR,
        arrowprops={"arrowstyle": "-", "color": VALUE_COLOUR, "lw": 0.8, "shrinkB": 5},
    )
    ax.text(0.04, -0.98, "always down: −1", color=MUTED, fontsize=9, va="center")
    ax.text(0.93, -0.13, "always up: 0", color=MUTED, fontsize=9, ha="right", va="center")
    ax.set(ylabel="v(1) = −4p² + 5p − 1", ylim=(-1.12, 0.78))
    ax.set_title("The objective: the best policy is stochastic")


def draw_action_values(ax: Axes, p: np.ndarray, curves: Curves) -> None:
    """The true q(φ, ·), which cross at the best policy."""
    up, down = curves.monte_carlo_q.T
    ax.plot(p, up, color=UP_COLOUR, lw=2.4)
    ax.plot(p, down, color=DOWN_COLOUR, lw=2.4)
    ax.text(0.20, 1.24, "q(φ, up)", color=UP_COLOUR)
    ax.text(0.20, -0.82, "q(φ, down)", color=DOWN_COLOUR)
    ax.plot(BEST, 0.25, "o", color=INK, zorder=3)
    ax.axvline(BEST, color=MUTED, lw=1, ls=":", zorder=0)
    ax.annotate(
        "both 1/4 at p = 5/8",
        (BEST, 0.25),
        (0.68, 0.25),
        va="center",
        color=INK,
    )
    ax.set(ylabel="expected return", ylim=(-1.12, 1.62))
    ax.set_title("Monte-Carlo returns (Retrace, λ = 1): equal at 5/8")


def draw_bootstrap(ax: Axes, p: np.ndarray, curves: Curves) -> None:
    """What one-step targets make of the true values: they cross elsewhere."""
    for estimate, truth, colour in zip(
        curves.bootstrap_q.T, curves.monte_carlo_q.T, (UP_COLOUR, DOWN_COLOUR), strict=True
    ):
        ax.plot(p, truth, color=colour, lw=1.2, alpha=0.35)
        ax.plot(p, estimate, color=colour, lw=2.4, ls=(0, (5, 1.5)))
    ax.plot(p, curves.aliased_value, color=MUTED, lw=1.6)
    ax.axvline(BEST, color=MUTED, lw=1, ls=":", zorder=0)
    ax.axvline(0.75, color=MUTED, lw=1, ls=":", zorder=0)
    crossing = float(np.interp(0.75, p, curves.bootstrap_q[:, 0]))
    ax.plot(0.75, crossing, "o", color=INK, zorder=3)
    ax.text(0.765, -0.86, "equal at 3/4:\nv(1) only 1/2", color=INK)
    ax.annotate("", (BEST, 0.50), (BEST, 0.25), arrowprops={"arrowstyle": "<->", "color": INK})
    ax.text(
        BEST, 1.36, "at 5/8, up seems\ntwice as good", color=INK, ha="center", backgroundcolor="w"
    )
    ax.text(0.03, 0.33, "target of up", color=UP_COLOUR)
    ax.text(0.27, -0.62, "target of down", color=DOWN_COLOUR)
    ax.text(0.13, -0.22, "v(φ)", color=MUTED)
    ax.text(0.20, 1.24, "true q", color=UP_COLOUR, alpha=0.5)
    ax.text(0.27, -0.86, "true q", color=DOWN_COLOUR, alpha=0.5)
    ax.set(ylabel="expected target", ylim=(-1.12, 1.62))
    ax.set_title("Bootstrapping from v(φ) (λ = 0): misleads to 3/4")


def draw(curves: Curves, p: np.ndarray) -> Figure:
    """The whole figure."""
    figure = Figure(figsize=(11, 8), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    axes = figure.subplots(2, 2)
    draw_mdp(axes[0, 0])
    draw_objective(axes[0, 1], p, curves)
    draw_action_values(axes[1, 0], p, curves)
    draw_bootstrap(axes[1, 1], p, curves)
    for ax in axes.flat:
        ax.title.set(fontsize=11.5, color=INK, fontweight="bold")
    for ax in axes.flat[1:]:
        ax.set(xlabel="p = π(up|φ)", xlim=(0, 1))
        ax.set_xticks([0, 0.25, 0.5, 0.625, 0.75, 1], ["0", "1/4", "1/2", "5/8", "3/4", "1"])
        ax.axhline(0, color=GRID, lw=1, zorder=0)
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(MUTED)
        ax.tick_params(colors=MUTED)
        ax.xaxis.label.set_color(INK)
        ax.yaxis.label.set_color(INK)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line, draws, saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", default="illustrative_mdp.png", help="where to draw")
    options = parser.parse_args(arguments)
    # The ends are left out: an action that is never taken has no expected return.
    p = np.linspace(0.001, 0.999, 999)
    draw(analyse(p), p).savefig(options.output, dpi=150)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
