"""Checkpoints round-trip to the bit, and damage is noticed."""

import json
import os
import pickle
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import checkpoint
from muesli.checkpoint import CheckpointError, RingFiles, RingView, packed
from muesli.presets import catch
from muesli.runners.anakin import make_anakin
from muesli.runners.parts import build


@pytest.fixture(scope="module")
def run_state():
    parts = build(catch())
    return jax.jit(make_anakin(parts).init)(jax.random.key(3))


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)


def test_a_run_state_round_trips_to_the_bit(tmp_path, run_state):
    path = checkpoint.save(tmp_path, "step-1", run_state, {"calls_done": 7})
    template = jax.eval_shape(lambda x: x, run_state)
    loaded = checkpoint.load(path, template)
    assert_same(loaded.tree, run_state)
    assert loaded.meta == {"calls_done": 7}
    assert not list(tmp_path.glob(".*"))


TREE = {"a": jnp.arange(6.0).reshape(2, 3), "b": (jnp.ones(3, jnp.int32),)}


def flip(file, at=-1):
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(bytes(data))


def damage_flip(path):
    flip(path / "arrays.bin")


def damage_truncate(path):
    file = path / "arrays.bin"
    file.write_bytes(file.read_bytes()[:-4])


def damage_missing(path):
    (path / "arrays.bin").unlink()


def damage_manifest(path):
    (path / "manifest.json").write_text("{")


def damage_meta(path):
    file = path / "manifest.json"
    file.write_text(file.read_text().replace("newer", "never"))


def damage_manifest_missing(path):
    (path / "manifest.json").unlink()


def damage_empty_files(path):
    for file in path.iterdir():
        file.write_bytes(b"")


def damage_empty(path):
    for file in path.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (damage_flip, r"\['b'\]\[0\] is damaged"),
        (damage_truncate, r"\['b'\]\[0\] is cut short"),
        (damage_missing, "arrays cannot be read"),
        (damage_manifest, "manifest cannot be read"),
        (damage_meta, "manifest is damaged"),
        (damage_manifest_missing, "manifest cannot be read"),
        (damage_empty_files, "manifest cannot be read"),
        (damage_empty, "manifest cannot be read"),
    ],
)
def test_damage_is_named_and_the_previous_checkpoint_is_used(tmp_path, damage, named):
    older = jax.tree.map(lambda x: x + 1, TREE)
    checkpoint.save(tmp_path, "step-9", older, {"which": "older"})
    newer = checkpoint.save(tmp_path, "step-10", TREE, {"which": "newer"})
    damage(newer)
    warnings = []
    loaded, meta, path = checkpoint.load_newest(tmp_path, TREE, warnings.append)
    assert meta == {"which": "older"} and path.name == "step-9"
    assert_same(loaded, older)
    assert len(warnings) == 1 and "step-10" in warnings[0]
    assert re.search(named, warnings[0])


def test_every_flipped_bit_is_noticed(tmp_path):
    path = checkpoint.save(tmp_path, "step-1", TREE, {"calls_done": 3}, {"x": np.arange(3)})
    for name in ("arrays.bin", "manifest.json"):
        file = path / name
        whole = file.read_bytes()
        for at in range(0, len(whole), 7):
            flip(file, at)
            with pytest.raises(CheckpointError):
                checkpoint.load(path, TREE)
            file.write_bytes(whole)
    checkpoint.load(path, TREE)


