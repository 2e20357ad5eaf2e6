"""Go, move for move, against two referees: OpenSpiel's, and our own in plain Python."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import envs
from muesli.config import ConfigError, EnvConfig, GoConfig
from muesli.go.rules import BLACK, WHITE, Game, Move, from_vertex
from muesli.types import StepType


@functools.cache
def stepper(size, komi):
    env = envs.make(f"go_{size}x{size}", EnvConfig(go=GoConfig(komi)))
    return env, jax.jit(env.reset), jax.jit(env.step)


@functools.cache
def games(size, komi, style, count, seed=0):
    """``count`` games to their ends: actions, and the time steps before each and after, [G, T]."""
    env = stepper(size, komi)[0]
    points = size * size

    def logits(timestep):
        """uniform: any legal move. pack: a point with few empty neighbours, which makes captures
        and kos. fight: the same, and never a pass."""
        flat = jnp.zeros(points + 1)
        if style == "uniform":
            return jnp.where(timestep.legal_actions, flat, -1e9)
        empty = jnp.pad(timestep.observation[..., 2].astype(jnp.float32), 1)
        open_sides = empty[:-2, 1:-1] + empty[2:, 1:-1] + empty[1:-1, :-2] + empty[1:-1, 2:]
        wish = jnp.append(-1.5 * open_sides.reshape(-1), -20.0 if style == "fight" else -4.0)
        return jnp.where(timestep.legal_actions, wish, -1e9)

    def play(key):
        def step(carry, key):
            state, timestep = carry
            action = jax.random.categorical(key, logits(timestep))
            state, after = env.step(state, action, key)
            return (state, after), (action, timestep, after)

        start = env.reset(key)
        return jax.lax.scan(step, start, jax.random.split(key, 2 * points))[1]

    keys = jax.random.split(jax.random.key(seed), count)
    return jax.device_get(jax.jit(jax.vmap(play))(keys))


def each_game(*arguments, **options):
    """The moves of every game: (action, time step before, time step after)."""
    actions, before, after = games(*arguments, **options)
    for g in range(actions.shape[0]):
        moves = []
        for t in range(actions.shape[1]):
            at = lambda x: jax.tree.map(lambda y: y[g, t], x)  # noqa: B023
            moves.append((int(actions[g, t]), at(before), at(after)))
            if after.step_type[g, t] == StepType.LAST:
                break
        yield moves


CASES = [
    (3, 0.5, "fight", 150),  # where whole boards come back
    (5, 7.5, "uniform", 60),
    (5, -3.5, "pack", 60),
    (9, 7.5, "fight", 15),
]
MORE = [
    (size, komi, style, 2000 // size)
    for size, komi in ((3, 0.5), (5, 7.5), (7, 8.5), (9, 7.5))
    for style in ("uniform", "pack", "fight")
]
MANY = [pytest.param(*case, marks=pytest.mark.slow) for case in MORE]


@pytest.mark.parametrize(("size", "komi", "style", "count"), CASES + MANY)
def test_openspiel_agrees_move_for_move(size, komi, style, count):
    pyspiel = pytest.importorskip("pyspiel", reason="OpenSpiel, the referee, is not installed")
    game = pyspiel.load_game(f"go(board_size={size},komi={komi})")
    repeats = 0
    for moves in each_game(size, komi, style, count):
        state = game.new_initial_state()
        for action, before, after in moves:
            assert not state.is_terminal()
            assert state.legal_actions() == np.flatnonzero(before.legal_actions).tolist()
            mover = state.current_player()
            assert mover == (0 if before.observation[0, 0, 6] else 1)
            state.apply_action(action)
            ended = after.step_type == StepType.LAST
            assert state.is_terminal() == ended
            assert after.discount == (0.0 if ended else 1.0)
            if not ended:
                assert after.reward == 0.0
            elif state.returns() == [0.0, 0.0]:
                # A whole board came back: a draw there, lost for the mover here.
                repeats += 1
                assert after.reward == -1.0
            else:
                assert after.reward == state.returns()[mover]
    if style == "fight" and size == 3:
        assert repeats > 0  # or the case that differs was never met


TIES = (3, 1.0, "uniform", 60)


@pytest.mark.parametrize(("size", "komi", "style", "count"), [*CASES, TIES])
def test_the_plain_referee_agrees_move_for_move(size, komi, style, count):
    captures = ties = 0
    for moves in each_game(size, komi, style, count):
        game = Game(size, komi, superko=False)
        for action, before, after in moves:
            colour = game.to_play
            np.testing.assert_array_equal(game.observation(colour), before.observation)
            np.testing.assert_array_equal(game.legal(colour), before.legal_actions)
            repeated = action < size**2 and game.after(Move(colour, action)) in game.boards
            stones = np.abs(game.board).sum()
            game.play(Move(colour, action))
            captures += max(0, stones + 1 - np.abs(game.board).sum() - (action == size**2))
            np.testing.assert_array_equal(game.observation(-colour), after.observation)
            over = game.passes >= 2 or len(game.moves) == 2 * size**2 or repeated
            assert over == (after.step_type == StepType.LAST)
            if over:
                assert after.reward == (-1.0 if repeated else colour * np.sign(game.score()))
                ties += after.reward == 0.0
    assert captures > 0
    assert (ties > 0) == (komi == 1.0)  # of a whole number of points


def follow(size, komi, vertices):
    """Plays the vertices in turn; every time step, the first included."""
    _, reset, step = stepper(size, komi)
    state, timestep = reset(jax.random.key(0))
    steps = [timestep]
    for vertex in vertices.split():
        state, timestep = step(state, from_vertex(vertex, size), jax.random.key(0))
        steps.append(timestep)
    return steps


def test_a_ko_may_not_be_retaken_at_once_but_after_a_threat():
    # Black takes at C3 (the stone on B3); White may not retake at B3 until a pair of moves later.
    opening = "B4 C4 A3 D3 B2 C2 E5 B3 C3"
    steps = follow(5, 7.5, opening)
    b3 = from_vertex("B3", 5)
    assert not steps[-1].legal_actions[b3]
    # The stone that was taken is gone, and was there a position ago.
    assert not steps[-1].observation[2, 1, 0] and steps[-1].observation[2, 1, 3]
    steps = follow(5, 7.5, f"{opening} E1 E2")
    assert steps[-1].legal_actions[b3]


def test_suicide_is_illegal_and_capture_out_of_no_liberties_is_not():
    # White's corner point A1 is surrounded by A2 and B1: suicide for Black.
    steps = follow(5, 7.5, "E5 A2 E4 B1")
    a1 = from_vertex("A1", 5)
    assert not steps[-1].legal_actions[a1]
    # With A2 itself out of breath, playing A1 captures it.
    steps = follow(5, 7.5, "A3 A2 B2 B1 C1 E5")
    assert steps[-1].legal_actions[a1]
    steps = follow(5, 7.5, "A3 A2 B2 B1 C1 E5 A1")
    # Both stones, A2 and B1, had no other liberty than A1: the mover's are now the opponent's.
    assert not steps[-1].observation[3, 0, 0] and not steps[-1].observation[4, 1, 0]


def test_komi_decides_an_empty_board_and_the_reward_is_the_movers():
    last = follow(5, 7.5, "pass pass")[-1]
    assert last.step_type == StepType.LAST and last.discount == 0.0
    assert last.reward == 1.0  # White, who passed second, has komi
    # One stone owns the board: 25 points against a komi of 7.5, and White moves last.
    last = follow(5, 7.5, "C3 pass pass")[-1]
    assert last.reward == 1.0 and not last.observation[0, 0, 6]
    # A white stone takes its border away: 1 against 1, and the rest is neutral.
    assert follow(5, 7.5, "C3 D4 pass pass")[-1].reward == 1.0
    # Of a whole number, an empty board is a tie; a point more or less decides it.
    assert [follow(5, k, "pass pass")[-1].reward for k in (-1.0, 0.0, 1.0)] == [-1.0, 0.0, 1.0]


def test_the_planes_are_the_papers_seven():
    steps = follow(5, 7.5, "C3 D4")
    first, second, third = (np.asarray(s.observation) for s in steps)
    assert first.shape == (5, 5, 7)
    assert first[..., [2, 5, 6]].all() and not first[..., [0, 1, 3, 4]].any()
    assert second[2, 2, 1] and not second[2, 2, 2] and not second[..., 6].any()
    assert second[..., 5].all()  # the position before was empty
    assert third[2, 2, 0] and third[1, 3, 1] and third[2, 2, 3] and third[..., 6].all()
    for planes in (first, second, third):
        assert (planes[..., :3].sum(-1) == 1).all() and (planes[..., 3:6].sum(-1) == 1).all()


def test_a_picture_shows_both_colours():
    steps = follow(5, 7.5, "C3 D4")
    env = stepper(5, 7.5)[0]
    for timestep in steps[1:]:
        picture = env.render(np.asarray(timestep.observation))
        assert picture.shape == (120, 120, 3)
        assert picture[2 * 24 + 12, 2 * 24 + 12].tolist() == [20] * 3
    assert picture[1 * 24 + 12, 3 * 24 + 12].tolist() == [245] * 3


@pytest.mark.parametrize("name", ["go_1x1", "go_9x7", "go_20x20"])
def test_a_board_that_cannot_be_is_named(name):
    with pytest.raises(ConfigError, match=r"env\.name.*2x2 to 19x19"):
        envs.make(name)


def test_other_sizes_are_there():
    env = envs.make("go_4x4", replace(EnvConfig(), go=GoConfig(0.5)))
    assert env.spec.num_actions == 17 and env.spec.observation_shape == (4, 4, 7)


def test_colours_are_told_apart():
    assert (BLACK, WHITE) == (1, -1) and Game().to_play == BLACK
