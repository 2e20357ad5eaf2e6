"""``--track``: rows of metrics on Weights & Biases, which is stood in for here."""

import importlib.machinery
import json
import sys
import types

import pytest

from muesli.cli.main import main
from muesli.config import ConfigError
from muesli.metrics import Tracker, tracked_project


class Error(Exception):
    """As ``wandb.Error``."""


class Run:
    """As what ``wandb.init`` returns."""

    def __init__(self, **told):
        self.id, self.told = told.get("id", "first"), told
        self.logged, self.ended = [], None

    def log(self, data, step):
        if step < 0:
            raise ConnectionError("gone")
        self.logged.append((step, data))

    def finish(self, exit_code):
        self.ended = exit_code


@pytest.fixture
def runs(monkeypatch):
    """Every run begun at a stand-in for wandb."""
    begun: list[Run] = []
    wandb = types.ModuleType("wandb")
    wandb.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    wandb.Error = Error

    def init(**told):
        if told["project"] == "closed":
            raise Error("no API key\nconfigured")
        begun.append(Run(**told))
        return begun[-1]

    wandb.init = init
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return begun


def row(steps, **more):
    return {"env_steps": steps, "frames_per_second": 1.0, "loss_total": 0.5, **more}


def test_rows_are_sent_as_numbers_and_the_end_is_told(runs, tmp_path):
    with Tracker("mine", tmp_path, {"seed": 3}) as tracker:
        tracker.begin(0)
        tracker(row(10, episode_return_mean=None, odd=float("nan")))
    (run,) = runs
    assert run.told == {
        "project": "mine", "name": tmp_path.name, "dir": str(tmp_path), "config": {"seed": 3},
    }  # fmt: skip
    assert run.logged == [(10, {"env_steps": 10, "frames_per_second": 1.0, "loss_total": 0.5})]
    assert run.ended == 0


def test_a_resumed_run_goes_on_as_the_same(runs, tmp_path):
    assert tracked_project(tmp_path) is None
    stopped = Tracker("mine", tmp_path, {})
    stopped.begin(0)
    stopped.__exit__(KeyError)
    assert tracked_project(tmp_path) == "mine"
    with Tracker("mine", tmp_path, {}) as tracker:
        tracker.begin(500)
    first, second = runs
    assert first.ended == 1
    assert (second.id, second.told["resume"]) == (first.id, "allow")


def test_training_goes_on_when_the_tracker_fails(runs, tmp_path, capsys):
    with Tracker("mine", tmp_path, {}) as tracker:
        tracker.begin(0)
        tracker(row(-1))
        tracker(row(20))
    assert runs[0].logged == []
    assert capsys.readouterr().err.count("not tracked any more (gone)") == 1


def test_what_wandb_refuses_is_one_line(runs, tmp_path):
    with pytest.raises(ConfigError, match="^track: no API key configured$"):
        Tracker("closed", tmp_path, {}).begin(0)


def test_the_command_tracks_and_resume_needs_no_flag(runs, tmp_path, monkeypatch, capsys):
    import muesli.runners.train as runner

    def train(config, paths, callbacks, *_, on_start, **__):
        paths[0].mkdir()
        return play(paths[0], callbacks, on_start, 0)

    def resume(path, callbacks, *, on_start, **_):
        return play(path, callbacks, on_start, 40)

    def play(path, callbacks, on_start, steps):
        on_start(steps)
        for callback in callbacks:
            callback(row(steps + 10))
        return runner.Result([path], [{}], [None], stopped_by=15)

    monkeypatch.setattr(runner, "train", train)
    monkeypatch.setattr(runner, "resume", resume)
    run_dir = tmp_path / "run"
    assert main(["train", "catch", "--run-dir", str(run_dir), "--track", "mine"]) == 143
    config = json.loads(json.dumps(runs[0].told["config"]))
    assert config["env"]["name"] == "catch"
    (run_dir / "config.json").write_text(json.dumps(config))
    assert main(["resume", str(run_dir)]) == 143
    assert [run.logged[0][0] for run in runs] == [10, 50]
    said = capsys.readouterr().out
    assert "training catch on catch" in said and "at step 40 of" in said


def test_tracking_needs_the_extra_and_one_seed(runs, monkeypatch, capsys):
    assert main(["train", "catch", "--track", "mine", "--seeds", "2"]) == 2
    assert "--track: follows a run of one seed" in capsys.readouterr().err
    monkeypatch.setattr("muesli.cli.train.find_spec", lambda name: None)
    assert main(["train", "catch", "--track", "mine"]) == 2
    assert "--track: wandb is not installed; pip install 'muesli-rl[track]'" in (
        capsys.readouterr().err
    )
    assert not runs
