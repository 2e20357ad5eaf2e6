"""Environments by name, one file per family, and the check every one of them passes."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial

from muesli.config import ConfigError
from muesli.envs.base import JaxEnv
from muesli.envs.check import check
from muesli.envs.games import MINATAR_GAMES, board_game, minatar
from muesli.envs.toys import bandit, catch, illustrative_mdp, recall

ENVS: dict[str, Callable[[], JaxEnv]] = {
    "bandit": bandit,
    "catch": catch,
    "illustrative_mdp": illustrative_mdp,
    "recall": recall,
    "tic_tac_toe": partial(board_game, "tic_tac_toe"),
    "connect_four": partial(board_game, "connect_four"),
    **{f"minatar_{game}": partial(minatar, game) for game in MINATAR_GAMES},
}
"""Every environment by name. Add your own: ``ENVS["mine"] = make_mine``."""


def make(name: str) -> JaxEnv:
    """The environment of that name; raises a ConfigError with the nearest names."""
    if name not in ENVS:
        close = difflib.get_close_matches(name, ENVS, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(ENVS)}"
        raise ConfigError(f"env.name: this version has no environment '{name}'; {hint}")
    return ENVS[name]()


__all__ = ["ENVS", "JaxEnv", "check", "make"]
