"""Gymnasium's environments, by their ids or by a function that makes one."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from muesli.checks import place_of, told
from muesli.config import ConfigError
from muesli.envs.base import (
    EnvError,
    HostEnv,
    HostEnvs,
    HostState,
    host_timestep,
    refuse_not_finite,
    slot_seeds,
)
from muesli.envs.naming import GymName, import_gymnasium, resolve, similar
from muesli.envs.spaces import Act, Observe, acting, describe, observing, spaces_of
from muesli.envs.trial import shut, try_out
from muesli.types import EnvSpec, StepType, TimeStep

# Bars in a picture of a vector observation: at most this many, each this wide and this high.
_BARS, _BAR_WIDTH, _BAR_HEIGHT = 64, 6, 96
# Actions of an episode that are kept so that it can be played again; a longer one is not saved.
_REMEMBERED = 50_000


def gym_env(name: str) -> HostEnvs:
    """The environment registered as ``name``; ``module:EnvId`` imports the module first.

    ``EnvId?argument=value`` makes it with arguments. Images become [H, W, C] and stay u8; other
    boxes are f32 of their own shape, and everything else becomes an f32 vector by Gymnasium's
    flattening: a number of a Discrete space is one-hot. Continuous actions in [−1, 1] are stretched
    to their bounds; of MultiDiscrete actions every combination is an action. The copies are stepped
    one after another.
    """
    gymnasium, wanted = import_gymnasium(), resolve(name)
    settings = {"disable_env_checker": True, **wanted.arguments}
    example = _example(name, wanted, partial(gymnasium.make, wanted.id, **settings))
    make_one = partial(gymnasium.make, example.spec, **settings)
    modes = (getattr(example, "metadata", None) or {}).get("render_modes") or ()
    if "rgb_array" in modes:
        return _host_envs(name, make_one, example, partial(make_one, render_mode="rgb_array"))
    return _host_envs(name, make_one, example, _seen(make_one, example))


def from_gymnasium(make: Callable[[], Any], name: str = "the environment") -> HostEnvs:
    """The environment that ``make`` makes, a Gymnasium one; ``name`` is how errors call it. Where
    its ``render_mode`` is ``rgb_array``, its pictures are those of a video.
    """
    import_gymnasium()
    example = made_by(make, name)
    return _host_envs(name, make, example, _seen(make, example))


def made_by(make: Callable[[], Any], name: str) -> Any:
    """What a function makes; a ConfigError in one line where it raises."""
    try:
        return make()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"env.name: '{name}' cannot be made: {told(error)}{place_of(error)}"
        ) from error


def _seen(make: Callable[[], Any], example: Any) -> Callable[[], Any] | None:
    """What makes a copy that can be filmed, if ``make`` does."""
    return make if getattr(example, "render_mode", None) == "rgb_array" else None


def _host_envs(
    name: str, make_one: Callable[[], Any], example: Any, make_seen: Callable[[], Any] | None
) -> HostEnvs:
    """make_seen: makes a copy that draws itself, where that can be."""
    try:
        sees, acts = spaces_of(name, example)
        shape, dtype, observe = observing(name, sees)
        num_actions, action_size, act = acting(name, acts)
    finally:
        shut(example)

    def make(slots: range, seed: int) -> HostEnv:
        return _Copies(name, make_one, observe, act, slots, seed).host_env()

    def film(seed: int) -> HostEnv:
        assert make_seen is not None
        return _Copies(name, make_seen, observe, act, range(1), seed).host_env()

    image = dtype == np.uint8
    return HostEnvs(
        EnvSpec(shape, dtype, num_actions, action_size),
        make,
        _render_image if image else _render_bars,
        trial=partial(try_out, name, make_one),
        film=film if make_seen is not None else None,
    )


def _example(name: str, wanted: GymName, make: Callable[[], Any]) -> Any:
    """One copy, to see its spaces and how it is made."""
    from gymnasium.envs.registration import registry
    from gymnasium.error import DependencyNotInstalled, DeprecatedEnv, Error, UnregisteredEnv

    try:
        with warnings.catch_warnings():
            if wanted.id not in registry:  # a version that is gone is an error, not out of date
                warnings.simplefilter("ignore")
            return make()
    except (UnregisteredEnv, DeprecatedEnv) as error:
        close = similar(wanted)
        hint = f"did you mean {' or '.join(close)}?" if close else str(error)
        raise ConfigError(f"env.name: Gymnasium has no environment '{name}'; {hint}") from error
    except (Exception, SystemExit) as error:
        plain = isinstance(error, ImportError | Error)
        why = " ".join(str(error).split()) if plain else f"{told(error)}{place_of(error)}"
        extra = re.search(r"gymnasium\[(box2d|mujoco)\]", why)
        if extra and isinstance(error, DependencyNotInstalled):
            why = f"{why.partition(',')[0]}; pip install 'muesli-rl[{extra[1]}]'"
        raise ConfigError(f"env.name: '{name}' cannot be made: {why}") from error


class _Copies:
    """The copies of some slots.

    Every episode is begun with a seed of its own: what brings a copy back to where it was is its
    episode's number and the actions since.
    """

    def __init__(
        self,
        name: str,
        make_one: Callable[[], Any],
        observe: Observe,
        act: Act,
        slots: range,
        seed: int,
    ):
        self.name, self.observe, self.act, self.slots = name, observe, act, slots
        self.copies = [self._call(make_one) for _ in slots]
        self.first_seeds = slot_seeds(slots, seed)
        self.episodes = np.zeros(len(slots), np.int64)
        self.played: list[list[np.ndarray]] = [[] for _ in slots]
        self.newest: TimeStep | None = None

    def host_env(self) -> HostEnv:
        return HostEnv(self.reset, self.step, self.close, self.save, self.load, self.picture)

    def _call(self, function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        try:
            return function(*arguments, **settings)
        except (Exception, SystemExit) as error:
            raise EnvError(f"{self.name} raised {told(error)}") from error

    def _begin(self, index: int) -> Any:
        """The first observation of a copy's current episode."""
        seed, episode = int(self.first_seeds[index]), int(self.episodes[index])
        if episode:
            seed = int(slot_seeds(range(episode, episode + 1), seed)[0])
        return self._call(self.copies[index].reset, seed=seed)[0]

    def _answer(
        self,
        batch: list[Any],
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        begun: np.ndarray,
    ) -> TimeStep:
        self.newest = host_timestep(
            self.observe(batch, self.slots), reward, terminated, truncated, begun
        )
        refuse_not_finite(self.name, self.slots, self.newest)
        return self.newest

    def reset(self) -> TimeStep:
        size = len(self.slots)
        self.episodes[:] = 0
        for actions in self.played:
            actions.clear()
        no, yes = np.zeros(size, bool), np.ones(size, bool)
        return self._answer([self._begin(i) for i in range(size)], np.zeros(size), no, no, yes)

    def step(self, actions: np.ndarray) -> TimeStep:
        assert self.newest is not None, "reset comes first"
        theirs, begun = self.act(actions), np.asarray(self.newest.step_type == StepType.LAST)
        batch: list[Any] = []
        reward = np.zeros(len(self.slots))
        terminated, truncated = np.zeros((2, len(self.slots)), bool)
        for index, (copy, played) in enumerate(zip(self.copies, self.played, strict=True)):
            if begun[index]:
                self.episodes[index] += 1
                played.clear()
                batch.append(self._begin(index))
                continue
            if len(played) <= _REMEMBERED:
                played.append(actions[index].copy())
            answered = self._call(copy.step, theirs[index])
            batch.append(answered[0])
            reward[index], terminated[index], truncated[index] = answered[1:4]
        return self._answer(batch, reward, terminated, truncated, begun)

    def save(self) -> HostState | None:
        if self.newest is None or any(len(actions) > _REMEMBERED for actions in self.played):
            return None
        rows = [row for actions in self.played for row in actions]
        return {
            "episodes": self.episodes.copy(),
            "lengths": np.array([len(actions) for actions in self.played], np.int64),
            "actions": np.stack(rows) if rows else np.zeros(0, np.float32),
            **{field: getattr(self.newest, field) for field in self.newest._fields[:4]},
        }

    def load(self, state: HostState) -> None:
        """Plays the episodes under way again, and looks whether they have come out the same."""
        self.episodes[:] = state["episodes"]
        rows = iter(state["actions"])
        batch: list[Any] = []
        for index, length in enumerate(state["lengths"].tolist()):
            batch.append(self._begin(index))
            self.played[index][:] = [np.array(next(rows)) for _ in range(length)]
            for action in self.played[index]:
                batch[index] = self._call(self.copies[index].step, self.act(action[None])[0])[0]
        if not np.array_equal(self.observe(batch, self.slots), state["observation"]):
            raise EnvError(
                f"{self.name} played the actions of its episodes again and did not come to the "
                "same observations"
            )
        self.newest = TimeStep(*(state[field] for field in TimeStep._fields[:4]))  # type: ignore[arg-type]

    def close(self) -> None:
        for copy in self.copies:
            shut(copy)

    def picture(self) -> np.ndarray:
        drawn = self._call(self.copies[0].render)
        picture = np.asarray(drawn) if isinstance(drawn, np.ndarray) else np.zeros(0)
        if picture.ndim != 3 or picture.shape[2] not in (3, 4):
            raise EnvError(f"{self.name}: render must return [H, W, 3], got {describe(drawn)}")
        return picture


def _render_image(observation: np.ndarray) -> np.ndarray:
    """The image itself; of other than 3 channels, the first in grey."""
    if observation.shape[-1] == 3:
        return np.asarray(observation)
    return np.repeat(observation[..., :1], 3, axis=-1)


def _render_bars(observation: np.ndarray) -> np.ndarray:
    """A bar for each number x, from the middle to x / (1 + |x|) of the way up (or down)."""
    numbers = np.asarray(observation, np.float32).ravel()[:_BARS]
    middle = _BAR_HEIGHT // 2
    picture = np.full((_BAR_HEIGHT, max(1, len(numbers)) * _BAR_WIDTH, 3), 24, np.uint8)
    picture[middle] = 90
    for bar, height in enumerate(np.rint(numbers / (1 + np.abs(numbers)) * middle).astype(int)):
        columns = slice(bar * _BAR_WIDTH, (bar + 1) * _BAR_WIDTH - 1)
        rows = slice(*sorted((middle - height, middle)))
        picture[rows, columns] = (85, 168, 104) if height > 0 else (196, 78, 82)
    return picture
