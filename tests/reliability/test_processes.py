"""Runs of several real processes: they learn what one learns, and lose each other with grace."""

import json
import os
import shutil
import signal
import socket
from pathlib import Path

import numpy as np
import pytest

from muesli.runners.loading import load_agent_state
from muesli.runners.parts import build
from muesli.runners.rundir import read_config

from .conftest import RUNNERS, TINY, checkpoints, timeless, until

# Without replay, batches hold the same sequences however they are dealt out.
ONLINE = ["--env.num-envs", "8", "--batch.online-sequences", "8", "--batch.batch-sequences", "8"]
LOST = 4


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(launcher, processes, *argv, timeout=60.0, changed=()):
    """All processes of a run. changed: further arguments of the last one."""
    port = free_port()
    started = []
    for rank in range(processes):
        own = ["--distributed.coordinator", f"127.0.0.1:{port}"]
        own += ["--distributed.processes", processes, "--distributed.process-id", rank]
        own += ["--distributed.timeout-seconds", timeout]
        started.append(launcher.start(*argv, *own, *(changed if rank == processes - 1 else ())))
    return started


def finish(processes, code=0):
    for process in processes:
        assert process.wait() == code, process.text()


def rows(run_dir):
    return len(timeless(run_dir)) if (run_dir / "metrics.jsonl").exists() else 0


def agent(run_dir):
    return load_agent_state(run_dir, build(read_config(run_dir)))


def assert_close(run_dir, other):
    # Sums in another order: what starts as rounding grows a little with every update.
    mine, others = agent(run_dir), agent(other)
    assert int(mine.step) == int(others.step)
    np.testing.assert_allclose(mine.moment.second, others.moment.second, rtol=1e-3)
    import jax

    for x, y in zip(jax.tree.leaves(mine.online), jax.tree.leaves(others.online), strict=True):
        np.testing.assert_allclose(x, y, rtol=0.02, atol=2e-4)
    for row, same in zip(timeless(run_dir), timeless(other), strict=True):
        np.testing.assert_allclose(row["loss_total"], same["loss_total"], rtol=0.01)


def test_two_processes_and_then_one_or_four_learn_what_one_does(launcher, tmp_path):
    arguments = [*TINY, *ONLINE, "--total-env-steps", 1200, "--log.eval-every-steps", 0]
    whole, run_dir, four = tmp_path / "whole", tmp_path / "run", tmp_path / "four"
    process = launcher.start("train", "catch", *arguments, "--run-dir", whole)
    assert process.wait() == 0, process.text()

    two = start(launcher, 2, "train", "catch", *arguments, "--run-dir", run_dir)
    until(lambda: rows(run_dir) >= 3, two[0])
    two[1].send(signal.SIGTERM)  # to one of them: all save and stop
    finish(two, 143)
    assert rows(run_dir) < rows(whole)
    newest = json.loads(
        (run_dir / "checkpoints" / checkpoints(run_dir)[0] / "manifest.json").read_text()
    )
    assert len(newest["parts"]) == 2
    shutil.copytree(run_dir, four)

    one = launcher.start("resume", run_dir)
    assert one.wait() == 0, one.text()
    assert_close(run_dir, whole)
    finish(start(launcher, 4, "resume", four))
    assert_close(four, whole)