def test_what_a_killed_process_left_is_put_away(tmp_path):
    whole = checkpoint.save(tmp_path, "step-5", TREE, {})
    (tmp_path / ".step-6.tmp").mkdir()
    (tmp_path / ".step-6.tmp" / "arrays.bin").write_bytes(b"half")
    whole.rename(tmp_path / ".step-5.old")  # killed between the two renames
    assert checkpoint.newest_first(tmp_path) == []
    checkpoint.sweep(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["step-5"]
    checkpoint.load(tmp_path / "step-5", TREE)


# --- what a stranger may have made ---


def forged(path, change):
    """A manifest changed by ``change``, whose own checksum is right again."""
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["sha256"], manifest["format"]
    change(manifest)
    file.write_bytes(packed.seal(manifest))
    return path


def leaf(manifest):
    return manifest["leaves"]["['a']"]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: leaf(m).update(file="../../outside.npy"),
        lambda m: leaf(m).update(shape=[2**62, 2**62]),
        lambda m: leaf(m).update(dtype="object"),
        lambda m: leaf(m).update(dtype="O"),
        lambda m: leaf(m).update(offset=-8),
        lambda m: leaf(m).update(offset=2**80),
        lambda m: leaf(m).update(shape=[-2, -3]),
        lambda m: leaf(m).update(shape="23"),
        lambda m: m.update(leaves=[]),
        lambda m: m.update(extras=None),
        lambda m: m.update(meta=3),
        lambda m: m["extras"].update(x={**leaf(m), "shape": [10**15]}),
        lambda m: m["extras"].update(x={**leaf(m), "shape": [10**400]}),
    ],
)
def test_a_forged_manifest_is_refused_without_reading_or_taking_memory(tmp_path, change):
    path = forged(checkpoint.save(tmp_path, "step-1", TREE, {}), change)
    with pytest.raises(CheckpointError):
        checkpoint.load(path, TREE)


def test_pickles_are_never_opened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit('unpickled')",))

    path = checkpoint.save(tmp_path, "step-1", TREE, {})
    (path / "arrays.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError):
        checkpoint.load(path, TREE)
    (path / "manifest.json").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError):
        checkpoint.load(path, TREE)
    file = tmp_path / "agent"
    file.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match="no file that 'muesli export' wrote"):
        checkpoint.read_file(file, TREE)


def test_links_and_pipes_are_refused(tmp_path):
    real = checkpoint.save(tmp_path / "elsewhere", "step-1", TREE, {})
    run = tmp_path / "run"
    run.mkdir()
    (run / "step-3").symlink_to(real)
    with pytest.raises(CheckpointError, match="is a link"):
        checkpoint.load(run / "step-3", TREE)
    for name in ("arrays.bin", "manifest.json"):
        path = checkpoint.save(run, "step-4", TREE, {})
        (path / name).unlink()
        (path / name).symlink_to(real / name)
        with pytest.raises(CheckpointError, match="cannot be read"):
            checkpoint.load(path, TREE)
        (path / name).unlink()
        os.mkfifo(path / name)
        with pytest.raises(CheckpointError, match="no regular file"):
            checkpoint.load(path, TREE)


def test_an_older_format_is_refused_by_its_number(tmp_path):
    path = checkpoint.save(tmp_path, "step-1", TREE, {})
    (path / "manifest.json").write_text(json.dumps({"format": 1, "meta": {}, "leaves": {}}))
    with pytest.raises(CheckpointError, match="is of format 1, this version reads format 2"):
        checkpoint.load(path, TREE)


