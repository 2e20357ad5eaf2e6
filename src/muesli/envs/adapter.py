"""A JAX environment behind the host's contract, so that actor threads can run it too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muesli import keys
from muesli.envs.base import HostEnv, HostEnvs, JaxEnv, auto_reset_step
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

        def save() -> Any:
            return jax.tree.map(np.asarray, dict(held))

        def load(state: Any) -> None:
            held.update(state, now=int(state["now"]))

        return HostEnv(reset, step, held.clear, save, load)

    return HostEnvs(env.spec, make, env.render)
