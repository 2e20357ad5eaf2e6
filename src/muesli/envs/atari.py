"""The 57 Atari games of the paper on ale-py's emulators, as its table of parameters runs them."""

from __future__ import annotations

import difflib
import os
from typing import Any, NamedTuple

import numpy as np

from muesli.config import AtariConfig, ConfigError, EnvConfig
from muesli.envs.base import HostEnv, HostEnvs, HostState, host_timestep, slot_seeds
from muesli.envs.emulators import ExactEmulators
from muesli.types import EnvSpec, StepType, TimeStep

ACTIONS = (
    *("–", "•", "↑", "→", "←", "↓", "↗", "↖", "↘", "↙"),
    *("↑•", "→•", "←•", "↓•", "↗•", "↖•", "↘•", "↙•"),
)
"""All 18, in the emulator's order: a dash waits, a dot fires."""
NOOP = 0


class Scores(NamedTuple):
    """What a random player and a human reach in a game, rounded as the paper prints them."""

    random: int
    human: int


SCORES: dict[str, Scores] = {
    "alien": Scores(228, 7128),
    "amidar": Scores(6, 1720),
    "assault": Scores(222, 742),
    "asterix": Scores(210, 8503),
    "asteroids": Scores(719, 47389),
    "atlantis": Scores(12850, 29028),
    "bank_heist": Scores(14, 753),
    "battle_zone": Scores(2360, 37188),
    "beam_rider": Scores(364, 16927),
    "berzerk": Scores(124, 2630),
    "bowling": Scores(23, 161),
    "boxing": Scores(0, 12),
    "breakout": Scores(2, 30),
    "centipede": Scores(2091, 12017),
    "chopper_command": Scores(811, 7388),
    "crazy_climber": Scores(10780, 35829),
    "defender": Scores(2874, 18689),
    "demon_attack": Scores(152, 1971),
    "double_dunk": Scores(-19, -16),
    "enduro": Scores(0, 861),
    "fishing_derby": Scores(-92, -39),
    "freeway": Scores(0, 30),
    "frostbite": Scores(65, 4335),
    "gopher": Scores(258, 2412),
    "gravitar": Scores(173, 3351),
    "hero": Scores(1027, 30826),
    "ice_hockey": Scores(-11, 1),
    "jamesbond": Scores(29, 303),
    "kangaroo": Scores(52, 3035),
    "krull": Scores(1598, 2666),
    "kung_fu_master": Scores(258, 22736),
    "montezuma_revenge": Scores(0, 4753),
    "ms_pacman": Scores(307, 6952),
    "name_this_game": Scores(2292, 8049),
    "phoenix": Scores(761, 7243),
    "pitfall": Scores(-229, 6464),
    "pong": Scores(-21, 15),
    "private_eye": Scores(25, 69571),
    "qbert": Scores(164, 13455),
    "riverraid": Scores(1338, 17118),
    "road_runner": Scores(12, 7845),
    "robotank": Scores(2, 12),
    "seaquest": Scores(68, 42055),
    "skiing": Scores(-17098, -4337),
    "solaris": Scores(1236, 12327),
    "space_invaders": Scores(148, 1669),
    "star_gunner": Scores(664, 10250),
    "surround": Scores(-10, 7),
    "tennis": Scores(-24, -8),
    "time_pilot": Scores(3568, 5229),
    "tutankham": Scores(11, 168),
    "up_n_down": Scores(533, 11693),
    "venture": Scores(0, 1188),
    "video_pinball": Scores(0, 17668),
    "wizard_of_wor": Scores(564, 4757),
    "yars_revenge": Scores(3093, 54577),
    "zaxxon": Scores(32, 9173),
}
"""The paper's last table, by ale-py's names of the games."""

GAMES = tuple(SCORES)


def human_normalised(game: str, score: float) -> float:
    """A score on the scale on which a random player has 0 and a human 1."""
    random, human = SCORES[game]
    return (score - random) / (human - random)


def atari(game: str, config: EnvConfig) -> HostEnvs:
    """A game with sticky actions and all 18 actions: no no-op starts, lives or clipped rewards.

    Observations are [H, W, 3] u8, or [H, W, 1] in grey. ale-py pools the last 2 frames of a step
    and then resizes them. With ``pool_frames`` 4 a step is two half-steps of the emulator, and the
    observation is the maximum of both pictures. All copies move together: one that ends is reset in
    the next half-step, and plays no-ops for the rest of the time step FIRST. So every episode but
    the first after ``reset`` begins 2 or 4 frames late (with ``frame_skip`` 4), and rewards of
    those frames are dropped.
    """
    if game not in SCORES:
        close = [f"atari:{near}" for near in difflib.get_close_matches(game, GAMES, cutoff=0.5)]
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(GAMES)}"
        raise ConfigError(f"env.name: there is no Atari game '{game}'; {hint}")
    settings = config.atari
    _validate(settings)
    _import_ale(game)
    size, channels = settings.size_pixels, 1 if settings.grey else 3
    spec = EnvSpec((size, size, channels), np.dtype(np.uint8), len(ACTIONS), action_names=ACTIONS)

    def make(slots: range, seed: int) -> HostEnv:
        return _emulators(game, config, slots, seed)

    def render(observation: np.ndarray) -> np.ndarray:
        return np.repeat(observation, 3, axis=-1) if settings.grey else np.asarray(observation)

    return HostEnvs(spec, make, render, frames_per_step=settings.frame_skip)


