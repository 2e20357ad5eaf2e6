"""Honest numbers for comparisons over few seeds: aggregates and stratified bootstrap intervals.

Scores are arrays ``[runs, games]`` (or ``[runs, games, points]`` of a curve). An interval resamples
the runs of every game anew, so that games stay represented as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Scores = np.ndarray
Aggregate = Callable[[Scores], np.ndarray]

LAST_EPISODES = 200
"""The paper's score of a run: the mean of so many training episodes before its limit."""


class Estimate(NamedTuple):
    """A number and the interval around it; a single run has none."""

    value: float
    low: float | None
    high: float | None


class Curve(NamedTuple):
    """An aggregate at every point of a curve, each [points]; a single run has no interval."""

    value: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


# --- scores ---------------------------------------------------------------------------------


def normalised(score: float, random: float, reference: float) -> float:
    """0 for a random player, 1 for the reference (a human, on Atari)."""
    return (score - random) / (reference - random)


def final_score(returns: Sequence[float], episodes: int = LAST_EPISODES) -> float | None:
    """The mean of a run's last training episodes; None for a run without any, and for one that
    diverged: what is not finite is no score.
    """
    last = np.asarray(list(returns)[-episodes:], np.float64)
    return float(last.mean()) if last.size and np.isfinite(last).all() else None


# --- aggregates over the last two axes [..., runs, games] -----------------------------------


def mean(scores: Scores) -> np.ndarray:
    """The mean over games of the mean over runs, [...]."""
    return np.mean(scores, axis=(-2, -1))


def median(scores: Scores) -> np.ndarray:
    """The median over games of the mean over runs, [...]: the paper's aggregate."""
    return np.median(np.mean(scores, axis=-2), axis=-1)


def iqm(scores: Scores) -> np.ndarray:
    """The mean of the middle half of all runs of all games, [...]."""
    flat = np.sort(scores.reshape((*scores.shape[:-2], -1)), axis=-1)
    cut = int(0.25 * flat.shape[-1])
    return np.mean(flat[..., cut : flat.shape[-1] - cut], axis=-1)


def optimality_gap(scores: Scores, target: float = 1.0) -> np.ndarray:
    """How far scores fall short of ``target`` on average, [...]; beyond it counts as reached."""
    return target - np.mean(np.minimum(scores, target), axis=(-2, -1))


AGGREGATES: dict[str, Aggregate] = {
    "iqm": iqm,
    "median": median,
    "mean": mean,
    "optimality_gap": optimality_gap,
}
"""What a table shows of an algorithm, by name."""


def probability_of_improvement(first: Scores, second: Scores) -> np.ndarray:
    """P(a run of the first beats one of the second) on a game, averaged over games, [...].

    first: [..., runs, games]; second: [..., runs', games]. Ties count half.
    """
    a, b = first[..., :, None, :], second[..., None, :, :]
    return np.mean((a > b) + 0.5 * (a == b), axis=(-3, -2, -1))


# --- intervals ------------------------------------------------------------------------------


def resample(scores: Scores, draws: int, generator: np.random.Generator) -> Scores:
    """Stratified bootstrap: runs drawn anew with replacement in every game. [draws, runs, games].

    scores: [runs, games].
    """
    runs, games = scores.shape
    index = generator.integers(0, runs, (draws, runs, games))
    return scores[index, np.arange(games)]


