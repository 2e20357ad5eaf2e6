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
        return _copies(
            name, partial(make_one, render_mode="rgb_array"), observe, act, range(1), seed
        )

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
        return _copies(name, make_one, observe, act, slots, seed)

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


def _copies(
    name: str, make_one: Callable[[], Any], observe: Observe, act: Act, slots: range, seed: int
) -> HostEnv:
    """The copies of some slots.

    Every episode is begun with a seed of its own: what brings a copy back to where it was is its
    episode's number and the actions since.
    """

    def call(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        try:
            return function(*arguments, **settings)
        except Exception as error:
            raise EnvError(f"{name} raised {type(error).__name__}: {error}") from error

    copies = [call(make_one) for _ in slots]
    first_seeds = slot_seeds(slots, seed)
    episodes = np.zeros(len(slots), np.int64)
    ended = np.zeros(len(slots), bool)
    played: list[list[np.ndarray]] = [[] for _ in slots]
    newest: TimeStep | None = None

    def begin(index: int) -> Any:
        own = int(first_seeds[index])
        if episodes[index]:
            own = int(slot_seeds(range(int(episodes[index]), int(episodes[index]) + 1), own)[0])
        return call(copies[index].reset, seed=own)[0]

    def answer(
        batch: list[Any],
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        begun: np.ndarray,
    ) -> TimeStep:
        nonlocal ended, newest
        newest = host_timestep(observe(batch), reward, terminated, truncated, begun)
        refuse_not_finite(name, slots, newest)
        ended = np.asarray(newest.step_type == StepType.LAST)
        return newest

    def reset() -> TimeStep:
        episodes[:] = 0
        for actions in played:
            actions.clear()
        no, yes = np.zeros(len(slots), bool), np.ones(len(slots), bool)
        batch = [begin(index) for index in range(len(slots))]
        return answer(batch, np.zeros(len(slots)), no, no, yes)

    def step(actions: np.ndarray) -> TimeStep:
        theirs, begun = act(actions), ended
        batch: list[Any] = []
        reward = np.zeros(len(slots))
        terminated, truncated = np.zeros((2, len(slots)), bool)
        for index, copy in enumerate(copies):
            if begun[index]:
                episodes[index] += 1
                played[index].clear()
                batch.append(begin(index))
                continue
            if len(played[index]) <= _REMEMBERED:
                played[index].append(actions[index].copy())
            answered = call(copy.step, theirs[index])
            batch.append(answered[0])
            reward[index], terminated[index], truncated[index] = answered[1:4]
        return answer(batch, reward, terminated, truncated, begun)

    def save() -> HostState | None:
        if newest is None or any(len(actions) > _REMEMBERED for actions in played):
            return None
        rows = [row for actions in played for row in actions]
        return {
            "episodes": episodes.copy(),
            "lengths": np.array([len(actions) for actions in played], np.int64),
            "actions": np.stack(rows) if rows else np.zeros(0, np.float32),
            **{field: getattr(newest, field) for field in newest._fields[:4]},
        }

    def load(state: HostState) -> None:
        """Plays the episodes under way again, and looks whether they have come out the same."""
        nonlocal newest, ended
        episodes[:] = state["episodes"]
        rows = iter(state["actions"])
        batch: list[Any] = []
        for index, length in enumerate(state["lengths"].tolist()):
            batch.append(begin(index))
            played[index][:] = [np.array(next(rows)) for _ in range(length)]
            for action in played[index]:
                batch[index] = call(copies[index].step, act(action[None])[0])[0]
        if not np.array_equal(observe(batch), state["observation"]):
            raise EnvError(
                f"{name} played the actions of its episodes again and did not come to the same "
                "observations"
            )
        newest = TimeStep(*(state[field] for field in TimeStep._fields[:4]))  # type: ignore[arg-type]
        ended = np.asarray(newest.step_type == StepType.LAST)

    def close() -> None:
        for copy in copies:
            copy.close()

    def picture() -> np.ndarray:
        return np.asarray(call(copies[0].render))

    return HostEnv(reset, step, close, save, load, picture)


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
