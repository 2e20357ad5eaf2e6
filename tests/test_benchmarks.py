"""The programs of ``benchmarks/`` still start, and the small ones still answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted((ROOT / "benchmarks").glob("*.py"))
WITHOUT_OPTIONS = {"many_actions", "results_figure"}

pytestmark = pytest.mark.slow


def run(program, *arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(ROOT / "benchmarks" / f"{program}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_they_are_found():
    assert {p.stem for p in PROGRAMS} >= WITHOUT_OPTIONS | {"gradient_check", "together"}


@pytest.mark.parametrize("program", [p.stem for p in PROGRAMS if p.stem not in WITHOUT_OPTIONS])
def test_each_starts_and_says_how_it_is_called(program):
    assert f"usage: {program}.py" in run(program, "--help")


def test_what_is_known_of_recorded_play_depends_on_the_frames_that_are_stacked():
    pytest.importorskip("ale_py")
    sizes = "env.atari.size_pixels=32;batch.batch_sequences=4;batch.online_sequences=1"
    small = ("--preset", "atari_laptop", "--updates", "1", "--every", "1", "--copies", "2")
    variants = ("--variant", "env.frame_stack=1", "--variant", "env.frame_stack=4")
    out = run("representation", *small, "--steps", "60", "--fields", sizes, *variants)
    rows = [line.split()[3:] for line in out.splitlines() if line.startswith("     1 ")]
    assert len(rows) == 2 and rows[0] != rows[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_are_compared_with_those_of_float32(dtype):
    """In float32 there is no difference; in bfloat16 there is one, of a few percent."""
    out = run("gradient_check", "catch", "--updates", "2", "--network.compute-dtype", dtype)
    answer = json.loads(out.splitlines()[-1])
    ratio = answer["gradient_norm"] / answer["gradient_norm_float32"]
    assert answer["gradient_norm_float32"] > 0.0
    if dtype == "float32":
        assert ratio == 1.0
    else:
        assert ratio != 1.0
        assert ratio == pytest.approx(1.0, abs=0.1)
