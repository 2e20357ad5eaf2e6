"""What a report makes of directories that runs left behind, whole or not; none is run for it."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from muesli.cli import main as cli
from muesli.executors.directory import describe
from muesli.presets import catch
from muesli.report import read_study
from muesli.suites import Claim, Row, Scale, Selection, Suite, expand

GAMES = ("minatar_asterix", "minatar_breakout")


def suite(*envs, seeds=5, claims=("better",)):
    return Suite(
        title="Fabricated",
        figure="",
        rows=(Row("good"), Row("bad", {"update.name": "pg"})),
        claims=tuple(Claim(kind, "good", "bad", kind) for kind in claims),
        scales={"laptop": Scale("catch", envs or ("catch",), seeds)},
    )


def fabricate(out, suite, score, leave=lambda run: None):
    """The directory of a suite whose runs ended with these scores.

    score: a run's, by (row, env, seed); leave: how far a run came, nothing being all the way.
    """
    runs = expand(suite, Selection("laptop"))
    out.mkdir(parents=True, exist_ok=True)
    described = describe("fabricated", suite, Selection("laptop"), runs, ["muesli"], [])
    (out / "suite.json").write_text(json.dumps(described))
    for run in runs:
        share = leave(run)
        if share == 0.0:
            continue
        write_run(out / "runs" / run.path, run.config, score(run), 1.0 if share is None else share)
    return out


def write_run(path, config, score, share=1.0):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
    (path / "run.json").write_text(json.dumps({"devices": ["cpu"], "jax": "0.10"}))
    steps = [int(share * config.total_env_steps * k / 4) for k in range(1, 5)]
    rows = [{"env_steps": step, "episode_return_mean": score} for step in steps]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "episodes.jsonl").write_text(json.dumps({"return": score}) + "\n")


def spread(run, good=0.9, bad=-0.9):
    return (good if run.row == "good" else bad) + 0.01 * run.seed


def by_name(entries):
    return {entry["name"]: entry for entry in entries}


def compare(capsys, *directories):
    assert cli.main(["compare", *map(str, directories), "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    return "\n".join(lines), json.loads(last, parse_constant=lambda name: pytest.fail(name))


# --- what is not finite ---------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan", "-inf"])
def test_a_run_that_diverged_has_no_score_and_is_told(tmp_path, capsys, value):
    """Metrics hold such numbers as text; other programs write them bare."""
    score = lambda run: value if (run.row, run.seed) == ("bad", 3) else spread(run)
    said, study = compare(capsys, fabricate(tmp_path / "out", suite(), score))
    assert study["runs_diverged"] == 1 and study["runs_finished"] == 10
    rows = by_name(study["rows"])
    assert (rows["good"]["diverged"], rows["bad"]["diverged"]) == (0, 1)
    assert len(rows["bad"]["envs"]["catch"]["scores"]) == 4
    assert np.isfinite(rows["bad"]["curves"]["catch"]["value"]).all()
    assert study["claims"][0]["verdict"] == "holds"
    assert "bad: 1 run diverged (returns not finite) and has no score" in said


def test_a_row_that_diverged_whole_is_not_judged(tmp_path, capsys):
    score = lambda run: "nan" if run.row == "bad" else spread(run)
    said, study = compare(capsys, fabricate(tmp_path / "out", suite(), score))
    assert study["claims"][0]["verdict"] == "no score" and "bad: 5 runs diverged" in said
    assert by_name(study["rows"])["bad"]["aggregates"] == {}


# --- what is not there yet ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leave", "verdict", "provisional"),
    [
        (lambda run: 0.0 if run.row == "bad" else None, "not run", True),
        (lambda run: 0.5 if run.row == "bad" else None, "unfinished", True),
        (lambda run: 0.0 if run.env == GAMES[1] else None, "unfinished", True),
        (lambda run: 0.5 if run.seed == 4 else None, "holds", True),
        (lambda run: None, "holds", False),
    ],
)
def test_what_is_missing_is_told_apart(tmp_path, capsys, leave, verdict, provisional):
    out = fabricate(tmp_path / "out", suite(*GAMES), spread, leave)
    said, study = compare(capsys, out)
    (claim,) = study["claims"]
    assert (claim["verdict"], claim["provisional"]) == (verdict, provisional)
    assert [env["name"] for env in study["envs"]] == list(GAMES)
    # Aggregates are of every environment, or there are none.
    for row in study["rows"]:
        assert bool(row["aggregates"]) == (len(row["envs"]) == 2)
        assert row["wanted"] == 10 and row["provisional"] == (row["finished"] < 10)
    assert ("holds so far" in said) == (verdict == "holds" and provisional)
    begun = verdict == "holds" and provisional
    assert ("as runs are missing: the aggregates of good, bad" in said) == begun


def test_the_least_run_game_cuts_the_others_and_that_is_said(tmp_path, capsys):
    leave = lambda run: 0.5 if run.seed > 2 and (run.row, run.env) == ("bad", GAMES[0]) else None
    said, study = compare(capsys, fabricate(tmp_path / "out", suite(*GAMES), spread, leave))
    rows = by_name(study["rows"])
    assert (rows["good"]["counted"], rows["good"]["uncounted"]) == (5, 0)
    assert (rows["bad"]["counted"], rows["bad"]["uncounted"]) == (3, 2)
    assert "bad: the first 3 runs of every environment are counted, 2 more of some are not" in said


# --- what has no common measure -------------------------------------------------------------


def test_one_environment_without_a_reference_keeps_its_own_units(tmp_path, capsys):
    score = lambda run: spread(run, -150.0, -1_200.0)
    out = fabricate(tmp_path / "out", suite("gym:Pendulum-v1"), score)
    said, study = compare(capsys, out)
    assert study["measure"] == "raw return" and study["comparable"]
    for row in study["rows"]:
        assert "optimality_gap" not in row["aggregates"] and row["aggregates"]["iqm"]
    assert "IQM (raw return)" in said and "optimality" not in said
    (claim,) = study["claims"]
    assert claim["measure"] == "raw return" and claim["verdict"] == "holds"
    assert claim["gap"]["value"] == pytest.approx(1_050.0)


def test_environments_without_a_common_measure_are_compared_by_who_beats_whom(tmp_path, capsys):
    envs = ("gym:Pendulum-v1", "gym:HalfCheetah-v5", "catch")
    scale = {env: 10.0**k for k, env in enumerate(envs)}
    score = lambda run: scale[run.env] * spread(run)
    said, study = compare(capsys, fabricate(tmp_path / "out", suite(*envs), score))
    assert study["measure"] == "none" and not study["comparable"]
    assert all(row["aggregates"] == {} for row in study["rows"])
    (claim,) = study["claims"]
    assert claim["measure"] == "probability of improvement" and claim["verdict"] == "holds"
    assert claim["gap"]["value"] == 0.5 and claim["improvement"]["value"] == 1.0
    assert "P(improvement) 1" in said and "Welch" in said


def test_measures_of_scores(tmp_path):
    study = read_study([fabricate(tmp_path / "out", suite(*GAMES), spread)])
    assert study["measure"] == "normalised"
    assert "optimality_gap" in study["rows"][0]["aggregates"]
    assert study["claims"][0]["measure"] == "normalised" and "1 claim in 20" in study["caveat"]


def test_two_runs_of_one_game_decide_nothing(tmp_path):
    """However far apart they are."""
    kinds = ("better", "similar", "no_worse")
    for seeds, decided in ((2, False), (3, False), (4, True)):
        out = fabricate(tmp_path / str(seeds), suite(seeds=seeds, claims=kinds), spread)
        verdicts = [claim["verdict"] for claim in read_study([out])["claims"]]
        assert verdicts == (["holds", "differs", "holds"] if decided else ["too few runs"] * 3)


# --- odd directories ------------------------------------------------------------------------


def test_several_suites_are_one_object(tmp_path, capsys):
    outs = [fabricate(tmp_path / name, suite(), spread) for name in ("a", "b")]
    _, found = compare(capsys, *outs)
    assert [study["suite"] for study in found["studies"]] == ["fabricated"] * 2


def odd_directories(tmp_path):
    runs = itertools.count()

    def fresh():
        path = tmp_path / f"odd-{next(runs)}"
        write_run(path, catch(), 0.5)
        return path

    path = fresh()
    (path / "config.json").write_text("{}")
    yield path, "config.json is no configuration of a run (agent.discount is None)"
    path = fresh()
    (path / "config.json").write_text("[]")
    yield path, "config.json is no configuration of a run"
    path = fresh()
    write_run(path / "within", catch(), 0.5)
    yield path, "is a run with another one below it"
    path = fresh()
    (path / "metrics.jsonl").write_bytes(b"\xff\xfe")
    yield path, "metrics.jsonl cannot be read"
    for text, complaint in (
        ("{}", "describes no suite (it lacks suite)"),
        ("[]", "describes no suite"),
        ("{", "suite.json cannot be read"),
    ):
        path = fresh()
        (path / "suite.json").write_text(text)
        yield path, complaint
    path = fabricate(tmp_path / "lacking", suite(), spread)
    described = json.loads((path / "suite.json").read_text())
    del described["runs"][0]["path"]
    (path / "suite.json").write_text(json.dumps(described))
    yield path, "describes no suite (runs lack path)"
    (tmp_path / "empty").mkdir()
    yield tmp_path / "empty", "holds neither a suite nor a run"


def test_an_odd_directory_takes_one_line(tmp_path, capsys):
    for path, complaint in odd_directories(tmp_path):
        for command in (["compare"], ["report", "--videos", "0"]):
            assert cli.main([*command, str(path)]) == 2
            error = capsys.readouterr().err.strip()
            assert complaint in error and "\n" not in error, error


def test_odd_rows_and_machines_are_passed_over(tmp_path):
    write_run(tmp_path / "run", catch(), 0.5)
    (tmp_path / "run" / "run.json").write_text("[]")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as stream:
        stream.write('7\n{"env_steps": null}\n{"unfinished"')
    study = read_study([tmp_path / "run"])
    assert study["runs_finished"] == 1 and study["rows"][0]["envs"]["catch"]["scores"] == [0.5]
