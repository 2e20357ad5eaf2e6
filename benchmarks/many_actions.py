"""What an update costs with 18 and with 10,000 discrete actions, 16 samples each.

The look-ahead visits 33 actions of a state either way. What must grow are the policy's last layers,
at the root and after each of the model's five steps: the third column is a program of nothing else.
Processor time, the least of a few updates, so that other programs disturb little.

    python benchmarks/many_actions.py
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from muesli import presets
from muesli import replay as ring
from muesli.config import Config
from muesli.envs import ENVS
from muesli.envs.base import JaxEnv
from muesli.envs.toys import catch_pixels, crowded_bandit
from muesli.runners.anakin import make_anakin
from muesli.runners.parts import build

replace = dataclasses.replace
SEQUENCES, LENGTH = 32, 12


def milliseconds(call: Callable[[int], Any], repeats: int = 7) -> float:
    """The least processor time of ``repeats`` calls, after one more."""
    jax.block_until_ready(call(0))
    times = []
    for k in range(repeats):
        began = time.process_time()
        jax.block_until_ready(call(k))
        times.append(time.process_time() - began)
    return 1000 * min(times)


def update_milliseconds(config: Config, env: JaxEnv) -> float:
    """One update on a batch of 32 sequences of 12 records."""
    ENVS["many"] = lambda: env
    parts = build(
        replace(
            config,
            env=replace(config.env, name="many", num_envs=8),
            agent=replace(config.agent, retrace_samples=16),
            update=replace(config.update, kl_samples=16),
            # A stored behaviour policy of 10,000 actions takes 40 kB.
            batch=replace(
                config.batch,
                batch_sequences=SEQUENCES,
                online_sequences=8,
                sequence_length=LENGTH,
                replay_capacity_steps=2_000,
            ),
        )
    )
    anakin = make_anakin(parts)
    state = jax.jit(anakin.init)(jax.random.key(0))
    warm_up = jax.jit(anakin.warm_up)
    for _ in range(3):
        state, _ = warm_up(state)
    batch = ring.sample(state.replay, jax.random.key(1), SEQUENCES).batch
    update = jax.jit(parts.agent.update)
    return milliseconds(lambda k: update(state.agent, batch, jax.random.key(k)))


def head_milliseconds(units: int, num_actions: int, unroll_steps: int = 5) -> float:
    """The policy's last layers alone, [units, num_actions]: the prior's at every record, and the
    online ones there and at the model's steps, normalised, with their gradients.
    """
    records = SEQUENCES * (LENGTH + 1)
    x = jax.random.normal(jax.random.key(0), (records + SEQUENCES * LENGTH * unroll_steps, units))
    kernel = jax.random.normal(jax.random.key(1), (units, num_actions))

    def normalisers(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.logsumexp(x @ kernel, axis=-1))

    forward, backward = jax.jit(normalisers), jax.jit(jax.grad(normalisers, argnums=(0, 1)))
    return milliseconds(lambda _: (forward(x[:records], kernel), backward(x, kernel)))


def dense(units: int) -> tuple[Config, Callable[[int], JaxEnv], int]:
    """A small mlp on the task of many arms."""
    base = presets.catch()
    network = replace(base.network, torso_units=units, model_units=units)
    make = lambda n: crowded_bandit(n, good=min(100, n))  # noqa: E731
    return replace(base, network=network), make, units


def pictures() -> tuple[Config, Callable[[int], JaxEnv], int]:
    """A small copy of the Atari network on pictures of 96×96."""
    config = presets.catch_pixels()
    return config, lambda n: catch_pixels(num_actions=n), config.network.model_units


if __name__ == "__main__":
    for name, (config, make, units) in {
        "mlp, 32 units": dense(32),
        "mlp, 128 units": dense(128),
        "pictures": pictures(),
    }.items():
        few, many = (update_milliseconds(config, make(n)) for n in (18, 10_000))
        heads = head_milliseconds(units, 10_000)
        print(
            f"{name}: 18 actions {few:.0f} ms, 10,000 actions {many:.0f} ms ({many / few:.2f}x); "
            f"the policy's last layers alone {heads:.0f} ms",
            flush=True,
        )
