"""A long run leaks nothing: memory, file descriptors and threads stay flat, nothing recompiles.

It lasts MUESLI_SOAK_SECONDS (an hour), half of it for each runner.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from .conftest import RUNNERS, TINY, until

LONG = ["--total-env-steps", "1000000000", "--log.checkpoint-every-steps", "2000"]


def measure(pid):
    """Resident kB, file descriptors and threads of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    numbers = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return int(numbers["VmRSS"].split()[0]), descriptors, int(numbers["Threads"])


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured through Linux's /proc")
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_long_run_stays_flat(launcher, tmp_path, runner):
    seconds = float(os.environ.get("MUESLI_SOAK_SECONDS", "3600")) / len(RUNNERS)
    run_dir = tmp_path / "run"
    arguments = [*TINY, *RUNNERS[runner], *LONG, "--log.log-every-steps", "400"]
    process = launcher.start("train", "catch", *arguments, "--run-dir", run_dir, log_compiles=True)
    until(lambda: len(list((run_dir / "checkpoints").glob("step-*"))) >= 2, process)
    time.sleep(min(60, seconds / 4))  # evaluation, saving and buffers have all happened
    first, measured, end = measure(process.pid), [], time.monotonic() + seconds
    compiled = process.text().count("Compiling")
    assert compiled > 3
    while time.monotonic() < end:
        time.sleep(min(10, seconds / 20))
        assert process.poll() is None, process.text()
        measured.append(measure(process.pid))
    assert process.text().count("Compiling") == compiled
    process.send(signal.SIGTERM)
    assert process.wait() == 143, process.text()
    last = measured[-1]
    print(f"{runner}: (kB, descriptors, threads) from {first} to {last} in {seconds:.0f} s")
    # The allocator may keep a little more; a leak of a checkpoint or a row would go on growing.
    half = measured[len(measured) // 2]
    assert last[0] - half[0] < max(0.02 * half[0], 8_000), (first, half, last)
    assert last[1] <= first[1] + 1 and last[2] <= first[2] + 1
