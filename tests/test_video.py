"""What a frame of a video shows: who does what, what it is thought to be worth, what came of it."""

from dataclasses import replace
from types import SimpleNamespace

import imageio.v2 as imageio
import jax
import numpy as np
import pytest
from envs.misshapen import Drawn, make_drawn, make_walk

import muesli
from muesli import envs, presets
from muesli.config import ConfigError
from muesli.envs.atari import ACTIONS
from muesli.envs.games import MINATAR_GAMES
from muesli.runners.parts import build
from muesli.runners.player import Player, Thought
from muesli.video import _Canvas, _film, _Play, _play, _remedy, record


@pytest.fixture(scope="module")
def player(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("video") / "catch"
    muesli.train(replace(presets.catch(), total_env_steps=200), run_dir)
    return muesli.load(run_dir)


@pytest.fixture
def canvas(player):
    canvas = _Canvas(player)
    yield canvas
    canvas.close()


FRAME = np.zeros((10, 5, 3), np.uint8)
THOUGHT = Thought(np.array([0.2, 0.5, 0.3]), 1.8, np.array([1.5, 2.5, 2.0]), 2.0)


def draw(canvas, step=0, reward=0.0, action=1, begins=False, thought=THOUGHT):
    done = None if action is None else np.array(action)
    return canvas.draw(FRAME, thought, _Play(step, reward, reward, thought.value, done, begins))


def test_the_action_that_is_taken_stands_out_and_has_its_name(canvas):
    draw(canvas, action=2)
    for axes in (canvas.policy, canvas.q):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["left", "stay", "right"]
        assert [bar.get_alpha() for bar in axes.patches] == [0.45, 0.45, 1.0]
    draw(canvas, action=None)  # the end of an episode: nothing is chosen
    assert not canvas.policy.patches and not canvas.q.patches


def test_action_values_are_drawn_from_the_baseline(canvas):
    draw(canvas)
    spans = [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in canvas.q.patches]
    np.testing.assert_allclose(spans, [(2.0, 1.5), (2.0, 2.5), (2.0, 2.0)])
    low, high = canvas.q.get_ylim()
    assert low < 1.5 and high > 2.5
    # Where all are worth the same, there is still something to look at.
    draw(canvas, thought=THOUGHT._replace(q=np.full(3, 2.0)))
    assert canvas.q.get_ylim()[0] < canvas.q.get_ylim()[1]


def test_an_episode_leaves_its_values_and_rewards_behind_and_the_next_begins_anew(canvas):
    draw(canvas, 0, begins=True)
    draw(canvas, 1, reward=1.0)
    draw(canvas, 2, reward=-1.0)
    assert list(canvas.values) == [1.8] * 3
    rewards = {round(float(line.get_xdata()[0])): line.get_color() for line in canvas.past.lines}
    assert rewards[1] != rewards[2]
    draw(canvas, 3, begins=True)
    assert list(canvas.values) == [1.8]


def test_illegal_actions_have_no_value(canvas):
    policy, q = np.array([0.4, 0.6, 0.0]), np.array([1.5, 2.5, 90.0])
    draw(canvas, thought=Thought(policy, 2.0, q, 2.0))
    # The others stand below their probabilities.
    assert canvas.policy.get_xlim() == canvas.q.get_xlim()
    assert [np.isnan(bar.get_height()) for bar in canvas.q.patches] == [False, False, True]
    assert canvas.q.get_ylim()[1] < 3.0


def test_a_game_of_two_is_told_from_the_first_players_side(tmp_path_factory):
    """The network speaks for whoever moves; a line through that would only zigzag."""
    run_dir = tmp_path_factory.mktemp("video") / "tic_tac_toe"
    muesli.train(replace(presets.tic_tac_toe(), total_env_steps=200), run_dir)
    player, seen = muesli.load(run_dir), []

    class Canvas:
        def draw(self, frame, thought, play):
            seen.append((thought, play))

    list(_play(player, player.actor("random"), Canvas(), 12, 200, 0))
    ends = [k for k, (_, play) in enumerate(seen) if play.action is None]
    begins = [0, *(k + 1 for k in ends[:-1])]
    scores = []
    for first, last in zip(begins, ends, strict=True):
        moves = last - first
        for n in range(moves):
            thought, play = seen[first + n]
            assert play.value == (-1) ** n * thought.value
            assert play.reward == play.score == 0.0
        over = seen[last][1]
        assert np.isnan(over.value)
        # Who completes a line has won: the first player with an odd number of moves.
        assert over.score == over.reward
        assert moves == 9 or over.score == (1.0 if moves % 2 else -1.0)
        scores.append(over.score)
    assert {1.0, -1.0} <= set(scores)


def test_many_actions_are_not_named(canvas):
    draw(canvas, thought=Thought(np.full(82, 1 / 82), 0.0, np.zeros(82), 0.0))
    assert not list(canvas.policy.get_xticks())


def test_a_video_ends_with_the_last_observation_of_the_last_episode(player, tmp_path):
    # Catch lasts nine moves: ten pictures an episode.
    assert record(player, tmp_path / "v.gif", episodes=2, max_steps=100, fps=10, seed=0) == 20
    assert len(imageio.mimread(tmp_path / "v.gif")) > 1


def test_a_video_that_is_not_finished_leaves_the_old_one_alone(player, tmp_path, monkeypatch):
    file = tmp_path / "v.mp4"
    assert record(player, file, episodes=1, max_steps=3, fps=10, seed=0) == 3
    before, drawn = file.read_bytes(), []

    def draw(self, *arguments, actual=_Canvas.draw):
        assert file.read_bytes() == before
        if len(drawn) == 2:
            raise KeyboardInterrupt
        drawn.append(actual(self, *arguments))
        return drawn[-1]

    monkeypatch.setattr(_Canvas, "draw", draw)
    with pytest.raises(KeyboardInterrupt):
        record(player, file, episodes=1, max_steps=5, fps=10, seed=0)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["v.mp4"]


def filmed(name, capsys):
    """The picture of an environment of that name, if it is filmed, and what is said otherwise."""
    config = SimpleNamespace(env=SimpleNamespace(name=name))
    env, picture = _film(SimpleNamespace(env=envs.make(name), config=config), 0)
    try:
        if picture is None:
            return None, capsys.readouterr().out
        env.reset()
        return picture(), capsys.readouterr().out
    finally:
        env.close()


def test_ones_own_environment_is_filmed_where_it_draws_itself(monkeypatch, capsys):
    monkeypatch.setitem(envs.ENVS, "drawn", make_drawn)
    for name in ("drawn", "envs.misshapen:Drawn-v0", "gym:Drawn-v0?render_mode='rgb_array'"):
        picture, said = filmed(name, capsys)
        assert picture.shape == (6, 7, 3) and said == ""
    monkeypatch.setitem(envs.ENVS, "walk", make_walk)
    assert filmed("walk", capsys) == (None, "")
    for draws, why in (
        ("raises", "no paper"),
        ("nothing", "render must return [H, W, 3], got None"),
    ):
        monkeypatch.setitem(envs.ENVS, "odd", lambda draws=draws: Drawn("rgb_array", draws))
        picture, said = filmed("odd", capsys)
        assert picture is None and why in said and said.endswith("shows its observations\n")


def test_what_is_missing_for_a_picture_is_named():
    pygame = 'pygame is not installed, run `pip install "gymnasium[classic-control]"`'
    assert "'muesli-rl[gym]'" in _remedy(pygame) and "MuJoCo" not in _remedy(pygame)
    for reason in ("'NoneType' object has no attribute 'eglQueryString'", "gladLoadGL error"):
        assert "MUJOCO_GL=osmesa" in _remedy(reason)
    assert _remedy("no paper") == ""


@pytest.mark.parametrize("game", MINATAR_GAMES)
def test_the_names_of_minatars_actions_are_those_that_pgx_plays(game):
    import pgx

    names = ("wait", "left", "up", "right", "down", "fire")
    played = pgx.make(f"minatar-{game}").minimal_action_set
    spec = envs.make(f"minatar_{game}").spec
    assert spec.action_names == tuple(names[i] for i in np.asarray(played))


def test_the_names_of_ataris_actions_are_in_the_emulators_order():
    ale = pytest.importorskip("ale_py")
    arrows = {"UP": "↑", "DOWN": "↓", "LEFT": "←", "RIGHT": "→", "NOOP": "–", "FIRE": "•"}
    arrows |= {"UPRIGHT": "↗", "UPLEFT": "↖", "DOWNRIGHT": "↘", "DOWNLEFT": "↙"}
    moves = [name for name in arrows if name not in ("NOOP", "FIRE")]
    arrows |= {f"{name}FIRE": f"{arrows[name]}•" for name in moves}
    assert tuple(arrows[action.name] for action in ale.Action) == ACTIONS


def test_an_environment_must_name_all_its_actions_or_none():
    env = envs.make("catch")
    with pytest.raises(envs.EnvError, match=r"spec.action_names: 2 names for 3 actions"):
        envs.check(env._replace(spec=env.spec._replace(action_names=("left", "right"))))


def test_a_training_refuses_wrong_names_before_it_starts(monkeypatch):
    env = envs.make("catch")
    spec = env.spec._replace(action_names=("left", "right"))
    monkeypatch.setitem(envs.ENVS, "misnamed", lambda: env._replace(spec=spec))
    config = presets.catch()
    config = replace(config, env=replace(config.env, name="misnamed"))
    with pytest.raises(ConfigError, match="misnamed has 2 names for 3 actions"):
        build(config)


@pytest.mark.parametrize("baseline", ["value", "expected_q"])
def test_a_thought_knows_what_advantages_are_taken_over(player, baseline):
    config = replace(player.config, agent=replace(player.config.agent, baseline=baseline))
    mine = Player(player.parts._replace(config=config), player.state)
    _, timestep = jax.vmap(player.env.reset)(jax.random.split(jax.random.key(0), 1))
    thought = mine.think(timestep, mine.initial_state(1))
    wanted = thought.value if baseline == "value" else thought.policy @ thought.q
    assert thought.baseline == pytest.approx(float(wanted), abs=1e-6)
