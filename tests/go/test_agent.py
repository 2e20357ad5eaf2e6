"""An agent of ours at the board: commands from end to end, with an untrained network."""

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from muesli.cli.main import main
from muesli.go.agent import Shadow, load_agent
from muesli.go.rules import BLACK, WHITE, Game, Move, from_vertex
from muesli.runners.export import export_agent
from muesli.runners.parts import build
from muesli.runners.player import load
from muesli.runners.rundir import read_config
from muesli.runners.saving import kept_checkpoints
from muesli.runners.train import train

from .conftest import tiny_go

FAKE = Path(__file__).with_name("fake_engine.py")
RUN = "the run itself"


def test_a_run_keeps_light_checkpoints_that_play_and_train_on_alone(go_run, tmp_path):
    kept = kept_checkpoints(go_run)
    assert kept == ["kept-1", "kept-2"]
    copy = tmp_path / "light"
    (copy / "checkpoints").mkdir(parents=True)
    shutil.copy(go_run / "config.json", copy)
    shutil.copytree(go_run / "checkpoints" / "kept-2", copy / "checkpoints" / "kept-2")
    size = lambda p: sum(f.stat().st_size for f in p.rglob("*.bin"))
    assert size(copy) < 0.4 * size(go_run / "checkpoints" / "step-2")
    game = Game(5, 7.5)
    game.play(Move(BLACK, 12))
    thoughts = [load_agent(run).think(game, WHITE) for run in (go_run, copy)]
    np.testing.assert_array_equal(thoughts[0].policy, thoughts[1].policy)
    assert thoughts[0].value == thoughts[1].value
    # And a training begins with it.
    config = read_config(go_run)
    assert train(config, tmp_path / "more", init_from=copy).stopped_by is None
    assert kept_checkpoints(tmp_path / "more") == kept


def test_the_board_shows_the_agent_what_training_showed_it(go_run):
    """One position by two ways: through pgx as in training, and through the referee."""
    import jax

    player = load(go_run)
    agent = load_agent(go_run)
    game = Game(5, 7.5)
    state, timestep = player.env.reset(jax.random.key(0))
    for vertex in "C3 D4 B2".split():
        point = from_vertex(vertex, 5)
        game.play(Move(game.to_play, point))
        state, timestep = player.env.step(state, point, jax.random.key(0))
    seen = jax.tree.map(lambda x: x[None], timestep)
    through_pgx = player.think(seen, player.initial_state(1))
    at_the_board = agent.think(game, WHITE)
    np.testing.assert_allclose(at_the_board.policy, through_pgx.policy, atol=1e-6)
    np.testing.assert_allclose(at_the_board.q, through_pgx.q, atol=1e-6)


def test_the_shadow_of_a_game_is_the_environments_own_state(go_run):
    import jax

    env = load(go_run).env
    shadow = Shadow(env, 5)

    def through_env(actions):
        state, _ = env.reset(jax.random.key(0))
        for action in actions:
            state, _ = env.step(state, action, jax.random.key(0))
        return state

    def same(game, colour, actions):
        jax.tree.map(
            np.testing.assert_array_equal, shadow.state(game, colour), through_env(actions)
        )

    game = Game(5, 7.5)
    same(game, BLACK, [])
    for point in (1, 0, 5, 12):  # Black captures in the corner
        game.play(Move(game.to_play, point))
        same(game, game.to_play, [move.point for move in game.moves])
    game.undo()
    game.play(Move(WHITE, 13))
    same(game, BLACK, [1, 0, 5, 13])
    # Who is passed over has passed; stones given before the game are Black's moves.
    same(game, WHITE, [1, 0, 5, 13, 25])
    given = Game(5, 7.5)
    given.place_handicap([6, 18])
    same(given, WHITE, [6, 25, 18])
    game.play(Move(BLACK, 25))
    game.play(Move(WHITE, 25))
    assert shadow.state(game, BLACK) is None
    game.undo()
    same(game, WHITE, [1, 0, 5, 13, 25])


def test_an_agent_that_searches_the_rules_plays_on_when_they_call_the_game_over(go_run):
    agent = load_agent(go_run, act_with="mcts", search={"model": "rules", "simulations": 4})
    game = Game(5, 7.5)
    while len(game.moves) < 4:
        game.play(Move(game.to_play, agent.choose(game, game.to_play)))
    for _ in range(2):
        game.play(Move(game.to_play, 25))
    point, probs = agent.policy(game, game.to_play)
    assert game.legal(game.to_play)[point] and abs(probs.sum() - 1.0) < 1e-5


