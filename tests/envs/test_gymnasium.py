"""Gymnasium's environments keep our contract: spaces, ends, seeds and failures."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from muesli import envs
from muesli.config import ConfigError, EnvConfig
from muesli.envs.base import EnvError, slot_seeds
from muesli.types import EnvSpec, StepType

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
UNIT = spaces.Box(-1.0, 1.0, (1,), np.float32)


class Scripted(gymnasium.Env):
    """``answer(env, action)`` says what comes; on a reset the action is None."""

    def __init__(self, observation_space, action_space, answer):
        self.observation_space, self.action_space = observation_space, action_space
        self.answer, self.time, self.seed = answer, 0, None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.seed = 0, self.seed if seed is None else seed
        return self.answer(self, None)[0], {}

    def step(self, action):
        self.time += 1
        return *self.answer(self, action), {}


@pytest.fixture
def scripted():
    """Registers a scripted environment, answers its name, and forgets it after the test."""

    def register(answer, observation_space=UNIT, action_space=None, **settings):
        gymnasium.register(
            "Scripted-v0",
            Scripted,
            kwargs={
                "observation_space": observation_space,
                "action_space": action_space or spaces.Discrete(2),
                "answer": answer,
            },
            **settings,
        )
        return "gym:Scripted-v0"

    yield register
    gymnasium.registry.pop("Scripted-v0", None)


def zeros(env, action):
    return np.zeros(1, np.float32), 0.0, False, False


@pytest.mark.parametrize(
    ("name", "shape", "actions"),
    [
        ("CartPole-v1", (4,), (2, 0)),
        ("Pendulum-v1", (3,), (None, 1)),
        ("FrozenLake-v1", (16,), (4, 0)),  # one-hot of 16
        ("Blackjack-v1", (32 + 11 + 2,), (2, 0)),  # a tuple of three, one-hot each
    ],
)
def test_conforms(name, shape, actions):
    made = envs.make(f"gym:{name}")
    assert made.spec == EnvSpec(shape, np.dtype(np.float32), *actions)
    envs.check(made, steps=60)


def observed(name, slots):
    """What the first copy sees after a reset, of the shape and dtype that the spec says."""
    made = envs.make(name)
    env = made.make(slots, 0)
    observation = env.reset().observation
    env.close()
    assert observation.shape == (len(slots), *made.spec.observation_shape)
    assert observation.dtype == made.spec.observation_dtype
    return observation[0]


@pytest.mark.parametrize(
    ("space", "given", "expected"),
    [
        (spaces.Discrete(3, start=5), 6, np.float32([0, 1, 0])),
        (spaces.MultiBinary(2), np.int8([1, 0]), np.float32([1, 0])),
        (spaces.Box(-1, 1, (2,), np.float64), np.array([0.5, -0.25]), np.float32([0.5, -0.25])),
        (spaces.Box(-1, 1, (), np.float32), np.float32(0.5), np.float32([0.5])),
        (spaces.Box(0, 9, (2, 2), np.int64), np.ones((2, 2), int), np.ones((2, 2), np.float32)),
        (
            spaces.Box(0, 255, (4, 5, 3), np.uint8),
            np.full((4, 5, 3), 200, np.uint8),
            np.full((4, 5, 3), 200, np.uint8),
        ),
        (
            spaces.Box(0, 255, (4, 5), np.uint8),
            np.full((4, 5), 200, np.uint8),
            np.full((4, 5, 1), 200, np.uint8),
        ),
        (
            spaces.Dict({"a": spaces.Discrete(2), "b": UNIT}),
            {"a": 1, "b": np.float32([0.5])},
            np.float32([0, 1, 0.5]),
        ),
        (
            spaces.Tuple((UNIT, spaces.Dict({"c": spaces.MultiDiscrete([2, 2])}))),
            (np.float32([-0.5]), {"c": np.array([1, 0])}),
            np.float32([-0.5, 0, 1, 1, 0]),
        ),
    ],
)
def test_observations_become_arrays(scripted, space, given, expected):
    name = scripted(lambda env, action: (given, 0.0, False, False), observation_space=space)
    for slots in (range(1), range(2)):
        found = observed(name, slots)
        assert found.dtype == expected.dtype and (found == expected).all()


def echo(env, action):
    """Shows the action that was received."""
    shape = env.observation_space.shape
    shown = np.zeros(shape) if action is None else np.broadcast_to(action, shape)
    return shown.astype(env.observation_space.dtype), 0.0, False, False


def test_discrete_actions_start_where_the_space_starts(scripted):
    name = scripted(echo, spaces.Box(-9.0, 9.0, (1,)), spaces.Discrete(3, start=-1))
    made = envs.make(name)
    assert made.spec.num_actions == 3
    env = made.make(range(3), 0)
    env.reset()
    assert env.step(np.array([0, 1, 2], np.int32)).observation.ravel().tolist() == [-1, 0, 1]
    env.close()


def test_continuous_actions_are_stretched_to_their_bounds(scripted):
    low, high = np.float32([[-2, 0], [1, -1]]), np.float32([[4, 1], [3, 1]])
    name = scripted(echo, spaces.Box(-9.0, 9.0, (2, 2)), spaces.Box(low, high))
    made = envs.make(name)
    assert made.spec.num_actions is None and made.spec.action_size == 4
    env = made.make(range(3), 0)
    env.reset()
    # The middle, the corners, and what lies beyond them.
    actions = np.float32([[0, 0, 0, 0], [-1, 1, -1, 0.5], [-3, 3, 3, -3]])
    seen = env.step(actions).observation.reshape(3, 4)
    assert seen.tolist() == [[1, 0.5, 2, 0], [-2, 1, 1, 0.5], [-2, 1, 3, -1]]
    env.close()


def kinds(env, steps):
    """Step types, discounts and rewards of one copy."""
    timesteps = [env.reset(), *(env.step(np.zeros(1, np.int32)) for _ in range(steps))]
    env.close()
    return [
        [float(getattr(t, field)[0]) for t in timesteps]
        for field in ("step_type", "discount", "reward")
    ]


def test_truncation_keeps_the_discount(scripted):
    def pays(env, action):
        return np.zeros(1, np.float32), 2.0, False, False

    made = envs.make(scripted(pays, max_episode_steps=2))
    step_types, discounts, rewards = kinds(made.make(range(1), 0), 6)
    assert step_types == [FIRST, MID, LAST, FIRST, MID, LAST, FIRST]
    assert discounts == [1] * 7 and rewards == [0, 2, 2, 0, 2, 2, 0]


def test_termination_ends_the_discount(scripted):
    def ends(env, action):
        return np.zeros(1, np.float32), 2.0, env.time == 2, False

    made = envs.make(scripted(ends))
    step_types, discounts, _ = kinds(made.make(range(1), 0), 6)
    assert step_types == [FIRST, MID, LAST, FIRST, MID, LAST, FIRST]
    assert discounts == [1, 1, 0, 1, 1, 0, 1]


def test_a_reset_plays_again_and_slots_differ():
    env = envs.make("gym:CartPole-v1").make(range(2), 7)
    actions = np.random.default_rng(0).integers(2, size=(60, 2)).astype(np.int32)

    def played():
        return np.stack([env.reset().observation, *(env.step(a).observation for a in actions)])

    once, again = played(), played()
    env.close()
    assert (once == again).all() and (once[0, 0] != once[0, 1]).any()


@pytest.mark.parametrize("what", ["observation", "reward"])
def test_a_number_that_is_not_finite_is_named_with_its_slot(scripted, what):
    bad = int(slot_seeds(range(5, 6), 0)[0])

    def answer(env, action):
        broken = np.nan if env.seed == bad and action is not None else 0.0
        observation = np.full(1, broken if what == "observation" else 0.0, np.float32)
        return observation, broken if what == "reward" else 0.0, False, False

    env = envs.make(scripted(answer)).make(range(4, 6), 0)
    env.reset()
    with pytest.raises(EnvError, match=f"Scripted-v0, slot 5: the {what} holds a number"):
        env.step(np.zeros(2, np.int32))
    env.close()


def test_an_environment_that_raises_is_named(scripted):
    def answer(env, action):
        if action is not None:
            raise RuntimeError("out of paper")
        return np.zeros(1, np.float32), 0.0, False, False

    env = envs.make(scripted(answer)).make(range(1), 0)
    env.reset()
    with pytest.raises(EnvError, match="Scripted-v0 raised RuntimeError: out of paper"):
        env.step(np.zeros(1, np.int32))
    env.close()


MODULE = """
import gymnasium
import numpy as np

