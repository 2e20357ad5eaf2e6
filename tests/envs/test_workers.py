"""Worker processes play what one process plays, and none of them outlives its use."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from envs.misbehaving import EXIT, FINE, FORK, HANG, HANG_ON, RAISE, wrong_rewards

from muesli import envs
from muesli.cli import plugins
from muesli.config import AtariConfig, Config, ConfigError, EnvConfig, validate
from muesli.envs import atari, workers
from muesli.envs.base import EnvError
from muesli.types import StepType

NAME = "envs.misbehaving:Misbehaving-v0"


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    # One whose parent is gone may wait for somebody to ask how it ended.
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def started(monkeypatch):
    """The ids of all workers that a test starts; none may be left when it is over."""
    pids = []

    def start(*arguments, actual=workers._start):
        worker = actual(*arguments)
        pids.append(worker.process.pid)
        return worker

    monkeypatch.setattr(workers, "_start", start)
    yield pids
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert pids and not left


def misbehaving(copies, processes):
    return envs.make(NAME, EnvConfig(num_envs=copies, processes=processes)).make(range(copies), 0)


def actions(*chosen):
    return np.array(chosen, np.int32)


ATARI = EnvConfig(threads=1, atari=AtariConfig(size_pixels=24, max_episode_frames=60))


@pytest.mark.parametrize(
    ("name", "config", "slots", "processes", "steps"),
    [
        ("gym:CartPole-v1", EnvConfig(), range(2, 5), 2, 60),
        ("gym:Pendulum-v1", EnvConfig(), range(2), 1, 5),
        ("atari:breakout", ATARI, range(4, 6), 2, 20),
    ],
)
def test_workers_play_what_is_played_in_line(started, name, config, slots, processes, steps):
    config = replace(config, num_envs=len(slots))
    inline, apart = envs.make(name, config), envs.make(name, replace(config, processes=processes))
    assert inline.spec == apart.spec and inline.frames_per_step == apart.frames_per_step
    b, a = apart.make(slots, 3), inline.make(slots, 3)
    assert len(started) == processes
    random, size = np.random.default_rng(0), (steps, len(slots), max(1, inline.spec.action_size))
    if inline.spec.num_actions is None:
        played = random.uniform(-1, 1, size).astype(np.float32)
    else:
        played = random.integers(inline.spec.num_actions, size=size[:2]).astype(np.int32)
    pairs = [(a.reset(), b.reset())]
    pairs += [(a.step(chosen), b.step(chosen)) for chosen in played]
    pairs += [(a.reset(), b.reset()), (a.step(played[0]), b.step(played[0]))]
    a.close()
    b.close()
    if steps > 5:
        assert any((one.step_type == StepType.LAST).any() for one, _ in pairs)
    # Compared only now: what was handed out has not been written to since.
    for one, other in pairs:
        assert one.legal_actions is None and other.legal_actions is None
        for x, y in zip(one[:4], other[:4], strict=True):
            assert x.dtype == y.dtype and x.shape == y.shape and (x == y).all()
    picture = pairs[0][0].observation[0]
    assert (inline.render(picture) == apart.render(picture)).all()


def test_a_worker_that_raises_is_named_and_all_end(started):
    env = misbehaving(3, 2)
    observed = env.reset().observation
    assert sorted({*observed[:, 0]}) == sorted(started) and not observed[:, 1].any()
    # Ctrl-C is not for them.
    for pid in started:
        os.kill(pid, signal.SIGINT)
        assert os.getpgid(pid) != os.getpgid(0)
    env.step(actions(FINE, FINE, FINE))
    with pytest.raises(EnvError) as caught:
        env.step(actions(FINE, FINE, RAISE))
    assert str(caught.value) == (
        f"{NAME}, worker 2 of 2 (slots 1 to 2): {NAME} raised RuntimeError: out of paper"
    )
    assert 'raise RuntimeError("out of paper")' in caught.value.__notes__[0]
    assert not any(map(alive, started))
    with pytest.raises(EnvError, match="its workers have ended"):
        env.step(actions(FINE, FINE, FINE))
    env.close()


@pytest.mark.parametrize(
    ("action", "code"),
    [(EXIT, 3), pytest.param(FORK, 4, marks=pytest.mark.slow)],
)
def test_a_worker_that_dies_is_named_while_another_hangs(started, action, code):
    env = misbehaving(2, 2)
    env.reset()
    began = time.monotonic()
    with pytest.raises(
        EnvError, match=rf"worker 1 of 2 \(slots 0 to 0\): has ended .* code {code}"
    ):
        env.step(actions(action, HANG))
    assert time.monotonic() - began < 5.0
    env.close()


def test_a_worker_that_was_killed_between_steps_is_named(started):
    env = misbehaving(1, 1)
    env.reset()
    os.kill(started[0], signal.SIGKILL)
    with pytest.raises(EnvError, match=r"worker 1 of 1 \(slots 0 to 0\): was killed by SIGKILL"):
        env.step(actions(FINE))
    env.close()


def test_what_hangs_can_be_closed_from_outside(started, monkeypatch):
    monkeypatch.setattr(workers, "_CLOSE_SECONDS", 0.3)
    monkeypatch.setattr(workers, "_DEATH_SECONDS", 0.5)
    env = misbehaving(2, 2)
    env.reset()
    errors = []

    def step():
        try:
            # One of them does not even listen to SIGTERM.
            env.step(actions(HANG, HANG_ON))
        except EnvError as error:
            errors.append(str(error))

    thread = threading.Thread(target=step)
    thread.start()
    time.sleep(0.2)
    began = time.monotonic()
    env.close()
    assert time.monotonic() - began < 5.0
    thread.join(timeout=2.0)
    assert errors == [f"{NAME}: closed while its workers were at work"]
    assert not any(map(alive, started))
    env.close()


def test_copies_that_cannot_be_made_are_named(started):
    name = "envs.misbehaving:Unmakeable-v0"
    made = envs.make(name, EnvConfig(num_envs=1, processes=1))
    with pytest.raises(EnvError, match=r"Unmakeable-v0, worker 1 of 1 .*RuntimeError: no paper"):
        made.make(range(1), 0).reset()


def test_workers_that_start_can_be_closed(started, monkeypatch):
    monkeypatch.setattr(workers, "_CLOSE_SECONDS", 0.1)
    misbehaving(2, 2).close()


PARENT = f"""
import threading, time
import numpy as np
from muesli import envs
from muesli.config import EnvConfig