def test_a_search_of_the_rules_counts_with_the_komi_of_the_game(go_run):
    search = {"model": "rules", "simulations": 64}
    agent = load_agent(go_run, act_with="mcts", search=search, sample_moves=0)

    def passes(komi):
        """Whether White ends a game on an empty board by passing after Black."""
        game = Game(5, komi)
        game.play(Move(BLACK, 25))
        return agent.choose(game, WHITE) == 25

    assert passes(7.5) and not passes(-7.5) and passes(0.5)


def self_play(agent, moves=6):
    game = Game(5, 7.5)
    for _ in range(moves):
        game.play(Move(game.to_play, agent.choose(game, game.to_play)))
    return game.moves


def test_a_game_draws_from_its_number_and_from_no_game_before_it(go_run):
    first, second = load_agent(go_run), load_agent(go_run)
    games = []
    for number in (1, 2):
        first.begin(number, 7.5)
        games.append(self_play(first))
    second.begin(2, 7.5)
    assert self_play(second) == games[1] != games[0]


@pytest.mark.parametrize("how", ["prior", "mcts"])
def test_nothing_is_compiled_after_a_game_began(go_run, how, caplog):
    import jax

    search = {"model": "rules", "simulations": 2} if how == "mcts" else None
    agent = load_agent(go_run, act_with=how, search=search)
    agent.begin(1, 5.5)
    with jax.log_compiles():
        caplog.clear()
        game = Game(5, 5.5)
        for point in (None, None, 25, 25, None):
            point = agent.choose(game, game.to_play) if point is None else point
            game.play(Move(game.to_play, point))
        agent.begin(2, 5.5)
    assert [r.getMessage() for r in caplog.records if "ompil" in r.getMessage()] == []


def test_a_pass_is_played_where_it_is_the_likeliest_move_alone(go_run):
    agent = load_agent(go_run)
    agent.begin(1, 7.5)
    game = Game(5, 7.5)
    _, policy = agent.policy(game, BLACK)
    assert policy.argmax() != 25 and policy[25] > 0.01
    drawn = {agent.choose(game, BLACK) for _ in range(400)}
    assert len(drawn) > 10 and 25 not in drawn


def test_an_engine_plays_its_best_moves_unless_told_otherwise(go_run, capsys, monkeypatch):
    import io

    def moves(*options):
        monkeypatch.setattr(sys, "stdin", io.StringIO("reg_genmove b\n" * 12))
        assert main(["gtp", str(go_run), *options]) == 0
        return set(capsys.readouterr().out.split("\n\n")) - {""}

    assert len(moves()) == 1 and len(moves("--sample-moves", "6")) > 1


def test_gtp_match_record_and_elo_run_from_the_command_line(go_run, tmp_path, capsys, monkeypatch):
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("genmove b\n1 muesli-thoughts\nquit\n"))
    assert main(["gtp", str(go_run), "--search.simulations", "4", "--search.max-depth", "2"]) == 0
    answers = capsys.readouterr().out.split("\n\n")
    assert answers[0].startswith("= ") and "value" in answers[1] and "for white" in answers[1]

    command = f"{sys.executable} {FAKE} pass"
    assert main(["match", str(go_run), "--opponent", command, "--games", "2", "--json",
                 "--sgf", str(tmp_path), "--max-moves", "20"]) == 0  # fmt: skip
    summary = json.loads(capsys.readouterr().out.strip().split("\n")[-1])
    assert summary["games"] == 2 and summary["act_with"] == "prior"
    assert summary["interrupted"] is False
    assert len(list(tmp_path.glob("*.sgf"))) == 2

    itself = ["--opponent-run", str(go_run), "--opponent-checkpoint", "kept-1"]
    limits = ["--games", "1", "--sgf", str(tmp_path / "itself"), "--max-moves", "10"]
    assert main(["match", str(go_run), *itself, *limits]) == 0
    out = capsys.readouterr().out
    assert "of 1 games" in out
    assert "ours: name run prior, act_with prior" in out and "theirs: name run kept-1 prior" in out

    assert main(["elo", str(go_run), "--games", "4", "--json"]) == 0
    ratings = json.loads(capsys.readouterr().out.strip().split("\n")[-1])["ratings"]
    assert [r["name"] for r in ratings] == ["random", "kept-1", "kept-2"]
    assert ratings[0]["elo"] == 0.0 and ratings[2]["env_steps"] == 32

    video = tmp_path / "out" / "v.mp4"
    assert main(["record", str(go_run), "-o", str(video), "--max-steps", "3"]) == 0
    for name in ("v.mp4", "game.png", "thoughts.png", "game.sgf"):
        assert (video.parent / name).stat().st_size > 0


