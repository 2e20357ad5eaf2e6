"""How often a claim is decided wrongly, or at all: simulated runs of two algorithms.

    python benchmarks/verdict_errors.py [--trials N]

``docs/study.md`` quotes the table: the share of claims decided where both have the same mean score
(by the bootstrap's percentiles; by Welch's interval for three kinds of runs, and of ranks), and
where their means are one or two standard deviations of a run apart.
"""

import argparse
from collections.abc import Callable

import numpy as np

from muesli import statistics as st

Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def normal(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return generator.normal(size=shape)


def half_fail(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Each run ends high or low, as likely."""
    return 2.0 * (generator.random(shape) < 0.5) + 0.1 * generator.normal(size=shape)


def noisier(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return 4.0 * generator.normal(size=shape)


def share(decided: Callable[[int], bool], trials: int) -> float:
    return float(np.mean([decided(trial) for trial in range(trials)]))


def by_welch(first: np.ndarray, second: np.ndarray) -> bool:
    return st.verdict("similar", st.welch(first, second)) == "differs"


def by_ranks(first: np.ndarray, second: np.ndarray) -> bool:
    return by_welch(*st.ranks(first, second))


def by_bootstrap(first: np.ndarray, second: np.ndarray, seed: int) -> bool:
    gap = st.compare(first, second, st.difference, draws=500, seed=seed)
    return st.verdict("similar", gap) == "differs"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=2_000)
    trials = parser.parse_args().trials
    print("| games | seeds | bootstrap | normal | half fail | 4x noisier | ranks | by 1 | by 2 |")
    print("|---|---|---|---|---|---|---|---|---|")
    generator = np.random.default_rng(0)

    def two(first: Draw, second: Draw, shape: tuple[int, int], gap: float = 0.0):
        return first(generator, shape) + gap, second(generator, shape)

    for games in (1, 2, 5, 57):
        for seeds in (2, 3, 4, 5, 10):
            shape = (seeds, games)
            old = share(lambda n: by_bootstrap(*two(normal, normal, shape), n), trials)  # noqa: B023
            cells = [f"{old:.0%}"]
            for decide, first, second, gap in (
                (by_welch, normal, normal, 0.0),
                (by_welch, half_fail, half_fail, 0.0),
                (by_welch, noisier, normal, 0.0),
                (by_ranks, noisier, normal, 0.0),
                (by_welch, normal, normal, 1.0),
                (by_welch, normal, normal, 2.0),
            ):
                found = share(lambda n: decide(*two(first, second, shape, gap)), trials)  # noqa: B023
                enough = st.welch(*two(normal, normal, shape)).low is not None
                cells.append(f"{found:.0%}" if enough else "–")
            print(f"| {games} | {seeds} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
