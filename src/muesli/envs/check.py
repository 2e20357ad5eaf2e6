"""A conformance check in plain words, for our environments and for a user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muesli.config import ActorConfig
from muesli.envs.base import EnvError, HostEnvs, JaxEnv, auto_reset_step
from muesli.types import EnvSpec, StepType, TimeStep

# Steps after which a copy made anew is believed to play as the first one did.
_REPEATED = 50


def check_env(env: JaxEnv | HostEnvs, steps: int = 200, seed: int = 0) -> None:
    """Plays random legal actions and raises an ``EnvError`` at the first broken promise."""
    names, actions = env.spec.action_names, env.spec.num_actions
    if names and len(names) != actions:
        raise EnvError(f"spec.action_names: {len(names)} names for {actions or 'no'} actions")
    if isinstance(env, HostEnvs):
        if env.trial is not None:
            env.trial(steps, ActorConfig().step_timeout_seconds)
        _check_host(env, steps, seed)
    else:
        _check_jax(env, steps, seed)


def _check_jax(env: JaxEnv, steps: int, seed: int) -> None:
    spec, key = env.spec, jax.random.key(seed)
    reset = jax.jit(env.reset)
    state, timestep = _traced("reset", reset, key)
    _check_first(spec, timestep, "reset")
    if not bool(jnp.array_equal(timestep.observation, reset(key)[1].observation)):
        raise EnvError("reset must depend on nothing but its key")
    step = jax.jit(lambda s, t, a, k: auto_reset_step(env, s, t, a, k))
    _traced("step", step, state, timestep, _random_action(spec, timestep, key), key)

    ended = False
    for t in range(steps):
        key_t = jax.random.fold_in(key, t)
        before = timestep
        action = _random_action(spec, before, key_t)
        state, timestep = step(state, before, action, key_t)
        _check_next(spec, before, timestep, f"step {t}")
        if not ended and int(timestep.step_type) == StepType.LAST:
            ended = True
            _check_beyond(env, state, _random_action(spec, timestep, key_t), key_t, f"step {t}")


def _check_beyond(env: JaxEnv, state: Any, action: jax.Array, key: jax.Array, where: str) -> None:
    """Steps a LAST state, as compiled loops do before they discard the answer."""
    try:
        jax.block_until_ready(jax.jit(env.step)(state, action, key))
    except Exception as error:
        raise EnvError(
            f"{where}: step raised on a LAST time step, where its answer is discarded but must "
            f"come: {_reason(error)}"
        ) from error


def _reason(error: Exception) -> str:
    """What an error says, in one line: what follows the frames of a callback's traceback."""
    lines = str(error).splitlines()
    frames = [i for i, line in enumerate(lines) if line.startswith(" ")]
    return " ".join(lines[frames[-1] + 1 if frames else 0 :]) or type(error).__name__


def _check_host(envs: HostEnvs, steps: int, seed: int) -> None:
    """Plays two copies, and then the second of them alone: it must not notice."""
    spec, slots, key = envs.spec, range(2), jax.random.key(seed)
    actions: list[np.ndarray] = []
    played: list[TimeStep] = []
    env = envs.make(slots, seed)
    try:
        timestep = env.reset()
        for i, copy in enumerate(_unbatched(timestep, len(slots), "reset")):
            _check_first(spec, copy, f"reset, copy {i}")
        for t in range(steps):
            before, kept = timestep, jax.tree.map(np.copy, timestep)
            copies = _unbatched(before, len(slots), f"step {t}")
            keys = jax.random.split(jax.random.fold_in(key, t), len(slots))
            chosen = [_random_action(spec, *pair) for pair in zip(copies, keys, strict=True)]
            action = np.stack([np.asarray(a, _action_dtype(spec)) for a in chosen])
            timestep = env.step(action)
            after = _unbatched(timestep, len(slots), f"step {t}")
            for i, pair in enumerate(zip(copies, after, strict=True)):
                _check_next(spec, *pair, f"step {t}, copy {i}")
            if not _equal(before, kept):
                raise EnvError(f"step {t}: an array that was handed out before was written to")
            actions.append(action)
            played.append(after[1])
    finally:
        env.close()

    env = envs.make(slots[1:], seed)
    try:
        env.reset()
        for t in range(min(steps, _REPEATED)):
            again = _unbatched(env.step(actions[t][1:]), 1, f"step {t}")[0]
            if not _equal(again, played[t]):
                raise EnvError(
                    f"step {t}: a copy made again plays differently; what it does must depend on "
                    "nothing but its seed, its slot and its actions"
                )
    finally:
        env.close()


