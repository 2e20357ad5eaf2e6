"""The statistics by hand, and against rliable."""

import numpy as np
import pytest

from muesli import statistics as st

# rliable hands its random state to arch in a way that arch is about to drop.
RLIABLE = pytest.mark.filterwarnings("ignore:random_state is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def scores():
    generator = np.random.default_rng(3)
    a = generator.gamma(2.0, 0.6, (7, 9))
    b = generator.gamma(2.0, 0.5, (5, 9)) * generator.uniform(0.5, 1.5, 9)
    return np.round(a, 2), np.round(b, 2)  # rounded, so that there are ties


def test_aggregates_by_hand():
    table = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])  # 4 runs of 2 games
    assert st.mean(table) == 3.5
    assert st.median(table) == 3.5  # of the games' means 3 and 4
    assert st.iqm(table) == np.mean([2, 3, 4, 5])
    assert st.optimality_gap(table) == 1.0 - (0 + 7 * 1) / 8
    assert st.normalised(7128, 228, 7128) == 1.0 and st.normalised(228, 228, 7128) == 0.0


def test_ties_count_half():
    first, second = np.array([[1.0], [2.0]]), np.array([[1.0], [3.0]])
    # 1=1 half, 1<3, 2>1, 2<3
    assert st.probability_of_improvement(first, second) == pytest.approx(1.5 / 4)


def test_the_score_of_a_run_is_its_last_episodes():
    assert st.final_score([100.0] * 50 + [1.0] * 200) == 1.0
    assert st.final_score([2.0, 4.0]) == 3.0
    assert st.final_score([]) is None


def test_a_resample_stays_within_its_game(scores):
    table = np.arange(12.0).reshape(4, 3)
    drawn = st.resample(table, 50, np.random.default_rng(0))
    assert drawn.shape == (50, 4, 3)
    for game in range(3):
        assert set(np.unique(drawn[..., game])) <= set(table[:, game])


def test_aggregates_agree_with_rliable(scores):
    from rliable import metrics

    table = scores[0]
    assert st.iqm(table) == pytest.approx(metrics.aggregate_iqm(table), rel=1e-12)
    assert st.mean(table) == pytest.approx(metrics.aggregate_mean(table), rel=1e-12)
    assert st.median(table) == pytest.approx(metrics.aggregate_median(table), rel=1e-12)
    gap = metrics.aggregate_optimality_gap(table)
    assert st.optimality_gap(table) == pytest.approx(gap, rel=1e-12)
    ours = st.probability_of_improvement(*scores)
    theirs = metrics.probability_of_improvement(*scores)
    assert ours == pytest.approx(theirs, rel=1e-12)


@RLIABLE
def test_intervals_agree_with_rliable(scores):
    from rliable import library, metrics

    functions = (
        (st.iqm, metrics.aggregate_iqm),
        (st.median, metrics.aggregate_median),
        (st.optimality_gap, metrics.aggregate_optimality_gap),
    )
    stacked = lambda x: np.array([theirs(x) for _, theirs in functions])
    points, intervals = library.get_interval_estimates(
        {"ours": scores[0]}, stacked, reps=800, random_state=np.random.RandomState(1)
    )
    for column, (aggregate, _) in enumerate(functions):
        found = st.estimate(scores[0], aggregate, draws=6_000)
        low, high = intervals["ours"][:, column]
        width = high - low
        assert found.value == pytest.approx(points["ours"][column])
        assert found.low == pytest.approx(low, abs=0.12 * width)
        assert found.high == pytest.approx(high, abs=0.12 * width)


@RLIABLE
def test_probability_intervals_agree_with_rliable(scores):
    from rliable import library, metrics

    few = scores[0][:, :3], scores[1][:, :3]  # its loop over games is slow
    point, interval = library.get_interval_estimates(
        {"a,b": few},
        metrics.probability_of_improvement,
        reps=250,
        random_state=np.random.RandomState(1),
    )
    found = st.compare(*few, draws=6_000)
    low, high = interval["a,b"][:, 0]
    assert found.value == pytest.approx(point["a,b"])
    assert found.low == pytest.approx(low, abs=0.15 * (high - low))
    assert found.high == pytest.approx(high, abs=0.15 * (high - low))


def test_a_curve_is_its_points(scores):
    curves = np.stack([scores[0] * k for k in (0.0, 0.5, 1.0)], axis=-1)
    found = st.efficiency_curve(curves, draws=3_000)
    at_end = st.estimate(scores[0], draws=3_000)
    np.testing.assert_allclose(found.value, np.array([0.0, 0.5, 1.0]) * at_end.value)
    np.testing.assert_allclose(found.low[-1], at_end.low)  # the same draws
    assert found.low[0] == found.high[0] == 0.0


def test_a_single_run_has_no_interval():
    one, two = np.array([[0.5, 0.7]]), np.array([[0.5, 0.7], [0.1, 0.2]])  # of two games
    assert st.estimate(one, st.mean) == (pytest.approx(0.6), None, None)
    for gap in (st.compare(two, one, st.difference), st.welch(two, one)):
        assert gap == (pytest.approx(-0.225), None, None)
    assert {st.verdict(kind, gap) for kind in ("better", "similar")} == {"too few runs"}
    curve = st.efficiency_curve(one[..., None], st.mean)
    np.testing.assert_allclose(curve.value, [0.6])
    assert curve.low is curve.high is None


def test_an_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(5)
    covered = []
    for trial in range(200):
        table = generator.normal(1.0, 1.0, (20, 4))
        found = st.estimate(table, st.mean, draws=300, seed=trial)
        covered.append(found.low <= 1.0 <= found.high)
    assert 0.88 < np.mean(covered) < 0.99


