"""The protocol, command by command, with a player that takes the first legal point."""

import io

import numpy as np
import pytest

from muesli.go.gtp import Engine, clean, handicap_points, serve
from muesli.go.rules import BLACK, to_vertex


def first_legal(game, colour):
    return int(np.argmax(game.legal(colour, superko=True)))


@pytest.fixture
def engine():
    return Engine(first_legal, 9, 7.5, version="1.2", describe=lambda game, colour: "calm")


def say(engine, *lines):
    return [engine.answer(line) for line in lines]


# What is sent, and exactly what comes back.
TRANSCRIPT = [
    ("protocol_version", "= 2\n\n"),
    ("name", "= muesli\n\n"),
    ("version", "= 1.2\n\n"),
    ("1 known_command play", "=1 true\n\n"),
    ("2 known_command fly", "=2 false\n\n"),
    ("known_command", "? syntax error\n\n"),
    ("boardsize 9", "=\n\n"),
    ("boardsize 19", "? unacceptable size\n\n"),
    ("boardsize nine", "? syntax error\n\n"),
    ("boardsize", "? syntax error\n\n"),
    ("clear_board", "=\n\n"),
    ("komi 5.5", "=\n\n"),
    ("komi much", "? syntax error\n\n"),
    ("komi nan", "? syntax error\n\n"),
    ("komi 1_0", "? syntax error\n\n"),
    ("komi 1e9", "? syntax error\n\n"),
    ("komi 55e-1", "=\n\n"),
    ("7 play b e5", "=7\n\n"),
    ("play WHITE E5", "? illegal move\n\n"),
    ("play w E4 # with a remark", "=\n\n"),
    ("play green A1", "? invalid color or coordinate\n\n"),
    ("play b I1", "? invalid color or coordinate\n\n"),
    ("play b A10", "? invalid color or coordinate\n\n"),
    ("play b", "? syntax error\n\n"),
    ("play w PASS", "=\n\n"),
    ("undo", "=\n\n"),
    ("genmove b", "= A9\n\n"),
    ("reg_genmove w", "= B9\n\n"),
    ("genmove w", "= B9\n\n"),
    ("genmove", "? syntax error\n\n"),
    ("genmove x", "? invalid color or coordinate\n\n"),
    ("final_status_list alive", "= A9\nB9\nE5\nE4\n\n"),
    ("final_status_list dead", "=\n\n"),
    ("final_status_list odd", "? syntax error\n\n"),
    ("final_score", "= W+5.5\n\n"),
    ("time_settings 300 30 25", "=\n\n"),
    ("time_settings 300", "? syntax error\n\n"),
    ("time_left b 25 3", "=\n\n"),
    ("time_left b soon 3", "? syntax error\n\n"),
    ("time_settings 300.5 30.0 1", "=\n\n"),
    ("time_left b 24.8 0", "=\n\n"),
    ("fixed_handicap 2", "? board not empty\n\n"),
    ("clear_board", "=\n\n"),
    ("undo", "? cannot undo\n\n"),
    ("fixed_handicap 1", "? invalid number of stones\n\n"),
    ("fixed_handicap 10", "? invalid number of stones\n\n"),
    ("fixed_handicap 2", "= C3 G7\n\n"),
    ("clear_board", "=\n\n"),
    ("place_free_handicap 3", "= C3 G7 C7\n\n"),
    ("clear_board", "=\n\n"),
    ("set_free_handicap A1 A1", "? bad vertex list\n\n"),
    ("set_free_handicap A1 pass", "? bad vertex list\n\n"),
    ("set_free_handicap A1 J9", "=\n\n"),
    ("genmove w", "= A9\n\n"),
    ("muesli-thoughts", "= calm\n\n"),
    ("fly", "? unknown command\n\n"),
    ("12", "?12 unknown command\n\n"),
    ("99 fly me", "?99 unknown command\n\n"),
    (f"{'9' * 5000} name", "? unknown command\n\n"),
    (f"boardsize {'9' * 5000}", "? syntax error\n\n"),
    (f"komi {'9' * 5000}", "? syntax error\n\n"),
    (f"play b A{'9' * 5000}", "? invalid color or coordinate\n\n"),
    ("2147483648 name", "? unknown command\n\n"),
    ("1_0 name", "? unknown command\n\n"),
    ("boardsize 0_9", "? syntax error\n\n"),
    ("", None),
    ("   # only a remark", None),
    ("\t \x07", None),
    ("5\tkomi\t6.5", "=5\n\n"),
]


def test_every_command_answers_as_the_protocol_says(engine):
    for line, expected in TRANSCRIPT:
        assert engine.answer(line) == expected, line
    said = {word for line, _ in TRANSCRIPT for word in line.split()[:2]}
    listed = engine.answer("list_commands")[2:].split()
    # list_commands, showboard and quit have tests of their own.
    assert set(listed) - said <= {"list_commands", "showboard", "quit"}
    assert all(engine.answer(f"known_command {name}") == "= true\n\n" for name in listed)


def test_the_board_is_shown(engine):
    say(engine, "play b A9", "play w J1")
    lines = engine.answer("showboard").rstrip("\n").split("\n")
    assert lines[0].startswith("=") and lines[1].split() == list("ABCDEFGHJ")
    assert lines[2] == " 9 X . . . . . . . . 9" and lines[10] == " 1 . . . . . . . . O 1"


def test_same_colour_twice_and_ko_are_handled(engine):
    assert say(engine, "play b A1", "play b A2") == ["=\n\n", "=\n\n"]
    assert engine.game.moves[-1].colour == BLACK
    say(engine, "clear_board")
    # White's B3 takes a ko... and Black may not retake it at once.
    ko = "b B4 w C4 b A3 w D3 b B2 w C2 b E5 w B3 b C3".split()
    for colour, vertex in zip(ko[::2], ko[1::2], strict=True):
        assert engine.answer(f"play {colour} {vertex}") == "=\n\n"
    assert engine.answer("play w B3") == "? illegal move\n\n"


def test_a_stream_is_answered_until_quit(engine):
    answers = io.StringIO()
    serve(engine, io.StringIO("name\n\n3 quit\nname\n"), answers)
    assert answers.getvalue() == "= muesli\n\n=3\n\n" and engine.closed


def test_the_end_of_the_stream_is_the_end(engine):
    answers = io.StringIO()
    serve(engine, io.StringIO("version\n"), answers)
    assert answers.getvalue() == "= 1.2\n\n" and not engine.closed


def test_lines_are_cleaned():
    assert clean("a\tb\x00c # d\r\n") == "a bc "


def test_handicap_points_are_the_protocols():
    names = lambda size, count: [to_vertex(p, size) for p in handicap_points(size)[count]]
    assert names(19, 4) == ["D4", "Q16", "D16", "Q4"]
    assert names(19, 9) == ["D4", "Q16", "D16", "Q4", "D10", "Q10", "K4", "K16", "K10"]
    assert names(9, 5) == ["C3", "G7", "C7", "G3", "E5"]
    assert max(handicap_points(7)) == 4 and max(handicap_points(8)) == 4
    assert handicap_points(5) == {}