@pytest.mark.parametrize(
    ("runner", "lost", "how", "exact"),
    [
        # (Of those that are looked after, below, one is killed in every run of the tests.)
        pytest.param("sebulba", 0, signal.SIGKILL, True, marks=pytest.mark.slow),
        pytest.param("anakin", 1, signal.SIGKILL, True, marks=pytest.mark.slow),
        pytest.param("anakin", 0, signal.SIGKILL, True, marks=pytest.mark.slow),
        pytest.param("anakin", 1, signal.SIGSTOP, False, marks=pytest.mark.slow),
        pytest.param("anakin", 0, signal.SIGSTOP, False, marks=pytest.mark.slow),
        pytest.param("sebulba", 1, signal.SIGKILL, True, marks=pytest.mark.slow),
    ],
)
def test_who_is_lost_is_named_and_all_go_on_from_the_last_checkpoint(
    launcher, tmp_path, runner, lost, how, exact
):
    """To the bit: what the resumed processes end with is what unbroken ones end with."""
    arguments = [*TINY, *RUNNERS[runner], "--env.num-envs", 8, "--total-env-steps", 1600]
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    # A connection that breaks is noticed at once; silence must last.
    timeout = 5.0 if how == signal.SIGSTOP else 60.0
    argv = ["train", "catch", *arguments, "--run-dir", run_dir]
    two = start(launcher, 2, *argv, timeout=timeout)
    until(lambda: len(checkpoints(run_dir)) > 1, two[0])
    two[lost].send(how)
    other = two[1 - lost]
    assert other.wait(30) == LOST, other.text()
    assert f"leaves: process {lost} (" in other.text()
    two[lost].send(signal.SIGKILL)
    finish(start(launcher, 2, "resume", run_dir))
    if not exact:
        return
    finish(start(launcher, 2, "train", "catch", *arguments, "--run-dir", whole))
    assert timeless(run_dir) == timeless(whole)
    names = [f"part-{k}-of-2/{checkpoints(whole)[0]}" for k in (0, 1)] + checkpoints(whole)[:1]
    for name in names:
        mine, others = (d / "checkpoints" / name / "arrays.bin" for d in (run_dir, whole))
        assert mine.read_bytes() == others.read_bytes(), name


def test_settings_that_differ_are_told_by_all(launcher, tmp_path):
    run_dir = tmp_path / "run"
    changed = ["--optimiser.learning-rate", "0.5"]
    two = start(launcher, 2, "train", "catch", *TINY, "--run-dir", run_dir, changed=changed)
    finish(two, 2)
    for process in two:
        assert "optimiser.learning_rate" in process.text() and "0.5 there" in process.text()
        assert "Traceback" not in process.text()
    assert not run_dir.exists()


def test_a_failure_of_process_0_ends_the_others(launcher, tmp_path):
    (tmp_path / "run" / "checkpoints" / "step-1").mkdir(parents=True)
    two = start(launcher, 2, "train", "catch", *TINY, "--run-dir", tmp_path / "run")
    assert two[0].wait() == 2 and "already holds a run" in two[0].text()
    assert two[1].wait() == LOST and "already holds a run" in two[1].text()


def test_sizes_that_cannot_be_dealt_to_all_processes_are_named(launcher, tmp_path):
    argv = ["train", "catch", *TINY, "--env.num-envs", 9, "--batch.online-sequences", 9]
    argv += ["--batch.batch-sequences", 18, "--run-dir", tmp_path / "run"]
    for process in start(launcher, 2, *argv):
        assert process.wait() in (2, LOST)
        assert "env.num_envs: must be a multiple of 2" in process.text()


def children(pid):
    """Processes that a process has started, oldest first."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="NEEDS /proc to find children")
def test_processes_that_are_looked_after_learn_catch_though_one_is_killed(launcher, tmp_path):
    run_dir = tmp_path / "run"
    argv = "--env.num-envs 64 --batch.online-sequences 64 --batch.batch-sequences 128".split()
    argv += "--batch.sequence-length 10 --optimiser.learning-rate 0.01".split()
    argv += "--total-env-steps 100000 --log.eval-every-steps 0 --log.log-every-steps 10000".split()
    argv += ["--log.checkpoint-every-steps", "10000", "--run-dir", run_dir]
    process = launcher.start("train", "catch", *argv, "--distributed.local", 2)
    until(lambda: len(checkpoints(run_dir)) > 1, process)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    assert process.wait() == 0, process.text()
    assert "process 1 (" in process.text() and "is gone" in process.text()
    assert "all are started again (1 of 3)" in process.text()
    last = timeless(run_dir)[-1]
    assert last["eval_episodes"] == 100 and last["eval_return_mean"] > 0.9
    assert rows(run_dir) == 10
