"""Environments that do not answer in an evaluation."""

import threading
import time
from dataclasses import replace

import gymnasium
import jax
import numpy as np
import pytest

from muesli import presets
from muesli.agent import make_act
from muesli.envs import ENVS
from muesli.runners.faults import ActorError
from muesli.runners.host import make_evaluate_on_host
from muesli.runners.parts import build
from muesli.runners.patience import Asker, Stopped


@pytest.fixture
def hanging(monkeypatch):
    """An environment that answers five steps and then nothing until the test is over."""
    over = threading.Event()

    class Hanging(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.steps = 0
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.steps += 1
            if self.steps > 5:
                over.wait(60)
            return np.zeros(2, np.float32), 0.0, False, False, {}

    monkeypatch.setitem(ENVS, "hanging", Hanging)
    base = presets.gym("hanging")
    config = replace(base, actors=replace(base.actors, step_timeout_seconds=1.0))
    parts = build(config)
    acting = parts.agent.acting(jax.jit(parts.agent.init)(jax.random.key(0)))
    evaluate = make_evaluate_on_host(parts, make_act(parts.spec, parts.network, config, "prior"), 2)
    yield lambda stop: evaluate(acting, 0, stop)
    over.set()


def test_who_does_not_answer_in_an_evaluation_is_named(hanging):
    with pytest.raises(ActorError, match=r"hanging has not answered for 1 s in an evaluation"):
        hanging(lambda: False)


def test_an_evaluation_that_hangs_can_be_stopped(hanging):
    # Asked between steps, stop is still False; it becomes True while nobody answers.
    began = time.monotonic()
    asked = []

    def stop():
        asked.append(None)
        return len(asked) > 7

    assert hanging(stop) is None
    assert time.monotonic() - began < 60


def test_answers_come_in_the_order_of_the_questions():
    asker = Asker("env", lambda: False)
    assert [asker.ask(lambda n=n: n, 5.0) for n in range(3)] == [0, 1, 2]
    with pytest.raises(ActorError, match="env failed in an evaluation: no paper") as caught:
        asker.ask(lambda: (_ for _ in ()).throw(RuntimeError("no paper")), 5.0)
    assert isinstance(caught.value.__cause__, RuntimeError)
    asker.close(lambda: None)


def test_who_is_to_stop_waits_for_nobody():
    released = threading.Event()
    asker = Asker("env", lambda: True)
    with pytest.raises(Stopped):
        asker.ask(lambda: released.wait(60), 60.0)
    # What it waits for may be what closing ends.
    asker.close(released.set)
    assert released.is_set()


def test_many_copies_may_take_longer_than_a_group_of_few():
    """A step of 40 copies at 20 ms each, where a group of 8 may take 0.4 s."""

    class Slow(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {}

        def step(self, action):
            time.sleep(0.02)
            return np.zeros(2, np.float32), 1.0, True, False, {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENVS, "slow", Slow)
        base = presets.gym("slow")
        config = replace(base, actors=replace(base.actors, step_timeout_seconds=0.4))
        parts = build(config)
        acting = parts.agent.acting(jax.jit(parts.agent.init)(jax.random.key(0)))
        act = make_act(parts.spec, parts.network, config, "prior")
        found = make_evaluate_on_host(parts, act, 40)(acting, 0, lambda: False)
    np.testing.assert_array_equal(found.returns, np.ones(40))
