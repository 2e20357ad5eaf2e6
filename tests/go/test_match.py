"""Matches with engines that behave, misbehave, and with GNU Go."""

import json
import math
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from muesli.cli.main import main
from muesli.config import ConfigError
from muesli.go.match import EngineSide, Match, in_words, play_game, summarise, wilson
from muesli.go.process import EngineFailure, GtpProcess, opponent_command
from muesli.go.rules import BLACK, WHITE, Game, Move, from_vertex
from muesli.go.workers import WorkerLost, Workers
from muesli.runners.versus import fit_elo

FAKE = Path(__file__).with_name("fake_engine.py")


class Scripted:
    """Plays the given vertices, then passes."""

    def __init__(self, vertices="", name="scripted"):
        self.vertices, self.name, self.seen = vertices.split(), name, []
        self.settings = {}

    def start(self, game, number):
        self.left = list(self.vertices)

    def choose(self, game, colour):
        vertex = self.left.pop(0) if self.left else "pass"
        return from_vertex(vertex, game.size)

    def observe(self, move):
        self.seen.append(move)

    def close(self):
        pass


def fake(mode, timeout=20.0):
    return EngineSide([sys.executable, str(FAKE), mode], mode, timeout)


def one_game(engine, ours="C3", **options):
    game = Game(5, 7.5)
    try:
        outcome, _ = play_game(game, Scripted(ours), engine, 75, **options)
    finally:
        engine.close()
    return game, outcome


def whole_match(ours, theirs, games, size=5, komi=7.5):
    match = Match(ours, theirs, size, komi)
    try:
        match.begin()
        return list(match.games(games))
    finally:
        match.close()


def test_a_game_is_scored_by_the_referee():
    game, outcome = one_game(fake("pass"))
    assert (outcome.winner, outcome.reason, outcome.text) == (BLACK, "score", "B+17.5")
    assert len(game.moves) == 3


@pytest.mark.parametrize(
    ("mode", "reason", "text", "detail"),
    [
        ("illegal", "illegal move", "B+F", "played C3: the point is occupied"),
        ("resign", "resignation", "B+R", "resigned"),
        ("crash", "crash", "B+F", "out of cheese"),
        ("garble", "protocol", "B+F", "over there"),
        ("flood", "flood", "B+F", "without an end"),
        ("rude", "protocol", "B+F", "hello"),
        ("refuse", "refused", "B+F", "komi"),
    ],
)
def test_whoever_misbehaves_loses(mode, reason, text, detail):
    _, outcome = one_game(fake(mode), ours="C3 D3 E3")
    assert (outcome.winner, outcome.reason, outcome.text) == (BLACK, reason, text)
    assert detail in outcome.detail and outcome.detail.startswith(mode)


def test_our_own_illegal_move_loses_too():
    _, outcome = one_game(fake("pass"), ours="C3 C3")
    assert (outcome.winner, outcome.reason) == (WHITE, "illegal move")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
