"""A conformance check in plain words, for our environments and for a user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muesli.envs.base import JaxEnv, auto_reset_step
from muesli.types import StepType, TimeStep


class EnvError(ValueError):
    """An environment breaks the contract; the message says how, in one line."""


def check(env: JaxEnv, steps: int = 200, seed: int = 0) -> None:
    """Plays random legal actions and raises an ``EnvError`` at the first broken promise."""
    key = jax.random.key(seed)
    reset = jax.jit(env.reset)
    state, timestep = _traced("reset", reset, key)
    _check_timestep(env, timestep, "reset")
    if int(timestep.step_type) != StepType.FIRST:
        raise EnvError("reset must return a FIRST time step")
    if not bool(jnp.array_equal(timestep.observation, reset(key)[1].observation)):
        raise EnvError("reset must depend on nothing but its key")
    step = jax.jit(lambda s, t, a, k: auto_reset_step(env, s, t, a, k))
    _traced("step", step, state, timestep, _random_action(env, timestep, key), key)

    for t in range(steps):
        key_t = jax.random.fold_in(key, t)
        action = _random_action(env, timestep, key_t)
        before = timestep
        state, timestep = step(state, timestep, action, key_t)
        _check_timestep(env, timestep, f"step {t}")
        kind = int(timestep.step_type)
        if int(before.step_type) == StepType.LAST:
            if kind != StepType.FIRST:
                raise EnvError(f"step {t}: after a LAST time step an episode must begin")
        elif kind == StepType.FIRST:
            raise EnvError(f"step {t}: FIRST in the middle of an episode")
        if kind != StepType.LAST and float(timestep.discount) == 0.0:
            raise EnvError(f"step {t}: discount 0 on a time step that is not LAST")


def _traced(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a jitted function, so that one which cannot be traced is named here."""
    try:
        return function(*arguments)
    except jax.errors.JAXTypeError as error:
        raise EnvError(f"{name} cannot be traced by JAX: {str(error).splitlines()[0]}") from error


def _check_timestep(env: JaxEnv, timestep: TimeStep, where: str) -> None:
    spec = env.spec
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


def _random_action(env: JaxEnv, timestep: TimeStep, key: jax.Array) -> jax.Array:
    if env.spec.num_actions is None:
        return jax.random.uniform(key, (env.spec.action_size,), minval=-1.0, maxval=1.0)
    legal = timestep.legal_actions
    weights = jnp.ones(env.spec.num_actions) if legal is None else legal.astype(jnp.float32)
    return jax.random.categorical(key, jnp.log(weights))
