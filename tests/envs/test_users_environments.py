"""What a user brings: any space of actions, own environments, and mistakes told in one line."""

import dataclasses
import itertools

import gymnasium
import numpy as np
import pytest
from envs.misshapen import BROKEN, Misshapen, Walk, make_walk
from gymnasium import spaces

import muesli
from muesli import envs, presets
from muesli.cli.main import main
from muesli.config import ConfigError
from muesli.envs import EnvError
from muesli.envs.base import HostEnvs
from muesli.envs.gymnasium import from_gymnasium

replace = dataclasses.replace


def identifier(how):
    return f"Misshapen{''.join(word.capitalize() for word in how.split('_'))}-v0"


@pytest.mark.parametrize("how", BROKEN)
def test_the_check_names_what_is_wrong_in_one_line(how):
    with pytest.raises(EnvError) as caught:
        envs.check(f"envs.misshapen:{identifier(how)}")
    assert BROKEN[how] in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("how", BROKEN)
def test_train_names_what_is_wrong_in_one_line_with_exit_code_2(how, capsys, tmp_path):
    arguments = ["train", f"envs.misshapen:{identifier(how)}", "--run-dir", str(tmp_path / "run")]
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert BROKEN[how] in said.err and said.err.count("\n") == 1
    assert said.err.startswith("muesli train: env.name: ")
    assert not (tmp_path / "run").exists()


def test_unbounded_actions_are_refused_in_one_line(capsys, tmp_path):
    class Unbounded(Walk):
        action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    with pytest.raises(ConfigError, match="has unbounded actions, Box.*finite low and high"):
        envs.check(Unbounded)
    gymnasium.register("Unbounded-v0", Unbounded)
    try:
        arguments = ["train", "gym:Unbounded-v0", "--run-dir", str(tmp_path / "run")]
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert "has unbounded actions" in said and said.count("\n") == 1
    finally:
        gymnasium.registry.pop("Unbounded-v0")


def acting(action_space):
    """The environment with that action space, and what its copies were told."""
    told = []

    class Told(Walk):
        def step(self, action):
            assert self.action_space.contains(action)
            told.append(np.array(action))
            return self.place, 0.0, False, False, {}

    Told.action_space = action_space
    return from_gymnasium(Told), told


@pytest.mark.parametrize(
    ("space", "ranges"),
    [
        (spaces.MultiDiscrete([3, 3, 2]), (range(3), range(3), range(2))),
        (spaces.MultiDiscrete([2, 3], start=[5, -1]), (range(5, 7), range(-1, 2))),
        (spaces.MultiDiscrete([[2, 2], [1, 2]]), (range(2), range(2), range(1), range(2))),
        (spaces.MultiBinary(3), (range(2),) * 3),
    ],
)
def test_every_combination_of_choices_is_an_action(space, ranges):
    made, told = acting(space)
    expected = list(itertools.product(*ranges))
    assert made.spec.num_actions == len(expected)
    env = made.make(range(len(expected)), 0)
    env.reset()
    env.step(np.arange(len(expected), dtype=np.int32))
    env.close()
    assert [tuple(action.ravel().tolist()) for action in told] == expected


def test_too_many_combinations_are_refused():
    with pytest.raises(ConfigError, match=r"MultiDiscrete.*1,048,576 combinations; at most 10,000"):
        acting(spaces.MultiDiscrete([4] * 10))


def test_a_function_that_makes_a_gymnasium_environment_is_enough(monkeypatch):
    envs.check(make_walk, steps=30)
    monkeypatch.setitem(envs.ENVS, "walk", make_walk)
    made = envs.make("walk")
    assert isinstance(made, HostEnvs) and made.spec.action_size == 1
    maker = lambda: Misshapen("nan")
    maker.__name__ = "MisshapenNan"
    with pytest.raises(EnvError, match="^MisshapenNan: step 4: the observation holds nan"):
        envs.check(maker)
    with pytest.raises(ConfigError, match="must return a JaxEnv, a HostEnvs or a Gymnasium"):
        envs.check(lambda: 3)


def test_train_takes_a_function_and_a_run_can_be_loaded(tmp_path):
    base = presets.gym("my_walk", discrete=False)
    config = replace(
        base,
        total_env_steps=64,
        env=replace(base.env, num_envs=2, processes=1),
        network=replace(
            base.network, torso_channels=(), torso_units=8, model_units=8, value_bins=5,
            value_max=2.0, reward_bins=5, reward_max=2.0,
        ),
        batch=replace(base.batch, batch_sequences=4, sequence_length=8),
        log=replace(base.log, log_every_steps=16, eval_every_steps=0, eval_episodes=2),
    )  # fmt: skip
    try:
        result = muesli.train(config, tmp_path / "run", env=make_walk)
        assert result.evaluations[0]["episodes"] == 2
        player = muesli.load(tmp_path / "run")
        assert player.evaluate(3).lengths.tolist() == [8, 8, 8]
        assert player.state.normaliser is not None and float(player.state.normaliser.seen) > 0
    finally:
        envs.ENVS.pop("my_walk", None)


@pytest.mark.parametrize(
    "name", ["catch", "go_13x13", "gym:CartPole-v1", "atari:pong", "envs.misshapen:Walk-v0"]
)
def test_train_leaves_what_has_a_name_already_alone(name, tmp_path):
    base, before = presets.catch(), dict(envs.ENVS)
    config = replace(base, env=replace(base.env, name=name))
    with pytest.raises(ConfigError, match=f"^env.name: '{name}' .* another name") as caught:
        muesli.train(config, tmp_path / "run", env=make_walk)
    assert "\n" not in str(caught.value) and before == envs.ENVS
    assert not (tmp_path / "run").exists()
