"""``muesli gtp``, ``muesli match`` and ``muesli elo``."""

from __future__ import annotations

import argparse
import errno
import io
import itertools
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muesli.cli import plugins
from muesli.cli.main import UsageError
from muesli.cli.options import (
    ACT_WITH,
    SEARCH,
    Parser,
    act_with,
    add_acting_options,
    add_search_options,
    check_at_least,
    check_seed,
    option,
    search_options,
    whole_number,
)

if TYPE_CHECKING:
    from muesli.go.agent import GoAgent
    from muesli.go.match import AgentSide, EngineSide, Match

STOPPED_ITSELF = 3
# What the options that describe the other run of a match begin with.
_OPPONENT = "opponent-"


def _agent_options(parser: argparse.ArgumentParser, sample_moves: int) -> None:
    parser.add_argument("run_dir", type=Path)
    _playing_options(parser)
    parser.add_argument(
        "--sample-moves",
        type=int,
        default=sample_moves,
        help=f"own moves sampled before playing the likeliest ({sample_moves})",
    )
    parser.add_argument("--seed", type=whole_number, default=0)


def _playing_options(parser: argparse.ArgumentParser, whose: str = "") -> None:
    parser.add_argument(
        f"--{whose}checkpoint", help="newest unless named: best, step-<updates>, kept-<updates>"
    )
    parser.add_argument(
        f"--{whose}act-with", choices=ACT_WITH, help=f"prior, or mcts with --{whose}search.*"
    )
    add_search_options(parser, whose)


def _load(args: argparse.Namespace, whose: str = "") -> GoAgent:
    from muesli.go.agent import load_agent

    with _naming(whose):
        return load_agent(
            option(args, "run_dir", whose),
            option(args, "checkpoint", whose),
            act_with(args, whose),
            search_options(args, whose),
            args.sample_moves,
            # Two sides that draw the same numbers would think alike.
            args.seed ^ (whose == _OPPONENT),
        )


@contextmanager
def _naming(whose: str) -> Iterator[None]:
    """What is wrong with the other run is said of the option that named it."""
    from muesli.checkpoint import CheckpointError
    from muesli.config import ConfigError

    try:
        yield
    except (CheckpointError, ConfigError) as error:
        if not whose:
            raise
        field, _, rest = str(error).partition(": ")
        if field == "run_dir":
            raise UsageError(f"--{whose}run: {rest}") from error
        if field == "checkpoint" or field.startswith("search."):
            raise UsageError(f"--{whose}{field.replace('_', '-')}: {rest}") from error
        raise UsageError(f"--{whose}run: {error}") from error


def gtp_command(argv: Sequence[str]) -> int:
    """``muesli gtp RUN_DIR [--checkpoint NAME] [--search.simulations N]``."""
    parser = Parser(prog="muesli gtp")
    _agent_options(parser, sample_moves=0)
    args = parser.parse_args(list(argv))
    check_at_least(0, args, "sample_moves")
    check_seed(args)

    import muesli
    from muesli.go.gtp import Engine, serve
    from muesli.go.pictures import describe

    agent = _load(args)
    agent.begin(0, agent.komi)  # a controller's clock runs from its first command
    engine = Engine(
        agent.choose,
        agent.size,
        agent.komi,
        version=muesli.__version__,
        describe=lambda game, colour: describe(agent, game, colour),
    )
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a stray byte spoils its own line alone
    serve(engine, sys.stdin, sys.stdout)
    return 0


def match_command(argv: Sequence[str]) -> int:
    """``muesli match RUN_DIR --opponent COMMAND [--games N] [--sgf DIR] [--json]``."""
    args = _match_arguments(argv)
    made = args.sgf is not None and not args.sgf.exists()
    if args.sgf is not None:
        _take_folder(args.sgf)

    from muesli.go.match import Played, in_words, summarise
    from muesli.go.stop import Stopped, stoppable
    from muesli.go.workers import WorkerLost, Workers

    make = partial(_match, args, list(plugins.LOADED))
    folder, about, code = args.sgf, {}, 0
    played: list[Played] = []
    try:
        with stoppable(), closing(Workers(make, args.jobs) if args.jobs > 1 else make()) as match:
            match.begin()
            about = match.about
            for whose, how in about.items():
                print(f"{whose}: " + ", ".join(f"{name} {value}" for name, value in how.items()))
            if folder is None:
                folder, made = _new_folder(args.run_dir), True
            for game in match.games(args.games):
                name = f"game-{game.row['game']:04d}.sgf"
                (folder / name).write_text(game.sgf, encoding="utf-8", errors="replace")
                played.append(game)
                _show(game.row)
    except Stopped as stop:
        code = 128 + stop.number
        print(f"muesli match: {stop}: interrupted", file=sys.stderr)
    except WorkerLost as lost:
        code = STOPPED_ITSELF
        print(f"muesli match: {lost}", file=sys.stderr)
    finally:
        if made and folder is not None:  # here, and no game was finished
            with suppress(OSError):
                folder.rmdir()
    if not about:  # it had not begun
        return code
    summary = summarise(played) | {
        "interrupted": code != 0,
        "opponent": about["theirs"]["name"],
        "act_with": act_with(args),
        "sgf": str(folder) if played else None,
        **about,
    }
    if played:
        print(f"games: {folder}")
    print(json.dumps(summary) if args.json else in_words(summary))
    return code


def _match(args: argparse.Namespace, plugged: list[str]) -> Match:
    """The match as it is played in one process."""
    for file in plugged:
        plugins.load(file)
    from muesli.go.match import AgentSide, Match

    theirs = _opponent(args)
    agent = _load(args)
    komi = agent.komi if args.komi is None else args.komi
    ours = AgentSide(agent, _name(args))
    return Match(ours, theirs, agent.size, komi, args.max_moves, args.game_seconds)


