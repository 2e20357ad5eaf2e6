"""Runs as real processes, which can be killed."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muesli.checkpoint import newest_first
from muesli.metrics import read_jsonl

TINY = (
    "--network.torso-units 8 --network.model-units 8 --network.value-bins 11 "
    "--network.reward-bins 11 --network.value-max 5 --network.reward-max 5 "
    "--env.num-envs 4 --batch.online-sequences 4 --batch.batch-sequences 8 "
    "--batch.sequence-length 5 --batch.replay-capacity-steps 400 --log.eval-episodes 2 "
    "--log.log-every-steps 100 --log.checkpoint-every-steps 200 --log.eval-every-steps 1000"
).split()
RUNNERS = {
    "anakin": [],
    "sebulba": ["--actors.runner", "sebulba", "--actors.lockstep", "True", "--env.num-envs", "8"],
}
# Long enough for a machine that is busy with other things.
PATIENCE_SECONDS = 600


class Process:
    """A command under way."""

    def __init__(self, launcher, pid, output):
        self._launcher, self.pid, self.output = launcher, pid, output
        self.code = None

    def wait(self, seconds=PATIENCE_SECONDS):
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                raise AssertionError(f"still running after {seconds} s: {self.text()}")
            time.sleep(0.01)
        return self.code

    def poll(self):
        if self.code is None:
            self.code = self._launcher.ask({"wait": self.pid, "poll": True})
        return self.code

    def send(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def limit_files(self, size):
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def text(self):
        return self.output.read_text() if self.output.exists() else ""


class Launcher:
    """Forks commands off one process that has imported everything."""

    def __init__(self, folder):
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"}
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        environment["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        self.folder, self.count, self.started = folder, 0, []
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("launcher.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self._process.stdout.readline() == "ready\n"

    def ask(self, told):
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, *argv, log_compiles=False):
        self.count += 1
        output = self.folder / f"output-{self.count}.txt"
        told = {"argv": [str(a) for a in argv], "output": str(output)}
        pid = self.ask({**told, "log_compiles": log_compiles})
        self.started.append(Process(self, pid, output))
        return self.started[-1]

    def end_all(self):
        """What a test has left running, because it failed, must not take time from the next."""
        for process in self.started:
            process.send(signal.SIGKILL)
            process.wait()
        self.started = []

    def close(self):
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@pytest.fixture(scope="session")
def session_launcher(tmp_path_factory):
    made = Launcher(tmp_path_factory.mktemp("outputs"))
    yield made
    made.close()


@pytest.fixture
def launcher(session_launcher):
    yield session_launcher
    session_launcher.end_all()


def until(condition, process=None, seconds=PATIENCE_SECONDS):
    """Waits for something; a process that ends before is a failure."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if process is not None and process.poll() is not None:
            found = condition()
            assert found, f"ended with {process.code}: {process.text()}"
            return found
        assert time.monotonic() < end, process.text() if process else "waited in vain"
        time.sleep(0.01)
    return found


def checkpoints(run_dir):
    return [path.name for path in newest_first(run_dir / "checkpoints")]


def timeless(run_dir):
    rows = read_jsonl(run_dir / "metrics.jsonl")
    return [{k: v for k, v in r.items() if "second" not in k and "time" not in k} for r in rows]


def final_state(run_dir):
    """All that a run is at its end, but for what tells the time."""
    newest = run_dir / "checkpoints" / checkpoints(run_dir)[0]
    manifest = json.loads((newest / "manifest.json").read_text())
    meta = {k: v for k, v in manifest["meta"].items() if k != "position"}
    return {
        "arrays": (newest / "arrays.bin").read_bytes(),
        "leaves": manifest["leaves"],
        "extras": manifest["extras"],
        "ring": manifest["ring"],  # its files are named by what they hold
        "meta": meta,
        "metrics": timeless(run_dir),
        "episodes": (run_dir / "episodes.jsonl").read_bytes(),
    }
