"""A disk that is full or read-only: nothing that was saved is lost, and training goes on."""

import os
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from muesli.checkpoint import newest_first, read_manifest
from muesli.metrics import read_jsonl

from .conftest import TINY, checkpoints, until

LONG = ["--total-env-steps", "4000000", "--log.eval-every-steps", "0"]


@contextmanager
def mounted(path, *options):
    """A mount of our own; only root can."""
    path.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", *options, str(path)], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount here ({done.stderr.decode().strip()}): not tested")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def falls_ill_and_recovers(launcher, run_dir, fall_ill, recover, error):
    """Training through an illness of its disk; every row is there in the end."""
    process = launcher.start("train", "catch", *TINY, *LONG, "--run-dir", run_dir)
    try:
        until(lambda: len(checkpoints(run_dir)) >= 2, process)
        fall_ill(process)
        until(lambda: "could not be written" in process.text(), process)
        assert error in process.text() and "training goes on and tries again" in process.text()
        kept = newest_first(run_dir / "checkpoints")
        assert kept and read_manifest(kept[0])["meta"]["calls_done"] > 0
        told = process.text().count("could not be written")
        until(
            lambda: process.text().count("could not be written") > told, process
        )  # it tries again
        assert checkpoints(run_dir) == [p.name for p in kept]
    finally:
        recover(process)
    until(lambda: checkpoints(run_dir)[0] != kept[0].name, process)
    process.send(signal.SIGTERM)
    assert process.wait() == 143, process.text()
    rows = read_jsonl(run_dir / "metrics.jsonl")
    meta = read_manifest(newest_first(run_dir / "checkpoints")[0])["meta"]
    assert [row["env_steps"] for row in rows] == [20 + 100 * (k + 1) for k in range(len(rows))]
    assert len(rows) == meta["calls_done"]
    assert meta["position"]["metrics"] == (run_dir / "metrics.jsonl").stat().st_size
    assert not list((run_dir / "checkpoints").rglob(".*"))


@pytest.mark.slow
def test_files_that_may_not_grow(launcher, tmp_path):
    falls_ill_and_recovers(
        launcher,
        tmp_path / "run",
        lambda process: process.limit_files(2000),
        lambda process: process.poll() is None and process.limit_files(2**40),
        "File too large",
    )


def test_a_full_file_system(launcher, tmp_path):
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=4m", "tmpfs") as small:
        filler = small / "filler"

        def fill(process):
            with filler.open("wb", buffering=0) as stream:
                for size in (65536, 4096, 1):
                    try:
                        while True:
                            stream.write(b"x" * size)
                    except OSError:
                        pass

        falls_ill_and_recovers(
            launcher,
            small / "run",
            fill,
            lambda process: filler.unlink(missing_ok=True),
            "No space left on device",
        )


@pytest.mark.slow
def test_a_folder_that_becomes_read_only(launcher, tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    with mounted(folder, "--bind", str(folder)):

        def remount(how):
            # Refused while a file is being written there.
            until(lambda: not subprocess.run(
                ["mount", "-o", f"remount,bind,{how}", str(folder)], capture_output=True,
                check=False).returncode)  # fmt: skip

        falls_ill_and_recovers(
            launcher,
            tmp_path / "run",
            lambda process: remount("ro"),
            lambda process: remount("rw"),
            "Read-only file system",
        )


@pytest.mark.slow
def test_a_run_that_can_never_save_says_so_in_the_end(launcher):
    # A short name: what the run says of it goes to a file under the same limit.
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        run_dir = Path(folder) / "run"
        arguments = [*TINY, "--total-env-steps", "600"]
        process = launcher.start("train", "catch", *arguments, "--run-dir", run_dir)
        until(lambda: (run_dir / "lock").exists(), process)
        process.limit_files(3000)
        assert process.wait() == 3, process.text()
        assert "the last checkpoint could not be written" in process.text()
        assert os.listdir(run_dir / "checkpoints") in ([], ["ring"])
