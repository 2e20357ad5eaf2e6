"""kill -9 at random moments: the resumed run ends where an unbroken run ends, to the bit."""

import os
import random
import signal
import time

import pytest

from .conftest import PATIENCE_SECONDS, RUNNERS, TINY, checkpoints, final_state, until

PER_CHECKPOINT = 200


def train_to_the_end(launcher, run_dir, arguments):
    process = launcher.start("train", "catch", *arguments, "--run-dir", run_dir)
    assert process.wait(2 * PATIENCE_SECONDS) == 0, process.text()


def saving(run_dir):
    """Whether a checkpoint is being written right now."""
    try:
        names = os.listdir(run_dir / "checkpoints")
        if any(name.endswith((".tmp", ".old")) for name in names):
            return True
        return "ring" in names and any(
            name.endswith(".tmp") for name in os.listdir(run_dir / "checkpoints" / "ring")
        )
    except FileNotFoundError:
        return False


def kill_somewhere(process, run_dir, chance, inside_a_save):
    """Kills a process after it has come a little further; False if it ended by itself."""
    before, wanted = set(checkpoints(run_dir)), chance.choice([0, 1, 1, 2])
    seen = set()
    end = time.monotonic() + PATIENCE_SECONDS
    while len(seen) < wanted and process.poll() is None:
        seen |= set(checkpoints(run_dir)) - before
        assert time.monotonic() < end, process.text()
        time.sleep(0.002)
    if inside_a_save:
        while not saving(run_dir) and process.poll() is None:
            assert time.monotonic() < end, process.text()
    else:
        time.sleep(chance.uniform(0, 0.3 if wanted else 3.0))
    was_saving = saving(run_dir)
    process.send(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL, was_saving


def survive(launcher, tmp_path, runner, kills, seed):
    steps = PER_CHECKPOINT * (2 * kills + 4)
    arguments = [*TINY, *RUNNERS[runner], "--total-env-steps", steps]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train_to_the_end(launcher, whole, arguments)
    chance, killed, inside = random.Random(seed), 0, 0
    while killed < kills:
        if checkpoints(broken):
            process = launcher.start("resume", broken)
        else:
            process = launcher.start("train", "catch", *arguments, "--run-dir", broken)
        died, was_saving = kill_somewhere(process, broken, chance, killed % 2 == 0)
        if not died:
            break
        killed, inside = killed + 1, inside + was_saving
    until(lambda: checkpoints(broken))
    process = launcher.start("resume", broken)
    assert process.wait(2 * PATIENCE_SECONDS) == 0, process.text()
    print(f"{runner}: {killed} kills, {inside} of them inside a save")
    assert killed >= 0.8 * kills
    ours, theirs = final_state(broken), final_state(whole)
    for name in theirs:
        assert ours[name] == theirs[name], name
    left = {p.name for p in (broken / "checkpoints").iterdir() if p.name.startswith(".")}
    assert not left
    return killed, inside


@pytest.mark.parametrize("runner", [pytest.param("anakin", marks=pytest.mark.slow), "sebulba"])
def test_a_few_kills_change_nothing(launcher, tmp_path, runner):
    _, inside = survive(launcher, tmp_path, runner, 2, seed=1)
    assert inside >= 1


@pytest.mark.soak
@pytest.mark.parametrize("runner", RUNNERS)
def test_many_kills_change_nothing(launcher, tmp_path, runner):
    kills = int(os.environ.get("MUESLI_KILLS", "50"))
    _, inside = survive(launcher, tmp_path, runner, kills, seed=int(time.time()))
    assert inside >= kills // 4
