"""Environments by name, one file per family, and the check every one of them passes."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial

from muesli.config import ConfigError, EnvConfig
from muesli.envs.base import HostEnv, HostEnvs, JaxEnv
from muesli.envs.check import check
from muesli.envs.games import MINATAR_GAMES, board_game, minatar
from muesli.envs.go import go, go_size
from muesli.envs.toys import bandit, catch, catch_pixels, illustrative_mdp, recall
from muesli.envs.workers import in_processes

ENVS: dict[str, Callable[[], JaxEnv | HostEnvs]] = {
    "bandit": bandit,
    "catch": catch,
    "catch_pixels": catch_pixels,
    "illustrative_mdp": illustrative_mdp,
    "recall": recall,
    "tic_tac_toe": partial(board_game, "tic_tac_toe"),
    "connect_four": partial(board_game, "connect_four"),
    **{f"go_{size}x{size}": partial(go, size) for size in (5, 7, 9)},
    **{f"minatar_{game}": partial(minatar, game) for game in MINATAR_GAMES},
}
"""Every environment by name. Add your own: ``ENVS["mine"] = make_mine``."""


def make(name: str, config: EnvConfig | None = None) -> JaxEnv | HostEnvs:
    """The environment of that name; raises a ConfigError with the nearest names.

    Besides those in ``ENVS``: ``go_13x13`` and other boards, ``atari:game``, ``gym:EnvId``, and
    ``module:EnvId`` for what a module registers with Gymnasium when it is imported. ``config`` says
    how these are run.
    """
    config = config or EnvConfig(name=name)
    env = _make(name, config)
    if isinstance(env, HostEnvs) and config.processes > 0:
        return in_processes(name, config, env)
    return env


def _make(name: str, config: EnvConfig) -> JaxEnv | HostEnvs:
    size = go_size(name)
    if size is not None:
        return go(size, config.go)
    if name in ENVS:
        return ENVS[name]()
    family, colon, rest = name.partition(":")
    if colon:
        # Both import what not everyone has installed.
        if family == "atari":
            from muesli.envs.atari import atari

            return atari(rest, config)
        from muesli.envs.gymnasium import gym_env

        return gym_env(rest if family == "gym" else name)
    close = difflib.get_close_matches(name, ENVS, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(ENVS)}"
    raise ConfigError(f"env.name: this version has no environment '{name}'; {hint}")


__all__ = ["ENVS", "HostEnv", "HostEnvs", "JaxEnv", "check", "make"]