class Odd(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {}

gymnasium.register("Odd-v3", "odd_environments:Odd", max_episode_steps=5)
"""


@pytest.fixture
def odd_file(tmp_path):
    """The directory of a module that registers an environment when it is imported."""
    (tmp_path / "odd_environments.py").write_text(MODULE)
    yield tmp_path
    sys.modules.pop("odd_environments", None)
    gymnasium.registry.pop("Odd-v3", None)


@pytest.fixture
def odd(odd_file, monkeypatch):
    monkeypatch.syspath_prepend(odd_file)
    return "odd_environments:Odd-v3"


def test_a_module_is_imported_for_its_environments(odd):
    for name in (odd, f"gym:{odd}"):
        step_types, *_ = kinds(envs.make(name).make(range(1), 0), 5)
        assert step_types == [FIRST, *[MID] * 4, LAST]


def test_the_directory_one_is_in_is_looked_in_last(odd_file, monkeypatch):
    """As the console script has it: its own directory on the path, and not the current one."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(odd_file))])
    monkeypatch.chdir(odd_file)
    (odd_file / "gymnasium.py").write_text("raise ImportError")
    config = EnvConfig(num_envs=1, processes=1)
    env = envs.make("odd_environments:Odd-v3", config).make(range(1), 0)
    assert env.reset().step_type == FIRST  # the worker has found it too
    env.close()
    assert sys.path[-1] == "" and sys.path.count("") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all' (odd_"),
        ("\nx = missing", "NameError: name 'missing' is not defined (odd_environments.py:2)"),
        ("x = (", "SyntaxError: '(' was never closed (odd_environments.py, line 1) (odd_env"),
        ("raise SystemExit(3)", "SystemExit: 3 (odd_environments.py:1)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(odd_file, monkeypatch, text, message):
    (odd_file / "odd_environments.py").write_text(text)
    monkeypatch.syspath_prepend(odd_file)
    with pytest.raises(ConfigError) as caught:
        envs.make("odd_environments:Odd-v3")
    assert f"importing odd_environments raised {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("gym:CartPole", "gym:CartPole-v1"),
        ("gym:FrozenLake-v1", "gym:FrozenLake-v1"),
        ("gym:FrozenLake?is_slippery=False", "gym:FrozenLake-v1?is_slippery=False"),
        ("envs.misshapen:Hanging", "envs.misshapen:Hanging-v0"),
        ("gym:envs.misshapen:Hanging", "gym:envs.misshapen:Hanging-v0"),
        ("atari:pong", "atari:pong"),
        ("catch", "catch"),
    ],
)
def test_a_name_without_a_version_is_that_of_the_newest(name, full):
    assert envs.with_version(name) == full
    assert envs.make(name).spec == envs.make(full).spec  # and nobody is warned