@pytest.mark.parametrize(
    ("kind", "interval", "said"),
    [
        ("better", (0.1, 0.3), "holds"),
        ("better", (-0.1, 0.3), "open"),
        ("better", (-0.3, -0.1), "reversed"),
        ("similar", (-0.1, 0.3), "no difference seen"),
        ("similar", (0.1, 0.3), "differs"),
        ("similar", (-0.3, -0.1), "differs"),
        ("no_worse", (0.1, 0.3), "holds"),
        ("no_worse", (-0.1, 0.3), "no difference seen"),
        ("no_worse", (-0.3, -0.1), "reversed"),
    ],
)
def test_verdicts(kind, interval, said):
    assert st.verdict(kind, st.Estimate(0.0, *interval)) == said


def test_what_is_not_finite_has_no_verdict():
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be finite"):
            st.verdict("better", st.Estimate(value, -1.0, 1.0))
        with pytest.raises(ValueError, match="must be finite"):
            st.verdict("better", st.Estimate(0.0, value, value))
        assert st.final_score([1.0] * 300 + [value]) is None
        assert st.final_score([value] + [1.0] * 200) == 1.0


# --- which of two is better -----------------------------------------------------------------


@pytest.mark.parametrize("freedom", [1.0, 1.7, 4.0, 30.0, 4_321.0, 1e9])
def test_quantiles_of_student_agree_with_scipy(freedom):
    from scipy.stats import t

    for probability in (0.5, 0.9, 0.975, 0.995):
        found = st.student_quantile(probability, freedom)
        assert found == pytest.approx(t.ppf(probability, freedom), rel=2e-5, abs=1e-9)


def test_welch_agrees_with_scipy():
    from scipy.stats import ttest_ind

    generator = np.random.default_rng(2)
    first, second = generator.normal(0.3, 1.0, (5, 1)), generator.normal(0.0, 3.0, (7, 1))
    theirs = ttest_ind(first[:, 0], second[:, 0], equal_var=False).confidence_interval(0.95)
    found = st.welch(first, second)
    assert found.value == pytest.approx(first.mean() - second.mean())
    assert found[1:] == pytest.approx(tuple(theirs), rel=1e-5)


def test_welch_of_two_games_by_hand():
    # Variances of means: (2/2 + 0/2) and (8/2 + 2/2); in sum 6, squares 1 + 0 + 16 + 1 = 18.
    first, second = np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[0.0, 1.0], [4.0, 3.0]])
    first, second = np.tile(first, (1, 2)), np.tile(second, (1, 2))  # each game twice
    found = st.welch(first, second)
    freedom = 12.0**2 / 36.0
    reach = st.student_quantile(0.975, freedom) * np.sqrt(12.0) / 4
    assert found == pytest.approx((1.5, 1.5 - reach, 1.5 + reach))


@pytest.mark.parametrize(
    ("runs", "games", "enough"),
    [(2, 1, False), (3, 1, False), (4, 1, True), (2, 2, False), (3, 2, True), (2, 3, True)],
)
def test_how_many_runs_a_verdict_takes(runs, games, enough):
    """With fewer than 40 rearrangements, even the clearest outcome is no rarer than 1 in 20."""
    generator = np.random.default_rng(1)
    first, second = generator.normal(9.0, 1.0, (2, runs, games)) - [[[0.0]], [[9.0]]]
    assert (st.verdict("better", st.welch(first, second)) == "holds") == enough
    assert st.rearrangements(first, second) == pytest.approx(
        {1: 1, 2: 6, 3: 20, 4: 70}[runs] ** games
    )
    # A game in which every run ended alike tells nothing,
    flat = np.ones((runs, 30))
    padded = [np.concatenate([x, flat], axis=1) for x in (first, second)]
    assert st.rearrangements(*padded) == pytest.approx(st.rearrangements(first, second))
    # unless all games are so.
    assert st.verdict("similar", st.welch(np.ones((5, 1)), np.ones((5, 1)))) == "no difference seen"


@pytest.mark.parametrize(("games", "runs"), [(1, 4), (1, 5), (2, 3), (5, 2), (5, 5)])
def test_algorithms_that_are_alike_are_seldom_told_apart(games, runs):
    """As often as 1 in 20, also where some runs fail, or one algorithm varies more."""
    generator = np.random.default_rng(4)
    for draw in (
        lambda scale: scale * generator.normal(size=(runs, games)),
        lambda scale: (generator.random((runs, games)) < 0.5) + 0.05 * generator.normal(),
        lambda scale: np.exp(generator.normal(size=(runs, games))),
    ):
        told = [
            st.verdict("similar", st.welch(draw(1.0), draw(4.0))) == "differs" for _ in range(400)
        ]
        assert np.mean(told) < 0.085


def test_ranks_are_the_probability_of_improvement(scores):
    first, second = scores
    a, b = st.ranks(first * np.arange(1, 10) ** 3, second * np.arange(1, 10) ** 3)
    chance = st.probability_of_improvement(first, second)
    assert st.difference(a, b) == pytest.approx(chance - 0.5)
    assert st.welch(a, b).value == pytest.approx(chance - 0.5)


def test_matrices_and_grids():
    table = st.score_matrix({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0]})
    np.testing.assert_array_equal(table, [[1.0, 4.0], [2.0, 5.0]])
    np.testing.assert_allclose(st.on_grid([0, 10], [0.0, 1.0], [-1, 5, 20]), [0.0, 0.5, 1.0])
