"""Gymnasium's environments, by their ids or by a function that makes one."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

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
from muesli.envs.trial import try_out
from muesli.types import EnvSpec, StepType, TimeStep

_SUPPORTED = (
    "supported are Box, Discrete, MultiDiscrete and MultiBinary observations, and Dict and Tuple "
    "of them; Discrete, MultiDiscrete, MultiBinary and bounded floating-point Box actions"
)
# MultiDiscrete actions are listed, each combination one action; sampled estimators cope with many,
# but the policy's last layer grows with them.
MAX_COMBINATIONS = 10_000
# The observations of all copies as Gymnasium gives them, and a batch of actions as we give them.
Observe: TypeAlias = Callable[[list[Any]], np.ndarray]
Act: TypeAlias = Callable[[np.ndarray], np.ndarray]

# Bars in a picture of a vector observation: at most this many, each this wide and this high.
_BARS, _BAR_WIDTH, _BAR_HEIGHT = 64, 6, 96
# Actions of an episode that are kept so that it can be played again; a longer one is not saved.
_REMEMBERED = 50_000


def gym_env(name: str) -> HostEnvs:
    """The environment registered as ``name``; ``module:EnvId`` imports the module first.

    Images [H, W, C] stay u8; other boxes are f32 of their own shape, and everything else becomes an
    f32 vector by Gymnasium's flattening: a number of a Discrete space is one-hot. Continuous
    actions in [−1, 1] are stretched to their bounds; of MultiDiscrete actions every combination is
    an action. The copies are stepped one after another.
    """
    example = _example(name)
    from gymnasium import make

    make_one = partial(make, example.spec, disable_env_checker=True)
    envs = _host_envs(name, make_one, example)
    if "rgb_array" not in example.metadata.get("render_modes", ()):
        return envs

    def film(seed: int) -> HostEnv:
        _, _, observe = _observations(name, example.observation_space)
        _, _, act = _actions(name, example.action_space)
        return _Copies(
            name, partial(make_one, render_mode="rgb_array"), observe, act, range(1), seed
        ).host_env()

    return envs._replace(film=film)


def from_gymnasium(make: Callable[[], Any], name: str = "the environment") -> HostEnvs:
    """The environment that ``make`` makes, a Gymnasium one; ``name`` is how errors call it."""
    _import_gymnasium()
    return _host_envs(name, make, make())


def _host_envs(name: str, make_one: Callable[[], Any], example: Any) -> HostEnvs:
    try:
        shape, dtype, observe = _observations(name, example.observation_space)
        num_actions, action_size, act = _actions(name, example.action_space)
    finally:
        example.close()

    def make(slots: range, seed: int) -> HostEnv:
        return _Copies(name, make_one, observe, act, slots, seed).host_env()

    image = dtype == np.uint8
    env_spec = EnvSpec(shape, dtype, num_actions, action_size)
    render = _render_image if image else _render_bars
    return HostEnvs(env_spec, make, render, trial=partial(try_out, name, make_one))


def _import_gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise ConfigError(
            "env.name: Gymnasium environments need gymnasium; pip install 'muesli-rl[gym]'"
        ) from error
    return gymnasium


def _example(name: str) -> Any:
    """One copy, to see its spaces and how it is made."""
    gymnasium = _import_gymnasium()
    try:
        return gymnasium.make(name, disable_env_checker=True)
    except gymnasium.error.UnregisteredEnv as error:
        close = difflib.get_close_matches(name.split(":")[-1], gymnasium.registry, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else str(error)
        raise ConfigError(f"env.name: Gymnasium has no environment '{name}'; {hint}") from error
    except (ImportError, gymnasium.error.Error) as error:
        raise ConfigError(f"env.name: '{name}' cannot be made: {error}") from error


def _observations(name: str, space: Any) -> tuple[tuple[int, ...], np.dtype[Any], Observe]:
    """Shape and dtype of an observation, and how a batch of Gymnasium's becomes an array."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        image = space.dtype == np.uint8 and len(space.shape) in (2, 3)
        dtype = np.dtype(np.uint8 if image else np.float32)
        # A grey image has one channel, and a single number is a vector of one.
        shape = (*space.shape, 1) if len(space.shape) == (2 if image else 0) else space.shape
        return shape, dtype, lambda batch: np.array(batch, dtype).reshape(len(batch), *shape)

    if not _flattens(space):
        raise ConfigError(f"env.name: '{name}' has {space} observations; {_SUPPORTED}")

    def flatten(batch: list[Any]) -> np.ndarray:
        each = [np.asarray(spaces.flatten(space, one)) for one in batch]
        return np.stack(each).astype(np.float32)

    return (int(spaces.flatdim(space)),), np.dtype(np.float32), flatten


def _flattens(space: Any) -> bool:
    """Whether a space is made of numbers of a fixed count."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.values() if isinstance(space, spaces.Dict) else space
        return all(_flattens(part) for part in parts)
    return isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    )


def _actions(name: str, space: Any) -> tuple[int | None, int, Act]:
    """num_actions, action_size, and how a batch of the agent's actions becomes Gymnasium's."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return int(space.n), 0, lambda actions: actions.astype(np.int64) + start
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return _combinations(name, space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        if not space.is_bounded():
            raise ConfigError(
                f"env.name: '{name}' has unbounded actions, {space}; give every element a finite "
                "low and high, e.g. by a gymnasium.wrappers.TransformAction"
            )
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)

        def stretch(actions: np.ndarray) -> np.ndarray:
            share = (np.clip(actions, -1.0, 1.0).reshape(-1, *space.shape) + 1.0) / 2.0
            return np.clip(low + share * (high - low), low, high).astype(space.dtype)

        return None, int(np.prod(space.shape)), stretch
    raise ConfigError(f"env.name: '{name}' has {space} actions; {_SUPPORTED}")


def _combinations(name: str, space: Any) -> tuple[int, int, Act]:
    """Every combination of a MultiDiscrete or MultiBinary space as one action, the last choice
    changing fastest.
    """
    choices = tuple(np.ravel(getattr(space, "nvec", np.full(space.shape, 2))).tolist())
    start = np.ravel(getattr(space, "start", np.zeros(space.shape, np.int64)))
    total = math.prod(choices)
    if total > MAX_COMBINATIONS:
        raise ConfigError(
            f"env.name: '{name}' has {space} actions, {total:,} combinations; "
            f"at most {MAX_COMBINATIONS:,} are supported"
        )

    def act(actions: np.ndarray) -> np.ndarray:
        each = np.stack(np.unravel_index(actions.astype(np.int64), choices), axis=-1) + start
        return each.reshape(-1, *space.shape).astype(space.dtype)

    return total, 0, act


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
        except Exception as error:
            raise EnvError(f"{self.name} raised {type(error).__name__}: {error}") from error

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
        self.newest = host_timestep(self.observe(batch), reward, terminated, truncated, begun)
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
        if not np.array_equal(self.observe(batch), state["observation"]):
            raise EnvError(
                f"{self.name} played the actions of its episodes again and did not come to the "
                "same observations"
            )
        self.newest = TimeStep(*(state[field] for field in TimeStep._fields[:4]))  # type: ignore[arg-type]

    def close(self) -> None:
        for copy in self.copies:
            copy.close()

    def picture(self) -> np.ndarray:
        return np.asarray(self._call(self.copies[0].render))


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