def test_arguments_stand_behind_a_question_mark():
    assert envs.make("gym:FrozenLake-v1?map_name='8x8'").spec.observation_shape == (64,)
    made = envs.make("gym:FrozenLake-v1?is_slippery=False, max_episode_steps=3")
    env = made.make(range(1), 0)
    timesteps = [env.reset(), *(env.step(np.array([a], np.int32)) for a in (2, 2, 0))]
    env.close()
    assert [int(t.observation[0].argmax()) for t in timesteps] == [0, 1, 2, 1]
    assert timesteps[-1].step_type == LAST and timesteps[-1].discount == 1.0
    envs.check(made, steps=20)
    assert made.film is not None


@pytest.mark.parametrize(
    "text", ["", "is_slippery", "is_slippery=no", "3", "**{'a': 3}", "a=1)(b=2", "a=f()", "a=1,a=2"]
)
def test_arguments_that_python_does_not_read_are_named(text):
    with pytest.raises(ConfigError, match=r"behind its question mark, e.g. gym:FrozenLake-v1\?is_"):
        envs.make(f"gym:FrozenLake-v1?{text}")


def test_an_argument_that_is_not_taken_is_named():
    with pytest.raises(ConfigError, match="cannot be made: TypeError: .*'slippery'"):
        envs.make("gym:FrozenLake-v1?slippery=False")


