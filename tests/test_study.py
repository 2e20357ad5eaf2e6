"""A study from end to end: executors, tables, and the page in a real browser."""

import dataclasses
import itertools
import json
import os
import runpy
import shutil
import signal
import socket
import sys
import threading
import time
import types
import urllib.error
import urllib.request
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from browser import EXECUTABLE, Browser
from test_anakin import tiny

from muesli import policy_updates, presets
from muesli.checkpoint import read_manifest
from muesli.cli import main as cli
from muesli.cli import plugins
from muesli.config import ConfigError, UpdateConfig
from muesli.distributions import Categorical
from muesli.envs import ENVS
from muesli.executors import rates
from muesli.executors.directory import describe, write_description
from muesli.executors.jobs import execute, plan, probe, state_of, steady, write_job
from muesli.executors.local import reason, run_locally
from muesli.fields import set_field
from muesli.metrics import read_jsonl
from muesli.plots import plot_sweep
from muesli.report import read_study
from muesli.report.live import make_server
from muesli.report.page import render
from muesli.runners.device import look_at_device
from muesli.runners.loading import load_agent_state
from muesli.runners.parts import build
from muesli.runners.train import train
from muesli.suites import SUITES, Claim, Row, Scale, Selection, Suite, expand
from muesli.types import Candidates, PolicyInputs

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_update.py"
SUITE = Suite(
    title="Two <rows> & a test",
    figure="figure 0",
    rows=(
        Row("lambda_0.3", {"update.cmpo_weight": 0.3}, "about 300%"),
        Row("lambda_3", {"update.cmpo_weight": 3.0}),
        Row("robotic", {"env.name": "robots"}),
    ),
    claims=(Claim("similar", "lambda_0.3", "lambda_3", "λ </script> does not matter"),),
    scales={"laptop": Scale("tiny", ("catch",), 2)},
    published={"catch": "97 ± 2"},
)


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setitem(presets.PRESETS, "tiny", small)
        patch.setitem(SUITES, "tested", SUITE)
        patch.setitem(ENVS, "robots", robots)
        yield


def robots():
    raise ModuleNotFoundError("No module named 'robots'")  # as of an extra


def small():
    config = tiny()
    log = dataclasses.replace(config.log, eval_every_steps=0, eval_episodes=0, save_replay=False)
    # A large epsilon, so that rounding cannot turn the sign of one of Adam's steps.
    optimiser = dataclasses.replace(config.optimiser, adam_epsilon=0.01)
    return dataclasses.replace(config, log=log, optimiser=optimiser, total_env_steps=1_600)


@pytest.fixture(scope="module")
def jobs():
    runs, inside = probe(expand(SUITE, Selection("laptop")))
    return plan(runs, "tiny", inside, width=16)


@pytest.fixture(scope="module")
def study_dir(tmp_path_factory, jobs):
    """The suite, run for real in this process."""
    out = tmp_path_factory.mktemp("study")
    runs, _ = probe(expand(SUITE, Selection("laptop")))
    command = ["muesli", "suite", "tested"]
    write_description(out, describe("tested", SUITE, Selection("laptop"), runs, command, []), runs)
    for job in jobs:
        assert execute(json.loads(write_job(job, out).read_text()), print) == 0
    return out


# --- executors ------------------------------------------------------------------------------


def test_numbers_and_seeds_share_a_job_and_what_is_missing_is_left_out(jobs):
    assert [len(job.runs) for job in jobs] == [4] and jobs[0].together
    runs, _ = probe(expand(SUITE, Selection("laptop")))
    assert plan(runs, "tiny", lambda env: True, width=3)[1].runs[0].path == "lambda_3/catch/seed-1"
    assert [len(job.runs) for job in plan(runs, "tiny", lambda env: False, width=16)] == [1] * 4
    (missing,) = {run.missing for run in runs if run.row == "robotic"}
    assert "ModuleNotFoundError: No module named 'robots'" in missing


def test_what_is_finished_is_not_repeated(study_dir, jobs):
    before = {p: p.stat().st_mtime_ns for p in study_dir.rglob("metrics.jsonl")}
    assert len(before) == 4
    execute(json.loads(write_job(jobs[0], study_dir).read_text()), print)
    assert before == {p: p.stat().st_mtime_ns for p in study_dir.rglob("metrics.jsonl")}
    outcomes = run_locally(jobs, study_dir)
    assert [outcome.status for outcome in outcomes] == ["already done"]


@pytest.mark.slow
def test_a_broken_run_continues_and_a_sweep_is_its_runs(study_dir, tmp_path, jobs):
    """A run of its own, stopped by a signal in the middle and continued, ends as the same run did
    that shared its program with three others.
    """
    run = jobs[0].runs[2]
    assert (run.row, run.seed) == ("lambda_3", 0)
    job = dataclasses.replace(jobs[0], runs=(run,), together=False)
    path, shared = tmp_path / "runs" / run.path, study_dir / "runs" / run.path
    sent = []

    def stop(row):
        # Once: a second signal leaves at once, and it takes a moment until the first is heard.
        if row["env_steps"] > 500 and not sent:
            sent.append(row)
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.5)

    assert train(run.config, path, [stop]).stopped_by == signal.SIGTERM
    assert state_of(path) == "broken" and len(read_jsonl(path / "metrics.jsonl")) < 8
    assert execute(json.loads(write_job(job, tmp_path).read_text()), print) == 0
    assert state_of(path) == "finished"
    rows = read_jsonl(path / "metrics.jsonl"), read_jsonl(shared / "metrics.jsonl")
    for one, other in zip(*rows, strict=True):
        assert one["env_steps"] == other["env_steps"]
        assert one["episode_return_mean"] == other["episode_return_mean"]
        assert one["loss_total"] == pytest.approx(other["loss_total"], rel=1e-3)
    parts = build(run.config)
    agents = (load_agent_state(where, parts).online for where in (path, shared))
    for x, y in zip(*map(jax.tree.leaves, agents), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)
    # What is finished is kept without its ring, if the configuration says so.
    saved = read_manifest(next((shared / "checkpoints").glob("step-*")))
    assert not any(name.startswith(".replay") for name in saved["leaves"])