def _unbatched(timestep: TimeStep, copies: int, where: str) -> list[TimeStep]:
    """The time step of each copy."""
    for name, leaf in zip(timestep._fields, timestep, strict=True):
        for array in jax.tree.leaves(leaf):
            if not isinstance(array, np.ndarray) or array.shape[:1] != (copies,):
                raise EnvError(
                    f"{where}: {name} must be a NumPy array whose first axis counts the "
                    f"{copies} copies, got {type(array).__name__}{list(np.shape(array))}"
                )
    return [jax.tree.map(lambda array, i=i: array[i], timestep) for i in range(copies)]


def _equal(a: TimeStep, b: TimeStep) -> bool:
    return bool(jax.tree.all(jax.tree.map(np.array_equal, a, b)))


def _traced(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a jitted function, so that one which cannot be traced is named here."""
    try:
        return function(*arguments)
    except jax.errors.JAXTypeError as error:
        raise EnvError(f"{name} cannot be traced by JAX: {str(error).splitlines()[0]}") from error


def _check_first(spec: EnvSpec, timestep: TimeStep, where: str) -> None:
    _check_timestep(spec, timestep, where)
    if int(timestep.step_type) != StepType.FIRST:
        raise EnvError("reset must return a FIRST time step")


def _check_next(spec: EnvSpec, before: TimeStep, timestep: TimeStep, where: str) -> None:
    _check_timestep(spec, timestep, where)
    kind = int(timestep.step_type)
    if int(before.step_type) == StepType.LAST:
        if kind != StepType.FIRST:
            raise EnvError(f"{where}: after a LAST time step an episode must begin")
    elif kind == StepType.FIRST:
        raise EnvError(f"{where}: FIRST in the middle of an episode")
    if kind != StepType.LAST and float(timestep.discount) == 0.0:
        raise EnvError(f"{where}: discount 0 on a time step that is not LAST")


def _check_timestep(spec: EnvSpec, timestep: TimeStep, where: str) -> None:
    observation = timestep.observation
    if observation.shape != spec.observation_shape:
        raise EnvError(
            f"{where}: observation has shape {list(observation.shape)}, "
            f"the spec says {list(spec.observation_shape)}"
        )
    if observation.dtype != spec.observation_dtype:
        raise EnvError(
            f"{where}: observation is {observation.dtype}, the spec says {spec.observation_dtype}"
        )
    for name in ("reward", "discount"):
        value = getattr(timestep, name)
        if value.shape != () or value.dtype != jnp.float32:
            raise EnvError(
                f"{where}: {name} must be a float32 scalar, got {value.dtype}{list(value.shape)}"
            )
        if not np.isfinite(np.asarray(value)):
            raise EnvError(f"{where}: {name} is {float(value)}")
    if not np.isfinite(np.asarray(observation, np.float64)).all():
        raise EnvError(f"{where}: observation holds a number that is not finite")
    if int(timestep.step_type) not in (0, 1, 2):
        raise EnvError(f"{where}: step_type must be 0, 1 or 2, got {int(timestep.step_type)}")
    if float(timestep.discount) not in (0.0, 1.0):
        raise EnvError(f"{where}: discount must be 0 or 1, got {float(timestep.discount)}")
    if spec.legal_actions != (timestep.legal_actions is not None):
        raise EnvError(f"{where}: legal_actions is given, or not, against what the spec says")
    if timestep.legal_actions is not None:
        if timestep.legal_actions.shape != (spec.num_actions,):
            raise EnvError(f"{where}: legal_actions must have shape [{spec.num_actions}]")
        if not bool(jnp.any(timestep.legal_actions)):
            raise EnvError(f"{where}: no action is legal")


def _action_dtype(spec: EnvSpec) -> Any:
    return np.float32 if spec.num_actions is None else np.int32


def _random_action(spec: EnvSpec, timestep: TimeStep, key: jax.Array) -> jax.Array:
    if spec.num_actions is None:
        return jax.random.uniform(key, (spec.action_size,), minval=-1.0, maxval=1.0)
    legal = timestep.legal_actions
    weights = jnp.ones(spec.num_actions) if legal is None else jnp.asarray(legal, jnp.float32)
    return jax.random.categorical(key, jnp.log(weights))
