"""What an update costs with 18 and with 10,000 discrete actions, 16 samples each.

The look-ahead visits 33 actions of a state either way. The policy's last layers and the model's
embedding of an action grow with the number of actions, and so do the stored behaviour policies.

    python benchmarks/many_actions.py
"""

import dataclasses
import time

import jax

from muesli import presets
from muesli import replay as ring
from muesli.envs import ENVS
from muesli.envs.toys import crowded_bandit
from muesli.runners.anakin import make_anakin
from muesli.runners.parts import build

replace = dataclasses.replace


def update_milliseconds(num_actions: int, units: int, repeats: int = 20) -> float:
    """The median of ``repeats`` updates on a batch of 32 sequences of 12 records."""
    ENVS["many"] = lambda: crowded_bandit(num_actions, good=min(100, num_actions))
    base = presets.catch()
    parts = build(
        replace(
            base,
            env=replace(base.env, name="many"),
            network=replace(base.network, torso_units=units, model_units=units),
            agent=replace(base.agent, retrace_samples=16),
            update=replace(base.update, kl_samples=16),
            # A stored behaviour policy of 10,000 actions takes 40 kB.
            batch=replace(base.batch, replay_capacity_steps=2_000),
        )
    )
    anakin = make_anakin(parts)
    state = jax.jit(anakin.init)(jax.random.key(0))
    warm_up = jax.jit(anakin.warm_up)
    for _ in range(3):
        state, _ = warm_up(state)
    batch = ring.sample(state.replay, jax.random.key(1), 32).batch
    update = jax.jit(parts.agent.update)
    times = []
    for k in range(repeats + 1):
        began = time.perf_counter()
        jax.block_until_ready(update(state.agent, batch, jax.random.key(k)))
        times.append(time.perf_counter() - began)
    return 1000 * sorted(times[1:])[repeats // 2]


for units in (32, 128):
    few, many = (update_milliseconds(n, units) for n in (18, 10_000))
    print(f"{units} units: 18 actions {few:.1f} ms, 10,000 actions {many:.1f} ms an update")
