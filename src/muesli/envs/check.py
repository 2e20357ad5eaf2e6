"""A conformance check in plain words, for our environments and for a user's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muesli.checks import described, untraceable
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
    _check_spec(spec)
    _check_forms(env, key)
    reset = jax.jit(env.reset)
    state, timestep = reset(key)
    _check_first(spec, timestep, "reset")
    if not bool(jnp.array_equal(timestep.observation, reset(key)[1].observation)):
        raise EnvError("reset must depend on nothing but its key")
    step = jax.jit(lambda s, t, a, k: auto_reset_step(env, s, t, a, k))

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


def _check_spec(spec: EnvSpec) -> None:
    """What a spec must say whatever the environment does."""
    shape, count = spec.observation_shape, spec.num_actions
    if not isinstance(shape, tuple) or not all(isinstance(n, int) and n > 0 for n in shape):
        raise EnvError(f"spec.observation_shape must be a tuple of positive sizes, got {shape!r}")
    if count is not None and count < 1:
        raise EnvError(f"spec.num_actions must be at least 1, got {count}")
    if count is None and spec.action_size < 1:
        raise EnvError(
            f"spec.action_size must be at least 1 where spec.num_actions is None, "
            f"got {spec.action_size}"
        )


def _check_forms(env: JaxEnv, key: jax.Array) -> None:
    """What can be said of ``reset`` and ``step`` without running them."""
    spec = env.spec
    state, timestep = _form("reset", env.reset, key)
    _check_arrays(spec, timestep, "reset")
    size = (spec.action_size,) if spec.num_actions is None else ()
    action = jax.ShapeDtypeStruct(size, _action_dtype(spec))
    after, later = _form("step", env.step, state, action, key)
    _check_arrays(spec, later, "step")
    parts: Any = jax.tree.structure(after)
    wanted: Any = jax.tree.structure(state)
    if parts != wanted:
        raise EnvError(
            f"step: the state must have the parts of the state that reset returns, {wanted}, "
            f"got {parts}"
        )
    pairs = zip(jax.tree.leaves_with_path(state), jax.tree.leaves(after), strict=True)
    for (path, of_reset), of_step in pairs:
        # Compiled loops choose between the two, and must get what they began with.
        chosen = jax.eval_shape(partial(jnp.where, True), of_step, of_reset)
        if (chosen.shape, chosen.dtype) != (of_reset.shape, of_reset.dtype):
            raise EnvError(
                f"step: state{jax.tree_util.keystr(path)} must be {described(of_reset)} as reset "
                f"returns it, got {described(of_step)}"
            )


def _form(name: str, function: Callable[..., Any], *arguments: Any) -> tuple[Any, TimeStep]:
    """The state and the TimeStep that a function answers, as shapes and dtypes."""
    try:
        answer = jax.eval_shape(function, *arguments)
    except Exception as error:
        raise EnvError(untraceable(name, error)) from error
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], TimeStep)):
        parts = answer if type(answer) is tuple else (answer,)
        got = ", ".join("an array" if hasattr(x, "dtype") else type(x).__name__ for x in parts)
        raise EnvError(f"{name} must return (state, TimeStep), got {got}")
    return answer


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


def _check_arrays(spec: EnvSpec, timestep: TimeStep, where: str) -> None:
    """Shapes and dtypes of a time step, of arrays or of what stands for them."""
    observation = timestep.observation
    if not hasattr(observation, "dtype"):
        raise EnvError(f"{where}: observation must be one array, got {type(observation).__name__}")
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
    if spec.legal_actions != (timestep.legal_actions is not None):
        raise EnvError(f"{where}: legal_actions is given, or not, against what the spec says")
    legal = timestep.legal_actions
    if legal is not None and (legal.shape != (spec.num_actions,) or legal.dtype != jnp.bool_):
        raise EnvError(
            f"{where}: legal_actions must be bool[{spec.num_actions}], got {described(legal)}"
        )


def _check_timestep(spec: EnvSpec, timestep: TimeStep, where: str) -> None:
    _check_arrays(spec, timestep, where)
    for name in ("reward", "discount"):
        if not np.isfinite(np.asarray(getattr(timestep, name))):
            raise EnvError(f"{where}: {name} is {float(getattr(timestep, name))}")
    observation = timestep.observation
    if not np.isfinite(np.asarray(observation, np.float64)).all():
        raise EnvError(f"{where}: observation holds a number that is not finite")
    if int(timestep.step_type) not in (0, 1, 2):
        raise EnvError(f"{where}: step_type must be 0, 1 or 2, got {int(timestep.step_type)}")
    if float(timestep.discount) not in (0.0, 1.0):
        raise EnvError(f"{where}: discount must be 0 or 1, got {float(timestep.discount)}")
    if timestep.legal_actions is not None and not bool(jnp.any(timestep.legal_actions)):
        raise EnvError(f"{where}: no action is legal")


def _action_dtype(spec: EnvSpec) -> Any:
    return np.float32 if spec.num_actions is None else np.int32


def _random_action(spec: EnvSpec, timestep: TimeStep, key: jax.Array) -> jax.Array:
    if spec.num_actions is None:
        return jax.random.uniform(key, (spec.action_size,), minval=-1.0, maxval=1.0)
    legal = timestep.legal_actions
    weights = jnp.ones(spec.num_actions) if legal is None else jnp.asarray(legal, jnp.float32)
    return jax.random.categorical(key, jnp.log(weights))
