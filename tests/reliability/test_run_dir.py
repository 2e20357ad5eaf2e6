"""One run in one directory, whatever is in it: locks, damage, and configurations that changed."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from muesli.checkpoint import CheckpointError, newest_first
from muesli.config import ConfigError
from muesli.runners import rundir
from muesli.runners.engines import make_engine
from muesli.runners.parts import build
from muesli.runners.rundir import read_config
from muesli.runners.saving import Saver

from .conftest import TINY, checkpoints, until


@pytest.fixture(scope="module")
def stopped(session_launcher, tmp_path_factory):
    """A run that was stopped after several checkpoints, and its engine."""
    run_dir = tmp_path_factory.mktemp("stopped") / "run"
    arguments = [*TINY, "--total-env-steps", "2000000"]
    process = session_launcher.start("train", "catch", *arguments, "--run-dir", run_dir)
    until(lambda: len(checkpoints(run_dir)) >= 2, process)
    # While it runs: nobody else may have its directory.
    rivals = [
        session_launcher.start("train", "catch", *arguments, "--run-dir", run_dir),
        session_launcher.start("resume", run_dir),
    ]
    for rival in rivals:
        assert rival.wait() == 2 and "is in use by another process" in rival.text()
    process.send(signal.SIGTERM)
    assert process.wait() == 143, process.text()
    assert len(checkpoints(run_dir)) == 2
    return run_dir, make_engine(build(read_config(run_dir)), [0])


def copy_of(stopped, tmp_path):
    run_dir = tmp_path / "copy"
    shutil.copytree(stopped[0], run_dir)
    return run_dir


def restore(run_dir, engine):
    said = []
    loaded, ring = Saver(run_dir / "checkpoints", engine.parts.config).restore(engine, said.append)
    return int(loaded.tree.agent.step), ring, said


def newest_ring_file(run_dir):
    """A file of the ring that the newest checkpoint lists and the one before does not."""
    newer, older = (
        json.loads((path / "manifest.json").read_text())["ring"]["segments"]
        for path in newest_first(run_dir / "checkpoints")
    )
    return run_dir / "checkpoints" / "ring" / next(iter(set(newer) - set(older)))


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 16
    file.write_bytes(bytes(data))


DAMAGE = {
    "a flipped bit": (lambda d, new: flip(new / "arrays.bin"), "damaged"),
    "a flipped bit in the manifest": (lambda d, new: flip(new / "manifest.json"), "manifest"),
    "a file cut short": (lambda d, new: os.truncate(new / "arrays.bin", 1000), "cut short"),
    "an empty file": (lambda d, new: os.truncate(new / "manifest.json", 0), "cannot be read"),
    "a file deleted": (lambda d, new: (new / "arrays.bin").unlink(), "cannot be read"),
    "a flipped bit in the ring": (lambda d, new: flip(newest_ring_file(d)), "ring is damaged"),
    "a ring file deleted": (lambda d, new: newest_ring_file(d).unlink(), "ring cannot be read"),
    "a ring file cut short": (lambda d, new: os.truncate(newest_ring_file(d), 64), "another size"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_and_the_checkpoint_before_is_used(stopped, tmp_path, damage):
    run_dir = copy_of(stopped, tmp_path)
    new, old = newest_first(run_dir / "checkpoints")
    harm, named = DAMAGE[damage]
    harm(run_dir, new)
    step, ring, said = restore(run_dir, stopped[1])
    assert step == int(old.name[5:]) and int(ring.written[0]) > 0
    assert len(said) == 1 and "skipped" in said[0] and new.name in said[0] and named in said[0]


def test_stale_temporaries_and_strangers_do_no_harm(stopped, tmp_path):
    run_dir = copy_of(stopped, tmp_path)
    folder = run_dir / "checkpoints"
    new = newest_first(folder)[0]
    shutil.copytree(new, folder / ".step-99999999.tmp")
    (folder / "step-notes").mkdir()
    (folder / "ring" / ".half.tmp").write_bytes(b"half")
    step, _, said = restore(run_dir, stopped[1])
    assert step == int(new.name[5:]) and said == []
    assert not (folder / ".step-99999999.tmp").exists()


def test_an_empty_directory_of_the_newest_name_is_skipped(stopped, tmp_path):
    run_dir = copy_of(stopped, tmp_path)
    (run_dir / "checkpoints" / "step-99999999").mkdir()
    step, _, said = restore(run_dir, stopped[1])
    assert step == int(newest_first(run_dir / "checkpoints")[1].name[5:])
    assert "step-99999999" in said[0]


def test_with_no_good_checkpoint_there_is_an_error_and_never_a_fresh_start(
    stopped, tmp_path, launcher
):
    run_dir = copy_of(stopped, tmp_path)
    for path in newest_first(run_dir / "checkpoints"):
        flip(path / "arrays.bin")
    with pytest.raises(CheckpointError):
        restore(run_dir, stopped[1])
    before = (run_dir / "metrics.jsonl").read_bytes()
    process = launcher.start("resume", run_dir)
    assert process.wait() == 2 and process.text().count("damaged") >= 2
    assert (run_dir / "metrics.jsonl").read_bytes() == before
    again = launcher.start("train", "catch", *TINY, "--run-dir", run_dir)
    assert again.wait() == 2 and "already holds a run" in again.text()


@pytest.mark.parametrize(
    ("section", "field", "value", "message"),
    [
        ("network", "torso_units", 16, r"network.torso_units \(8 there, 16 here\)"),
        ("optimiser", "learning_rate", 0.5, "optimiser.learning_rate"),
        ("log", "log_every_steps", 50, "log.log_every_steps"),
        ("log", "keep_checkpoints", 7, None),
    ],
)
def test_a_configuration_that_was_changed_is_told_or_refused(
    stopped, tmp_path, section, field, value, message
):
    run_dir = copy_of(stopped, tmp_path)
    file = run_dir / "config.json"
    values = json.loads(file.read_text())
    values[section][field] = value
    file.write_text(json.dumps(values))
    engine = make_engine(build(read_config(run_dir)), [0])
    if message is None:
        said = restore(run_dir, engine)[2]
        assert len(said) == 1 and f"{section}.{field} (2 there, 7 here)" in said[0]
    else:
        with pytest.raises(ConfigError, match=message):
            restore(run_dir, engine)


def installed(folder, monkeypatch):
    """The package as if it lay in ``folder``."""
    file = folder / "muesli" / "runners" / "rundir.py"
    file.parent.mkdir(parents=True)
    file.write_text("# ours\n")
    monkeypatch.setattr(rundir, "__file__", str(file))
    return file


def git(folder, *arguments):
    who = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_commit_is_ours_and_says_whether_it_was_changed(tmp_path, monkeypatch):
    file = installed(tmp_path / "src", monkeypatch)
    (tmp_path / "results.json").write_text("{}")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "A release")
    head = git(tmp_path, "rev-parse", "HEAD")

    def recorded():
        machine = rundir.describe_machine()
        return machine["commit"], machine["commit_modified"]

    assert recorded() == (head, False)
    (tmp_path / "results.json").write_text("[]")
    (file.parent / "__pycache__").mkdir()
    (file.parent / "__pycache__" / "rundir.pyc").write_text("")
    assert recorded() == (head, False)  # nothing that runs
    file.write_text("# ours, tried otherwise\n")
    assert recorded() == (head, True)
    git(tmp_path, "add", ".")
    assert recorded() == (head, True)


def test_a_commit_of_somebody_else_is_not_recorded(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text("import muesli\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "Their work")
    installed(tmp_path / ".venv" / "site-packages", monkeypatch)
    machine = rundir.describe_machine()
    assert machine["commit"] is None and machine.get("commit_modified") is None
    monkeypatch.setenv("PATH", "")  # nor is git there everywhere
    assert rundir.describe_machine()["commit"] is None
