"""``muesli export``: an agent in one file, to share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muesli.cli.options import Parser, add_agent_options, load_player, prepare_output


def export_command(argv: Sequence[str]) -> int:
    """``muesli export RUN_DIR -o FILE [--checkpoint NAME]``."""
    parser = Parser(prog="muesli export")
    add_agent_options(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the file to write")
    args = parser.parse_args(list(argv))
    prepare_output(args.output)

    from muesli.runners.export import export_agent

    player = load_player(args)
    export_agent(args.output, player.state, player.config)
    print(f"{args.output}: {args.output.stat().st_size:,} bytes; muesli eval {args.output}")
    return 0
