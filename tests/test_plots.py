"""Pictures of studies: rows told apart, sweeps labelled, nothing covered or cut off."""

import itertools

import pytest

from muesli.plots import COLOURS, MARKERS, looks, plot_study, plot_sweep, sweep_panels, swept
from muesli.suites import SUITES


def fabricated(names, numbers=None, title="A study", suite="tuning", score=lambda k: 0.1 * k):
    """A study of one environment, all of whose rows are finished."""
    rows = [
        {
            "name": name,
            "runs": 2,
            "finished": 2,
            "envs": {"catch": {"runs": 2, "value": score(k), "low": None, "high": None}},
            "curves": {
                "catch": {
                    "steps": [1.0, 2.0, 3.0],
                    "value": [0.0, score(k), score(k)],
                    "low": [0.0, score(k), score(k)],
                    "high": [0.1, score(k), score(k)],
                }
            },
            "aggregates": {"iqm": {"value": score(k), "low": score(k), "high": score(k)}},
        }
        for k, name in enumerate(names)
    ]
    return {
        "suite": suite,
        "title": title,
        "envs": [{"name": "catch", "random": -0.6, "reference": 1.0, "who": "a player"}],
        "rows": rows,
        "settings": {"base": {}, "rows": numbers or {}},
    }


@pytest.fixture
def kept(monkeypatch):
    """The figures drawn, which are otherwise thrown away."""
    import matplotlib.pyplot as plt

    figures = []
    close = plt.close
    monkeypatch.setattr(plt, "close", figures.append)
    yield figures
    for figure in figures:
        close(figure)


def names_of(suite):
    return [row.name for row in SUITES[suite].rows]


TUNING = names_of("tuning")
TUNED = {
    row.name: {field: value for field, value in row.fields.items() if field != "update.name"}
    for row in SUITES["tuning"].rows
}


# --- looks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [*map(names_of, SUITES), [f"row {k}" for k in range(100)], [f"a_{k}" for k in range(40)]],
    ids=str,
)
def test_no_two_rows_look_alike(names):
    # Where there is no line to carry it, a row without a marker is a circle.
    circle = MARKERS.index("o")
    found = [
        look._replace(marker=circle if look.marker is None else look.marker)
        for look in looks(names).values()
    ]
    assert len({(look.hue, look.marker, look.dash) for look in found}) == len(names)
    if len(names) <= len(COLOURS) * len(MARKERS):
        assert len({(look.hue, look.marker) for look in found}) == len(names)


def test_a_sweep_has_a_hue():
    found = looks(TUNING)
    hues = {swept(name)[0]: set() for name in TUNING}
    for name, look in found.items():
        hues[swept(name)[0]].add(look.hue)
    assert [len(hue) for hue in hues.values()] == [1] * 5
    assert len(set.union(*hues.values())) == 5
    assert [found[f"pg_{v}"].shade for v in ("0.0003", "0.003", "0.03")] == [-1.0, 0.0, 1.0]
    # Few rows have a hue each, and no marker in their way.
    few = looks(["exact", "samples_16", "samples_3"])
    assert [look[:3] for look in few.values()] == [(0, 0.0, None), (1, 0.0, None), (2, 0.0, None)]


# --- sweeps ---------------------------------------------------------------------------------


def test_what_a_rows_name_sweeps():
    assert swept("units_32") == ("units", 32.0) and swept("a_b_-1e-05") == ("a_b", -1e-5)
    assert swept("replay_0") == ("replay", 0.0)
    assert swept("muesli") is swept("frames_1.2.3") is swept("x_e") is swept("x_-") is None


def test_a_panel_for_each_number_swept_over():
    panels = sweep_panels(fabricated(TUNING, TUNED))
    assert [(panel.field, list(panel.series)) for panel in panels] == [
        ("update.entropy_weight", ["pg"]),
        ("update.trpo_weight", ["trpo_penalty"]),
        ("update.ppo_clip", ["ppo"]),
        ("update.mpo_kl_limit", ["mpo"]),
        ("update.cmpo_weight", ["muesli"]),
    ]
    assert {panel.scale for panel in panels} == {"log"}
    assert panels[0].series["pg"][0] == (0.0003, "pg_0.0003")
    # Directories that end in numbers sweep nothing by that.
    assert sweep_panels(fabricated(["seed_0", "seed_1", "seed_2"], suite="comparison")) == []
    assert sweep_panels(fabricated(["a_0", "a_1", "other"])) == []


