"""Configurations by name. Each function lists only what it changes, as the paper's tables do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from muesli.config import UPDATE_DEFAULTS, Config, ConfigError, UpdateConfig
from muesli.presets.arcade import (
    atari,
    atari_feedforward,
    atari_h200,
    atari_laptop,
    atari_large,
    atari_small,
    atari_stacked,
)
from muesli.presets.boards import connect_four, go, go_5x5, go_7x7, go_h200, tic_tac_toe
from muesli.presets.control import gym, lunar_lander, mujoco, mujoco_h200, pendulum
from muesli.presets.small import catch, catch_pixels, illustrative_mdp, minatar, minatar_gpu, recall

__all__ = [
    "DEFAULT_PRESET",
    "PRESETS",
    "TUNED",
    "atari",
    "atari_feedforward",
    "atari_h200",
    "atari_laptop",
    "atari_large",
    "atari_small",
    "atari_stacked",
    "catch",
    "catch_pixels",
    "connect_four",
    "go",
    "go_5x5",
    "go_7x7",
    "go_h200",
    "gym",
    "illustrative_mdp",
    "lunar_lander",
    "make_preset",
    "minatar",
    "minatar_gpu",
    "mujoco",
    "mujoco_h200",
    "pendulum",
    "recall",
    "tic_tac_toe",
    "with_update",
]

PRESETS: dict[str, Callable[[], Config]] = {
    "atari": atari,
    "atari_h200": atari_h200,
    "atari_feedforward": atari_feedforward,
    "atari_stacked": atari_stacked,
    "atari_large": atari_large,
    "atari_small": atari_small,
    "atari_laptop": atari_laptop,
    "go": go,
    "mujoco": mujoco,
    "mujoco_h200": mujoco_h200,
    "pendulum": pendulum,
    "lunar_lander": lunar_lander,
    "catch": catch,
    "catch_pixels": catch_pixels,
    "illustrative_mdp": illustrative_mdp,
    "recall": recall,
    "tic_tac_toe": tic_tac_toe,
    "connect_four": connect_four,
    "go_h200": go_h200,
    "go_5x5": go_5x5,
    "go_7x7": go_7x7,
    "minatar": minatar,
    "minatar_gpu": minatar_gpu,
}
"""Every preset by name."""


def make_preset(name: str) -> Config:
    """The configuration of a preset; a ConfigError where a user's own does not make one."""
    try:
        config = PRESETS[name]()
    except ConfigError:
        raise
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"preset: '{name}' cannot be made: {why}") from error
    if not isinstance(config, Config):
        got = type(config).__name__
        raise ConfigError(f"preset: what makes '{name}' must return a Config, got {got}")
    return config


TUNED: dict[str, Callable[[], Config]] = {
    "gym:Pendulum-v1": pendulum,
    "gym:LunarLander-v3": lunar_lander,
}
"""Environments for which ``muesli train NAME`` knows better than ``gym``."""

DEFAULT_PRESET = "minatar"


def with_update(config: Config, name: str) -> Config:
    """The same run with another policy update and that update's own hyperparameters."""
    defaults = UPDATE_DEFAULTS.get(name, UpdateConfig(name=name))
    mine = config.update
    update = replace(
        defaults,
        kl_samples=mine.kl_samples,
        beta_loo=mine.beta_loo,
    )
    return replace(config, update=update)
