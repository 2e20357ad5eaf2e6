"""Environments that can be saved go on from there, and exact emulators play as ale-py's do."""

import dataclasses

import numpy as np
import pytest

from muesli import envs
from muesli.config import AtariConfig, EnvConfig
from muesli.envs.base import EnvError


def made(game, exact, **settings):
    # Without sticky actions, which either draws in its own way.
    fixed = {"size_pixels": 48, "exact": exact, "sticky_action_probability": 0.0}
    atari = AtariConfig(**fixed, **settings)
    return envs.make(f"atari:{game}", EnvConfig(num_envs=2, threads=1, atari=atari))


def played(env, actions):
    return [env.step(a) for a in actions]


def differences(ours, theirs):
    return [np.abs(a.observation.astype(int) - b.observation.astype(int)) for a, b in
            zip(ours, theirs, strict=True)]  # fmt: skip


@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("breakout", {"max_episode_frames": 130}),
        ("ms_pacman", {"pool_frames": 2}),
        pytest.param("pong", {"grey": True, "max_episode_frames": 90}, marks=pytest.mark.slow),
    ],
)
def test_they_play_what_ale_pys_own_play(game, settings):
    actions = np.random.default_rng(3).integers(18, size=(80, 2)).astype(np.int32)
    runs = []
    for exact in (True, False):
        env = made(game, exact, **settings).make(range(2), 7)
        runs.append([env.reset(), *played(env, actions)])
        env.close()
    for a, b in zip(*runs, strict=True):
        for field in ("reward", "discount", "step_type"):
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    if "max_episode_frames" in settings:
        assert sum((t.step_type == 2).sum() for t in runs[0]) >= 2
    # ale-py shows an older picture where an episode ends within a step.
    middle = [i for i, t in enumerate(runs[0]) if not (t.step_type == 2).any()]
    pixels = np.stack(differences(*runs))[middle]
    assert pixels.max() <= (1 if settings.get("grey") else 0)
    assert (pixels > 0).mean() < 1e-4


@pytest.mark.parametrize("name", ["atari:breakout", "gym:CartPole-v1", "gym:Pendulum-v1"])
def test_a_saved_environment_goes_on_as_if_nothing_had_happened(name):
    config = EnvConfig(
        num_envs=2, threads=1, atari=AtariConfig(size_pixels=24, exact=True, max_episode_frames=90)
    )
    family = envs.make(name, config)
    rng = np.random.default_rng(0)

    def actions(count):
        if family.spec.num_actions is None:
            return rng.uniform(-1, 1, (count, 2, family.spec.action_size)).astype(np.float32)
        return rng.integers(family.spec.num_actions, size=(count, 2)).astype(np.int32)

    before, after = actions(33), actions(60)
    first = family.make(range(4, 6), 11)
    first.reset()
    played(first, before)
    state = {k: v.copy() for k, v in first.save().items()}
    whole = played(first, after)
    first.close()
    second = family.make(range(4, 6), 11)
    second.load(state)
    again = played(second, after)
    second.close()
    assert sum((t.step_type == 2).sum() for t in whole) >= (0 if "Pendulum" in name else 2)
    for a, b in zip(whole, again, strict=True):
        for field in a._fields[:4]:
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


def test_worker_processes_save_and_load_too():
    config = EnvConfig(num_envs=2, processes=2)
    family = envs.make("gym:CartPole-v1", config)
    moves = np.random.default_rng(0).integers(2, size=(70, 2)).astype(np.int32)
    first = family.make(range(2), 3)
    first.reset()
    played(first, moves[:40])
    state = first.save()
    assert all(isinstance(x, np.ndarray) for x in state.values())
    whole = played(first, moves[40:])
    first.close()
    second = family.make(range(2), 3)
    second.load(state)
    again = played(second, moves[40:])
    second.close()
    for a, b in zip(whole, again, strict=True):
        np.testing.assert_array_equal(a.observation, b.observation)
    lone = envs.make("gym:CartPole-v1", dataclasses.replace(config, processes=1)).make(range(2), 3)
    with pytest.raises(EnvError, match="another number of workers"):
        lone.load(state)
    lone.close()


def test_an_environment_that_does_not_repeat_itself_is_noticed():
    import gymnasium

    class Forgetful(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.random.default_rng().uniform(-1, 1, 1).astype(np.float32), {}

        def step(self, action):
            return (
                np.random.default_rng().uniform(-1, 1, 1).astype(np.float32),
                0.0,
                False,
                False,
                {},
            )

    gymnasium.register("Forgetful-v0", Forgetful)
    try:
        family = envs.make("gym:Forgetful-v0")
        env = family.make(range(1), 0)
        env.reset()
        state = env.save()
        again = family.make(range(1), 0)
        with pytest.raises(EnvError, match="did not come to the same observations"):
            again.load(state)
    finally:
        del gymnasium.registry["Forgetful-v0"]