@pytest.mark.parametrize("shape", [(3, 84, 80), (4, 84, 80)])
def test_channels_that_come_first_are_put_last(scripted, shape):
    space = spaces.Box(0, 255, shape, np.uint8)
    given = space.sample()
    name = scripted(lambda env, action: (given, 0.0, False, False), observation_space=space)
    found = observed(name, range(2))
    assert found.shape == (84, 80, shape[0]) and found.flags.c_contiguous
    assert (found == given.transpose(1, 2, 0)).all()
    picture = envs.make(name).render(found)
    assert picture.shape == (84, 80, 3)


@pytest.mark.parametrize("shape", [(8, 8, 3), (3, 8, 8), (84, 84, 16), (16, 84, 16)])
def test_channels_stay_where_they_may_be_last(scripted, shape):
    space = spaces.Box(0, 255, shape, np.uint8)
    name = scripted(lambda env, action: (space.low, 0.0, False, False), observation_space=space)
    assert envs.make(name).spec.observation_shape == shape


@pytest.mark.parametrize(
    ("observation_space", "action_space", "message"),
    [
        (spaces.Text(5), None, "Text.* observations"),
        (spaces.Dict({"a": UNIT, "b": spaces.Text(5)}), None, "Dict.* observations"),
        (spaces.Sequence(UNIT), None, "Sequence.* observations"),
        (UNIT, spaces.Box(0, 5, (2,), np.int64), "Box.* actions"),
        (UNIT, spaces.Text(5), "Text.* actions"),
    ],
)
def test_a_space_that_is_not_supported_is_named(scripted, observation_space, action_space, message):
    name = scripted(zeros, observation_space, action_space)
    with pytest.raises(ConfigError, match=f"env.name: 'Scripted-v0' has {message}; supported are"):
        envs.make(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gym:CartPol-v1", "env.name: Gymnasium has no environment 'CartPol-v1'; .*CartPole-v1"),
        ("gym:CartPole-v77", r"'CartPole-v77'; did you mean gym:CartPole-v1\?$"),
        ("gym:Pendulum-v0", r"has no environment 'Pendulum-v0'; did you mean gym:Pendulum-v1\?$"),
        ("envs.misshapen:Hanging-v7", r"did you mean envs.misshapen:Hanging-v0\?$"),
        ("no_such_module:Thing-v0", "env.name: 'no_such_module:Thing-v0' cannot be made: No mod"),
        ("gym:not an id", "env.name: 'not an id' cannot be made: Malformed"),
        (":", "env.name: ':' names no module; module:EnvId imports a module as Python does"),
        ("../x:Foo", "env.name: '../x:Foo' names no module"),
        ("gym:", "env.name: '' cannot be made: Malformed"),
        ("GYM:CartPole-v1", "No module named 'GYM'; did you mean gym:CartPole-v1?"),
        ("ATARI:pong", "No module named 'ATARI'; did you mean atari:pong?"),
        ("gym:ALE/Pong-v55", "has no environment 'ALE/Pong-v55'; did you mean atari:pong?"),
        ("ALE/MsPacman-v5", "no environment 'ALE/MsPacman-v5'; did you mean atari:ms_pacman?"),
        ("UpNDownNoFrameskip-v4", "did you mean atari:up_n_down?"),
        ("CartPole-v1", "no environment 'CartPole-v1'; did you mean gym:CartPole-v1?"),
        ("CartPole", "did you mean gym:CartPole-v1?"),
        ("CartPol-v1", "did you mean gym:CartPole-v1"),
        ("envs.misshapen:MisshapenNam-v0", "did you mean envs.misshapen:MisshapenNan-v0"),
        ("catsh", "env.name: this version has no environment 'catsh'; did you mean catch"),
    ],
)
def test_a_name_that_is_not_found_is_named(name, message):
    with pytest.raises(ConfigError, match=message):
        envs.make(name)


def test_nobody_is_told_to_upgrade_to_what_an_error_names(recwarn):
    with pytest.raises(ConfigError):
        envs.make("gym:Pendulum-v0")
    assert not recwarn.list


