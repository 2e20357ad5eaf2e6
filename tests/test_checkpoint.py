"""Checkpoints round-trip to the bit, and damage is noticed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import checkpoint
from muesli.checkpoint import CheckpointError
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
    loaded, meta = checkpoint.load(path, template)
    assert_same(loaded, run_state)
    assert meta == {"calls_done": 7}
    assert not list(tmp_path.glob(".*"))


TREE = {"a": jnp.arange(6.0).reshape(2, 3), "b": (jnp.ones(3, jnp.int32),)}


def damage_flip(path):
    file = path / "0.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))


def damage_truncate(path):
    file = path / "1.npy"
    file.write_bytes(file.read_bytes()[:-4])


def damage_missing(path):
    (path / "0.npy").unlink()


def damage_manifest(path):
    (path / "manifest.json").write_text("{")


def damage_empty(path):
    for file in path.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    "damage", [damage_flip, damage_truncate, damage_missing, damage_manifest, damage_empty]
)
def test_damage_is_named_and_the_previous_checkpoint_is_used(tmp_path, damage):
    older = jax.tree.map(lambda x: x + 1, TREE)
    checkpoint.save(tmp_path, "step-9", older, {"which": "older"})
    newer = checkpoint.save(tmp_path, "step-10", TREE, {"which": "newer"})
    damage(newer)
    warnings = []
    loaded, meta, path = checkpoint.load_newest(tmp_path, TREE, warnings.append)
    assert meta == {"which": "older"} and path.name == "step-9"
    assert_same(loaded, older)
    assert len(warnings) == 1 and "step-10" in warnings[0]


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


def test_a_manifest_cannot_point_outside_its_directory(tmp_path):
    path = checkpoint.save(tmp_path, "step-1", TREE, {})
    outside = tmp_path / "outside.npy"
    np.save(outside, np.arange(6.0, dtype=np.float32).reshape(2, 3))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["leaves"]["['a']"]["file"] = "../outside.npy"
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="missing"):
        checkpoint.load(path, TREE)


def test_only_the_newest_are_kept_and_strangers_are_left_alone(tmp_path):
    for step in (2, 10, 9):
        checkpoint.save(tmp_path, f"step-{step}", TREE, {})
    (tmp_path / "step-notes").mkdir()
    checkpoint.prune(tmp_path, 2)
    assert {p.name for p in tmp_path.iterdir()} == {"step-10", "step-9", "step-notes"}