def _validate(settings: AtariConfig) -> None:
    if settings.pool_frames not in (2, 4):
        raise ConfigError(f"env.atari.pool_frames: must be 2 or 4, got {settings.pool_frames}")
    for field in ("frame_skip", "size_pixels", "max_episode_frames"):
        value = getattr(settings, field)
        if value < 1:
            raise ConfigError(f"env.atari.{field}: must be at least 1, got {value}")
    if settings.exact and settings.size_pixels > 160:
        raise ConfigError(
            "env.atari.size_pixels: must be at most 160, the screen's width, with "
            f"env.atari.exact, got {settings.size_pixels}"
        )
    if settings.pool_frames == 4 and settings.frame_skip % 2:
        raise ConfigError(
            "env.atari.frame_skip: must be even with env.atari.pool_frames 4, "
            f"got {settings.frame_skip}"
        )
    if not 0.0 <= settings.sticky_action_probability <= 1.0:
        raise ConfigError(
            "env.atari.sticky_action_probability: must be in [0, 1], "
            f"got {settings.sticky_action_probability:g}"
        )


def _import_ale(game: str) -> Any:
    """ale-py's class of many emulators."""
    try:
        from ale_py import roms
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise ConfigError(
            "env.name: Atari games need ale-py; pip install 'muesli-rl[atari]'"
        ) from error
    if roms.get_rom_path(game) is None:
        raise ConfigError(
            f"env.name: the installed ale-py lacks the ROM of {game}; "
            "pip install --upgrade 'muesli-rl[atari]'"
        )
    return AtariVectorEnv


def _threads(config: EnvConfig, copies: int) -> int:
    """The share of ``copies`` in the threads of all copies of the run."""
    threads = config.threads
    if not threads:
        # Not every system tells the processors of this process from those of the machine.
        affinity = getattr(os, "sched_getaffinity", None)
        threads = len(affinity(0)) if affinity else os.cpu_count() or 1
    share = max(1, threads * copies // config.num_envs)
    return min(share, threads, copies)


def _emulators(game: str, config: EnvConfig, slots: range, seed: int) -> HostEnv:
    """The copies of some slots.

    One ``AtariVectorEnv`` runs them: its own threads step and reset them in parallel. Their making
    (0.1 s each) is serial in one process, for ale-py holds Python's lock all the while: where there
    are many, ``env.processes`` is quicker.
    """
    settings, copies = config.atari, len(slots)
    halves = settings.pool_frames == 4
    size, channels = settings.size_pixels, 1 if settings.grey else 3
    seeds = slot_seeds(slots, seed)
    frame_skip = settings.frame_skip // 2 if halves else settings.frame_skip
    # The only reference to the emulators: dropping it ends their threads.
    if settings.exact:
        running: list[Any] = [ExactEmulators(game, copies, settings, frame_skip)]
    else:
        running = [_vector(game, config, copies, frame_skip)]
    ended = np.zeros(copies, bool)

    def picture(observation: np.ndarray) -> np.ndarray:
        return observation.reshape(copies, size, size, channels)

    def reset() -> TimeStep:
        nonlocal ended
        observation, _ = running[0].reset(seed=seeds)
        ended = np.zeros(copies, bool)
        nothing, begun = np.zeros(copies), np.ones(copies, bool)
        return host_timestep(picture(observation), nothing, ended, ended, begun)

    def step(actions: np.ndarray) -> TimeStep:
        nonlocal ended
        # A copy whose episode has ended is reset by ale-py on its next (half-)step.
        begun = ended
        actions = np.where(begun, NOOP, actions).astype(np.int32)
        observation, reward, terminated, truncated, _ = running[0].step(actions)
        if halves:
            # Whoever ends in the first half answers with that: its second half is a reset.
            over = (terminated | truncated) & ~begun
            second, more, terminated_too, truncated_too, _ = running[0].step(actions)
            np.maximum(second, observation, out=second)
            second[over] = observation[over]
            observation, reward = second, reward + np.where(over, 0, more)
            terminated = np.where(over, terminated, terminated_too)
            truncated = np.where(over, truncated, truncated_too)
        timestep = host_timestep(picture(observation), reward, terminated, truncated, begun)
        ended = np.asarray(timestep.step_type == StepType.LAST)
        return timestep

    def save() -> HostState:
        return {**running[0].save(), "ended": ended.copy()}

    def load(state: HostState) -> None:
        nonlocal ended
        running[0].reset(seed=seeds)
        running[0].load(state)
        ended = state["ended"].copy()

    if settings.exact:
        return HostEnv(reset, step, running.clear, save, load)
    return HostEnv(reset, step, running.clear)


def _vector(game: str, config: EnvConfig, copies: int, frame_skip: int) -> Any:
    settings = config.atari
    return _import_ale(game)(
        game,
        copies,
        batch_size=0,
        num_threads=_threads(config, copies),
        max_num_frames_per_episode=settings.max_episode_frames,
        repeat_action_probability=settings.sticky_action_probability,
        full_action_space=True,
        continuous=False,
        autoreset_mode="NextStep",
        img_height=settings.size_pixels,
        img_width=settings.size_pixels,
        grayscale=settings.grey,
        stack_num=1,
        frameskip=frame_skip,
        maxpool=True,
        noop_max=0,
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
        use_fire_reset=False,
    )