def test_a_file_to_share_round_trips_and_notices_damage(tmp_path):
    file = tmp_path / "agent"
    checkpoint.write_file(file, TREE, {"config": {"seed": 1}})
    assert checkpoint.read_file_meta(file) == {"config": {"seed": 1}}
    assert_same(checkpoint.read_file(file, TREE), TREE)
    assert [p.name for p in tmp_path.iterdir()] == ["agent"]
    whole = file.read_bytes()
    for at in (-1, len(whole) // 2, 40, 0):
        flip(file, at)
        with pytest.raises(CheckpointError):
            checkpoint.read_file(file, TREE)
        file.write_bytes(whole)


# --- the ring ---

CHUNKS, SLOTS = 600, 2


def view(array, written):
    def cut(start, size):
        return [array[:, start * 3 : (start + size) * 3]]

    return RingView(CHUNKS, np.array(written), cut, [((SLOTS, 3, 512), array.dtype)])


def read_back(files, part, written):
    array = np.zeros((SLOTS, CHUNKS * 3, 512), np.float32)

    def place(start, arrays):
        array[:, start * 3 : start * 3 + arrays[0].shape[1]] = arrays[0]

    files.load(Path("here"), part, view(array, written), place)
    return array


def test_only_what_changed_of_a_ring_is_written_and_only_what_is_listed_stays(tmp_path):
    rng = np.random.default_rng(0)
    array = np.zeros((SLOTS, CHUNKS * 3, 512), np.float32)
    files, written, parts = RingFiles(tmp_path / "ring"), 0, []
    for grown in (250, 40, 500):  # the last goes round the end
        for chunk in range(written, written + grown):
            at = chunk % CHUNKS * 3
            array[:, at : at + 3] = rng.normal(size=(SLOTS, 3, 512))
        written += grown
        before = set((tmp_path / "ring").glob("*")) if parts else set()
        parts.append(files.save(view(array, [written] * SLOTS)))
        files.commit(parts[-1], np.array([written] * SLOTS))
        fresh = set((tmp_path / "ring").glob("*")) - before
        segment = parts[-1]["segment_chunks"]
        assert segment == 86 and len(fresh) <= -(-grown // segment) + 2
        np.testing.assert_array_equal(
            read_back(RingFiles(tmp_path / "ring"), parts[-1], [written] * SLOTS), array
        )
    assert len([name for name in parts[1]["segments"] if name]) == 4  # the rest was never written
    files.keep_only(name for name in parts[-1]["segments"] if name)
    assert {p.name for p in (tmp_path / "ring").iterdir()} == set(parts[-1]["segments"])
    with pytest.raises(CheckpointError, match="segment 0 of its replay ring cannot be read"):
        read_back(RingFiles(tmp_path / "ring"), parts[1], [290] * SLOTS)
    flip(tmp_path / "ring" / parts[-1]["segments"][0])
    with pytest.raises(CheckpointError, match="segment 0 of its replay ring is damaged"):
        read_back(RingFiles(tmp_path / "ring"), parts[-1], [written] * SLOTS)


@pytest.mark.parametrize("name", ["../../etc/passwd", "A" * 64, 7, "0" * 63])
def test_a_ring_cannot_point_elsewhere(tmp_path, name):
    array = np.ones((SLOTS, CHUNKS * 3, 512), np.float32)
    files = RingFiles(tmp_path / "ring")
    part = files.save(view(array, [CHUNKS] * SLOTS))
    part["segments"][1] = name
    with pytest.raises(CheckpointError, match="not laid out"):
        read_back(files, part, [CHUNKS] * SLOTS)


def test_no_checkpoint_and_only_bad_ones_are_errors_never_a_fresh_start(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        checkpoint.load_newest(tmp_path, TREE, print)
    damage_flip(checkpoint.save(tmp_path, "step-1", TREE, {}))
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load_newest(tmp_path, TREE, lambda line: None)


def test_another_configuration_is_refused_with_the_difference(tmp_path):
    path = checkpoint.save(tmp_path, "step-1", TREE, {})
    with pytest.raises(CheckpointError, match=r"\['a'\] is float32\[2, 3\].*needs float32\[2, 4\]"):
        checkpoint.load(path, TREE | {"a": jnp.zeros((2, 4))})
    with pytest.raises(CheckpointError, match=r"has no \['c'\]"):
        checkpoint.load(path, TREE | {"c": jnp.zeros(1)})
    with pytest.raises(CheckpointError, match=r"holds \['b'\]"):
        checkpoint.load(path, {"a": TREE["a"]})


def test_only_the_newest_are_kept_and_strangers_are_left_alone(tmp_path):
    for step in (2, 10, 9):
        checkpoint.save(tmp_path, f"step-{step}", TREE, {})
    (tmp_path / "step-notes").mkdir()
    checkpoint.prune(tmp_path, 2)
    assert {p.name for p in tmp_path.iterdir()} == {"step-10", "step-9", "step-notes"}
