"""Worker processes that die or hang are replaced, and the run goes on."""

import contextlib
import os
import signal
from pathlib import Path

from muesli.metrics import read_jsonl

from .conftest import TINY, until

CARTPOLE = (
    "--env.num-envs 4 --env.processes 2 --actors.groups 2 --batch.online-sequences 2 "
    "--actors.step-timeout-seconds 4 --actors.restart-seconds 0.1 --total-env-steps 100000000 "
    "--log.eval-episodes 0"
).split()


def workers(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found += [int(child) for child in (task / "children").read_text().split()]
    return sorted(found)


def restarts(run_dir):
    file = run_dir / "metrics.jsonl"
    return read_jsonl(file)[-1]["env_restarts"] if file.exists() and file.stat().st_size else -1


def test_workers_that_die_or_hang_are_replaced(launcher, tmp_path):
    run_dir = tmp_path / "run"
    arguments = [*TINY, *CARTPOLE, "--run-dir", run_dir]
    process = launcher.start("train", "gym:CartPole-v1", *arguments)
    until(lambda: restarts(run_dir) == 0, process)
    first = workers(process.pid)
    assert len(first) == 2
    os.kill(first[0], signal.SIGKILL)
    until(lambda: restarts(run_dir) == 1, process)
    assert "was killed by SIGKILL; it is started again (1 of 3)" in process.text()
    until(lambda: len(workers(process.pid)) == 2, process)
    os.kill(first[1], signal.SIGSTOP)
    until(lambda: restarts(run_dir) == 2, process)
    assert "has not answered for 4 s" in process.text()
    until(lambda: first[1] not in workers(process.pid), process)  # what hung was killed
    process.send(signal.SIGTERM)
    assert process.wait() == 143, process.text()
    rows = read_jsonl(run_dir / "metrics.jsonl")
    steps = [row["env_steps"] for row in rows]
    assert steps == sorted(steps) and len(set(steps)) == len(steps)