def test_bytes_that_are_no_text_do_not_end_the_engine(go_run, capsys, monkeypatch):
    import io

    sent = io.BytesIO(b"\xff\xfe\nkomi \xff\n5 name\nquit\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(sent, encoding="utf-8", errors="strict"))
    assert main(["gtp", str(go_run)]) == 0
    answers = capsys.readouterr().out.split("\n\n")
    assert answers == ["? unknown command", "? syntax error", "=5 muesli", "=", ""]


def test_each_side_of_a_match_plays_as_it_is_told(go_run, tmp_path, capsys):
    """A search of ours meets the other run's bare policy, or whatever that one is told to do."""

    def sides(*arguments):
        games = tmp_path / "".join(arguments)
        limits = ["--games", "1", "--max-moves", "3", "--sgf", str(games), "--json"]
        itself = ["match", str(go_run), "--opponent-run", str(go_run)]
        assert main([*itself, *limits, *arguments]) == 0
        summary = json.loads(capsys.readouterr().out.strip().split("\n")[-1])
        assert summary["act_with"] == summary["ours"]["act_with"]
        return summary["ours"], summary["theirs"]

    bare = {"name": "run prior", "act_with": "prior", "sample_moves": 6}
    search = {"algorithm": "muzero", "simulations": 2, "max_depth": None, "model": "learnt"}
    searching = {**bare, "name": "run mcts", "act_with": "mcts", **search}
    assert sides("--search.simulations", "2") == (searching, bare)
    assert sides("--opponent-search.simulations", "2") == (bare, searching)
    _, theirs = sides("--opponent-act-with", "cmpo", "--opponent-checkpoint", "kept-1")
    assert theirs == {**bare, "name": "run kept-1 cmpo", "act_with": "cmpo"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "exactly one of them"),
        (["--opponent", "nosuchprogram"], "opponent: there is no program"),
        (["--opponent", "true", "--games", "0"], "--games: must be positive"),
        (["--opponent", "true", "--sample-moves", "-1"], "--sample-moves: must be at least 0"),
        (["--opponent", "true", "--komi", "nan"], "--komi: must be a finite number, got nan"),
        (["--opponent", "true", "--move-seconds", "inf"], "--move-seconds: must be a finite"),
        (["--opponent", "true", "--checkpoint", "kept-99"], "kept-99"),
        (["--opponent", "true", "--checkpoint", "nope"], "'nope'; it has step-2, step-1, kept-2"),
        (["--opponent", "true", "--checkpoint", "best"], "has no 'best'; it has step-2"),
        (["--opponent-run", RUN, "--opponent-checkpoint", "zzz"], "has no 'zzz'; it has step-2"),
        (["--opponent", "true", "--opponent-search.simulations", "2"], "only an --opponent-run"),
        (["--opponent", "true", "--opponent-checkpoint", "kept-1"], "only an --opponent-run"),
        (["--opponent-run", "/nope"], "--opponent-run: /nope holds no run"),
        (["--opponent-run", RUN, "--opponent-checkpoint", "zzz"], "--opponent-checkpoint: "),
        (
            ["--opponent-run", RUN, "--opponent-search.simulations", "0"],
            "--opponent-search.simulations: must be",
        ),
        (["--opponent", "true", "--komi", "1e6"], "--komi: must be less than 1e+06, got 1e+06"),
        (["--opponent", "true", "--games", "few"], "--games: must be a whole number, got few"),
        (
            ["--opponent", "true", "--gmaes", "3"],
            "--gmaes: there is no such option (did you",
        ),
        (["--opponent", "true", "--sgf", "/dev/null", "--checkpoint", "no"], "--sgf: cannot write"),
        (["--opponent", "false"], "opponent: false cannot begin: it ended "),
        (["--opponent", "cat", "--move-seconds", "0.5"], "gave 'boardsize 5' no answer in 0.5 s"),
    ],
)
def test_bad_input_is_one_line(go_run, arguments, complaint, capsys):
    arguments = [str(go_run) if word is RUN else word for word in arguments]
    assert main(["match", str(go_run), *arguments]) == 2
    refused(capsys, complaint)


@pytest.mark.parametrize("command", ["gtp", "elo"])
def test_an_option_that_is_none_is_named_in_one_line(command, capsys):
    assert main([command, "/nope", "--seed", "many"]) == 2
    refused(capsys, "--seed: must be a whole number, got many")


def refused(capsys, complaint):
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1, error


def without_clocks(folder, capsys):
    """The summary of the match that was just played, and its games."""
    summary = json.loads(capsys.readouterr().out.strip().split("\n")[-1])
    for row in summary["rows"]:
        del row["seconds_ours"], row["seconds_theirs"]
    for name in ("seconds_per_move_ours", "seconds_per_move_theirs", "sgf"):
        del summary[name]
    return summary, {path.name: path.read_text() for path in folder.iterdir()}