def _interval(samples: np.ndarray, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(samples, [tail, 1.0 - tail], axis=0)
    return low, high


def estimate(
    scores: Scores,
    aggregate: Aggregate = iqm,
    draws: int = 2_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """An aggregate of [runs, games] with its percentile interval."""
    if len(scores) < 2:
        return Estimate(float(aggregate(scores)), None, None)
    generator = np.random.default_rng(seed)
    low, high = _interval(aggregate(resample(scores, draws, generator)), confidence)
    return Estimate(float(aggregate(scores)), float(low), float(high))


def compare(
    first: Scores,
    second: Scores,
    statistic: Callable[[Scores, Scores], np.ndarray] = probability_of_improvement,
    draws: int = 2_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """A statistic of two algorithms with its interval; their runs are drawn independently."""
    if min(len(first), len(second)) < 2:
        return Estimate(float(statistic(first, second)), None, None)
    generator = np.random.default_rng(seed)
    a, b = resample(first, draws, generator), resample(second, draws, generator)
    low, high = _interval(statistic(a, b), confidence)
    return Estimate(float(statistic(first, second)), float(low), float(high))


def difference(first: Scores, second: Scores) -> np.ndarray:
    """Mean of the first minus mean of the second, [...]."""
    return mean(first) - mean(second)


# --- which of two is better -----------------------------------------------------------------


def welch(first: Scores, second: Scores, confidence: float = 0.95) -> Estimate:
    """Mean of the first minus mean of the second, with Welch's t interval, stratified by game.

    first: [runs, games]; second: [runs', games]. Every game brings its own two variances; the
    degrees of freedom are Welch's and Satterthwaite's over all of them. Percentiles of a bootstrap
    are too narrow for so few runs: where nothing differs, they exclude 0 in 3 cases of 10 with two
    runs of one game, and in 1 of 7 with five. There is no interval where runs are too few for any
    (``rearrangements``).
    """
    value = float(difference(first, second))
    runs = np.array([[len(first)], [len(second)]])
    alike = (1.0 - confidence) / 2.0
    if runs.min() < 2 or rearrangements(first, second) * alike < 1.0:
        return Estimate(value, None, None)
    variances = np.stack([x.var(axis=0, ddof=1) for x in (first, second)]) / runs  # [2, games]
    total = variances.sum()
    if total == 0.0:
        return Estimate(value, value, value)
    freedom = float(total**2 / (variances**2 / (runs - 1)).sum())
    reach = student_quantile(1.0 - alike, freedom) * math.sqrt(total) / first.shape[1]
    return Estimate(value, value - reach, value + reach)


def rearrangements(first: Scores, second: Scores) -> float:
    """In how many ways the runs of each game could have been dealt to the two algorithms.

    If they are alike, each way is as probable; so with fewer than 40 no outcome, however clear, is
    rarer than 1 in 20. Games in which all runs ended alike tell nothing, unless all did.
    """
    telling = int((np.ptp(np.concatenate([first, second]), axis=0) > 0.0).sum())
    each = math.comb(len(first) + len(second), len(first))
    # Beyond what can be counted it no longer matters.
    return math.exp(min(700.0, (telling or first.shape[1]) * math.log(each)))


def student_quantile(probability: float, freedom: float) -> float:
    """The value below which Student's t lies with a probability; ``freedom`` is at least 1.

    With t = √ν tan θ, the density of θ is cos θ to the power ν − 1, which is integrated.
    """
    if freedom > 1e5:  # a normal variable, to five digits
        freedom = 1e5
    span = min(math.pi / 2.0, 40.0 / math.sqrt(freedom))
    angles = np.linspace(-span, span, 40_001)
    density = np.maximum(np.cos(angles), 0.0) ** (freedom - 1.0)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(freedom) * math.tan(np.interp(probability * below[-1], below, angles))


def ranks(first: Scores, second: Scores) -> tuple[Scores, Scores]:
    """Scores as ranks among both algorithms' runs of a game, so scaled that their difference of
    means is the probability of improvement less a half; ties share a rank.

    Whatever its units, a game counts as much as another.
    """
    both = np.concatenate([first, second])
    below = (both[None] < both[:, None]).sum(axis=1) + 0.5 * (both[None] == both[:, None]).sum(
        axis=1
    )
    scaled = below / len(both)
    return scaled[: len(first)], scaled[len(first) :]


# --- curves ---------------------------------------------------------------------------------


def efficiency_curve(
    scores: Scores,
    aggregate: Aggregate = iqm,
    draws: int = 500,
    confidence: float = 0.95,
    seed: int = 0,
) -> Curve:
    """An aggregate at every point of learning curves [runs, games, points], with intervals.

    A draw takes whole curves, so that neighbouring points move together as runs do.
    """
    generator = np.random.default_rng(seed)
    runs, games, points = scores.shape
    value = aggregate(np.moveaxis(scores, -1, 0))
    if runs < 2:
        return Curve(value, None, None)
    index = generator.integers(0, runs, (draws, runs, games))
    low, high = np.empty(points), np.empty(points)
    for point in range(points):
        at = scores[:, :, point]
        low[point], high[point] = _interval(aggregate(at[index, np.arange(games)]), confidence)
    return Curve(value, low, high)


# --- from runs of unequal kinds to arrays ---------------------------------------------------


def score_matrix(scores: Mapping[str, Sequence[float]]) -> Scores:
    """[runs, games] from each game's list of scores; the longest common number of runs is kept."""
    runs = min(len(values) for values in scores.values())
    return np.array([list(values)[:runs] for values in scores.values()], np.float64).T


def on_grid(steps: Sequence[float], values: Sequence[float], grid: Sequence[float]) -> np.ndarray:
    """A curve read at the points of ``grid`` (linear between its own; held at its ends)."""
    return np.interp(np.asarray(grid, np.float64), steps, values)


def verdict(kind: str, gap: Estimate) -> str:
    """Whether a claim about two algorithms is seen in the interval of their difference.

    ``holds``, ``reversed`` or ``open`` for "better"; ``differs`` or ``no difference seen`` for
    "similar", which few runs can never prove; for "no_worse" the same, but ``holds`` or
    ``reversed`` for a difference; ``too few runs`` where there is no interval. Raises a ValueError
    for what is not finite, which lies on no side of 0.
    """
    if not all(math.isfinite(x) for x in gap if x is not None):
        raise ValueError(f"verdict: must be finite, got {gap}")
    if gap.low is None or gap.high is None:
        return "too few runs"
    if gap.low <= 0.0 <= gap.high:
        return "open" if kind == "better" else "no difference seen"
    if kind == "similar":
        return "differs"
    return "holds" if gap.low > 0.0 else "reversed"
