"""The emulators run as the paper's table says, and keep the contract across an episode's end."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from muesli import envs
from muesli.config import AtariConfig, ConfigError, EnvConfig
from muesli.envs import atari
from muesli.envs.base import slot_seeds
from muesli.types import EnvSpec, StepType

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
FIRE, RIGHT = 1, 3


def config(**settings):
    """Two copies on one thread, with small pictures."""
    settings = {"size_pixels": 24, **settings}
    return EnvConfig(num_envs=2, threads=1, atari=AtariConfig(**settings))


def play(game, actions, slots=range(1), seed=0, **settings):
    """All time steps under the actions [T], the first one included."""
    env = atari.atari(game, config(**settings)).make(slots, seed)
    steps = [env.reset()]
    steps += [env.step(np.full(len(slots), action, np.int32)) for action in actions]
    env.close()
    return steps


def halves(game, actions, slots=range(1), seed=0, **settings):
    """What ale-py itself answers when each action is held for 2 frames: the oracle."""
    from ale_py.vector_env import AtariVectorEnv

    settings = AtariConfig(size_pixels=24, **settings)
    vector = AtariVectorEnv(
        game,
        len(slots),
        num_threads=1,
        max_num_frames_per_episode=settings.max_episode_frames,
        repeat_action_probability=settings.sticky_action_probability,
        full_action_space=True,
        img_height=24,
        img_width=24,
        grayscale=False,
        stack_num=1,
        frameskip=2,
        noop_max=0,
        reward_clipping=False,
        use_fire_reset=False,
    )
    vector.reset(seed=slot_seeds(slots, seed))
    return [vector.step(np.full(len(slots), action, np.int32)) for action in actions]


def test_scores_are_the_papers():
    assert len(atari.GAMES) == 57 and atari.GAMES[0] == "alien" and atari.GAMES[-1] == "zaxxon"
    assert atari.SCORES["ms_pacman"] == (307, 6952)
    # (16 − 2) / (30 − 2), (21 + 21) / (15 + 21), (−30000 + 17098) / (−4337 + 17098)
    assert atari.human_normalised("breakout", 16.0) == 0.5
    assert atari.human_normalised("pong", 21.0) == pytest.approx(42 / 36)
    assert atari.human_normalised("skiing", -30000.0) == pytest.approx(-12902 / 12761)
    for game, (random, human) in atari.SCORES.items():
        assert atari.human_normalised(game, random) == 0.0
        assert atari.human_normalised(game, human) == 1.0


def test_every_game_has_its_rom():
    spec = EnvSpec((96, 96, 3), np.dtype(np.uint8), 18, action_names=atari.ACTIONS)
    for game in atari.GAMES:
        assert envs.make(f"atari:{game}").spec == spec


@pytest.mark.parametrize("pool_frames", [2, 4])
def test_conforms(pool_frames):
    made = envs.make("atari:pong", config(pool_frames=pool_frames, max_episode_frames=58))
    envs.check(made, steps=70)


def test_two_half_steps_are_one_step_that_sees_more():
    actions = np.random.default_rng(0).integers(18, size=120)
    two, four = (play("ms_pacman", actions, pool_frames=pool) for pool in (2, 4))
    assert sum(float(t.reward[0]) for t in two) > 0
    brighter = 0
    for a, b in zip(two, four, strict=True):
        assert a.reward[0] == b.reward[0] and a.step_type[0] == b.step_type[0]
        assert (b.observation >= a.observation).all()
        brighter += (b.observation > a.observation).any()
    assert brighter > 60


def ends(steps):
    """Steps of each whole episode."""
    kinds = np.array([int(t.step_type[0]) for t in steps])
    starts, lasts = np.flatnonzero(kinds == FIRST), np.flatnonzero(kinds == LAST)
    return (lasts - starts[: len(lasts)]).tolist()


def test_the_limit_counts_frames():
    # Frames at the ends of time steps: 0 4 … 20 22; whoever ends in a first half begins anew at
    # frame 4, after a reset in the second half and four no-ops: 4 8 … 20 22.
    assert ends(play("pong", [0] * 20, max_episode_frames=22)) == [6, 5, 5]
    # 0 4 … 24; whoever ends in a second half is reset in a first half: 2 6 … 22 24; 4 8 … 24.
    assert ends(play("pong", [0] * 28, max_episode_frames=24)) == [6, 6, 5, 6]
    # In whole steps an episode begins at frame 0.
    assert ends(play("pong", [0] * 20, max_episode_frames=22, pool_frames=2)) == [6, 6, 6]


def test_an_episode_cut_off_in_a_first_half_ends_with_that_picture():
    steps = play("breakout", [RIGHT] * 8, max_episode_frames=22)
    # Halves 0 … 10 see 22 frames, half 11 is a reset, whatever the action; halves 12 and 13 are
    # the no-ops of FIRST, and 14 and 15 the step after it.
    answers = halves("breakout", [RIGHT] * 12 + [0, 0, RIGHT, RIGHT], max_episode_frames=22)
    pictures = [answer[0].reshape(1, 24, 24, 3) for answer in answers]
    assert [int(t.step_type[0]) for t in steps] == [FIRST, *[MID] * 5, LAST, FIRST, MID]
    for t in range(5):
        pooled = np.maximum(pictures[2 * t], pictures[2 * t + 1])
        assert (steps[t + 1].observation == pooled).all()
    last, fresh, after = steps[6:]
    assert (pictures[11] > pictures[10]).any()  # the paddle is back: not to be seen in LAST
    assert (last.observation == pictures[10]).all() and float(last.discount[0]) == 1.0
    assert (fresh.observation == np.maximum(pictures[12], pictures[13])).all()
    assert float(fresh.reward[0]) == 0.0 and float(fresh.discount[0]) == 1.0
    assert (after.observation == np.maximum(pictures[14], pictures[15])).all()


def test_a_lost_game_terminates_and_rewards_of_both_halves_are_summed():
    actions, slots = [FIRE, 3, 4] * 130, range(2)
    steps = play("breakout", actions, slots)
    answers = halves("breakout", np.repeat(actions, 2), slots)
    for copy in slots:
        kinds = [int(t.step_type[copy]) for t in steps]
        end = kinds.index(LAST)
        assert kinds[end + 1] == FIRST and float(steps[end].discount[copy]) == 0.0
        assert [float(t.discount[copy]) for t in steps[:end]] == [1.0] * end
        earned = [float(t.reward[copy]) for t in steps[1 : end + 1]]
        # Up to the end, where a second half may already be a reset.
        given = np.array([float(answer[1][copy]) for answer in answers[: 2 * end]])
        assert earned[:-1] == given.reshape(-1, 2).sum(axis=1).tolist()[:-1]
        assert sum(earned) > 0
        over = [bool(answer[2][copy]) for answer in answers[: 2 * end]]
        assert any(over[-2:]) and not any(over[:-2])


def test_a_limit_within_the_no_ops_breaks_no_promise():
    envs.check(envs.make("atari:pong", config(max_episode_frames=3)), steps=30)
    assert ends(play("pong", [0] * 20, max_episode_frames=3))


def test_slots_differ_and_a_reset_plays_again():
    actions = np.random.default_rng(1).integers(18, size=(40, 2)).astype(np.int32)
    env = envs.make("atari:breakout", config(max_episode_frames=160)).make(range(2), 5)

    def episode():
        steps = [env.reset(), *(env.step(a) for a in actions)]
        return [np.stack([getattr(t, field) for t in steps]) for field in steps[0]._fields[:4]]

    once, again = episode(), episode()
    env.close()
    assert all((a == b).all() for a, b in zip(once, again, strict=True))
    pictures, _, _, kinds = once
    assert kinds[:, 0].tolist() == [FIRST, *[MID] * 39, LAST]
    assert (pictures[0, 0] == pictures[0, 1]).all() and (pictures[:, 0] != pictures[:, 1]).any()


def test_actions_stick():
    stuck = play("breakout", [FIRE] * 20, sticky_action_probability=1.0)
    idle = play("breakout", [0] * 20, sticky_action_probability=0.0)
    free = play("breakout", [FIRE] * 20, sticky_action_probability=0.0)
    assert all((a.observation == b.observation).all() for a, b in zip(stuck, idle, strict=True))
    assert any((a.observation != b.observation).any() for a, b in zip(stuck, free, strict=True))


def test_grey_and_pictures():
    made = envs.make("atari:pong", config(grey=True, frame_skip=2, pool_frames=2))
    assert made.spec.observation_shape == (24, 24, 1) and made.frames_per_step == 2
    env = made.make(range(1), 0)
    observation = env.reset().observation
    env.close()
    assert observation.shape == (1, 24, 24, 1) and observation.max() > 0
    picture = made.render(observation[0])
    assert picture.shape == (24, 24, 3) and (picture == observation[0]).all()
    colour = envs.make("atari:pong")
    assert colour.frames_per_step == 4
    assert colour.render(np.full((96, 96, 3), 7, np.uint8)).shape == (96, 96, 3)


@pytest.mark.parametrize(
    ("threads", "num_envs", "copies", "expected"),
    [(8, 24, 12, 4), (8, 24, 1, 1), (8, 24, 64, 8), (8, 2, 2, 2), (1, 24, 12, 1)],
)
def test_threads_are_shared_among_the_groups(threads, num_envs, copies, expected):
    assert atari._threads(EnvConfig(threads=threads, num_envs=num_envs), copies) == expected


def test_every_processor_is_used_by_default():
    assert 1 <= atari._threads(EnvConfig(num_envs=2), 2) <= 2


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted on Linux")
def test_close_ends_the_threads():
    def threads():
        return len(list(Path("/proc/self/task").iterdir()))

    several = dataclasses.replace(config(), threads=2)
    before = threads()
    env = envs.make("atari:pong", several).make(range(2), 0)
    assert threads() == before + 2
    env.close()
    assert threads() == before


@pytest.mark.parametrize(
    ("game", "settings", "message"),
    [
        ("pacman", {}, "env.name: there is no Atari game 'pacman'; did you mean atari:ms_pacman"),
        ("xyz", {}, "there are alien, amidar"),
        ("pong", {"frame_skip": 3}, "env.atari.frame_skip: must be even"),
        ("pong", {"frame_skip": 0}, "env.atari.frame_skip: must be at least 1"),
        ("pong", {"pool_frames": 3}, "env.atari.pool_frames: must be 2 or 4"),
        ("pong", {"sticky_action_probability": 1.5}, "env.atari.sticky_action_probability"),
    ],
)
def test_what_cannot_run_is_named(game, settings, message):
    with pytest.raises(ConfigError, match=message):
        envs.make(f"atari:{game}", config(**settings))


def test_a_missing_ale_py_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=r"pip install 'muesli-rl\[atari\]'"):
        envs.make("atari:pong")
