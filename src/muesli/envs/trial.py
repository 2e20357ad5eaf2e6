"""A few random steps in one Gymnasium environment, and what is wrong with it in plain words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from muesli.envs.base import EnvError

# A bound may be missed by as much, relative to its size: float32 against float64.
_SLACK = 1e-5


def try_out(name: str, make: Callable[[], Any], steps: int, seed: int = 0) -> None:
    """Plays random actions in a copy of its own; raises an EnvError at the first broken promise."""
    env = _call(f"{name}: making it", make)
    try:
        env.action_space.seed(seed)
        _reset(name, env, seed)
        for t in range(steps):
            if _step(f"{name}: step {t}", env):
                _reset(name, env, None)
    finally:
        env.close()


def _call(where: str, function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    try:
        return function(*arguments, **settings)
    except Exception as error:
        text = " ".join(str(error).split())
        raise EnvError(f"{where} raised {type(error).__name__}: {text}") from error


def _reset(name: str, env: Any, seed: int | None) -> None:
    answer = _call(f"{name}: reset", env.reset, seed=seed)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        raise EnvError(
            f"{name}: reset must return an observation and a dict, got {_describe(answer)}"
        )
    _check_observation(f"{name}: reset", env.observation_space, answer[0])


def _step(where: str, env: Any) -> bool:
    """One step; whether it ended the episode."""
    answer = _call(where, env.step, env.action_space.sample())
    if not (isinstance(answer, tuple) and len(answer) == 5):
        raise EnvError(
            f"{where} must return observation, reward, terminated, truncated and a dict, "
            f"got {_describe(answer)}"
        )
    observation, reward, terminated, truncated, _ = answer
    _check_observation(where, env.observation_space, observation)
    if np.shape(reward) != () or np.asarray(reward).dtype.kind not in "fiub":
        raise EnvError(f"{where}: the reward must be one number, got {_describe(reward)}")
    if not np.isfinite(float(reward)):
        raise EnvError(f"{where}: the reward is {float(reward)}")
    for what, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            raise EnvError(f"{where}: {what} must be True or False, got {_describe(flag)}")
    return bool(terminated or truncated)


def _check_observation(where: str, space: Any, value: Any, part: str = "the observation") -> None:
    """Raises at the first way in which ``value`` is not of ``space``."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or set(value) != set(space.keys()):
            keys = ", ".join(map(str, space.keys()))
            raise EnvError(f"{where}: {part} must be a dict of {keys}, got {_describe(value)}")
        for key, inner in space.items():
            _check_observation(where, inner, value[key], f"{part}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space):
            raise EnvError(
                f"{where}: {part} must be a tuple of {len(space)}, got {_describe(value)}"
            )
        for index, inner in enumerate(space):
            _check_observation(where, inner, value[index], f"{part}[{index}]")
    elif isinstance(space, spaces.Box):
        _check_box(f"{where}: {part}", space, value)
    elif not space.contains(value):
        raise EnvError(f"{where}: {part} is {_describe(value)}, which is not in {space}")


def _check_box(what: str, space: Any, value: Any) -> None:
    array = np.asarray(value)
    if array.shape != space.shape:
        raise EnvError(f"{what} has shape {list(array.shape)}, its space says {list(space.shape)}")
    # Floating-point numbers of another width are converted; all else would change their meaning.
    floats = array.dtype.kind == "f" and space.dtype.kind == "f"
    if not floats and not np.can_cast(array.dtype, space.dtype):
        raise EnvError(f"{what} is {array.dtype}, its space says {space.dtype}")
    if not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0].tolist()
        raise EnvError(f"{what} holds {array[tuple(place)]} at {place}")
    slack = _SLACK * np.maximum(1.0, np.abs(array))
    outside = (array < space.low - slack) | (array > space.high + slack)
    if outside.any():
        place = tuple(np.argwhere(outside)[0].tolist())
        raise EnvError(
            f"{what} holds {array[place]:g} at {list(place)}, outside its space's "
            f"[{space.low[place]:g}, {space.high[place]:g}]"
        )


def _describe(value: Any) -> str:
    """Type, and shape or length where there is one."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple | list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else type(value).__name__
