"""The referee; its agreement with pgx and OpenSpiel is in tests/envs/test_go.py."""

import numpy as np
import pytest

from muesli.go.rules import (
    BLACK,
    WHITE,
    Game,
    IllegalMove,
    Move,
    area,
    from_vertex,
    result,
    to_vertex,
)
from muesli.go.sgf import to_sgf


def played(size, vertices, komi=7.5, superko=True):
    game = Game(size, komi, superko)
    for vertex in vertices.split():
        game.play(Move(game.to_play, from_vertex(vertex, size)))
    return game


@pytest.mark.parametrize("size", [2, 9, 19])
def test_vertices_and_points_are_each_others_inverse(size):
    names = [to_vertex(p, size) for p in range(size**2 + 1)]
    assert [from_vertex(n.lower(), size) for n in names] == list(range(size**2 + 1))
    assert names[0] == f"A{size}" and names[-1] == "pass" and not any("I" in n for n in names)


@pytest.mark.parametrize(
    "text", ["", "I3", "A0", "K1", "A10", "5", "A", "A-1", "A²", "Z9", "resign"]
)
def test_what_is_no_vertex_is_refused(text):
    with pytest.raises(ValueError):
        from_vertex(text, 9)


def test_a_ko_may_not_be_retaken_and_superko_forbids_more():
    game = played(5, "B4 C4 A3 D3 B2 C2 E5 B3 C3")
    b3 = from_vertex("B3", 5)
    assert not game.legal(WHITE)[b3] and not game.legal(WHITE, superko=False)[b3]
    with pytest.raises(IllegalMove, match="as it was before"):
        game.play(Move(WHITE, b3))
    assert len(game.moves) == 9


def test_a_position_that_returns_later_is_legal_only_without_superko():
    # On 2×2, Black's A2 would bring the board of the second move back, five moves later.
    game = played(2, "A2 A1 B1 pass B2 A1", superko=False)
    move = Move(BLACK, from_vertex("A2", 2))
    assert game.after(move, superko=False) == game.boards[2] != game.boards[-2]
    with pytest.raises(IllegalMove, match="as it was before"):
        game.after(move, superko=True)


def test_suicide_and_occupied_points_are_illegal():
    game = played(5, "E5 A2 E4 B1")
    with pytest.raises(IllegalMove, match="suicide"):
        game.play(Move(BLACK, from_vertex("A1", 5)))
    with pytest.raises(IllegalMove, match="occupied"):
        game.play(Move(BLACK, from_vertex("A2", 5)))


def test_area_counts_stones_and_what_borders_one_colour_alone():
    # A wall of Black on column B, of White on column D of 5×5; C is neutral.
    board = [0, BLACK, 0, WHITE, 0] * 5
    assert area(tuple(board), 5) == (10, 10)
    assert area((0,) * 25, 5) == (0, 0)
    assert played(5, "C3 pass pass").score() == 25 - 7.5
    assert (result(3.5), result(-0.5), result(0.0)) == ("B+3.5", "W+0.5", "0")


def test_taking_back_restores_the_game():
    game = played(5, "C3 D4 pass")
    boards = list(game.boards)
    game.undo()
    assert game.boards == boards[:-1] and game.to_play == BLACK and game.passes == 0
    for _ in range(2):
        game.undo()
    with pytest.raises(IllegalMove, match="take back"):
        game.undo()


def test_passes_are_counted_at_the_end_only():
    assert played(5, "pass C3 pass").passes == 1 and played(5, "C3 pass pass").passes == 2


def test_a_game_is_written_as_sgf():
    game = played(5, "C3 A5 pass")
    text = to_sgf(game, "me [strong]", "you", "B+2.5", "a\\b")
    assert (
        text.startswith("(;GM[1]FF[4]") and "SZ[5]KM[7.5]PB[me [strong\\]]PW[you]RE[B+2.5]" in text
    )
    assert "C[a\\\\b]" in text and text.endswith(";B[cc];W[aa];B[])\n")
    game = Game(9)
    game.place_handicap([20, 60])
    assert "HA[2]AB[cc][gg]" in to_sgf(game, "a", "b", "0")
    assert "KM[7.1234567891]" in to_sgf(Game(5, 7.1234567891), "a", "b", "0")
    assert "KM[7]" in to_sgf(Game(5, 7.0), "a", "b", "0")
    assert result(10 - 7.1) == "B+2.9" and result(-999999.5) == "W+999999.5"
    assert game.to_play == WHITE and np.sum(game.board) == 2
