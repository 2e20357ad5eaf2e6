"""Signals save and stop within a stated time, whatever the process is doing."""

import json
import signal
import time

import pytest

from muesli.runners import signals

from .conftest import RUNNERS, TINY, checkpoints, final_state, until

LONG = ["--total-env-steps", "2000000", "--log.checkpoint-every-steps", "0"]


def rows(run_dir):
    file = run_dir / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.parametrize(
    ("runner", "per_call"),
    [("anakin", 8_000), pytest.param("sebulba", 2_000, marks=pytest.mark.slow)],
)
def test_a_signal_within_a_call_is_heard_and_the_call_is_finished_later(
    launcher, tmp_path, runner, per_call
):
    # Few long calls: whoever looked only between them would not look for a long time.
    arguments = [*TINY, *RUNNERS[runner], "--total-env-steps", 2 * per_call]
    arguments += ["--log.log-every-steps", per_call, "--log.eval-every-steps", 0]
    arguments += ["--log.checkpoint-every-steps", 0]
    run_dir, whole = tmp_path / "run", tmp_path / "whole"
    process = launcher.start("train", "catch", *arguments, "--run-dir", run_dir)
    until(lambda: rows(run_dir) == 1, process)
    time.sleep(0.2)
    process.send(signal.SIGTERM)
    assert process.wait() == 143, process.text()
    assert "saving, then leaving" in process.text() and rows(run_dir) == 1
    newest = run_dir / "checkpoints" / checkpoints(run_dir)[0]
    extras = json.loads((newest / "manifest.json").read_text())["extras"]
    made = extras.get("pending/loss_total", {"shape": [0]})["shape"][0]
    assert 20 * made < per_call  # not at the end of the second call; 20 steps each
    process = launcher.start("resume", run_dir)
    assert process.wait() == 0, process.text()
    process = launcher.start("train", "catch", *arguments, "--run-dir", whole)
    assert process.wait() == 0, process.text()
    assert final_state(run_dir) == final_state(whole)


def test_a_signal_while_it_starts_leaves_the_directory_free(launcher, tmp_path):
    run_dir = tmp_path / "run"
    process = launcher.start("train", "catch", *TINY, *LONG, "--run-dir", run_dir)
    until(lambda: (run_dir / "run.json").exists(), process)
    began = time.monotonic()
    process.send(signal.SIGTERM)
    assert process.wait() == 143
    assert time.monotonic() - began < 10
    assert "interrupted before there was anything to save" in process.text()
    assert not (run_dir / "config.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_twice_at_once_saves(launcher, tmp_path, number):
    # As `timeout` does it: the process, and then its group.
    run_dir = tmp_path / "run"
    process = launcher.start("train", "catch", *TINY, *LONG, "--run-dir", run_dir)
    until(lambda: rows(run_dir), process)
    process.send(number)
    time.sleep(0.005)
    process.send(number)
    assert process.wait() == 128 + number
    assert "left at once" not in process.text() and "muesli resume" in process.text()
    assert checkpoints(run_dir)


def test_the_first_signal_saves_and_the_second_leaves_at_once(launcher, tmp_path):
    run_dir = tmp_path / "run"
    process = launcher.start("train", "catch", *TINY, *LONG, "--run-dir", run_dir)
    until(lambda: rows(run_dir), process)
    process.send(signal.SIGINT)
    until(lambda: "saving, then leaving" in process.text(), process)
    process.send(signal.SIGTERM)
    code = process.wait()
    assert code == (130 if "muesli resume" in process.text() else 143), process.text()


def test_the_same_signal_is_a_second_one_after_a_second(monkeypatch):
    class Left(Exception):
        pass

    def leave(code):
        raise Left(code)

    now = [0.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(signals.os, "_exit", leave)
    watching = signals.Signals()
    for now[0] in (5.0, 5.01, 5.9):
        watching._receive(signal.SIGINT)
    assert watching.received == signal.SIGINT
    now[0] = 6.1
    with pytest.raises(Left, match="130"):
        watching._receive(signal.SIGINT)
    now[0] = 5.1
    with pytest.raises(Left, match="143"):  # another one was meant
        watching._receive(signal.SIGTERM)
