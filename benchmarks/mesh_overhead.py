"""What the sharded path costs on one device: a mesh of one against a plain ``jit``.

Both sample the same ring, mix in the same fresh sequences and make the same update; the first is
what Sebulba's learner runs (shardings, ``shard_map``, the mesh), the second knows of no device.
They take turns, and the medians are compared.

    python benchmarks/mesh_overhead.py --preset atari_h200 --updates 40
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muesli import keys
from muesli import replay as ring
from muesli.config import Config
from muesli.presets import PRESETS
from muesli.runners.mesh import place, spread
from muesli.runners.parts import build
from muesli.runners.sebulba import Sebulba


def small_ring(config: Config) -> Config:
    """As many copies as an update takes fresh sequences, and a ring of eight chunks."""
    fresh, length = config.batch.online_sequences, config.batch.sequence_length
    return replace(
        config,
        env=replace(config.env, num_envs=fresh, processes=0),
        actors=replace(config.actors, groups=1),
        batch=replace(config.batch, replay_capacity_steps=8 * fresh * length),
    )


def plain_update(sebulba: Sebulba) -> Callable[..., Any]:
    """The same update without a mesh."""
    parts, batch = sebulba.parts, sebulba.config.batch
    replayed = batch.batch_sequences - batch.online_sequences

    def update(agent: Any, replay: Any, fresh: Any, key: Any) -> Any:
        sample_key, update_key = jax.random.split(keys.update_key(key, agent.step))
        drawn = ring.sample(replay, sample_key, replayed, parts.stack)
        agent = parts.agent.observe(agent, fresh)
        agent, metrics = parts.agent.update(agent, ring.mix(fresh, drawn.batch), update_key)
        return agent, parts.agent.acting(agent), metrics

    return jax.jit(update, donate_argnums=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="atari_h200")
    parser.add_argument("--updates", type=int, default=40)
    options = parser.parse_args()
    parts = build(small_ring(PRESETS[options.preset]()))
    sebulba = Sebulba(parts, 0)
    sebulba._compile_learner()
    rng = np.random.default_rng(0)

    def noise(x: Any) -> Any:
        if x.dtype == jnp.uint8:
            return jnp.asarray(rng.integers(0, 255, x.shape, np.uint8))
        return jnp.zeros(x.shape, x.dtype)

    state = sebulba.fresh_state()
    fresh = jax.tree.map(noise, sebulba.example_chunk())
    stored = state.replay._replace(written=state.replay.written + 8)
    dealt = spread(fresh, sebulba.topology)
    lag = spread(np.zeros(1, np.float32), sebulba.topology)
    one = jax.devices()[0]
    # Each path has its own copy of the agent: both donate theirs.
    sharded = place(state.agent, sebulba.layout.agent)
    alone = jax.device_put(jax.tree.map(jnp.copy, jax.device_get(state.agent)), one)
    key, ring_alone = jax.device_put((state.key, stored), one)
    plain = plain_update(sebulba)

    def on_mesh() -> Any:
        nonlocal sharded
        sharded, _, row = sebulba.learn_slice(sharded, stored, dealt, np.int32(0), state.key, lag)
        return row.values

    def without() -> Any:
        nonlocal alone
        alone, _, row = plain(alone, ring_alone, fresh, key)
        return row["loss_total"]

    times: dict[str, list[float]] = {"mesh of one": [], "plain jit": []}
    for turn in range(options.updates + 3):
        for name, call in (("mesh of one", on_mesh), ("plain jit", without)):
            began = time.perf_counter()
            jax.block_until_ready(call())
            if turn >= 3:
                times[name].append(time.perf_counter() - began)
    medians = {name: 1e3 * statistics.median(seconds) for name, seconds in times.items()}
    for name, seconds in times.items():
        low, high = (1e3 * x for x in np.percentile(seconds, [25, 75]))
        print(f"{name}: {medians[name]:.2f} ms (quartiles {low:.2f} to {high:.2f})")
    print(f"overhead: {medians['mesh of one'] / medians['plain jit'] - 1:+.2%}")


if __name__ == "__main__":
    main()
