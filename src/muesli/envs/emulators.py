"""Emulators one by one, in Python: as ale-py's vector of them, but their state can be had."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from muesli.config import AtariConfig
from muesli.envs.base import EnvError, HostState


class ExactEmulators:
    """Copies of a game with the interface of ``AtariVectorEnv`` that ours uses; and save, load.

    Sticky actions are drawn here, from each copy's own seed: the emulator's state does not tell
    which action it would repeat. So a game is that of ``AtariVectorEnv`` only without them. Where
    an episode ends within a step, the picture shows its end; ``AtariVectorEnv`` shows an older one.
    Other pictures in colour are those of ``AtariVectorEnv`` to the bit; in grey, a few pixels in a
    million differ by one, where its arithmetic rounds otherwise.
    """

    def __init__(self, game: str, copies: int, settings: AtariConfig, frame_skip: int):
        from ale_py import ALEInterface, LoggerMode, roms

        ALEInterface.setLoggerMode(LoggerMode.Error)
        self._rom: Any = roms.get_rom_path(game)
        self._settings, self._frame_skip = settings, frame_skip
        self._emulators = [ALEInterface() for _ in range(copies)]
        self._over = np.zeros(copies, bool)
        self._random = [np.random.default_rng(0) for _ in range(copies)]
        self._repeated = np.zeros(copies, np.int64)  # what a sticky action would repeat

    def reset(self, seed: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """Every copy anew, from its seed: [E, H, W, C]."""
        self._random = [np.random.default_rng(own) for own in seed.tolist()]
        self._repeated[:] = 0
        for emulator, own in zip(self._emulators, seed.tolist(), strict=True):
            emulator.setInt("random_seed", own)
            emulator.setFloat("repeat_action_probability", 0.0)
            emulator.setInt("max_num_frames_per_episode", self._settings.max_episode_frames)
            emulator.setInt("frame_skip", 1)
            emulator.loadROM(self._rom)
            emulator.reset_game()
        self._over[:] = False
        return np.stack([self._shrink(self._screen(e)) for e in self._emulators]), {}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        """One step of every copy; one that is over begins anew instead."""
        pictures: list[np.ndarray] = []
        rewards = np.zeros(len(self._emulators), np.int32)
        terminated, truncated = np.zeros((2, len(self._emulators)), bool)
        for index, emulator in enumerate(self._emulators):
            if self._over[index]:
                emulator.reset_game()
                self._repeated[index] = 0
                pictures.append(self._shrink(self._screen(emulator)))
                continue
            legal = emulator.getLegalActionSet()
            picture: np.ndarray | None = None
            for left in range(self._frame_skip, 0, -1):
                if self._random[index].random() >= self._settings.sticky_action_probability:
                    self._repeated[index] = actions[index]
                rewards[index] += emulator.act(legal[self._repeated[index]])
                over = emulator.game_over()
                if left <= 2 or over:
                    screen = self._screen(emulator)
                    picture = screen if picture is None else np.maximum(picture, screen)
                if over:
                    break
            assert picture is not None  # the last frame is always looked at
            pictures.append(self._shrink(picture))
            terminated[index] = emulator.game_over(with_truncation=False)
            truncated[index] = emulator.game_truncated() and not terminated[index]
        self._over = terminated | truncated
        return np.stack(pictures), rewards, terminated, truncated, {}

    def _screen(self, emulator: Any) -> np.ndarray:
        if self._settings.grey:
            return emulator.getScreenGrayscale()[..., None]
        return emulator.getScreenRGB()

    def _shrink(self, picture: np.ndarray) -> np.ndarray:
        size = self._settings.size_pixels
        height, width, channels = picture.shape
        across, down = area_weights(width, size), area_weights(height, size)
        rows = down @ picture.reshape(height, -1).astype(np.float32)
        columns = rows.reshape(size, width, channels).transpose(0, 2, 1) @ across.T
        return np.clip(np.rint(columns.transpose(0, 2, 1)), 0, 255).astype(np.uint8)

    def save(self) -> HostState:
        """The state of every emulator, its source of randomness included."""
        states = [e.cloneState(include_rng=True).serialize() for e in self._emulators]
        return {
            "emulators": np.frombuffer(b"".join(states), np.uint8),
            "bytes": np.array([len(state) for state in states], np.int64),
            "over": self._over.copy(),
            "repeated": self._repeated.copy(),
            "random": np.stack([_to_words(random) for random in self._random]),
        }

    def load(self, state: HostState) -> None:
        """On copies that were reset."""
        from ale_py import ALEState

        sizes = state["bytes"].tolist()
        if len(sizes) != len(self._emulators) or sum(sizes) != state["emulators"].size:
            raise EnvError("the saved emulators are not as many as this run's")
        edges = np.cumsum([0, *sizes])
        for emulator, begin, end in zip(self._emulators, edges[:-1], edges[1:], strict=True):
            emulator.restoreState(ALEState(state["emulators"][begin:end].tobytes()))
        self._over, self._repeated = state["over"].copy(), state["repeated"].copy()
        for random, words in zip(self._random, state["random"], strict=True):
            _from_words(random, words)


def _to_words(random: np.random.Generator) -> np.ndarray:
    """Where a generator stands in its own sequence: [2] u64."""
    number: Any = random.bit_generator.state
    return np.frombuffer(number["state"]["state"].to_bytes(16, "little"), np.uint64)


def _from_words(random: np.random.Generator, words: np.ndarray) -> None:
    number: Any = random.bit_generator.state
    number["state"]["state"] = int.from_bytes(words.tobytes(), "little")
    random.bit_generator.state = number


@cache
def area_weights(length: int, size: int) -> np.ndarray:
    """How much of each of ``length`` pixels goes into each of ``size``, by covered area: OpenCV's
    INTER_AREA, which ale-py uses, where it makes pictures smaller. [size, length]
    """
    scale = length / size
    weights = np.zeros((size, length), np.float32)
    for row in range(size):
        begin, end = row * scale, (row + 1) * scale
        cell = min(scale, length - begin)
        last = min(int(np.floor(end)), length - 1)
        whole = min(int(np.ceil(begin)), last)
        if whole - begin > 1e-3:
            weights[row, whole - 1] += (whole - begin) / cell
        weights[row, whole:last] += 1.0 / cell
        if end - last > 1e-3:
            weights[row, last] += min(end - last, 1.0, cell) / cell
    return weights
