"""Gymnasium's spaces: what an environment of ours sees and does in their place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from muesli.config import ConfigError
from muesli.envs.base import EnvError

SUPPORTED = (
    "supported are Box, Discrete, MultiDiscrete and MultiBinary observations, and Dict and Tuple "
    "of them; Discrete, MultiDiscrete, MultiBinary and bounded floating-point Box actions"
)
# MultiDiscrete actions are listed, each combination one action; sampled estimators cope with many,
# but the policy's last layer grows with them.
MAX_COMBINATIONS = 10_000
# An image whose first axis is as short as this, and whose last is longer, has its channels first.
_MOST_CHANNELS = 16
# The observations of the copies of some slots as Gymnasium gives them, and a batch of actions as we
# give them.
Observe: TypeAlias = Callable[[list[Any], Sequence[int]], np.ndarray]
Act: TypeAlias = Callable[[np.ndarray], np.ndarray]


def spaces_of(name: str, env: Any) -> tuple[Any, Any]:
    """An environment's spaces of observations and of actions."""
    from gymnasium.spaces import Space

    found = []
    for what in ("observation_space", "action_space"):
        space = getattr(env, what, None)
        if not isinstance(space, Space):
            has = "no" if space is None else f"{describe(space)} for an"
            raise ConfigError(f"env.name: '{name}' has {has} {what}; it must be a gymnasium.Space")
        found.append(space)
    return found[0], found[1]


def observing(name: str, space: Any) -> tuple[tuple[int, ...], np.dtype[Any], Observe]:
    """Shape and dtype of an observation, and how a batch of Gymnasium's becomes an array, which
    raises an EnvError where one of them is not what the space says.
    """
    from gymnasium import spaces

    if not _flattens(space):
        raise ConfigError(f"env.name: '{name}' has {space} observations; {SUPPORTED}")
    if spaces.flatdim(space) == 0:
        raise ConfigError(f"env.name: '{name}' has {space} observations, which hold no number")
    if isinstance(space, spaces.Box):
        return _boxes(name, space)

    surely = _surely_of(space)

    def flatten(batch: list[Any], slots: Sequence[int]) -> np.ndarray:
        for slot, one in zip(slots, batch, strict=True):
            if not surely(one):
                check_form(f"{name}, slot {slot}", space, one)
        each = [np.asarray(spaces.flatten(space, one)) for one in batch]
        return _converted(np.stack(each), np.dtype(np.float32))

    return (int(spaces.flatdim(space)),), np.dtype(np.float32), flatten


def _boxes(name: str, space: Any) -> tuple[tuple[int, ...], np.dtype[Any], Observe]:
    image = space.dtype == np.uint8 and len(space.shape) in (2, 3)
    dtype = np.dtype(np.uint8 if image else np.float32)
    channels_first = (
        image and len(space.shape) == 3 and space.shape[0] <= _MOST_CHANNELS < space.shape[2]
    )
    shape = space.shape
    if channels_first:
        shape = (*space.shape[1:], space.shape[0])
    elif len(space.shape) == (2 if image else 0):
        # A grey image has one channel, and a single number is a vector of one.
        shape = (*space.shape, 1)

    def observe(batch: list[Any], slots: Sequence[int]) -> np.ndarray:
        stacked = _stack(name, space, batch, slots)
        if channels_first:
            stacked = np.ascontiguousarray(np.moveaxis(stacked, 1, -1))
        return _converted(stacked, dtype).reshape(len(batch), *shape)

    return shape, dtype, observe


def _stack(name: str, space: Any, batch: list[Any], slots: Sequence[int]) -> np.ndarray:
    """Boxes as one array. No dtype is asked for: NumPy would wrap around what it cannot hold."""
    try:
        stacked = np.array(batch)
    except ValueError:  # of different shapes
        stacked = np.zeros(0)
    if stacked.shape[1:] == space.shape and converts(stacked.dtype, space.dtype):
        return stacked
    for slot, one in zip(slots, batch, strict=True):
        check_form(f"{name}, slot {slot}", space, one)
    # Each converts, if not all to the one dtype that NumPy would find for them.
    return np.stack([np.asarray(one, space.dtype) for one in batch])


def _converted(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):  # it becomes infinite, which is told apart from a warning
        return array.astype(dtype)


