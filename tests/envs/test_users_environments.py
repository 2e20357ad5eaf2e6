"""What a user brings: any space of actions, own environments, and mistakes told in one line."""

import dataclasses
import itertools

import gymnasium
import numpy as np
import pytest
from envs.misshapen import BROKEN, SOUND, UNFIT, Late, Misshapen, Walk, identifier, make_walk
from gymnasium import spaces

import muesli
from muesli import envs, presets
from muesli.cli.main import main
from muesli.config import ConfigError
from muesli.envs import EnvError, trial
from muesli.envs.base import HostEnvs
from muesli.envs.gymnasium import from_gymnasium

replace = dataclasses.replace


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


@pytest.mark.parametrize("how", UNFIT)
def test_what_cannot_be_used_at_all_is_one_line(how, capsys, tmp_path):
    name = f"envs.misshapen:{identifier(how)}"
    with pytest.raises(ConfigError) as caught:
        envs.make(name)
    assert UNFIT[how] in str(caught.value) and "\n" not in str(caught.value)
    assert main(["train", name, "--run-dir", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"muesli train: {caught.value}\n"


@pytest.mark.parametrize("how", SOUND)
def test_what_is_odd_is_no_reason_to_refuse_it(how):
    envs.check(f"envs.misshapen:{identifier(how)}", steps=10)


def test_ones_own_maker_that_raises_is_one_line(monkeypatch, capsys, tmp_path):
    def make():
        raise RuntimeError("no serial\nport")

    monkeypatch.setitem(envs.ENVS, "mine", make)
    arguments = ["train", "catch", "--env.name", "mine", "--run-dir", str(tmp_path / "run")]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "'mine' cannot be made: RuntimeError: no serial port (test_users_env" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"observation_shape": (9, 5, 1)},
            "reset: observation has shape [10, 5, 1], the",
        ),
        ({"observation_dtype": np.dtype(np.uint8)}, "reset: observation is bool, the spec says"),
        ({"legal_actions": True}, "reset: legal_actions is given, or not, against what the spec"),
    ],
)
def test_ones_own_environment_in_jax_is_tried_out_too(spec, said, monkeypatch, capsys, tmp_path):
    env = envs.make("catch")
    monkeypatch.setitem(envs.ENVS, "mine", lambda: env._replace(spec=env.spec._replace(**spec)))
    arguments = ["train", "catch", "--env.name", "mine", "--run-dir", str(tmp_path / "run")]
    assert main(arguments) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"muesli train: env.name: mine: {said}") and line.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_who_does_not_answer_in_the_trial_is_named(monkeypatch, capsys):
    monkeypatch.setattr(trial, "_QUIET_SECONDS", 0.05)
    monkeypatch.setattr(trial, "_LOOK_SECONDS", 0.02)
    made = envs.make("envs.misshapen:Hanging-v0")
    with pytest.raises(EnvError, match=r"step 0 has not answered for 0.2 s \(actors.step_timeout"):
        made.trial(20, 0.2)
    said = capsys.readouterr().err
    assert said == (
        "muesli: envs.misshapen:Hanging-v0: step 0 has not answered for 0.05 s; "
        "it is waited for 0.2 s\n"
    )


PICTURE = np.full((8, 8, 3), 3, np.uint8)


@pytest.mark.parametrize(
    ("space", "fine", "late", "message"),
    [
        (
            spaces.Box(0, 255, (8, 8, 3), np.uint8),
            PICTURE,
            np.full((8, 8, 3), 300),
            "the observation is int64, its space says uint8",
        ),
        (
            spaces.Box(0, 255, (8, 8, 3), np.uint8),
            PICTURE,
            PICTURE.reshape(3, 8, 8),
            "the observation has shape [3, 8, 8], its space says [8, 8, 3]",
        ),
        (
            spaces.Box(-1, 1, (4,), np.float32),
            np.zeros(4, np.float32),
            np.zeros((2, 2), np.float32),
            "the observation has shape [2, 2], its space says [4]",
        ),
        (
            spaces.Dict({"eye": spaces.Box(0, 255, (2,), np.uint8)}),
            {"eye": np.zeros(2, np.uint8)},
            {"eye": np.array([0, 300])},
            "the observation['eye'] is int64, its space says uint8",
        ),
        (spaces.Discrete(3), 1, -1, "the observation is -1, which is not in Discrete(3)"),
        (
            spaces.Box(-np.inf, np.inf, (1,), np.float64),
            np.zeros(1),
            np.full(1, 1e300),
            "the observation holds a number that is not finite",
        ),
    ],
)
def test_what_goes_wrong_after_the_trial_is_named_with_its_slot(space, fine, late, message):
    made = iter(range(100))
    # The example, and then slots 6 and 7, of which the second goes wrong.
    envs_of = from_gymnasium(
        lambda: Late(space, fine, late, 30 if next(made) == 2 else 10_000), "mine"
    )
    env = envs_of.make(range(6, 8), 0)
    env.reset()
    for _ in range(30):
        env.step(np.zeros(2, np.int32))
    with pytest.raises(EnvError) as caught:
        env.step(np.zeros(2, np.int32))
    assert str(caught.value) == f"mine, slot 7: {message}"


def test_copies_may_answer_in_different_dtypes_that_each_convert():
    space, made = spaces.Box(0, 9, (2,), np.float32), iter(range(100))
    kinds = [np.int16, np.int16, np.uint16]
    envs_of = from_gymnasium(lambda: Late(space, np.ones(2, kinds[next(made)]), None))
    env = envs_of.make(range(2), 0)
    assert env.reset().observation.tolist() == [[1.0, 1.0]] * 2
    env.close()


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