def stand_in(monkeypatch, program):
    """In place of every job's process: ``program`` in Python, which is given the job's file."""
    line = lambda file, plugins: [sys.executable, "-c", program, str(file)]
    monkeypatch.setattr("muesli.executors.local.job_command", line)


def one_run(job, n=0):
    return dataclasses.replace(job, together=False, runs=job.runs[n : n + 1])


def test_jobs_of_two_commands_do_not_share_a_file(tmp_path, jobs):
    files = [write_job(one_run(jobs[0], n), tmp_path) for n in (0, 2)]
    assert files[0] != files[1] and all("lambda" in file.name for file in files)
    asked = [json.loads(file.read_text())["runs"][0]["directory"] for file in files]
    assert [Path(path).parts[-3] for path in asked] == ["lambda_0.3", "lambda_3"]
    assert write_job(one_run(jobs[0]), tmp_path) == files[0]
    assert len(list((tmp_path / "jobs").iterdir())) == 2  # nothing half written is left


def test_a_process_that_ends_well_has_to_have_done_its_job(tmp_path, jobs, monkeypatch):
    stand_in(monkeypatch, "print('fine')")
    (outcome,) = run_locally([one_run(jobs[0])], tmp_path)
    assert outcome.status == "failed"
    assert "it ended without finishing lambda_0.3/catch/seed-0" in outcome.detail


def test_what_another_command_is_doing_has_not_failed(tmp_path, jobs, monkeypatch):
    said = "muesli job: run_dir: here is in use by another process"
    stand_in(monkeypatch, f"import sys; sys.exit(print({said!r}) or 2)")
    (outcome,) = run_locally([one_run(jobs[0])], tmp_path)
    assert outcome.status == "failed" and f"(exit 2: {said}; see" in outcome.detail
    assert not list((tmp_path / "jobs").glob("*.failed"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_more_signals_while_runs_save_themselves(tmp_path, monkeypatch, capsys, number):
    """The second is passed on too, and neither ends this process before it has told."""
    program = """if True:
        import signal, sys, time, pathlib
        file, heard = pathlib.Path(sys.argv[1]), []
        def hear(number, frame):
            heard.append(number)
            file.with_suffix(".heard").write_text(str(len(heard)))
        signal.signal(signal.SIGTERM, hear)
        file.with_suffix(".ready").touch()
        while len(heard) < 2:
            time.sleep(0.05)
        sys.exit(143)"""
    stand_in(monkeypatch, program)
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]

    def send():
        folder = tmp_path / "jobs"
        for _ in range(2):
            before = time.monotonic()
            while not list(folder.glob("*.ready")) and time.monotonic() < before + 20:
                time.sleep(0.05)
            os.kill(os.getpid(), number)
            while not list(folder.glob("*.heard")) and time.monotonic() < before + 20:
                time.sleep(0.05)
            time.sleep(0.3)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    line = ["suite", "tested", "--seeds", "1", "--width", "1", "--json", "--out", str(tmp_path)]
    assert cli.main(line) == 130
    sender.join()
    said = capsys.readouterr().out.splitlines()
    assert json.loads(said[-1]) == {"out": str(tmp_path), "stopped": 1}
    assert "stopped  lambda_0.3 on catch, 1 run the same command continues it" in said
    assert handlers == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]


def test_why_a_job_failed(tmp_path, jobs, monkeypatch, capsys):
    """The exception, not what JAX says behind it; and of this try, not of the one before."""
    log = tmp_path / "log"
    shortened = (
        "Traceback (most recent call last):\n  File x, line 1\nValueError: a hole in the pipe\n"
        "--------------------\nFor simplicity, JAX has removed its internal frames from the "
        "traceback of the following exception. Set JAX_TRACEBACK_FILTERING=off to include these.\n"
    )
    log.write_text(f"started\n{shortened}")
    assert reason(log) == "ValueError: a hole in the pipe"
    start = log.stat().st_size
    assert reason(log, start) == "it said nothing"
    with log.open("a") as stream:
        stream.write("Traceback (most recent call last):\n  File x\nmy.Boom\n\nand then\n")
    assert reason(log, start) == "my.Boom"
    with log.open("a") as stream:
        stream.write("muesli job: run_dir: is in use by another process\nbye\n")
    assert reason(log, start) == "muesli job: run_dir: is in use by another process"
    # It is kept, and told by whoever looks at the suite, until it is no longer so.
    out, selection = tmp_path / "out", Selection("laptop", seeds=1, rows=("lambda_3",))
    runs, _ = probe(expand(SUITE, selection))
    write_description(out, describe("tested", SUITE, selection, runs, ["one"], []), runs)
    stand_in(monkeypatch, f"import sys; sys.stderr.write({shortened!r}); sys.exit(1)")
    (outcome,) = run_locally([one_run(jobs[0], 2)], out)
    assert "(exit 1: ValueError: a hole in the pipe; see " in outcome.detail
    (failure,) = read_study([out])["failures"]
    assert failure["why"] == "exit 1: ValueError: a hole in the pipe"
    assert failure["job"] == "lambda_3 on catch, 1 run" and (out / failure["log"]).exists()
    assert cli.main(["compare", str(out)]) == 0
    printed = capsys.readouterr().out
    failed = "failed: lambda_3 on catch, 1 run (exit 1: ValueError: a hole in the pipe"
    assert failed in printed
    assert cli.main(["report", str(out), "--videos", "0"]) == 0
    assert failed in capsys.readouterr().out
    stand_in(monkeypatch, "")
    monkeypatch.setattr("muesli.executors.local.unfinished", lambda job, out: "")
    run_locally([one_run(jobs[0], 2)], out)
    assert read_study([out])["failures"] == []