def _match_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="muesli match",
        description="Plays Go against a GTP engine, or against another run of ours.",
    )
    _agent_options(parser, sample_moves=6)
    parser.add_argument(
        "--opponent", help="a GTP command line, or gnugo:LEVEL (1 to 10), gnugo (10), pachi"
    )
    parser.add_argument(
        "--opponent-run",
        dest="opponent_run_dir",
        type=Path,
        metavar="RUN_DIR",
        help="a run to play against; it acts by its bare policy unless told otherwise",
    )
    _playing_options(parser, _OPPONENT)
    parser.add_argument("--games", type=whole_number, default=10)
    parser.add_argument(
        "--jobs",
        type=whole_number,
        default=1,
        metavar="N",
        help="games at once, each in a process with an agent and an engine of its own (1)",
    )
    parser.add_argument("--komi", type=float, help="the run's own unless given")
    parser.add_argument("--max-moves", type=int, help="3 size² unless given; then the board counts")
    parser.add_argument("--move-seconds", type=float, default=60.0, help="for the engine")
    parser.add_argument("--game-seconds", type=float, default=math.inf, help="for either side")
    parser.add_argument(
        "--sgf",
        type=Path,
        metavar="DIR",
        help="where games go; unless given, a new folder match-<number> in RUN_DIR/games, or of "
        "an exported FILE in FILE-games beside it",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args(list(argv))

    from muesli.go.gtp import MAX_KOMI

    check_at_least(0, args, "sample_moves")
    check_seed(args)
    if (args.opponent is None) == (args.opponent_run_dir is None):
        raise UsageError("--opponent or --opponent-run: exactly one of them is needed")
    described = [option(args, name, _OPPONENT) for name in ("checkpoint", "act_with", *SEARCH)]
    if args.opponent is not None and any(value is not None for value in described):
        raise UsageError(
            "--opponent-checkpoint, --opponent-act-with, --opponent-search.*: only an "
            "--opponent-run has them; an engine plays as its command says"
        )
    for name in ("games", "jobs", "move_seconds", "game_seconds", "max_moves"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise UsageError(f"--{name.replace('_', '-')}: must be positive, got {value}")
    for name in ("komi", "move_seconds"):
        value = getattr(args, name)
        if value is not None and not math.isfinite(value):
            raise UsageError(f"--{name.replace('_', '-')}: must be a finite number, got {value}")
    if args.komi is not None and not abs(args.komi) < MAX_KOMI:
        raise UsageError(f"--komi: must be less than {MAX_KOMI:g}, got {args.komi:g}")
    args.jobs = min(args.jobs, args.games)
    return args


def _opponent(args: argparse.Namespace) -> AgentSide | EngineSide:
    from muesli.go.match import AgentSide, EngineSide
    from muesli.go.process import opponent_command

    if args.opponent is not None:
        return EngineSide(opponent_command(args.opponent), args.opponent, args.move_seconds)
    return AgentSide(_load(args, _OPPONENT), _name(args, _OPPONENT))


@contextmanager
def _writing_games() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"--sgf: cannot write {error.filename} ({error.strerror})") from error


def _take_folder(folder: Path) -> None:
    """Makes the folder that was asked for; refuses one that cannot take the games of a match."""
    with _writing_games():
        if any(folder.glob("game-*.sgf")):
            raise UsageError(f"--sgf: {folder} holds the games of another match")
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def _new_folder(run: Path) -> Path:
    """A folder beside the run's others, which holds the games of no other match."""
    with _writing_games():
        parent = run.with_name(f"{run.stem}-games") if run.is_file() else run / "games"
        parent.mkdir(exist_ok=True)
        for number in itertools.count(1):
            # Made in one step with the question whether it is free: matches may run side by side.
            with suppress(FileExistsError):
                folder = parent / f"match-{number:04d}"
                folder.mkdir()
                break
    return folder


def _name(args: argparse.Namespace, whose: str = "") -> str:
    run = option(args, "run_dir", whose).resolve().name
    details = (option(args, "checkpoint", whose), act_with(args, whose))
    return " ".join([run, *(word for word in details if word)])


def _show(row: dict[str, Any]) -> None:
    points = {1.0: "won", 0.0: "lost", 0.5: "drew"}[row["points"]]
    line = f"game {row['game']}: {points} as {row['colour']}, {row['result']}"
    print(f"{line}, {row['moves']} moves, {row['reason']} {row['detail']}".rstrip(), flush=True)


def elo_command(argv: Sequence[str]) -> int:
    """``muesli elo RUN_DIR [--games N] [--max-checkpoints N] [--json]``."""
    parser = Parser(
        prog="muesli elo",
        description="Plays the checkpoints that a two-player run kept (log.keep_every) and a "
        "random player against each other; prints their Elo, the random player's being 0.",
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--games", type=int, default=64, help="of each pair")
    parser.add_argument("--max-checkpoints", type=int, default=8, help="evenly chosen")
    add_acting_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args(list(argv))
    check_at_least(1, args, "games", "max_checkpoints")
    check_seed(args)

    from muesli.runners.ratings import rate_run

    rows = rate_run(
        args.run_dir,
        args.games,
        args.max_checkpoints,
        act_with(args),
        args.greedy,
        search_options(args),
        args.seed,
    )
    for row in rows:
        print(f"{row['name']:<16} {row['env_steps']:>14,} steps  Elo {row['elo']:7.0f}", flush=True)
    if args.json:
        print(json.dumps({"games_per_pair": args.games, "ratings": rows}))
    return 0