@pytest.mark.parametrize(
    ("said", "message"),
    [
        # As Gymnasium words it.
        (
            "Box2D is not installed, you can install it by run `pip install swig` followed by "
            '`pip install "gymnasium[box2d]"`',
            r"cannot be made: Box2D is not installed; pip install 'muesli-rl\[box2d\]'$",
        ),
        (
            'MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`',
            r"cannot be made: MuJoCo is not installed; pip install 'muesli-rl\[mujoco\]'$",
        ),
        ("no robot, run `pip install robot`", "made: no robot, run `pip install robot`$"),
    ],
)
def test_a_missing_extra_is_named_as_ours(scripted, monkeypatch, said, message):
    def missing(*_, **settings):
        raise gymnasium.error.DependencyNotInstalled(said)

    name = scripted(zeros)
    monkeypatch.setattr(gymnasium.registry["Scripted-v0"], "entry_point", missing)
    with pytest.raises(ConfigError, match=message):
        envs.make(name)


def test_a_missing_gymnasium_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ConfigError, match=r"pip install 'muesli-rl\[gym\]'"):
        envs.make("gym:CartPole-v1")


def test_a_name_of_ones_own_comes_first(monkeypatch):
    monkeypatch.setitem(envs.ENVS, "mine:cart", lambda: envs.make("gym:CartPole-v1"))
    assert envs.make("mine:cart").spec.num_actions == 2


def test_pictures(scripted):
    bars = envs.make("gym:CartPole-v1").render(np.float32([0.0, 1.0, -3.0, 0.0]))
    assert bars.dtype == np.uint8 and bars.shape == (96, 24, 3)
    # 1 / (1 + 1) and 3 / (1 + 3) of the way from the middle: 24 and 36 of 48 rows.
    lit = (bars != bars[0, 0]).any(axis=-1)
    assert lit[24:48, 6].all() and not lit[:24, 6].any()
    assert lit[48:84, 12].all() and not lit[84:, 12].any() and not lit[:48, 12].any()

    space = spaces.Box(0, 255, (4, 5, 3), np.uint8)
    image = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    made = envs.make(scripted(lambda env, action: (image, 0.0, False, False), space))
    assert (made.render(image) == image).all()
    assert made.render(image[..., :1]).shape == (4, 5, 3)


def broken(**changes):
    """CartPole with one promise broken."""
    made = envs.make("gym:CartPole-v1")

    def make(slots, seed):
        env = made.make(slots, seed)

        def change(timestep):
            return timestep._replace(**{k: f(timestep) for k, f in changes.items()})

        return env._replace(
            reset=lambda: change(env.reset()), step=lambda action: change(env.step(action))
        )

    return made._replace(make=make)


def writes_to_what_it_gave():
    kept = np.zeros((2, 4), np.float32)

    def observation(timestep):
        if len(timestep.observation) != 2:
            return timestep.observation
        kept[:] = timestep.observation
        return kept

    return broken(observation=observation)


def forgets_its_seed():
    made = envs.make("gym:CartPole-v1")
    seeds = iter(range(100))
    return made._replace(make=lambda slots, seed: made.make(slots, next(seeds)))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            broken(observation=lambda t: t.observation[:, 1:]),
            "reset, copy 0: observation has shape",
        ),
        (broken(observation=lambda t: t.observation[:1]), "first axis counts the 2 copies"),
        (broken(reward=lambda t: t.reward.tolist()), "reset: reward must be a NumPy array"),
        (broken(reward=lambda t: t.reward.astype(np.float64)), "reward must be a float32 scalar"),
        (broken(discount=lambda t: np.zeros_like(t.discount)), "discount 0 on a time step"),
        (broken(step_type=lambda t: np.ones_like(t.step_type)), "reset must return a FIRST"),
        (broken(step_type=lambda t: np.zeros_like(t.step_type)), "FIRST in the middle"),
        (writes_to_what_it_gave(), "step 0: an array that was handed out before was written to"),
        (forgets_its_seed(), "step 0: a copy made again plays differently"),
    ],
)
def test_the_check_names_what_is_broken(made, message):
    with pytest.raises(EnvError, match=message):
        envs.check(made, steps=20)