env = envs.make("{NAME}", EnvConfig(num_envs=2, processes=2)).make(range(2), 0)
print(*env.reset().observation[:, 0].astype(int), flush=True)
threading.Thread(target=env.step, args=[np.int32([{FINE}, {HANG}])], daemon=True).start()
time.sleep({{seconds}})
"""


@pytest.mark.parametrize("killed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_workers_end_with_their_parent(killed):
    """Both the one that waits and the one that hangs, whether it is killed or forgets them."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(seconds=600 if killed else 0.5)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len({*pids}) == 2
    if killed:
        assert all(map(alive, pids))
        time.sleep(0.2)
        parent.kill()
    _, complaints = parent.communicate(timeout=20)
    assert parent.returncode == (-signal.SIGKILL if killed else 0)
    assert not killed or complaints == ""
    deadline = time.monotonic() + 10.0
    while any(map(alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_workers_of_all_groups_are_as_many_as_the_processes():
    def counts(processes, num_envs, groups):
        config = EnvConfig(num_envs=num_envs, processes=processes)
        return [workers._workers(config, num_envs // groups)] * groups

    assert counts(16, 720, 2) == [8, 8]
    assert counts(3, 24, 2) == [1, 1]
    assert counts(1, 24, 2) == [1, 1]
    assert counts(64, 24, 2) == [12, 12]
    # More copies than the run has, as in an evaluation.
    assert workers._workers(EnvConfig(num_envs=24, processes=4), 64) == 4
    assert workers._parts(range(5, 12), 3) == [range(5, 7), range(7, 9), range(9, 12)]


@pytest.mark.parametrize(
    ("threads", "processes", "num_envs", "made", "each"),
    [
        (16, 16, 720, 360, 1),
        (16, 4, 720, 360, 4),
        (16, 8, 100, 50, 2),  # 12 or 13 copies
        (16, 1, 720, 360, 8),  # a worker in each of two groups
        (16, 4, 24, 64, 4),
        (2, 8, 80, 80, 1),
    ],
)
def test_workers_share_the_threads(threads, processes, num_envs, made, each):
    config = EnvConfig(num_envs=num_envs, processes=processes, threads=threads)
    parts = workers._parts(range(made), workers._workers(config, made))
    shares = [(workers._share(config, len(part), made), len(part)) for part in parts]
    assert {atari._threads(*share) for share in shares} == {each}
    assert all(share.processes == 0 for share, _ in shares)


def test_shared_memory_has_no_name(monkeypatch):
    for _ in range(2):
        memory = workers._memory(4096)
        status = os.fstat(memory)
        os.close(memory)
        assert status.st_size == 4096 and status.st_nlink == 0
        # Where there is no such call, as on macOS.
        monkeypatch.delattr(os, "memfd_create", raising=False)


def test_what_cannot_run_in_processes_is_named(monkeypatch):
    made = envs.make("gym:CartPole-v1")
    legal = made._replace(spec=made.spec._replace(legal_actions=True))
    config = EnvConfig(processes=1)
    with pytest.raises(ConfigError, match="env.processes: must be 0 for mine, which tells legal"):
        workers.in_processes("mine", config, legal)
    monkeypatch.setitem(envs.ENVS, "mine", lambda: made)
    with pytest.raises(ConfigError, match="env.processes: must be 0 for mine: .*pickle"):
        envs.make("mine", config)
    with pytest.raises(ConfigError, match="env.processes: must not be negative, got -1"):
        validate(Config(env=EnvConfig(processes=-1)))


def test_a_maker_in_the_main_module_is_refused_before_any_worker_starts(monkeypatch):
    def make():
        return envs.make("gym:CartPole-v1")

    make.__module__, make.__qualname__ = "__main__", "make"
    monkeypatch.setattr(sys.modules["__main__"], "make", make, raising=False)
    monkeypatch.setitem(envs.ENVS, "mine", make)
    with pytest.raises(ConfigError, match=r"must be 0 for mine: .* put it in a module of its own"):
        envs.make("mine", EnvConfig(processes=1))


def test_a_maker_in_a_plugin_travels_with_its_file(started, monkeypatch, tmp_path):
    file = tmp_path / "carts.py"
    file.write_text(
        "import gymnasium\nfrom muesli.envs import ENVS\n"
        "def make_cart():\n    return gymnasium.make('CartPole-v1')\nENVS['cart'] = make_cart\n"
    )
    monkeypatch.setattr(plugins, "LOADED", [])
    plugins.load(str(file))
    try:
        config = EnvConfig(num_envs=2)
        inline, apart = envs.make("cart", config), envs.make("cart", replace(config, processes=1))
        here, there = inline.make(range(2), 0), apart.make(range(2), 0)
        assert np.array_equal(here.reset().observation, there.reset().observation)
        there.close()
    finally:
        del envs.ENVS["cart"], sys.modules["muesli_plugin_carts"]


def test_environments_inside_jax_know_no_processes():
    assert isinstance(envs.make("catch", EnvConfig(processes=2)), envs.JaxEnv)


def test_ones_own_maker_travels_and_an_answer_against_the_spec_is_named(started, monkeypatch):
    monkeypatch.setitem(envs.ENVS, "wrong", wrong_rewards)
    env = envs.make("wrong", EnvConfig(num_envs=1, processes=1)).make(range(1), 0)
    env.reset()
    with pytest.raises(EnvError, match=r"reward is float64\[1\], the spec says float32\[1\]"):
        env.step(actions(FINE))
    env.close()
