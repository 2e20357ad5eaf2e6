"""``muesli export``: an agent in one file, to share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from muesli.cli.main import UsageError


def export_command(argv: Sequence[str]) -> int:
    """``muesli export RUN_DIR -o FILE [--best]``."""
    parser = argparse.ArgumentParser(prog="muesli export", allow_abbrev=False)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--best", action="store_true", help="the checkpoint that evaluated best")
    args = parser.parse_args(list(argv))

    from muesli.checkpoint import CheckpointError
    from muesli.runners.export import export_agent
    from muesli.runners.player import load

    try:
        player = load(args.run_dir, args.best)
        export_agent(args.output, player.state, player.config)
    except CheckpointError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"--output: cannot write {args.output} ({error.strerror})") from error
    print(f"{args.output}: {args.output.stat().st_size:,} bytes; muesli eval {args.output}")
    return 0
