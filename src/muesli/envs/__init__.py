"""Environments by name, one file per family, and the check every one of them passes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from muesli.config import YOUR_OWN, ConfigError, EnvConfig
from muesli.envs.base import EnvError, HostEnv, HostEnvs, JaxEnv
from muesli.envs.check import check_env
from muesli.envs.games import MINATAR_GAMES, board_game, minatar
from muesli.envs.go import go, go_size
from muesli.envs.toys import (
    bandit,
    catch,
    catch_pixels,
    continuous_bandit,
    crowded_bandit,
    illustrative_mdp,
    recall,
)
from muesli.envs.workers import in_processes

ENVS: dict[str, Callable[[], Any]] = {
    "bandit": bandit,
    "continuous_bandit": continuous_bandit,
    "crowded_bandit": crowded_bandit,
    "catch": catch,
    "catch_pixels": catch_pixels,
    "illustrative_mdp": illustrative_mdp,
    "recall": recall,
    "tic_tac_toe": partial(board_game, "tic_tac_toe"),
    "connect_four": partial(board_game, "connect_four"),
    **{f"go_{size}x{size}": partial(go, size) for size in (5, 7, 9)},
    **{f"minatar_{game}": partial(minatar, game) for game in MINATAR_GAMES},
}
"""Every environment by name. Add your own: ``ENVS["mine"] = make_mine``, a function that returns a
JaxEnv, a HostEnvs, or one Gymnasium environment."""


_BUILT_IN = dict(ENVS)


def register(name: str, maker: Callable[[], Any]) -> None:
    """``ENVS[name] = maker``, unless the name means an environment already, to other processes and
    other runs.
    """
    if name in _BUILT_IN or ":" in name or go_size(name) is not None:
        raise ConfigError(
            f"env.name: '{name}' means an environment without env=; give yours another name"
        )
    ENVS[name] = maker


def is_own(name: str) -> bool:
    """Whether a user put into ``ENVS`` what the name means."""
    return name in ENVS and ENVS[name] is not _BUILT_IN.get(name)


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


def with_version(name: str) -> str:
    """The name that a run keeps: where Gymnasium's newest version is asked for, with its number."""
    if ":" not in name or name in ENVS or name.startswith("atari:"):
        return name
    if re.search(r"-v\d+$", name.partition("?")[0]):
        return name
    from muesli.envs.naming import with_version

    return with_version(name)


def _make(name: str, config: EnvConfig) -> JaxEnv | HostEnvs:
    size = go_size(name)
    if size is not None:
        return go(size, config.go)
    if name in ENVS:
        return _made(ENVS[name], name)
    family, colon, rest = name.partition(":")
    if colon:
        # Both import what not everyone has installed.
        if family == "atari":
            from muesli.envs.atari import atari

            return atari(rest, config)
        from muesli.envs.gymnasium import gym_env

        return gym_env(rest if family == "gym" else name)
    from muesli.envs.naming import other_names

    close = other_names(name) or difflib.get_close_matches(name, ENVS, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(ENVS)}"
    raise ConfigError(f"env.name: this version has no environment '{name}'; {hint} {YOUR_OWN}")


def _made(maker: Callable[[], Any], name: str) -> JaxEnv | HostEnvs:
    """What a maker makes, as one of ours."""
    from muesli.envs.gymnasium import from_gymnasium, made_by
    from muesli.envs.trial import shut

    env = made_by(maker, name)
    if isinstance(env, JaxEnv | HostEnvs):
        return env
    if hasattr(env, "observation_space") and hasattr(env, "action_space"):
        shut(env)
        return from_gymnasium(maker, name)
    raise ConfigError(
        f"env.name: what makes '{name}' must return a JaxEnv, a HostEnvs or a Gymnasium "
        f"environment, got {type(env).__name__}"
    )


def check(
    env: str | JaxEnv | HostEnvs | Callable[[], Any], steps: int = 200, seed: int = 0
) -> None:
    """Plays random legal actions and raises an ``EnvError`` that says what is wrong, in one line.

    env: a name as in ``env.name``, an environment, or a function that makes one (a Gymnasium one
    included). A space that is not supported is a ConfigError.
    """
    if isinstance(env, str):
        env = make(env)
    elif not isinstance(env, JaxEnv | HostEnvs):
        env = _made(env, getattr(env, "__name__", "env"))
    check_env(env, steps, seed)


__all__ = [
    "ENVS",
    "EnvError",
    "HostEnv",
    "HostEnvs",
    "JaxEnv",
    "check",
    "is_own",
    "make",
    "register",
    "with_version",
]
