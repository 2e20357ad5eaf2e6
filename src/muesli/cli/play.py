"""``muesli eval`` and ``muesli record``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muesli.cli.board import act_with, add_search_options, search_options
from muesli.cli.main import UsageError

ACT_WITH = ("prior", "online", "cmpo", "q_softmax", "mcts", "random")


def eval_command(argv: Sequence[str]) -> int:
    """``muesli eval RUN_DIR [--episodes N] [--act-with MODE] [--greedy] [--seed N] [--json]``."""
    parser = argparse.ArgumentParser(prog="muesli eval", allow_abbrev=False)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--act-with", choices=ACT_WITH, help="prior, or mcts with --search.*")
    parser.add_argument("--greedy", action="store_true", help="take the most probable action")
    parser.add_argument("--best", action="store_true", help="the checkpoint that evaluated best")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    add_search_options(parser)
    args = parser.parse_args(list(argv))
    if args.episodes < 1:
        raise UsageError(f"--episodes: must be at least 1, got {args.episodes}")

    from muesli.runners.evaluate import summarise

    player = _load(args.run_dir, args.best, search_options(args))
    result = summarise(*player.evaluate(args.episodes, act_with(args), args.greedy, args.seed))
    if args.json:
        print(json.dumps(result))
    else:
        print(
            f"return {result['return_mean']:.3f} ± {result['return_stderr']:.3f} "
            f"over {result['episodes']} episodes of {result['length_mean']:.1f} steps"
        )
    return 0


def record_command(argv: Sequence[str]) -> int:
    """``muesli record RUN_DIR [-o FILE.mp4] [--episodes N] [--seed N]``; for Go, diagrams too."""
    parser = argparse.ArgumentParser(prog="muesli record", allow_abbrev=False)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--max-steps", type=int, default=1000, help="frames at most")
    parser.add_argument("--fps", type=int, default=15)
    parser.add_argument("--best", action="store_true", help="the checkpoint that evaluated best")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(list(argv))
    beside = args.run_dir.with_suffix(".mp4") if args.run_dir.is_file() else None
    output = args.output or beside or args.run_dir / "video.mp4"

    from muesli.video import record

    player = _load(args.run_dir, args.best)
    frames = record(player, output, args.episodes, args.max_steps, args.fps, args.seed)
    print(f"{output}: {frames} frames")
    from muesli.envs.go import go_size

    if go_size(player.config.env.name) is not None and player.config.network.core == "none":
        from muesli.go.agent import GoAgent
        from muesli.go.pictures import record_game

        agent = GoAgent(player, "prior", sample_moves=6, seed=args.seed)
        for path in record_game(agent, output.parent, args.run_dir.name):
            print(path)
    return 0


def _load(run_dir: Path, best: bool, search: dict[str, Any] | None = None) -> Any:
    from muesli.checkpoint import CheckpointError
    from muesli.runners.player import load

    try:
        return load(run_dir, best, search=search)
    except CheckpointError as error:
        raise UsageError(str(error)) from error
