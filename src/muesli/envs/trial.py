"""A few random steps in one Gymnasium environment, and what is wrong with it in plain words."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from muesli.checks import place_of, told
from muesli.envs.base import EnvError
from muesli.envs.spaces import check_form, describe

# A bound may be missed by as much, relative to its size: float32 against float64.
_SLACK = 1e-5
_LARGEST = float(np.finfo(np.float32).max)
# Who waits longer than this for an answer is told what for.
_QUIET_SECONDS = 5.0
_LOOK_SECONDS = 0.5


def try_out(
    name: str, make: Callable[[], Any], steps: int, patience_seconds: float = 60.0, seed: int = 0
) -> None:
    """Plays random actions in a copy of its own; raises an EnvError at the first broken promise,
    or when it has not answered for ``patience_seconds``.
    """
    trial = _Trial(name)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            trial.play(make, steps, seed)
        except BaseException as error:
            failures.append(error)

    # A thread of its own, for nothing else can be left behind when it hangs; actors have theirs.
    thread = threading.Thread(target=run, name="trial", daemon=True)
    thread.start()
    told_of = 0.0
    while thread.is_alive():
        thread.join(min(_LOOK_SECONDS, patience_seconds))
        where, since = trial.at
        waited = time.monotonic() - since
        if not thread.is_alive():
            break
        if waited >= patience_seconds:
            raise EnvError(
                f"{where} has not answered for {patience_seconds:g} s (actors.step_timeout_seconds)"
            )
        if waited >= _QUIET_SECONDS and since != told_of:
            told_of = since
            print(  # noqa: T201
                f"muesli: {where} has not answered for {_QUIET_SECONDS:g} s; "
                f"it is waited for {patience_seconds:g} s",
                file=sys.stderr,
                flush=True,
            )
    if failures:
        raise failures[0]


class _Trial:
    """One copy that is played. at: what is under way, and since when."""

    def __init__(self, name: str):
        self.name = name
        self.at = (f"{name}: making it", time.monotonic())

    def play(self, make: Callable[[], Any], steps: int, seed: int) -> None:
        env = self._call("making it", make)
        try:
            env.action_space.seed(seed)
            self._reset(env, seed)
            for t in range(steps):
                if self._step(f"step {t}", env):
                    self._reset(env, None)
        finally:
            self.at = (f"{self.name}: closing it", time.monotonic())
            shut(env)

    def _call(
        self, what: str, function: Callable[..., Any], *arguments: Any, **settings: Any
    ) -> Any:
        where = f"{self.name}: {what}"
        self.at = (where, time.monotonic())
        try:
            return function(*arguments, **settings)
        except (Exception, SystemExit) as error:
            raise EnvError(f"{where} raised {told(error)}{place_of(error)}") from error

    def _reset(self, env: Any, seed: int | None) -> None:
        answer, where = self._call("reset", env.reset, seed=seed), f"{self.name}: reset"
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
            raise EnvError(f"{where} must return an observation and a dict, got {describe(answer)}")
        _check_observation(where, env.observation_space, answer[0])

    def _step(self, what: str, env: Any) -> bool:
        """One step; whether it ended the episode."""
        action = self._call(f"{what}: sampling an action", env.action_space.sample)
        answer, where = self._call(what, env.step, action), f"{self.name}: {what}"
        if not (isinstance(answer, tuple) and len(answer) == 5):
            raise EnvError(
                f"{where} must return observation, reward, terminated, truncated and a dict, "
                f"got {describe(answer)}"
            )
        observation, reward, terminated, truncated, info = answer
        _check_observation(where, env.observation_space, observation)
        if np.shape(reward) != () or np.asarray(reward).dtype.kind not in "fiub":
            raise EnvError(f"{where}: the reward must be one number, got {describe(reward)}")
        if not np.isfinite(float(reward)):
            raise EnvError(f"{where}: the reward is {float(reward)}")
        if abs(float(reward)) > _LARGEST:
            raise EnvError(f"{where}: the reward is {float(reward):g}, too large for float32")
        for flag, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_):
                raise EnvError(f"{where}: {flag} must be True or False, got {describe(value)}")
        if not isinstance(info, dict):
            raise EnvError(f"{where}: the info must be a dict, got {describe(info)}")
        return bool(terminated or truncated)


def shut(env: Any) -> None:
    """Closes a copy that is of no more use, whatever it says to that."""
    with suppress(Exception, SystemExit):
        env.close()


def _check_observation(where: str, space: Any, value: Any) -> None:
    """Raises at the first way in which ``value`` is not of ``space``."""
    check_form(where, space, value)
    _check_boxes(where, space, value, "the observation")


def _check_boxes(where: str, space: Any, value: Any, part: str) -> None:
    """The numbers of boxes; ``value`` has the form of ``space``."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        for key, inner in space.items():
            _check_boxes(where, inner, value[key], f"{part}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space):
            _check_boxes(where, inner, value[index], f"{part}[{index}]")
    elif isinstance(space, spaces.Box):
        _check_box(f"{where}: {part}", space, np.asarray(value))


def _check_box(what: str, space: Any, array: np.ndarray) -> None:
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
    large = np.abs(array.astype(np.float64)) > _LARGEST
    if large.any():
        place = tuple(np.argwhere(large)[0].tolist())
        raise EnvError(f"{what} holds {array[place]:g} at {list(place)}, too large for float32")
