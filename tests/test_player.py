"""A loaded agent in one's own program: stepped by hand, and told in one line what it cannot do."""

import re
import subprocess
import sys
from dataclasses import replace

import gymnasium
import jax
import numpy as np
import pytest

import muesli
from muesli import envs, presets
from muesli.config import ConfigError
from muesli.runners.parts import build
from muesli.runners.player import Player
from muesli.types import StepType


def untrained(base):
    parts = build(replace(base, network=replace(base.network, torso_units=8, model_units=8)))
    return Player(parts, parts.agent.init(jax.random.key(0)))


@pytest.fixture(scope="module")
def player():
    return untrained(presets.catch())


def first(player, batch):
    return jax.vmap(player.env.reset)(jax.random.split(jax.random.key(0), batch))[1]


def test_time_steps_are_as_many_as_are_remembered(player):
    one = player.initial_state(1)
    for function, message in (
        (lambda: player.act(first(player, 3), one, jax.random.key(0)), "act: timestep.reward must"),
        (lambda: player.think(first(player, 3), one), "think: timestep.reward must"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"{message} have shape [1], got [3]")):
            function()
    alone = jax.tree.map(lambda x: x[0], first(player, 1))
    with pytest.raises(ValueError, match=re.escape("must have shape [1], got []")):
        player.act(alone, one, jax.random.key(0))
    with pytest.raises(TypeError, match="act: timestep must be a TimeStep, as player.env gives th"):
        player.act(first(player, 1).observation, one, jax.random.key(0))
    assert player.act(first(player, 3), player.initial_state(3), jax.random.key(0))[0].shape == (3,)


def test_what_it_cannot_do_is_named(player):
    there = "there is no 'nonsense'; there are prior, online, cmpo, q_softmax, mcts"
    with pytest.raises(ConfigError, match=there):
        player.evaluate(1, act_with="nonsense")
    with pytest.raises(ConfigError, match=there):
        player.actor("nonsense")
    with pytest.raises(ConfigError, match="episodes: must be at least 1, got 0"):
        player.evaluate(0)


def make_cart():
    return gymnasium.make("CartPole-v1")


def test_the_loop_that_the_help_shows_plays_an_episode(monkeypatch):
    monkeypatch.setitem(envs.ENVS, "cart", make_cart)
    player = untrained(presets.gym("cart", discrete=True))
    env = player.env.make(range(1), seed=0)
    timestep, memory = env.reset(), player.initial_state(1)
    key, steps = jax.random.key(0), 0
    while timestep.step_type[0] != StepType.LAST:
        action, _, memory = player.act(timestep, memory, jax.random.fold_in(key, steps))
        timestep, steps = env.step(np.asarray(action)), steps + 1
    env.close()
    assert 5 < steps <= 500


def test_the_package_lists_what_it_has_without_importing_it():
    program = "import sys, muesli; print(dir(muesli), 'jax' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert all(repr(name) in out for name in muesli.__all__) and out.endswith("] False\n")
    assert all(hasattr(muesli, name) for name in muesli.__all__)
    with pytest.raises(AttributeError, match="module 'muesli' has no attribute 'trian'"):
        muesli.trian  # noqa: B018
