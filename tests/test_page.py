"""The page of fabricated studies, in a real browser: many rows, odd numbers, small screens."""

import copy
import itertools
import json
import math

import pytest
from browser import EXECUTABLE, Browser
from test_plots import TUNED, TUNING, fabricated

from muesli.report.page import as_json, render

needs_chromium = pytest.mark.skipif(
    EXECUTABLE is None, reason="NO CHROMIUM: the page is not tested (apt-get install chromium)"
)
CLAIM = {"kind": "better", "first": "a", "second": "b", "text": "a beats b"}
GAP = {"value": 0.2, "low": 0.1, "high": 0.3}


def study_of(names, claims=(), **changes):
    study = fabricated(names, TUNED if names == TUNING else None)
    for row in study["rows"]:
        row["published"] = ""
    study["envs"][0]["self_play"] = False
    return {
        **study,
        "figure": "",
        "remark": "",
        "scale": "laptop",
        "preset": "",
        "published": {},
        "command": ["muesli"],
        "earlier_commands": [],
        "missing": [],
        "machines": [],
        "runs_wanted": 2 * len(names),
        "runs_finished": 2 * len(names),
        "progress": 1.0,
        "comparable": True,
        "claims": list(claims),
        "media": [],
        **changes,
    }


def with_scores(study, *scores, key="catch"):
    """The same study with these estimates (value, low, high), row by row."""
    study = copy.deepcopy(study)
    for row, (value, low, high) in zip(study["rows"], scores, strict=True):
        estimate = {"value": value, "low": low, "high": high}
        row["envs"][key] = {"runs": 1 if low is None else 2, **estimate}
        row["aggregates"] = dict.fromkeys(("iqm", "median", "mean", "optimality_gap"), estimate)
    return study


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of a study; afterwards nothing may have been complained of."""

    def show(study, width=1280):
        page = tmp_path / "page.html"
        page.write_text(render(study), encoding="utf-8")
        browser.size(width)
        browser.open(page.as_uri())
        assert browser.run("document.documentElement.scrollWidth") <= width
        return browser.run("document.getElementById('page').textContent")

    yield show
    assert browser.complaints == []


def texts(browser, selector):
    return browser.run(f"[...document.querySelectorAll('{selector}')].map(x => x.textContent)")


def test_what_the_script_reads_is_json():
    study = study_of(["a", "b"], odd=(math.nan, [math.inf], {"x": -math.inf}, 1.0))
    read = json.loads(as_json(study), parse_constant=pytest.fail)
    assert read["odd"] == [None, [None], {"x": None}, 1.0]
    assert [look["hue"] for look in read["looks"].values()] == [0, 1] and read["sweep"] == []
    assert math.isnan(study["odd"][0])  # and the study stays as it was


@needs_chromium
@pytest.mark.parametrize("names", [TUNING, [f"row {k}" for k in range(25)]], ids=["swept", "plain"])
def test_every_row_of_many_has_its_own_look(names, show, browser):
    show(study_of(names))
    assert browser.run("document.querySelectorAll('.curve[data-row]').length") == 25
    for look in (".key[data-row] svg", "#scores .swatch", "#games .swatch"):
        drawn = browser.run(f"[...document.querySelectorAll('{look}')].map(x => x.innerHTML)")
        assert len(drawn) == len(set(drawn)) == 25
    # A row's colour is the same in the legend, the chart and the table.
    for name in (names[0], names[-1]):
        row = f"[data-row='{name}']"
        cell = f"th => th.textContent === '{name.replace('_', ' ')}'"
        head = f"[...document.querySelectorAll('#scores th')].find({cell})"
        colours = [
            browser.run(f"{element}.getAttribute('{attribute}')")
            for element, attribute in (
                (f'document.querySelector("{row} line")', "stroke"),
                (f'document.querySelector(".curve{row}")', "stroke"),
                (f"{head}.querySelector('.mark')", "fill"),
            )
        ]
        assert len(set(colours)) == 1, colours


@needs_chromium
def test_series_are_switched_together(show, browser):
    show(study_of(TUNING))
    count = "document.querySelectorAll('.curve[data-row]').length"
    assert texts(browser, ".series") == ["pg", "trpo penalty", "ppo", "mpo", "muesli"]
    none = "document.querySelector('[data-id=none]')"
    browser.run(f"{none}.focus(), {none}.click()")
    assert browser.run(count) == 0
    # Who steers by keys keeps the place.
    assert browser.run("document.activeElement.textContent") == "None"
    browser.run("document.querySelectorAll('.series')[2].click()")
    assert browser.run(count) == 5
    browser.run("document.querySelectorAll('.series')[2].click()")
    assert browser.run(count) == 0
    browser.run("document.querySelector('[data-id=all]').click()")
    assert browser.run(count) == 25


@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_labels_of_sweeps_stand_apart(width, show, browser):
    show(study_of(TUNING), width)
    panels = browser.run(
        "[...document.querySelectorAll('svg.sweep')].map(p => [p.querySelector('.number')"
        ".textContent, [...p.querySelectorAll('.at')].map(t => { const b = t"
        ".getBoundingClientRect(); return [t.textContent, b.left, b.right, b.top]; })])"
    )
    assert [title for title, _ in panels] == [
        *("update.entropy_weight", "update.trpo_weight", "update.ppo_clip"),
        *("update.mpo_kl_limit", "update.cmpo_weight"),
    ]
    assert [text for text, *_ in panels[2][1]] == ["0.2", "0.25", "0.3", "0.5", "0.8"]
    for _, labels in panels:
        for _, line in itertools.groupby(
            sorted(labels, key=lambda x: (x[3], x[1])), lambda x: x[3]
        ):
            assert all(a[2] < b[1] for a, b in itertools.pairwise(line))


@needs_chromium
@pytest.mark.parametrize(
    ("numbers", "axis"),
    [
        ("0 50 75 94", "intervals."),
        ("32 128 512", "the horizontal axis is logarithmic."),
        ("0 0.001 1", "the horizontal axis is logarithmic, with 0 at its left end."),
    ],
)
def test_a_sweep_shows_its_numbers(numbers, axis, show, browser):
    text = show(study_of([f"replay_{n}" for n in numbers.split()]))
    assert texts(browser, "svg.sweep .at") == numbers.split()
    assert texts(browser, "svg.sweep .number") == ["replay"]
    assert axis in text
    across = browser.run(
        "[...document.querySelectorAll('svg.sweep .mark')]"
        ".map(m => m.getBoundingClientRect()).map(b => (b.left + b.right) / 2)"
    )
    assert all(b - a > 40 for a, b in itertools.pairwise(across))


@needs_chromium
def test_ticks_are_what_they_say(show, browser):
    study = study_of(["a"])
    curve = study["rows"][0]["curves"]["catch"]
    curve.update(steps=[1e5, 5e5, 1e6], value=[-1350.0, -900.0, -300.0], low=None, high=None)
    study["envs"][0].update(random=None, reference=None)
    show(study)
    ticks = texts(browser, "svg.curves text")
    assert {"−1,250", "−1,000", "−750", "−500"} <= set(ticks)
    assert {"0", "0.2M", "0.8M", "1M"} <= set(ticks)


@needs_chromium
def test_numbers_have_three_or_four_figures(show, browser):
    rows = study_of(["a", "b", "c", "d"], published={"catch": "1,363,427 ± 81,093"})
    scores = (
        (27123.4, 26987.6, 27312.2),
        (1363427.0, None, None),
        (-0.0, -0.4, 0.5),
        (4.5678, 4.0, 5.0),
    )
    show(with_scores(rows, *scores))
    assert texts(browser, "#games td") == [
        *("27,120 26,990 – 27,310", "1,363,000 ", "0.000 −0.400 to 0.500", "4.57 4.00 – 5.00"),
        "1,363,427 ± 81,093",
    ]


@needs_chromium
def test_a_telephone_shows_the_interquartile_mean(show, browser):
    study = study_of(["muesli", "trpo_penalty_0.001", "direct_mpo"])
    show(with_scores(study, *[(0.851, 0.844, 0.859)] * 3), 390)
    cells = "[...document.querySelectorAll('#scores tbody tr')].map(r => r.children[2])"
    assert browser.run(f"{cells}.map(x => x.textContent)") == ["0.851 0.844 – 0.859"] * 3
    edges = browser.run(f"{cells}.map(x => x.getBoundingClientRect().right)")
    assert all(200 < edge <= 390 for edge in edges)
    browser.size(1280)
    assert browser.run("document.querySelector('#scores td.bar').offsetWidth") > 100


@needs_chromium
def test_captions_say_what_is_drawn(show, browser):
    estimate = {"value": 1.0, "low": None, "high": None}
    claim = {**CLAIM, "verdict": "open", "gap": estimate, "improvement": estimate}
    single = with_scores(study_of(["a", "b"], [claim]), (0.5, None, None), (0.4, None, None))
    for row in single["rows"]:
        row["curves"]["catch"].update(low=None, high=None, value=[0.0, 0.5, 0.5])
    text = show(single)
    assert "one run of each: that of a scored higher than that of b" in text
    assert "%" not in text and "averaged over seeds" not in text and "Small figures" not in text
    # The random player is far below, a perfect one near enough.
    single["envs"][0].update(random=-9.0, reference=0.6, who="all caught")
    assert "Dotted: the reference (all caught)." in show(single)
    single["envs"][0].update(reference=9.0)
    assert "Dotted" not in show(single)
    # Without a reference there is nothing to normalise by, whether or not it is said.
    single["envs"][0].update(random=None, reference=None, who="")
    for raw in (single, *({**single, "measure": name} for name in ("raw", "raw return"))):
        text = show(raw)
        assert "normalised" not in text and "Optimality gap" not in text
        assert "in the environment’s own units: no reference is known" in text
    assert "normalised so that" in show({**single, "measure": "normalised"})
    # Several environments, several runs of each.
    several = with_scores(study_of(["a", "b"]), (0.5, 0.4, 0.6), (0.4, 0.3, 0.5))
    assert "Runs in all" not in show(several)
    several["envs"].append({**several["envs"][0], "name": "other"})
    text = show(several)
    assert "Runs in all" in text and "Runs are counted over all environments." in text
    assert "Small figures are 95% stratified bootstrap intervals." in text


@needs_chromium
def test_a_run_that_diverged_blanks_nothing(show, browser):
    nan = math.nan
    claims = [
        {**CLAIM, "verdict": "open", "gap": gap, "improvement": gap}
        for gap in ({"value": nan, "low": nan, "high": nan}, GAP)
    ]
    scores = ((nan, nan, nan), (0.3, nan, nan), (0.2, 0.1, 0.3), (None, None, None))
    study = with_scores(study_of(["a_1", "a_2", "a_3", "a_4"], claims), *scores)
    curves = [row["curves"]["catch"] for row in study["rows"]]
    curves[0].update(value=[0.1, nan, 0.3], low=[0.1, nan, 0.3], high=[0.1, nan, 0.3])
    curves[1].update(value=[nan] * 3, low=[nan] * 3, high=[nan] * 3)
    text = show(study)
    assert "a run diverged in a 1, a 4" in text
    assert texts(browser, "#games td") == ["–", "0.300 ", "0.200 0.100 – 0.300", "–"]
    html = browser.run("document.getElementById('page').innerHTML")
    assert "NaN" not in html and "undefined" not in html and "null" not in html
    assert texts(browser, "svg.sweep .at") == ["2", "3"]
    assert "Highest interquartile mean: a 2." in text
    for told, said in ((1, "1 run diverged: its"), (["x", "y"], "2 runs diverged: their")):
        assert said in show({**study, "diverged": told})
    study["rows"][2]["diverged"] = 2
    assert "2 runs diverged (a 3): their" in show({**study, "runs_diverged": 2})
    assert "diverged" not in show({**study_of(["a"]), "diverged": []})
    # Nothing at all to draw.
    for curve in curves:
        curve.update(value=[None] * 3, low=None, high=None)
    assert "No number to draw." in show(with_scores(study, *[(nan, nan, nan)] * 4))


@needs_chromium
def test_what_is_provisional_or_too_little_is_said(show, browser):
    estimates = {"gap": GAP, "improvement": {"value": 0.9, "low": 0.8, "high": 1.0}}
    verdicts = ("holds", "too few runs", "too few runs", "not run", "open")
    claims = [{**CLAIM, "verdict": verdict, **estimates} for verdict in verdicts]
    show(study_of(["a", "b"], claims))
    said = browser.run("document.getElementById('verdict').textContent")
    assert "1 of 5 statements agrees" in said and "1 stays open" in said
    assert "2 have too few runs, 1 is not run." in said and "provisional" not in said
    for key in ("so_far", "provisional"):
        claims[0] = {**CLAIM, "verdict": "holds", **estimates, key: True}
        text = show(study_of(["a", "b"], claims))
        assert texts(browser, ".claims .provisional") == ["provisional"]
        assert "What is provisional stands on runs that are not all finished." in text


@needs_chromium
def test_what_has_no_answer_says_why(show, browser):
    study = study_of(["a", "b"], failures=[{"job": "0", "why": "killed", "log": "jobs/0.log"}])
    none = {**CLAIM, "gap": None, "improvement": None, "provisional": True}
    verdicts = ("unfinished", "unfinished", "no score", "not run")
    study["claims"] = [{**none, "verdict": verdict} for verdict in verdicts]
    study["rows"][0].update(wanted=5, provisional=True)
    study["rows"][1].update(wanted=2, counted=1, uncounted=1)
    text = show(study)
    said = (
        "0 of 4 statements agree with these runs, 2 are unfinished, 1 has no score, 1 is not run."
    )
    assert said in text
    # What is not answered is not provisional.
    assert texts(browser, ".claims .provisional") == [] and "What is provisional" not in text
    assert texts(browser, "#scores tbody tr td:nth-child(2)") == ["2 of 5", "2"]
    assert "Rows whose runs are not all finished are provisional." in text
    assert "Of b, 1 to an environment are counted; 1 more of some are not." in text
    assert "Failed: 0 (killed; see jobs/0.log)" in text


@needs_chromium
def test_bars_are_told_by_what_they_measure(show):
    claim = {**CLAIM, "verdict": "holds", "gap": GAP, "improvement": GAP}
    study = study_of(["a", "b"], [claim])
    assert "Bars: difference of mean scores, normalised, with 95% stratified" in show(study)
    text = show({**study, "caveat": "Verdicts are by Welch intervals."})
    assert "normalised, with 95% intervals; the line is no difference. Verdicts are by W" in text
    study["claims"][0]["measure"] = "probability of improvement"
    text = show({**study, "measure": "none"})
    assert "Bars: the probability that a run of the first beats one of the second, less" in text
