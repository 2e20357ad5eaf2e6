"""``muesli gtp``, ``muesli match`` and ``muesli elo``."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muesli.cli.main import UsageError

ACT_WITH = ("prior", "online", "cmpo", "q_softmax", "mcts")


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """``--search.simulations N`` and its like; a number of simulations acts with mcts."""
    group = parser.add_argument_group("search (--act-with mcts)")
    group.add_argument("--search.simulations", dest="simulations", type=int, metavar="N")
    group.add_argument("--search.max-depth", dest="max_depth", type=int, metavar="N")
    group.add_argument("--search.algorithm", dest="algorithm", choices=("muzero", "gumbel"))
    group.add_argument(
        "--search.model",
        dest="model",
        choices=("learnt", "rules"),
        help="look ahead with the agent's model, or in games of two players with their rules",
    )


def search_options(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of ``search`` that were given."""
    given = {
        name: getattr(args, name) for name in ("simulations", "max_depth", "algorithm", "model")
    }
    return {name: value for name, value in given.items() if value is not None}


def act_with(args: argparse.Namespace) -> str:
    """How to act: as asked, or by search where one was described, or by the prior policy."""
    return args.act_with or ("mcts" if search_options(args) else "prior")


def _agent_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path)
    parser.add_argument(
        "--checkpoint", help="newest unless named: best, step-<updates>, kept-<updates>"
    )
    parser.add_argument("--act-with", choices=ACT_WITH, help="prior, or mcts with --search.*")
    parser.add_argument(
        "--sample-moves", type=int, default=6, help="own moves sampled before playing the likeliest"
    )
    parser.add_argument("--seed", type=int, default=0)
    add_search_options(parser)


def _load(run_dir: Path, args: argparse.Namespace, checkpoint: str | None, seed: int) -> Any:
    from muesli.checkpoint import CheckpointError
    from muesli.go.agent import load_agent

    try:
        return load_agent(
            run_dir, checkpoint, act_with(args), search_options(args), args.sample_moves, seed
        )
    except CheckpointError as error:
        raise UsageError(str(error)) from error


def gtp_command(argv: Sequence[str]) -> int:
    """``muesli gtp RUN_DIR [--checkpoint NAME] [--search.simulations N]``."""
    parser = argparse.ArgumentParser(prog="muesli gtp", allow_abbrev=False)
    _agent_options(parser)
    args = parser.parse_args(list(argv))

    import muesli
    from muesli.go.gtp import Engine, serve
    from muesli.go.pictures import describe

    agent = _load(args.run_dir, args, args.checkpoint, args.seed)
    engine = Engine(
        agent.choose,
        agent.size,
        agent.komi,
        version=muesli.__version__,
        describe=lambda game, colour: describe(agent, game, colour),
    )
    serve(engine, sys.stdin, sys.stdout)
    return 0


def match_command(argv: Sequence[str]) -> int:
    """``muesli match RUN_DIR --opponent COMMAND [--games N] [--sgf DIR] [--json]``."""
    parser = argparse.ArgumentParser(
        prog="muesli match",
        allow_abbrev=False,
        description="Plays Go against a GTP engine, or against another run of ours.",
    )
    _agent_options(parser)
    parser.add_argument(
        "--opponent", help="a GTP command line, or gnugo:LEVEL, gnugo (level 10), pachi"
    )
    parser.add_argument("--opponent-run", type=Path, help="a run directory to play against")
    parser.add_argument("--opponent-checkpoint", help="its checkpoint; newest unless named")
    parser.add_argument("--games", type=int, default=10)
    parser.add_argument("--komi", type=float, help="the run's own unless given")
    parser.add_argument("--max-moves", type=int, help="3 size² unless given; then the board counts")
    parser.add_argument("--move-seconds", type=float, default=60.0, help="for the engine")
    parser.add_argument("--game-seconds", type=float, default=math.inf, help="for either side")
    parser.add_argument("--sgf", type=Path, help="where games go; RUN_DIR/games unless given")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args(list(argv))
    if (args.opponent is None) == (args.opponent_run is None):
        raise UsageError("--opponent or --opponent-run: exactly one of them is needed")
    for name in ("games", "move_seconds", "game_seconds", "max_moves"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise UsageError(f"--{name.replace('_', '-')}: must be positive, got {value}")

    from muesli.go.match import AgentSide, EngineSide, Side, play_match
    from muesli.go.process import opponent_command

    theirs: Side
    if args.opponent is not None:
        command = opponent_command(args.opponent)
        theirs = EngineSide(command, args.opponent, args.move_seconds)
    else:
        other = _load(args.opponent_run, args, args.opponent_checkpoint, args.seed + 1)
        theirs = AgentSide(other, _name(args.opponent_run, args.opponent_checkpoint))
    agent = _load(args.run_dir, args, args.checkpoint, args.seed)
    how = act_with(args)
    ours = AgentSide(agent, _name(args.run_dir, args.checkpoint, how))

    def show(number: int, row: dict[str, Any]) -> None:
        points = {1.0: "won", 0.0: "lost", 0.5: "drew"}[row["points"]]
        line = f"game {row['game']}: {points} as {row['colour']}, {row['result']}"
        print(f"{line}, {row['moves']} moves, {row['reason']} {row['detail']}".rstrip(), flush=True)

    try:
        summary = play_match(
            ours,
            theirs,
            args.games,
            agent.size,
            agent.komi if args.komi is None else args.komi,
            args.sgf or args.run_dir / "games",
            args.max_moves,
            args.game_seconds,
            show,
        )
    finally:
        theirs.close()
    summary |= {"opponent": theirs.name, "act_with": how, **search_options(args)}
    if args.json:
        print(json.dumps(summary))
    else:
        print(
            f"{summary['points']:g} of {summary['games']} games: {summary['win_rate']:.1%} "
            f"(95%: {summary['wilson_low']:.1%} to {summary['wilson_high']:.1%})"
        )
    return 0


def _name(run_dir: Path, *details: str | None) -> str:
    return " ".join([run_dir.resolve().name, *(d for d in details if d)])


def elo_command(argv: Sequence[str]) -> int:
    """``muesli elo RUN_DIR [--games N] [--max-checkpoints N] [--json]``."""
    parser = argparse.ArgumentParser(
        prog="muesli elo",
        allow_abbrev=False,
        description="Plays the checkpoints that a two-player run kept (log.keep_every) and a "
        "random player against each other; prints their Elo, the random player's being 0.",
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--games", type=int, default=64, help="of each pair")
    parser.add_argument("--max-checkpoints", type=int, default=8, help="evenly chosen")
    parser.add_argument("--act-with", choices=ACT_WITH)
    parser.add_argument("--greedy", action="store_true", help="take the most probable action")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    add_search_options(parser)
    args = parser.parse_args(list(argv))
    if args.games < 1 or args.max_checkpoints < 1:
        raise UsageError("--games, --max-checkpoints: must be at least 1")

    from muesli.checkpoint import CheckpointError
    from muesli.runners.ratings import rate_run

    try:
        rows = rate_run(
            args.run_dir,
            args.games,
            args.max_checkpoints,
            act_with(args),
            args.greedy,
            search_options(args),
            args.seed,
        )
    except CheckpointError as error:
        raise UsageError(str(error)) from error
    for row in rows:
        print(f"{row['name']:<16} {row['env_steps']:>14,} steps  Elo {row['elo']:7.0f}", flush=True)
    if args.json:
        print(json.dumps({"games_per_pair": args.games, "ratings": rows}))
    return 0
