"""Options that several commands share, and what is checked of them in one place."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from muesli.cli.main import UsageError, nearest
from muesli.config import LARGEST_SEED

ACT_WITH = ("prior", "online", "cmpo", "q_softmax", "mcts")
SEARCH = ("simulations", "max_depth", "algorithm", "model")


class Parser(argparse.ArgumentParser):
    """As argparse's, but it complains in one line as the rest of the command does."""

    def __init__(self, **about: Any):
        super().__init__(allow_abbrev=False, **about)

    def error(self, message: str) -> NoReturn:
        """Raises a UsageError that begins with the option it is about."""
        stray = message.removeprefix("unrecognized arguments: ")
        if stray != message:
            first = stray.split()[0]
            hint = nearest(first.split("=")[0], list(self._option_string_actions))
            raise UsageError(f"{first}: there is no such option{hint}")
        line = message.removeprefix("argument ")
        for kind, shown in (("whole_number|int", "a whole number"), ("float", "a number")):
            line = re.sub(rf"invalid (?:{kind}) value: '(.*)'", rf"must be {shown}, got \1", line)
        raise UsageError(line)


def whole_number(text: str) -> int:
    """A whole number as people write large ones: 1000000, 1_000_000, 1e6."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        if float(text).is_integer():
            return int(float(text))
    raise ValueError(f"{text} is no whole number")


def check_at_least(least: float, args: argparse.Namespace, *names: str) -> None:
    """Refuses options below ``least``; one that was not given (None) is left alone."""
    for name in names:
        value = getattr(args, name)
        if value is not None and not value >= least:
            raise UsageError(f"--{name.replace('_', '-')}: must be at least {least}, got {value}")


def check_seed(args: argparse.Namespace) -> None:
    """Refuses a seed that no generator takes."""
    if not 0 <= args.seed <= LARGEST_SEED:
        raise UsageError(f"--seed: must be in [0, {LARGEST_SEED}], got {args.seed}")


def prepare_output(path: Path, suffixes: Sequence[str] = ()) -> None:
    """Refuses an ``--output`` that cannot be written; makes the folder of one that can."""
    if suffixes and path.suffix.lower() not in suffixes:
        raise UsageError(f"--output: must end in {' or '.join(suffixes)}, got {path}")
    if path.is_dir():
        raise UsageError(f"--output: {path} is a directory; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"--output: {path.parent} is no directory") from None
    except OSError as error:
        raise UsageError(f"--output: cannot write {path} ({error.strerror})") from error


# --- which agent, and how it acts -------------------------------------------------------------


def add_agent_options(parser: argparse.ArgumentParser) -> None:
    """``RUN_DIR [--checkpoint NAME] [--best]``: what ``load_player`` loads."""
    parser.add_argument("run_dir", type=Path, help="a run directory, or an exported agent")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--checkpoint", metavar="NAME", help="best, kept-<updates>, ... (default: the newest)"
    )
    which.add_argument(
        "--best",
        dest="checkpoint",
        action="store_const",
        const="best",
        help="the checkpoint with the best evaluation: --checkpoint best",
    )


def add_acting_options(parser: argparse.ArgumentParser, *more_ways: str) -> None:
    """``[--act-with MODE] [--greedy] [--seed N] [--search.…]``: how the agent acts."""
    parser.add_argument(
        "--act-with", choices=(*ACT_WITH, *more_ways), help="default: prior; with --search.*: mcts"
    )
    parser.add_argument("--greedy", action="store_true", help="take the most probable action")
    parser.add_argument("--seed", type=whole_number, default=0, help="random seed (default 0)")
    add_search_options(parser)


def add_search_options(parser: argparse.ArgumentParser, whose: str = "") -> None:
    """``--search.simulations N`` and its like; any of them acts with mcts. whose: what options that
    describe another agent begin with.
    """
    group = parser.add_argument_group(f"search (--{whose}act-with mcts)")

    def add(name: str, **about: Any) -> None:
        group.add_argument(f"--{whose}search.{name}", dest=_attribute(whose + name), **about)

    add("simulations", type=int, metavar="N")
    add("max-depth", type=int, metavar="N")
    add("algorithm", choices=("muzero", "gumbel"))
    add(
        "model",
        choices=("learnt", "rules"),
        help="what to search: the agent's model, or the rules (games of two players only)",
    )


def option(args: argparse.Namespace, name: str, whose: str = "") -> Any:
    """What was given for ``--name``, or for ``--whose-name``."""
    return getattr(args, _attribute(whose + name))


def _attribute(flag: str) -> str:
    return flag.replace("-", "_")


def search_options(args: argparse.Namespace, whose: str = "") -> dict[str, Any]:
    """The fields of ``search`` that were given."""
    given = {name: option(args, name, whose) for name in SEARCH}
    return {name: value for name, value in given.items() if value is not None}


def act_with(args: argparse.Namespace, whose: str = "") -> str:
    """How to act: as asked, or by search where one was described, or by the prior policy."""
    given, asked = search_options(args, whose), option(args, "act_with", whose)
    if given and asked not in (None, "mcts"):
        flag = f"--{whose}search.{next(iter(given)).replace('_', '-')}"
        raise UsageError(f"{flag}: has no effect with --{whose}act-with {asked}, only with mcts")
    return asked or ("mcts" if given else "prior")


def load_player(args: argparse.Namespace) -> Any:
    """The agent that ``add_agent_options`` named, with the search that was asked for, if any."""
    from muesli.runners.player import load

    search = search_options(args) if hasattr(args, "simulations") else {}
    return load(args.run_dir, checkpoint=args.checkpoint, search=search)