def test_an_engine_that_hangs_loses_on_time_and_leaves_nothing_behind():
    engine = fake("hang")
    game = Game(5, 7.5)
    engine.start(game, 1)
    group = engine._process.pid
    assert alive(group)
    engine._process.timeout_seconds = 1.0
    with pytest.raises(EngineFailure) as failure:
        engine.choose(game, BLACK)
    assert failure.value.kind == "timeout"
    # Neither it nor the child it had started, which a busy machine may take a moment to bury.
    end = time.monotonic() + 30
    while alive(group) and time.monotonic() < end:
        time.sleep(0.01)
    assert alive(group) == []
    engine.close()


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux can")
def test_an_engine_ends_with_a_match_that_was_killed():
    starting = [
        "import sys, time",
        "from muesli.go.process import GtpProcess",
        "engine = GtpProcess(sys.argv[1:])",
        "engine.ask('boardsize 5')",
        "engine._process.stdin.write(b'genmove b\\n')",
        "print(engine.pid, flush=True)",
        "time.sleep(600)",
    ]
    command = [sys.executable, "-c", "\n".join(starting), sys.executable, str(FAKE), "nap"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        group = int(starter.stdout.readline())
        assert alive(group)
        starter.kill()
    end = time.monotonic() + 30
    while alive(group) and time.monotonic() < end:
        time.sleep(0.01)
    assert alive(group) == []


def test_an_engine_starts_with_the_signals_that_it_would_have_from_a_shell():
    engine = GtpProcess(["sh", "-c", "read command; kill -PIPE $$; printf '= alive\\n\\n'"])
    try:
        with pytest.raises(EngineFailure, match="ended at 'name'"):
            engine.ask("name")
    finally:
        engine.close()


def alive(group):
    """Processes of a group that still run; one that waits to be collected (Z) does not."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


def test_limits_on_time_and_moves_hold():
    _, outcome = one_game(fake("pass"), game_seconds=1e-9)
    assert (outcome.winner, outcome.reason, outcome.text) == (WHITE, "time", "W+T")
    game = Game(5, 7.5)
    outcome, _ = play_game(game, Scripted("A1 A2 A3"), Scripted("E1 E2 E3"), max_moves=4)
    assert outcome.reason == "move limit" and len(game.moves) == 4


def test_a_match_alternates_colours_and_restarts_crashed_engines():
    played = whole_match(Scripted("C3 D3 E3 B3"), fake("crash"), 4)
    summary = summarise(played[::-1])  # games may end in another order than they began in
    assert [row["colour"] for row in summary["rows"]] == ["black", "white"] * 2
    assert summary["games"] == 4 and summary["reasons"] == {"crash": 4}
    assert summary["failures"] == {"ours": {}, "theirs": {"crash": 4}}
    assert summary["points"] == 4 and summary["win_rate"] == 1.0
    assert summary["distinct_games"] == 2  # scripted: one as Black, one as White
    assert summary["wilson_low"] == pytest.approx(0.5101, abs=1e-3)
    assert "PW[crash]RE[B+F]" in played[0].sgf
    assert "PB[crash]" in played[1].sgf and "out of cheese" in played[1].sgf


def test_a_win_by_the_failures_of_a_side_does_not_look_like_one():
    played = whole_match(Scripted("C3 D3 E3 C4"), fake("crash"), 2)
    assert in_words(summarise(played)).endswith("; decided by failures: 2 crash of theirs")
    played += whole_match(Scripted("C3 C3"), fake("pass"), 1)
    played += whole_match(Scripted("C3"), fake("pass"), 1)
    words = in_words(summarise(played))
    assert words.startswith("3 of 4 games: 75.0% (95%: ")
    assert words.endswith("; decided by failures: 1 illegal move of ours, 2 crash of theirs")
    fair = in_words(summarise(whole_match(Scripted("C3"), fake("pass"), 2)))
    assert fair.startswith("2 of 2 games: 100.0%") and "failures" not in fair
    assert in_words(summarise([])) == "no game was finished"


@pytest.mark.parametrize(
    ("mode", "complaint"),
    [
        ("refuse", "it answered 'komi 7.5' by 'no never'"),
        ("rude", "it answered 'boardsize 5' by 'hello'"),
    ],
)
def test_an_engine_that_cannot_begin_is_no_opponent(mode, complaint):
    with pytest.raises(ConfigError, match=f"opponent: {mode} cannot begin: {complaint}"):
        whole_match(Scripted(), fake(mode), 2)


def test_an_engine_that_fails_later_loses_that_game_alone():
    played = whole_match(Scripted("C3"), fake("tire"), 3)
    assert [game.row["reason"] for game in played] == ["score", "refused", "score"]


@pytest.mark.parametrize(("mode", "reason"), [("illegal", "illegal move"), ("deny", "refused")])
def test_an_engine_that_knows_another_board_is_started_anew(mode, reason):
    engine = fake(mode)
    try:
        outcome, _ = play_game(Game(5, 7.5), Scripted("C3"), engine, 75)
        assert outcome.reason == reason and engine._process is None
        engine.start(Game(5, 7.5), 1)
        assert engine._process is not None
    finally:
        engine.close()


@pytest.mark.parametrize("mode", ["mute", "airy", "pass"])
def test_an_engine_that_does_no_wrong_plays_on(mode):
    """One that has no opinion, or leaves more empty lines than it need, among them."""
    engine = fake(mode)
    pids = set()
    try:
        for _ in range(2):
            outcome, _ = play_game(Game(5, 7.5), Scripted("C3"), engine, 75)
            assert outcome.reason == "score"
            assert (engine.opinion() is None) == (mode == "mute")
            pids.add(engine._process.pid)
    finally:
        engine.close()
    assert len(pids) == 1


def test_what_an_engine_says_unasked_is_no_answer_to_the_next_command():
    engine = fake("double")
    try:
        engine.start(Game(5, 7.5), 1)
        assert engine.choose(Game(5, 7.5), BLACK) == 25
        with pytest.raises(EngineFailure, match=r"said '= A1' before 'play W pass'") as failure:
            engine.observe(Move(WHITE, 25))
        assert failure.value.kind == "protocol" and engine._process is None
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (partial(os._exit, 5), WorkerLost, r"a process of the match ended \(exit code 5\)"),
        (partial(ConfigError, "not a match"), AttributeError, "begin"),
        (partial(int, "x"), ValueError, "invalid literal"),
    ],
)
def test_a_process_of_a_match_that_fails_ends_it(make, error, said):
    workers = Workers(make, 1)
    try:
        with pytest.raises(error, match=said) as failure:
            workers.begin()
    finally:
        workers.close()
    if error is not WorkerLost:  # where it happened is told, too
        assert "_work" in "".join(failure.value.__notes__)


def test_wilson_by_hand():
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(60, 100)
    assert (low, high) == (pytest.approx(0.5020, abs=1e-4), pytest.approx(0.6906, abs=1e-4))
    assert wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == pytest.approx(1.0)


def test_opponents_by_name_and_by_command(tmp_path, monkeypatch):
    program = tmp_path / "gnugo"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert opponent_command("gnugo:3")[1:5] == ["--mode", "gtp", "--level", "3"]
    assert "10" in opponent_command("gnugo") and "--chinese-rules" in opponent_command("gnugo")
    assert opponent_command("gnugo --mode gtp 'a b'")[1:] == ["--mode", "gtp", "a b"]
    for text, complaint in [
        ("gnugo:high", "takes a number from 1 to 10, got 'gnugo:high'"),
        ("gnugo:0", "takes a number from 1 to 10"),
        ("gnugo:11", "takes a number from 1 to 10"),
        ("gnugo:", "takes a number from 1 to 10"),
        ("pachi:3", "pachi has no levels, got 'pachi:3'"),
        ("nosuchprogram --x", "no program 'nosuchprogram'"),
        ("", "empty"),
        ("gnugo 'a", "cannot be read"),
    ]:
        with pytest.raises(ConfigError, match=f"opponent.*{complaint}"):
            opponent_command(text)


def test_no_shell_sees_the_command(tmp_path):
    with pytest.raises(EngineFailure, match="cannot start"):
        GtpProcess([f"touch {tmp_path}/x; true"])
    assert not (tmp_path / "x").exists()


def test_ratings_explain_results():
    # 10 : 1 odds are 400 points. Enough games that the one draw given to each pair is forgotten.
    games = np.array([[0, 1100, 0], [1100, 0, 1100], [0, 1100, 0]], float)
    points = np.array([[0, 100, 0], [1000, 0, 100], [0, 1000, 0]], float)
    ratings = fit_elo(points, games)
    np.testing.assert_allclose(ratings, [0.0, 400.0, 800.0], atol=3.0)
    assert math.isfinite(fit_elo(np.array([[0, 0], [8, 0]]), np.array([[0, 8], [8, 0]]))[1])


def gnugo():
    try:
        return opponent_command("gnugo:1")
    except ConfigError:
        pytest.skip("GNU Go is not installed: `apt-get install gnugo` lets the real match run")


@pytest.mark.parametrize("size", [5, 9])
def test_gnu_go_takes_part(size):
    # A player that passes loses to GNU Go, which then has every point.
    played = whole_match(Scripted(), EngineSide(gnugo(), "gnugo:1", 30.0), 2, size, 0.5)
    summary = summarise(played)
    assert summary["points"] == 0 and summary["reasons"] == {"score": 2}
    assert summary["rows"][0]["opponent_says"].startswith("W+")


def test_an_agent_of_ours_plays_gnu_go_from_the_command_line(go_run, tmp_path, capsys):
    gnugo()
    arguments = ["--opponent", "gnugo:1", "--games", "2", "--sgf", str(tmp_path), "--json"]
    assert main(["match", str(go_run), *arguments]) == 0
    summary = json.loads(capsys.readouterr().out.strip().split("\n")[-1])
    assert summary["games"] == 2 and "gnugo --mode gtp --level 1 " in summary["theirs"]["command"]
    assert [row["colour"] for row in summary["rows"]] == ["black", "white"]
    for row in summary["rows"]:
        # Both have passed, nobody misbehaved, and GNU Go names the referee's winner.
        assert (row["reason"], row["detail"]) == ("score", "")
        assert row["opponent_says"][:2] == row["result"][:2]
        game = (tmp_path / f"game-000{row['game']}.sgf").read_text()
        assert game.count(";B[") + game.count(";W[") == row["moves"] > 10
        assert f"P{row['colour'][0].upper()}[run prior]" in game
