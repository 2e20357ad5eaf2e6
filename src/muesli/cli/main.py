"""``muesli COMMAND …``: finds the command and hands it the rest of the line."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence

import muesli

# Command -> (module, one line of help).
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("muesli.cli.train", "train an agent: muesli train [PRESET] [--field VALUE ...]"),
    "resume": ("muesli.cli.train", "continue a run: muesli resume RUN_DIR"),
    "eval": ("muesli.cli.play", "play fresh episodes: muesli eval RUN_DIR [--episodes N] [--json]"),
    "record": ("muesli.cli.play", "make a video: muesli record RUN_DIR [-o FILE.mp4]"),
    "export": ("muesli.cli.export", "one file to share: muesli export RUN_DIR -o FILE"),
    "match": ("muesli.cli.board", "play Go: muesli match RUN_DIR --opponent gnugo:10 [--games N]"),
    "gtp": ("muesli.cli.board", "be a Go engine: muesli gtp RUN_DIR"),
    "elo": ("muesli.cli.board", "rate a run's checkpoints: muesli elo RUN_DIR [--games N]"),
    "plot": ("muesli.cli.plot", "draw curves: muesli plot RUN_DIR... [-o FILE.png]"),
    "suite": ("muesli.cli.suite", "run a study of the paper: muesli suite NAME [--dry-run]"),
    "compare": ("muesli.cli.report", "tables with intervals: muesli compare DIR..."),
    "report": ("muesli.cli.report", "one page to show: muesli report DIR [-o FILE.html] [--live]"),
    "job": ("muesli.cli.suite", "do one job of a suite (executors call this): muesli job FILE"),
    "list": ("muesli.cli.info", "what there is: muesli list presets|envs|updates|networks|suites"),
    "doctor": ("muesli.cli.info", "what this machine can do"),
    "bench": ("muesli.cli.bench", "throughput: muesli bench [PRESET]"),
}

USAGE_ERROR = 2
INTERRUPTED = 130
UNREAD = 141  # as a shell says of a command whose reader went away


class UsageError(Exception):
    """Bad input: printed as one line, exit code 2."""


def usage() -> str:
    """The text of ``muesli --help``."""
    lines = [
        "usage: muesli [--plugin FILE.py ...] COMMAND [OPTIONS]",
        "",
        "Policy optimisation as in 'Muesli: Combining Improvements in Policy Optimization'.",
        "",
        "commands:",
    ]
    lines += [f"  {name:<8} {text}" for name, (_, text) in COMMANDS.items()]
    lines += ["", "'muesli COMMAND --help' says more; 'muesli --version' prints the version."]
    return "\n".join(lines)


def nearest(word: str, choices: Sequence[str]) -> str:
    """' (did you mean X?)' for the nearest choice, or nothing."""
    found = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    return f" (did you mean {found[0]}?)" if found else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # as in `muesli list envs | head`: nobody reads on
        # What is still in the buffer would raise once more as the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if arguments[0] == "--version":
        print(f"muesli {muesli.__version__}")
        return 0
    from muesli.cli import plugins

    try:
        plugins.take(arguments)
    except ValueError as error:
        print(f"muesli: {error}", file=sys.stderr)
        return USAGE_ERROR
    name = arguments[0] if arguments else ""
    if name not in COMMANDS:
        print(f"muesli: unknown command '{name}'{nearest(name, list(COMMANDS))}", file=sys.stderr)
        return USAGE_ERROR
    if any(argument.partition("=")[0] == "--plugin" for argument in arguments[1:]):
        line = f"--plugin: comes before the command: muesli --plugin FILE {name} ..."
        print(f"muesli {name}: {line}", file=sys.stderr)
        return USAGE_ERROR
    code = _call(name, arguments[1:])
    if (distributed := sys.modules.get("muesli.runners.distributed")) is not None:
        distributed.leave_if_failed(code)
    return code


def _call(name: str, arguments: Sequence[str]) -> int:
    module = importlib.import_module(COMMANDS[name][0])
    try:
        return int(getattr(module, f"{name}_command")(arguments))
    except Exception as error:
        line = _bad_input(error)
        if line is None:
            raise
        print(f"muesli {name}: {line}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:  # training saves by itself; this is before there was anything to save
        print(f"muesli {name}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _bad_input(error: Exception) -> str | None:
    """What to say of an error that the input is to blame for; None of any other."""
    from muesli.config import ConfigError

    if isinstance(error, UsageError | ConfigError):
        return str(error)
    # Who has not imported checkpoints, and JAX with them, cannot have failed by one.
    checkpoint = sys.modules.get("muesli.checkpoint")
    if checkpoint is not None and isinstance(error, checkpoint.CheckpointError):
        return str(error)
    # Without a file's name it is a pipe, a socket or a full disk.
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return None


if __name__ == "__main__":
    # The module as others import it: as __main__ it would know another UsageError than they raise.
    sys.exit(importlib.import_module("muesli.cli.main").main())