@pytest.mark.parametrize(
    ("numbers", "scale"),
    [
        ("0 50 75 94", "linear"),
        ("50 75 94", "linear"),
        ("32 128 512", "log"),
        ("0 0.001 0.1", "symlog"),
        ("-1 1 1000", "linear"),
        ("0 0 0", "linear"),
    ],
)
def test_scales_of_sweeps(numbers, scale):
    (panel,) = sweep_panels(fabricated([f"a_{n}" for n in numbers.split()]))
    assert panel.scale == scale


@pytest.mark.parametrize("numbers", ["0 50 75 94", "0 0.001 0.01 1", "32 128 512", "5"])
def test_a_sweep_has_its_numbers_for_ticks(numbers, tmp_path, kept):
    numbers = numbers.split()
    names = [f"replay_{n}" for n in numbers]
    plot_sweep(fabricated(names), tmp_path / "sweep.png")
    (axes,) = kept[0].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == numbers
    assert axes.get_xlabel() == "replay"
    low, high = axes.get_xlim()
    assert all(low < float(n) < high for n in numbers)
    assert axes.xaxis.get_minorticklocs().size == 0


def test_labels_of_a_sweep_stand_apart(tmp_path, kept):
    values = ["0.001", "0.2", "0.25", "0.26", "0.3", "10"]
    plot_sweep(fabricated([f"clip_{v}" for v in values]), tmp_path / "sweep.png")
    (axes,) = kept[0].axes
    labels = [label for label in axes.get_xticklabels() if label.get_text()]
    assert len(labels) >= 4
    lines = {}
    for label in labels:
        text, box = label.get_text(), label.get_window_extent()
        lines.setdefault(text.count("\n"), []).append((box.x0, box.x1))
    for line in lines.values():
        assert all(a[1] < b[0] for a, b in itertools.pairwise(sorted(line)))


def test_a_sweep_of_raw_scores_says_so(tmp_path, kept):
    study = fabricated(["a_1", "a_10", "a_100"])
    for measure, said in (
        ("raw", "score (IQM)"),
        ("raw return", "score (IQM)"),
        ("normalised", "normalised score (IQM)"),
    ):
        plot_sweep({**study, "measure": measure}, tmp_path / "sweep.png")
        assert kept[-1].axes[0].get_ylabel() == said
    # A row that diverged is left out.
    study["rows"][1]["aggregates"]["iqm"]["value"] = float("nan")
    study["rows"][2]["aggregates"]["iqm"]["value"] = None
    plot_sweep(study, tmp_path / "sweep.png")
    assert [label.get_text() for label in kept[-1].axes[0].get_xticklabels()] == ["1"]


# --- curves ---------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [TUNING, names_of("baselines"), ["a"]], ids=len)
def test_curves_are_not_covered_nor_titles_cut(names, tmp_path, kept):
    title = "How each update was tuned: its hyperparameter in multiples of 3, and more of it"
    plot_study(fabricated(names, title=title), tmp_path / "curves.png")
    (figure,) = kept
    page = figure.get_window_extent()
    (axes,) = figure.axes
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [n.replace("_", " ") for n in names]
    below, written = legend.get_window_extent(), figure.get_suptitle()
    assert below.y1 < axes.get_tightbbox().y0
    for box in (below, figure._suptitle.get_window_extent()):
        assert page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
    assert title in written.replace("\n", " ")
    assert axes.get_window_extent().height > 0.4 * page.height


def test_a_curve_that_diverges_is_drawn_until_it_does(tmp_path):
    study = fabricated(["a", "b"])
    curve = study["rows"][0]["curves"]["catch"]
    curve["value"][2] = curve["low"][2] = curve["high"][2] = None
    study["rows"][1]["curves"]["catch"]["value"][1] = float("nan")
    plot_study(study, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 5_000