def test_games_do_not_depend_on_how_many_are_played_at_once(go_run, tmp_path, capsys):
    def played(jobs):
        folder = tmp_path / jobs
        limits = ["--games", "5", "--max-moves", "8", "--json", "--sgf", str(folder)]
        itself = [
            "match",
            str(go_run),
            "--opponent-run",
            str(go_run),
            "--opponent-act-with",
            "cmpo",
        ]
        assert main([*itself, *limits, "--jobs", jobs]) == 0
        return without_clocks(folder, capsys)

    one, two = played("1"), played("2")
    assert one == two
    assert one[0]["games"] == 5 == one[0]["distinct_games"] and sorted(one[1])[0] == "game-0001.sgf"


@pytest.mark.slow
def test_what_a_process_of_a_match_refuses_is_one_line(go_run, tmp_path, capsys):
    limits = ["--games", "2", "--jobs", "2", "--sgf", str(tmp_path / "new")]
    assert main(["match", str(go_run), "--opponent", f"{sys.executable} {FAKE} rude", *limits]) == 2
    refused(capsys, "rude cannot begin: it answered 'boardsize 5' by 'hello'")
    assert not (tmp_path / "new").exists()


def engines():
    """Fake engines that are still there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found += [path.parent.name] if str(FAKE).encode() in path.read_bytes() else []
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks processes up in /proc")
@pytest.mark.parametrize(
    ("number", "code", "jobs"),
    [
        (signal.SIGINT, 130, 1),
        (signal.SIGTERM, 143, 1),
        (signal.SIGHUP, 129, 1),
        pytest.param(signal.SIGINT, 130, 2, marks=pytest.mark.slow),
    ],
)
def test_a_match_that_is_stopped_sums_up_and_ends_its_engines(
    go_run, tmp_path, capsys, number, code, jobs
):
    handler = signal.getsignal(number)
    first = tmp_path / "game-0001.sgf"

    def stop():  # once the first game is over and the engine hangs in the second
        while not first.exists():
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(os.getpid(), number)

    threading.Thread(target=stop, daemon=True).start()
    stalling = ["--opponent", f"{sys.executable} {FAKE} stall", "--max-moves", "4"]
    options = ["--json", "--sgf", str(tmp_path), "--jobs", str(jobs)]
    assert main(["match", str(go_run), *stalling, *options]) == code
    captured = capsys.readouterr()
    summary = json.loads(captured.out.strip().split("\n")[-1])
    assert summary["interrupted"] and 1 <= summary["games"] == len(summary["rows"]) <= jobs
    assert captured.err == f"muesli match: {number.name}: interrupted\n"
    assert not engines() and signal.getsignal(number) is handler


def test_an_opponent_of_another_board_is_refused(go_run, tmp_path, capsys):
    import jax

    parts = build(tiny_go(3))
    export_agent(tmp_path / "small", parts.agent.init(jax.random.key(0)), parts.config)
    assert main(["match", str(go_run), "--opponent-run", str(tmp_path / "small")]) == 2
    refused(capsys, "opponent: small prior cannot begin: it plays on 3x3, not on 5x5")
    assert not list((go_run / "games").glob("*"))


def test_no_match_writes_over_the_games_of_another(go_run, tmp_path, capsys):
    file = tmp_path / "agent.muesli"
    assert main(["export", str(go_run), "-o", str(file)]) == 0
    passing = ["--opponent", f"{sys.executable} {FAKE} pass", "--max-moves", "4", "--games", "2"]

    def played(source, *options):
        assert main(["match", str(source), *passing, "--json", *options]) == 0
        return json.loads(capsys.readouterr().out.strip().split("\n")[-1])["sgf"]

    folders = [tmp_path / "agent-games" / f"match-000{k}" for k in (1, 2)]
    assert [played(file), played(file)] == [str(folder) for folder in folders]
    asked = tmp_path / "a" / "b"
    assert played(file, "--sgf", str(asked)) == str(asked)
    inside = Path(played(go_run))
    assert inside.parent == go_run / "games"
    for folder in (*folders, asked, inside):
        assert sorted(p.name for p in folder.iterdir()) == ["game-0001.sgf", "game-0002.sgf"]
    shutil.rmtree(inside.parent)
    assert main(["match", str(file), *passing, "--sgf", str(asked)]) == 2
    refused(capsys, f"--sgf: {asked} holds the games of another match")
    assert main(["match", str(file), *passing, "--sgf", str(file / "under")]) == 2
    refused(capsys, "--sgf: cannot write")


def test_an_exported_agent_is_of_no_checkpoint(go_run, tmp_path, capsys):
    assert main(["gtp", str(go_run), "--checkpoint", "step-3"]) == 2
    refused(capsys, "checkpoint: ")
    file = tmp_path / "agent.muesli"
    assert main(["export", str(go_run), "-o", str(file)]) == 0
    assert main(["gtp", str(file), "--checkpoint", "kept-1"]) == 2
    refused(capsys, "is an exported agent, of which no 'kept-1' can be chosen")