def _flattens(space: Any) -> bool:
    """Whether a space is made of numbers of a fixed count."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.values() if isinstance(space, spaces.Dict) else space
        return all(_flattens(part) for part in parts)
    return isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    )


# --- what is of a space -----------------------------------------------------------------------


def check_form(where: str, space: Any, value: Any, part: str = "the observation") -> None:
    """Raises an EnvError at the first way in which ``value`` has not the form of ``space``: its
    parts, shapes and dtypes. Of boxes, numbers are not looked at.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            keys = ", ".join(map(str, space.keys()))
            raise EnvError(f"{where}: {part} must be a dict of {keys}, got {describe(value)}")
        for key, inner in space.items():
            check_form(where, inner, value[key], f"{part}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space):
            raise EnvError(
                f"{where}: {part} must be a tuple of {len(space)}, got {describe(value)}"
            )
        for index, inner in enumerate(space):
            check_form(where, inner, value[index], f"{part}[{index}]")
    elif isinstance(space, spaces.Box):
        try:
            array = np.asarray(value)
        except ValueError:
            raise EnvError(f"{where}: {part} is {describe(value)}, no array") from None
        if array.shape != space.shape:
            raise EnvError(
                f"{where}: {part} has shape {list(array.shape)}, its space says {list(space.shape)}"
            )
        if not converts(array.dtype, space.dtype):
            raise EnvError(f"{where}: {part} is {array.dtype}, its space says {space.dtype}")
    elif not space.contains(value):
        raise EnvError(f"{where}: {part} is {describe(value)}, which is not in {space}")


def _surely_of(space: Any) -> Callable[[Any], bool]:
    """What quickly finds a value to have the form of ``space``; where it does not,
    ``check_form`` takes a closer look.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = [(key, _surely_of(inner)) for key, inner in space.items()]
        keys = space.spaces.keys()
        return lambda value: (
            isinstance(value, dict)
            and value.keys() == keys
            and all(surely(value[key]) for key, surely in parts)
        )
    if isinstance(space, spaces.Tuple):
        each = [_surely_of(inner) for inner in space]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(each)
            and all(surely(part) for surely, part in zip(each, value, strict=True))
        )
    if isinstance(space, spaces.Box):
        shape, dtype = space.shape, space.dtype
        return lambda value: (
            isinstance(value, np.ndarray) and value.dtype == dtype and value.shape == shape
        )
    if isinstance(space, spaces.Discrete):
        start, stop = int(space.start), int(space.start + space.n)
        return lambda value: isinstance(value, int | np.integer) and bool(start <= value < stop)
    return lambda value: False


def converts(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether numbers keep their meaning: floating-point ones of any width do."""
    if given == wanted:
        return True
    return (given.kind == "f" and wanted.kind == "f") or np.can_cast(given, wanted)


def describe(value: Any) -> str:
    """Type, and shape or length where there is one."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple | list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else type(value).__name__


# --- actions ----------------------------------------------------------------------------------


def acting(name: str, space: Any) -> tuple[int | None, int, Act]:
    """num_actions, action_size, and how a batch of the agent's actions becomes Gymnasium's."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return int(space.n), 0, lambda actions: actions.astype(np.int64) + start
    if not isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        raise ConfigError(f"env.name: '{name}' has {space} actions; {SUPPORTED}")
    if math.prod(space.shape) == 0:
        raise ConfigError(f"env.name: '{name}' has {space} actions, which hold no number")
    if not isinstance(space, spaces.Box):
        return _combinations(name, space)
    if not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(f"env.name: '{name}' has {space} actions; {SUPPORTED}")
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        width = high - low
    # Of finite bounds the width may still be beyond the numbers there are.
    if not np.isfinite(width).all():
        raise ConfigError(
            f"env.name: '{name}' has unbounded actions, {space}; give every element a finite "
            "low and high, e.g. by a gymnasium.wrappers.TransformAction"
        )

    def stretch(actions: np.ndarray) -> np.ndarray:
        share = (np.clip(actions, -1.0, 1.0).reshape(-1, *space.shape) + 1.0) / 2.0
        return np.clip(low + share * width, low, high).astype(space.dtype)

    return None, math.prod(space.shape), stretch


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