def test_rows_of_several_commands_get_their_claims(tmp_path):
    out = tmp_path / "out"
    for row, claims in (("lambda_0.3", 0), ("lambda_3", 1)):
        selection = Selection("laptop", rows=(row,))
        runs, _ = probe(expand(SUITE, selection))
        write_description(out, describe("tested", SUITE, selection, runs, [row], []), runs)
        assert len(read_study([out])["claims"]) == claims


def test_commands_at_once_lose_nothing(tmp_path, monkeypatch):
    """One reads what is there while the other has not written yet."""
    from muesli.executors import directory as module

    out, slow = tmp_path / "out", module._merge

    def merge(*arguments):
        time.sleep(0.3)
        return slow(*arguments)

    monkeypatch.setattr(module, "_merge", merge)

    def add(rows):
        selection = Selection("laptop", rows=rows)
        runs = expand(SUITE, selection)
        description = describe("tested", SUITE, selection, runs, list(rows), [])
        write_description(out, description, runs)

    add(("robotic",))
    threads = [threading.Thread(target=add, args=((row,),)) for row in ("lambda_0.3", "lambda_3")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = json.loads((out / "suite.json").read_text())
    assert {row["name"] for row in found["rows"]} == {"robotic", "lambda_0.3", "lambda_3"}


def test_a_broken_description_is_said(tmp_path, capsys):
    (tmp_path / "suite.json").write_text("{")
    assert cli.main(["suite", "tested", "--out", str(tmp_path)]) == 2
    assert "suite.json cannot be read" in capsys.readouterr().err
    (tmp_path / "suite.json").write_text("{}")
    assert cli.main(["suite", "tested", "--out", str(tmp_path)]) == 2
    assert "describes no suite (it lacks command)" in capsys.readouterr().err


def test_another_suites_directory_is_refused(study_dir, capsys):
    assert cli.main(["suite", "baselines", "--seeds", "1", "--out", str(study_dir)]) == 2
    assert "holds the suite tested" in capsys.readouterr().err


def test_runs_of_another_configuration_are_refused(study_dir, capsys, monkeypatch):
    """Nothing is lost, and what is on the way is not taken for what was asked."""
    before = {p: p.read_bytes() for p in study_dir.rglob("*") if p.is_file()}
    line = ["suite", "tested", "--out", str(study_dir)]
    assert cli.main([*line, "--seeds", "1", "--total-env-steps", "3200"]) == 2
    error = capsys.readouterr().err.strip()
    assert "total_env_steps is 1600 there and 3200 here" in error and "\n" not in error
    assert "lambda_0.3/catch/seed-0 and 1 more" in error and "--out" in error
    # A preset that has changed meanwhile is noticed too.
    other = set_field(small(), "optimiser.learning_rate", 0.5)
    monkeypatch.setitem(presets.PRESETS, "tiny", lambda: other)
    assert cli.main(line) == 2
    assert "optimiser.learning_rate is" in capsys.readouterr().err
    assert before == {p: p.read_bytes() for p in study_dir.rglob("*") if p.is_file()}


def test_a_suite_takes_fields_for_every_run(tmp_path, capsys):
    runs = expand(SUITE, Selection("laptop", fields={"log.log_every_steps": 400}))
    described = describe("tested", SUITE, Selection("laptop", fields={"seed": 1}), runs, [], [])
    assert described["fields"] == {"seed": 1}
    line = ["suite", "tested", "--dry-run", "--json", "--total-env-steps", "3200"]
    assert cli.main([*line, "--env.num-envs=4", "--batch.online-sequences", "2"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["frames"] == 4 * 3_200
    assert cli.main([*line, "--env.num-envs", "3", "--batch.online-sequences", "2"]) == 2
    error = capsys.readouterr().err.strip()
    assert "env.num_envs: must be a multiple" in error and "\n" not in error


def test_rows_that_come_later_have_the_same_fields(study_dir, tmp_path):
    """Also where no run is there twice, a study is not mixed from two lengths."""
    out = tmp_path / "out"
    shutil.copytree(study_dir, out)
    selection = Selection("laptop", rows=("lambda_3",), fields={"total_env_steps": 3_200})
    shutil.rmtree(out / "runs" / "lambda_3")
    runs = expand(SUITE, selection)
    described = describe("tested", SUITE, selection, runs, ["other"], [])
    with pytest.raises(ConfigError, match="total_env_steps is as the scale says there and 3200"):
        write_description(out, described, runs)
    shutil.rmtree(out / "runs")  # nothing is kept of them
    write_description(out, described, runs)


def test_a_command_that_runs_nothing_made_nothing(study_dir, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(study_dir, out)
    assert cli.main(["suite", "tested", "--seeds", "1", "--out", str(out)]) == 0
    assert "already done" in capsys.readouterr().out
    assert read_study([out])["command"] == ["muesli", "suite", "tested"]
    # One that adds something stands beside those before it, once.
    shutil.rmtree(out / "runs" / "lambda_3" / "catch" / "seed-1")
    runs, _ = probe(expand(SUITE, Selection("laptop")))
    for _ in range(2):
        described = describe("tested", SUITE, Selection("laptop"), runs, ["again"], [])
        write_description(out, described, runs)
    study = read_study([out])
    assert study["command"] == ["again"]
    assert study["earlier_commands"] == [["muesli", "suite", "tested"]]


def test_rates_are_remembered_and_estimate_hours(study_dir, capsys):
    key = "tiny | catch | cpu"
    assert key in rates.read_rates()
    assert cli.main(["suite", "tested", "--dry-run", "--json"]) == 0
    printed = capsys.readouterr().out.splitlines()
    found = json.loads(printed[-1])
    rate = rates.read_rates()[key]["frames_per_second"]
    rows = read_jsonl(study_dir / "runs/lambda_3/catch/seed-0/metrics.jsonl")
    seconds = sum(row["elapsed_seconds"] for row in rows[1:])
    assert rate == pytest.approx(4 * (rows[-1]["env_steps"] - rows[0]["env_steps"]) / seconds)
    assert found["frames"] == 4 * 1_600
    assert found["hours"] == pytest.approx(4 * 1_600 / rate / 3600)
    missing = [line for line in printed if line.startswith("not here: env.name: 'robots' cannot")]
    assert len(missing) == 1 and missing[0].endswith("(robotic on catch)")  # of two runs
    assert cli.main(["suite", "clipping", "--scale", "paper", "--seeds", "1", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "200,000,000 frames  hours unknown" in out and "no rate measured here yet" in out


def test_a_rate_is_without_compilation():
    rows = [
        {"env_frames": 100 * n, "elapsed_seconds": seconds}
        for n, seconds in ((1, 60.0), (2, 2.0), (3, 3.0))
    ]
    assert steady(rows) == (200, 5.0)
    assert steady(rows[:1]) == (0, 0.0) == steady([])


def test_a_damaged_cache_is_no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rates.rates_file().parent.mkdir()
    rates.rates_file().write_text("{")
    assert rates.read_rates() == {} and rates.estimated_hours("a", "b", "c", 10) is None
    rates.record_rate("a", "b", "c", 7_200, 2.0)
    assert rates.estimated_hours("a", "b", "c", 3_600) == pytest.approx(1 / 3600)


def test_looking_at_the_device_leaves_the_environment_as_it_was(monkeypatch):
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    monkeypatch.delenv(name, raising=False)
    assert look_at_device() == "cpu" and name not in os.environ
    monkeypatch.setenv(name, "true")
    look_at_device()
    assert os.environ[name] == "true"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (["suite", "baseline"], "unknown suite 'baseline' (did you mean baselines?)"),
        (["suite", "baselines", "--rows", "nobody"], "rows: there is no 'nobody'"),
        (["suite", "baselines", "--jobs", "0"], "--jobs: must be at least 1"),
        (["suite"], "the following arguments are required: NAME"),
        (["suite", "baselines", "--scale", "big"], "--scale: invalid choice: 'big'"),
        (["suite", "baselines", "--seeds", "few"], "--seeds: must be a whole number, got few"),
        (["suite", "baselines", "--seeds", "1.5"], "--seeds: must be a whole number, got 1.5"),
        (["suite", "baselines", "--seeds", "0"], "--seeds: must be at least 1, got 0"),
        (["suite", "baselines", "--out"], "--out: expected one argument"),
        (["suite", "baselines", "--rows", ","], "--rows: names nothing"),
        (["suite", "baselines", "--envs", ""], "--envs: names nothing"),
        (["suite", "baselines", "--retries", "2"], "--retries: is for --executor ray"),
        (["suite", "baselines", "--ray-address", "auto"], "--ray-address: is for --executor ray"),
        (["suite", "baselines", "--executor", "ray", "--jobs", "2"], "--jobs: is for --executor l"),
        (
            ["suite", "baselines", "--executor", "ray", "--gpus-per-job", "-1"],
            "--gpus-per-job: must be at least 0, got -1",
        ),
        (["suite", "baselines", "--executor", "ray", "--gpus-per-job", "1.5"], "a whole number ab"),
        (["suite", "baselines", "--executor", "ray", "--retries", "-5"], "--retries: must be at l"),
        (["suite", "baselines", "--executor", "ray", "--cpus-per-job", "nan"], "got nan"),
        (["suite", "tested", "--envs", "cach"], "no environment 'cach'; did you mean catch"),
        (["compare"], "the following arguments are required: DIR"),
        (["compare", ".", "--jsn"], "--jsn: there is no such option (did you mean --json?)"),
        (["report", ".", "--videos", "-1"], "--videos: must be at least 0, got -1"),
        (["job"], "the following arguments are required: file"),
        (["--plugin"], "--plugin: needs a Python file behind it"),
        (["--plugin=", "list", "suites"], "--plugin: needs a Python file behind it"),
        (["suite", "tested", "--batch.replay-capacity", "9"], "--batch.replay-capacity-steps?"),
        (["suite", "tested", "--width=2", "--sed", "1"], "--sed: there is no such field"),
        (["suite", "tested", "--update.cmpo-weight", "1"], "the rows differ in it (lambda_3)"),
        (["suite", "tested", "--env.name", "catch"], "--env.name: is --envs here"),
        (["suite", "tested", "--env.num-envs", "many"], "--env.num-envs INT"),
        (["suite", "tested", "--rows", "lambda_3", "--dry-run", "--envs", "foo"], "'foo'"),
        (["suite", "tested", "--rows", "lambda_3", "--total-env-steps", "-1"], "got -1"),
        (["compare", "/no/such/place"], "is no directory"),
        (["--plugin", "/no/such/file.py", "list", "suites"], "is not a Python file"),
    ],
)
def test_mistakes_take_one_line(line, complaint, capsys):
    assert cli.main(line) == 2
    error = capsys.readouterr().err.strip()
    assert complaint in error and "\n" not in error


def test_whole_numbers_as_people_write_them(capsys):
    line = ["suite", "tested", "--dry-run", "--json", "--seeds", "2e0", "--total-env-steps", "1e4"]
    assert cli.main([*line, "--envs", "catch,catch", "--rows", "lambda_3,lambda_3"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["frames"] == 2 * 10_000 and len(found["runs"]) == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("import json\n\ndef update(:\n", "line 3: SyntaxError: invalid syntax"),
        ("import json\njson.loads('{')\n", "line 2: JSONDecodeError: Expecting"),
        ("raise RuntimeError('of two\\nlines')\n", "line 1: RuntimeError: of two lines"),
        ("import sys\nsys.exit()\n", "line 2: SystemExit"),
        (
            "from muesli.suites import Claim\nClaim('beter', 'a', 'b', '')\n",
            "line 2: ConfigError: claims: there is no kind 'beter'; did you mean better?",
        ),
    ],
)
def test_a_plug_in_that_fails_takes_one_line(text, complaint, tmp_path, capsys):
    file = tmp_path / "broken.py"
    file.write_text(text)
    for flags in (["--plugin", str(file)], [f"--plugin={file}"]):
        assert cli.main([*flags, "list", "suites"]) == 2
        error = capsys.readouterr().err.strip()
        assert f"muesli: --plugin: {file} {complaint}" in error and "\n" not in error
    assert "muesli_plugin_broken" not in sys.modules and str(file) not in plugins.LOADED


@pytest.fixture
def registries():
    """What a plug-in adds is gone after the test."""
    kept = [(registry, dict(registry)) for registry in (SUITES, policy_updates.UPDATES)]
    loaded, plugins.LOADED[:] = list(plugins.LOADED), []
    yield
    plugins.LOADED[:] = loaded
    for registry, entries in kept:
        registry.clear()
        registry.update(entries)


def test_an_own_update_and_row_from_one_file(tmp_path, capsys, registries):
    """The documented example, in processes of its own, with a job that fails beside it."""
    out = tmp_path / "out"
    line = ["--plugin", str(EXAMPLE), "suite", "baselines", "--rows", "muesli_entropy"]
    line += ["--seeds", "1", "--total-env-steps", "1200", "--out", str(out)]
    assert cli.main(line) == 0, next((out / "jobs").glob("*.log")).read_text()
    assert "1 jobs done" in capsys.readouterr().out
    run = out / "runs" / "muesli_entropy" / "catch" / "seed-0"
    config = json.loads((run / "config.json").read_text())
    assert config["update"]["name"] == "muesli_entropy"
    assert config["update"]["entropy_weight"] == 0.01
    study = read_study([out])
    assert study["rows"][0]["finished"] == 1 and str(EXAMPLE) in " ".join(study["command"])
    # Who forgets the plug-in has a page all the same, without the video it takes.
    policy_updates.UPDATES.pop("muesli_entropy")
    assert cli.main(["report", str(out), "--videos", "1"]) == 0
    said = capsys.readouterr().out
    assert "no video of muesli_entropy: update.name: there is no 'muesli_entropy'" in said
    assert (out / "report.html").exists()


@pytest.mark.parametrize("entropy_weight", [0.0, 0.3])
def test_the_examples_update_is_its_formula(registries, entropy_weight):
    """−E_π adv + λ KL(π_CMPO, π) − λ_H H[π], each part by its definition."""
    example = runpy.run_path(str(EXAMPLE), {"__name__": "example"})["muesli_entropy"]
    logits = jnp.array([0.5, -1.0, 0.2, 0.0])
    advantages = jnp.array([0.7, -2.0, 0.3, 1.5])
    config = UpdateConfig(
        kl_samples=None, cmpo_weight=0.5, beta_loo=False, entropy_weight=entropy_weight
    )
    prior = jnp.array([0.1, 0.2, 0.3, 0.4])
    policy = Categorical(logits)
    inputs = PolicyInputs(
        policy=policy,
        behaviour=Categorical(jnp.log(prior)),
        prior=Categorical(jnp.log(prior)),
        action=jnp.array(2),
        rho=jnp.array(0.8),
        advantage=jnp.array(1.3),
        q_advantage=jnp.array(0.0),
        candidates=Candidates(
            actions=jnp.arange(4),
            log_prior=jnp.log(prior),
            weights=prior,
            advantages=advantages,
        ),
        temperature=jnp.array(1.0),
        search=None,
    )
    found = example(inputs, config)
    pi = np.exp(logits) / np.exp(logits).sum()
    target = prior * np.exp(np.clip(advantages, -1.0, 1.0))
    target = target / target.sum()
    gradient = -0.8 * 1.3 * np.log(pi[2])
    entropy = -(pi * np.log(pi)).sum()
    divergence = (target * np.log(target / pi)).sum()
    expected = gradient + 0.5 * divergence - entropy_weight * entropy
    assert float(found.loss) == pytest.approx(float(expected), rel=1e-5)
    assert found.target is not None and set(found.metrics) == {"loss_pg", "loss_cmpo"}


# --- tables and the page --------------------------------------------------------------------


def test_a_study_is_read(study_dir):
    study = read_study([study_dir])
    assert study["runs_finished"] == study["runs_wanted"] == 4
    rows = {row["name"]: row for row in study["rows"]}
    scores = rows["lambda_0.3"]["envs"]["catch"]["scores"]
    for seed, score in enumerate(scores):
        path = study_dir / "runs" / "lambda_0.3" / "catch" / f"seed-{seed}" / "episodes.jsonl"
        returns = [row["return"] for row in read_jsonl(path)]
        assert len(returns) < 200 and score == pytest.approx(sum(returns) / len(returns), abs=1e-4)
    iqm = rows["lambda_0.3"]["aggregates"]["iqm"]
    assert iqm["value"] == pytest.approx((sum(scores) / 2 + 0.6) / 1.6, abs=1e-3)
    assert iqm["low"] <= iqm["value"] <= iqm["high"]
    assert study["settings"]["rows"]["lambda_3"] == {"update.cmpo_weight": 3.0}
    assert study["claims"][0]["verdict"] == "too few runs"  # two of one game each
    assert rows["robotic"]["finished"] == 0 and study["missing"]


@pytest.fixture(scope="module")
def self_play_dir(tmp_path_factory, study_dir):
    """A discounted game of two players, as a run of it leaves it behind."""
    path = tmp_path_factory.mktemp("games") / "seed-0"
    path.mkdir()
    config = set_field(set_field(small(), "agent.discount", -0.997), "env.name", "tic_tac_toe")
    (path / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
    shutil.copy(next(study_dir.rglob("run.json")), path)
    (path / "episodes.jsonl").write_text('{"return": -1.0}\n')
    rows = [
        {"env_steps": n, "episode_return_mean": -1.0, "eval_return_mean": n / 3_200}
        for n in (800, 1_600)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_self_play_is_scored_by_evaluations_whatever_its_discount(self_play_dir):
    study = read_study([self_play_dir])
    (row,), (env,) = study["rows"], study["envs"]
    assert row["envs"]["tic_tac_toe"]["scores"] == [0.5] and env["self_play"]
    assert row["curves"]["tic_tac_toe"]["value"] == [0.25, 0.5]


def test_compare_prints_intervals(study_dir, capsys):
    assert cli.main(["compare", str(study_dir), "--json"]) == 0
    out = capsys.readouterr().out
    assert "IQM" in out and "lambda_0.3" in out and "λ </script> does not matter" in out
    assert json.loads(out.splitlines()[-1])["suite"] == "tested"
    # Directories of runs, a row each.
    rows = [str(study_dir / "runs" / name) for name in ("lambda_0.3", "lambda_3")]
    assert cli.main(["compare", *rows]) == 0
    assert "lambda_0.3 and lambda_3" in capsys.readouterr().out


def test_compare_says_which_environments_it_leaves_out(study_dir, monkeypatch, capsys):
    study = read_study([study_dir])
    (catch,) = study["envs"]
    many = {**study, "envs": [{**catch, "name": f"game_{k}"} for k in range(57)]}
    monkeypatch.setattr("muesli.report.read_study", lambda directories: many)
    assert cli.main(["compare", str(study_dir)]) == 0
    out = capsys.readouterr().out
    assert "game_5" in out and "game_6" not in out and "… and 51 more environments" in out
    assert "optimality gap" in out
    gap = study["rows"][0]["aggregates"]["optimality_gap"]
    assert f"{gap['value']:.3g} ({gap['low']:.3g}, {gap['high']:.3g})" in out


def test_one_run_is_shown_without_an_interval(study_dir, capsys):
    runs = [study_dir / "runs" / row / "catch/seed-0" for row in ("lambda_0.3", "lambda_3")]
    assert cli.main(["compare", *map(str, runs), "--json"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert "IQM" in "".join(table) and not any("(" in line for line in table)
    for row in json.loads(last)["rows"]:
        shown = row["aggregates"].values(), row["envs"].values(), row["curves"].values()
        for estimate in itertools.chain(*shown):
            assert estimate["low"] is estimate["high"] is None


def test_rows_are_named_by_what_tells_them_apart(study_dir, monkeypatch):
    one, other = (study_dir / "runs" / row / "catch" for row in ("lambda_0.3", "lambda_3"))
    study = read_study([one / "seed-0", other / "seed-0", other / "seed-1", one / "seed-0"])
    rows = {row["name"]: row["envs"]["catch"]["runs"] for row in study["rows"]}
    assert rows == {"lambda_0.3/catch/seed-0": 1, "lambda_3/catch/seed-0": 1, "seed-1": 1}
    # A directory of seeds is one row, wherever one stands.
    monkeypatch.chdir(one)
    (row,) = read_study([Path()])["rows"]
    assert (row["name"], row["envs"]["catch"]["runs"]) == ("catch", 2)
    # One of two experiments is two rows.
    rows = {row["name"]: row["finished"] for row in read_study([study_dir / "runs"])["rows"]}
    assert rows == {"lambda_0.3": 2, "lambda_3": 2}


def test_plot_draws_a_suite_with_bands(study_dir, tmp_path, capsys):
    picture = tmp_path / "study.png"
    assert cli.main(["plot", str(study_dir), "-o", str(picture)]) == 0
    assert picture.read_bytes()[:4] == b"\x89PNG" and str(picture) in capsys.readouterr().out
    assert cli.main(["plot", str(study_dir), "--sweep"]) == 2
    assert "the row robotic has no number" in capsys.readouterr().err
    study = read_study([study_dir])
    plot_sweep({**study, "rows": study["rows"][:2]}, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 5_000


def test_plot_draws_a_directory_of_seeds(study_dir, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("muesli.plots.plot_study", lambda study, output: drawn.append(study))
    runs, picture = study_dir / "runs", str(tmp_path / "new" / "x.png")
    line = ["plot", str(runs / "lambda_3"), str(runs / "lambda_0.3/catch/seed-0"), "-o", picture]
    assert cli.main(line) == 0
    assert {row["name"]: row["runs"] for row in drawn[0]["rows"]} == {"lambda_3": 2, "seed-0": 1}
    assert drawn[0]["rows"][0]["curves"]["catch"]["low"] is not None


def test_a_curve_of_one_point_can_be_seen(study_dir, tmp_path):
    short = tmp_path / "seeds" / "short"
    shutil.copytree(study_dir / "runs/lambda_3/catch/seed-0", short)
    rows = (short / "metrics.jsonl").read_text().splitlines(True)
    (short / "metrics.jsonl").write_text(rows[-1])
    for directory in (short, short.parent):  # as a run, and as a row of a study
        assert cli.main(["plot", str(directory), "-o", str(tmp_path / "point.svg")]) == 0
        assert "fill: #0072b2" in (tmp_path / "point.svg").read_text()  # not only a line


def test_what_cannot_be_written_or_served_is_said(study_dir, tmp_path, capsys):
    (tmp_path / "file").touch()
    beneath, directory = str(tmp_path / "file" / "x"), str(study_dir)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for line, complaint in (
            (["plot", directory, "-o", "p.foo"], "no picture ends in .foo"),
            (["plot", directory, "-o", f"{beneath}.png"], "file is no directory"),
            (["report", directory, "--videos", "0", "-o", beneath], "file is no directory"),
            (["report", directory, "--live", "--port", "99999"], "to 65535, got 99999"),
            (["report", directory, "--live", "--port", port], "--port: cannot listen at"),
        ):
            assert cli.main(line) == 2
            error = capsys.readouterr().err.strip()
            assert complaint in error and "\n" not in error


needs_chromium = pytest.mark.skipif(
    EXECUTABLE is None, reason="NO CHROMIUM: the page is not tested (apt-get install chromium)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@needs_chromium
def test_the_page_in_a_browser(study_dir, browser, tmp_path, capsys):
    page = tmp_path / "report.html"
    assert cli.main(["report", str(study_dir), "-o", str(page), "--videos", "1"]) == 0
    browser.size(1100)
    browser.open(page.as_uri())
    # It renders, and a title with markup in it stays a title.
    assert browser.run("document.querySelector('h1').textContent") == "Two <rows> & a test"
    assert browser.run("document.querySelectorAll('.chart .curve[data-row]').length") == 2
    assert "about 300%" in browser.run("document.getElementById('scores').textContent")
    assert "97 ± 2" in browser.run("document.body.textContent")
    assert "Not here: robotic" in browser.run("document.body.textContent")
    # The video is a real one that this browser can play.
    browser.run("document.querySelector('video').load()")
    browser.run("document.querySelector('video').preload = 'auto'")
    browser.wait("document.querySelector('video').readyState >= 1")
    # Toggles take a curve away and bring it back.
    key = "document.querySelector('.key[data-row=lambda_3]')"
    browser.run(f"{key}.click()")
    assert browser.run("document.querySelectorAll('.chart .curve[data-row]').length") == 1
    assert browser.run(f"{key}.getAttribute('aria-pressed')") == "false"
    browser.run(f"{key}.click()")
    assert browser.run("document.querySelectorAll('.chart .curve[data-row]').length") == 2
    # Hovering says what the curves are there.
    browser.run("document.querySelector('svg.curves').scrollIntoView({block: 'center'})")
    box = browser.run(
        "(() => { const b = document.querySelector('svg.curves').getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    browser.move(*box)
    browser.wait("!document.querySelector('.tip').hidden")
    assert "lambda 0.3" in browser.run("document.querySelector('.tip').textContent")
    # Colours follow the system, or the button.
    ground = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(ground)
    browser.size(1100, dark=True)
    dark = browser.run(ground)
    assert dark != light
    browser.run("document.getElementById('theme').click()")
    assert browser.run(ground) == light
    # A telephone scrolls tables, never the page.
    browser.size(390)
    assert browser.run("document.documentElement.scrollWidth") <= 390, browser.run(
        "[...document.querySelectorAll('body *')]"
        ".filter(x => x.getBoundingClientRect().right > 390)"
        ".slice(0, 8).map(x => x.tagName + '.' + x.className + '#' + x.id).join(' ')"
    )
    assert browser.complaints == []
    assert [r for r in browser.requests if not r.startswith(("file:", "data:"))] == []


@needs_chromium
def test_a_page_of_single_runs(study_dir, browser, tmp_path):
    runs = [study_dir / "runs" / row / "catch/seed-0" for row in ("lambda_0.3", "lambda_3")]
    page = tmp_path / "single.html"
    page.write_text(render({**read_study(runs), "media": []}), encoding="utf-8")
    browser.size(1100)
    browser.open(page.as_uri())
    assert browser.run("document.querySelectorAll('.chart .curve[data-row]').length") == 2
    assert browser.run("document.querySelectorAll('.chart .band, #scores small').length") == 0
    assert "NaN" not in browser.run("document.getElementById('page').innerHTML")
    assert browser.complaints == []


@needs_chromium
def test_a_page_counts_what_agrees(study_dir, browser, tmp_path):
    """That no difference was seen is no agreement: few runs cannot prove that there is none."""
    study = {**read_study([study_dir]), "media": []}
    (claim,) = study["claims"]
    verdicts = ("holds", "no difference seen", "no difference seen", "reversed", "differs", "open")
    page = tmp_path / "claims.html"
    study["claims"] = [{**claim, "verdict": verdict} for verdict in verdicts]
    page.write_text(render(study), encoding="utf-8")
    browser.open(page.as_uri())
    said = browser.run("document.getElementById('verdict').textContent")
    assert "1 of 6 statements agrees with these runs, 2 disagree, 1 stays open" in said
    assert "for 2 no difference was seen, which contradicts nothing and proves nothing" in said
    assert browser.complaints == []


@needs_chromium
def test_a_page_says_how_runs_were_scored(study_dir, self_play_dir, browser, tmp_path):
    catch = study_dir / "runs" / "lambda_3"
    for runs, said in (
        ([catch], "the mean of its last 200 training episodes, normalised"),
        ([self_play_dir], "is its last evaluation, against a random player, normalised"),
    ):
        page = tmp_path / "scored.html"
        page.write_text(render({**read_study(runs), "media": []}), encoding="utf-8")
        browser.open(page.as_uri())
        assert said in browser.run("document.getElementById('page').textContent")
        assert browser.complaints == []


@needs_chromium
def test_a_live_page_follows_its_suite(study_dir, browser, tmp_path):
    out = tmp_path / "live"
    shutil.copytree(study_dir, out)
    rows = (out / "runs/lambda_3/catch/seed-1/metrics.jsonl").read_text().splitlines(True)
    (out / "runs/lambda_3/catch/seed-1/metrics.jsonl").write_text("".join(rows[:3]))
    server, address = make_server([out])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        browser.size(1100)
        browser.open(address)
        finished = "document.querySelector('.facts dd').textContent"
        assert browser.run(finished) == "3 of 4"
        (out / "runs/lambda_3/catch/seed-1/metrics.jsonl").write_text("".join(rows))
        browser.wait(f"{finished} === '4 of 4'")
        # Half a file is waited out, and where nothing has changed nothing is drawn anew.
        browser.run("window.heading = document.querySelector('h1'), window.news = 0")
        browser.run("window.ask = fetch, window.fetch = (...a) => ask(...a).finally(() => news++)")
        suite = (out / "suite.json").read_text()
        (out / "suite.json").write_text(suite[:100])
        browser.wait("news >= 2")
        (out / "suite.json").write_text(suite)
        browser.wait("news >= 4")
        assert browser.run("window.heading === document.querySelector('h1')")
        assert browser.complaints == []
        # Without the token, or under another host's name, there is nothing to see.
        plain = address.partition("?")[0]
        for request in (
            plain,
            f"{plain}study.json?token=guess",
            urllib.request.Request(address, headers={"Host": "evil.example"}),
        ):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(request)
    finally:
        server.shutdown()
        server.server_close()


def test_a_live_page_without_a_study_asks_for_patience(tmp_path, capsys):
    (tmp_path / "suite.json").write_text('{"suite"')
    server, address = make_server([tmp_path])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(address)
        assert capsys.readouterr().err == ""
    finally:
        server.shutdown()
        server.server_close()


def test_a_page_holds_everything_it_needs(study_dir):
    page = render({**read_study([study_dir]), "media": []})
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page and '<link rel="icon" href="data:,">' in page
    assert page.count("</script>") == 2  # none from the data


# --- Ray ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ConnectionError("no cluster there\nhint"), ValueError("what?")])
def test_a_cluster_that_cannot_be_joined_is_said(tmp_path, jobs, monkeypatch, error):
    from muesli.executors.cluster import run_on_ray

    def init(**options):
        raise error

    pretended = types.SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", pretended)
    with pytest.raises(ConfigError, match=r"ray-address: cannot join auto \([^\n]*\)$"):
        run_on_ray(jobs, tmp_path, address="auto")


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_an_address_where_nobody_listens_is_not_waited_for(tmp_path, jobs, monkeypatch, prefix):
    from muesli.executors.cluster import run_on_ray

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(is_initialized=lambda: False))
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    where = f"{prefix}127.0.0.1:{port}"
    with pytest.raises(ConfigError, match=rf"ray-address: cannot join {where} \([^\n]*\)$"):
        run_on_ray(jobs, tmp_path, address=where)


def test_an_interrupted_cluster_tells_what_it_left(tmp_path, jobs, monkeypatch):
    from muesli.executors.cluster import run_on_ray

    cancelled = []

    def wait(references, num_returns):
        raise KeyboardInterrupt

    task = types.SimpleNamespace(remote=lambda command, log: log)
    pretended = types.SimpleNamespace(
        is_initialized=lambda: True,
        remote=lambda **options: lambda function: task,
        wait=wait,
        cancel=lambda reference, force: cancelled.append(reference),
    )
    monkeypatch.setitem(sys.modules, "ray", pretended)
    outcomes = run_on_ray([one_run(jobs[0]), one_run(jobs[0], 2)], tmp_path)
    assert [o.status for o in outcomes] == ["stopped", "stopped"] and len(cancelled) == 2


@pytest.mark.slow
# Ray forks its own processes, which never ask for JAX; it may have been started by earlier tests.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_the_same_jobs_on_ray(tmp_path, jobs):
    """A real cluster on loopback: one job done, one that fails is tried again and then told."""
    ray = pytest.importorskip("ray", reason="NO RAY: pip install 'muesli-rl[cluster]'")
    from muesli.executors.cluster import run_on_ray

    good = dataclasses.replace(jobs[0], runs=jobs[0].runs[:2])
    config = dataclasses.replace(
        jobs[0].runs[2].config, env=dataclasses.replace(jobs[0].runs[2].config.env, name="nowhere")
    )
    bad = dataclasses.replace(
        jobs[0], number=1, together=False, runs=(jobs[0].runs[2]._replace(config=config),)
    )
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        began = time.monotonic()
        outcomes = run_on_ray([good, bad], tmp_path, retries=1)
        found = {outcome.job.number: outcome for outcome in outcomes}
        assert found[0].status == "done" and found[1].status == "failed"
        assert "no environment 'nowhere'" in found[1].detail
        log = write_job(bad, tmp_path).with_suffix(".log").read_text()
        assert log.count("no environment 'nowhere'") == 2  # once more, as asked
        again = run_on_ray([good], tmp_path)
        assert [outcome.status for outcome in again] == ["already done"]
        assert time.monotonic() - began < 300
    finally:
        ray.shutdown()
