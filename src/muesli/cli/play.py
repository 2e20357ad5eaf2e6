"""``muesli eval`` and ``muesli record``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from muesli.cli.main import UsageError
from muesli.cli.options import (
    Parser,
    act_with,
    add_acting_options,
    add_agent_options,
    check_at_least,
    check_seed,
    load_player,
    prepare_output,
)

VIDEOS = (".mp4", ".mkv", ".mov", ".avi", ".gif")


def eval_command(argv: Sequence[str]) -> int:
    """``muesli eval RUN_DIR [--episodes N] [--act-with MODE] [--greedy] [--seed N] [--json]``."""
    parser = Parser(prog="muesli eval")
    add_agent_options(parser)
    parser.add_argument("--episodes", type=int, default=100, help="how many are played (100)")
    add_acting_options(parser, "random")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args(list(argv))
    check_at_least(1, args, "episodes")
    check_seed(args)
    how = act_with(args)

    from muesli.runners.evaluate import summarise, told_of_cuts

    player = load_player(args)
    result = summarise(*player.evaluate(args.episodes, how, args.greedy, args.seed))
    if args.json:
        print(json.dumps(result))
    else:
        print(
            f"return {result['return_mean']:.3f} ± {result['return_stderr']:.3f} "
            f"over {result['episodes']} episodes of {result['length_mean']:.1f} steps"
            f"{told_of_cuts(result)}"
        )
    return 0


def record_command(argv: Sequence[str]) -> int:
    """``muesli record RUN_DIR [-o FILE.mp4] [--episodes N] [--act-with MODE] [--greedy]``; for Go,
    diagrams too.
    """
    parser = Parser(prog="muesli record")
    add_agent_options(parser)
    parser.add_argument("-o", "--output", type=Path, help="RUN_DIR/video.mp4 unless given")
    parser.add_argument("--episodes", type=int, default=3, help="how many are played (3)")
    parser.add_argument("--max-steps", type=int, default=1000, help="frames at most (1000)")
    parser.add_argument("--fps", type=int, default=15, help="frames shown in a second (15)")
    add_acting_options(parser, "random")
    args = parser.parse_args(list(argv))
    check_at_least(1, args, "episodes", "max_steps", "fps")
    check_seed(args)
    how = act_with(args)
    if args.model == "rules":
        raise UsageError("--search.model: a video is searched with the agent's own model, learnt")
    if args.output is not None:
        prepare_output(args.output, VIDEOS)
    beside = args.run_dir.with_suffix(".mp4") if args.run_dir.is_file() else None
    output = args.output or beside or args.run_dir / "video.mp4"
    player = load_player(args)

    from muesli.video import record

    frames = record(
        player, output, args.episodes, args.max_steps, args.fps, args.seed, how, args.greedy
    )
    print(f"{output}: {frames} frames")
    from muesli.envs.go import go_size

    at_a_board = go_size(player.config.env.name) is not None and how != "random"
    if at_a_board and player.config.network.core == "none":
        from muesli.go.agent import GoAgent
        from muesli.go.pictures import record_game

        sampled = 0 if args.greedy else 6
        agent = GoAgent(player, how, sample_moves=sampled, seed=args.seed)
        for path in record_game(agent, output.parent, args.run_dir.name):
            print(path)
    return 0
