"""A JAX environment behind the host's contract, so that actor threads can run it too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muesli import keys
from muesli.envs.base import EnvError, HostEnv, HostEnvs, HostState, JaxEnv, auto_reset_step
from muesli.types import TimeStep


def on_host(env: JaxEnv) -> HostEnvs:
    """The same environment as a HostEnvs: a copy's keys are those it has inside one jitted loop."""
    reset_all = jax.jit(lambda key, slots: jax.vmap(env.reset)(keys.reset_keys(key, slots)))

    @jax.jit
    def step_all(
        state: Any, timestep: TimeStep, action: Any, key: Any, slots: Any, now: Any
    ) -> Any:
        step = jax.vmap(lambda *x: auto_reset_step(env, *x))
        return step(state, timestep, action, keys.env_keys(key, slots, now))

    def make(slots: range, seed: int) -> HostEnv:
        key, numbers = jax.random.key(seed), jnp.arange(slots.start, slots.stop)
        held: dict[str, Any] = {}

        def answer(state: Any, timestep: TimeStep, now: int) -> TimeStep:
            held.update(state=state, timestep=timestep, now=now)
            return jax.tree.map(np.asarray, timestep)

        def reset() -> TimeStep:
            state, timestep = reset_all(key, numbers)
            return answer(state, timestep, 0)

        def step(actions: np.ndarray) -> TimeStep:
            now = held["now"]
            state, timestep = step_all(held["state"], held["timestep"], actions, key, numbers, now)
            return answer(state, timestep, now + 1)

        def save() -> HostState:
            leaves = jax.tree_util.tree_leaves_with_path((held["state"], held["timestep"]))
            named = {jax.tree_util.keystr(path): _plain(leaf) for path, leaf in leaves}
            return named | {"now": np.int64(held["now"]) + np.zeros((), np.int64)}

        def load(state: HostState) -> None:
            example = jax.eval_shape(reset_all, key, numbers)
            leaves, structure = jax.tree_util.tree_flatten_with_path(example)
            loaded = [_like(jax.tree_util.keystr(path), want, state) for path, want in leaves]
            inner, timestep = jax.tree.unflatten(structure, loaded)
            answer(inner, timestep, int(state["now"]))

        return HostEnv(reset, step, held.clear, save, load)

    return HostEnvs(env.spec, make, env.render)


def _is_key(leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _like(name: str, want: Any, state: HostState) -> jax.Array:
    """The saved array of that name, which must be what this environment's state has there."""
    example = jax.eval_shape(jax.random.key_data, want) if _is_key(want) else want
    array = state.get(name)
    if array is None or array.shape != example.shape or array.dtype != example.dtype:
        raise EnvError(f"the saved environment state has another {name} than this environment")
    return jax.random.wrap_key_data(jnp.asarray(array)) if _is_key(want) else jnp.asarray(array)
