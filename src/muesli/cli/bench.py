"""``muesli bench``: how fast each part runs alone, and all of them together."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from muesli.cli.train import parse_config


def bench_command(argv: Sequence[str]) -> int:
    """``muesli bench [PRESET] [--seconds S] [--json] [--field VALUE …]``."""
    arguments = list(argv)
    preset = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    parser = argparse.ArgumentParser(prog="muesli bench", add_help=False, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each part is timed")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    own, rest = parser.parse_known_args(arguments)
    name, config = parse_config(preset, rest)
    result = {"preset": name, **measure(config, own.seconds)}
    if own.json:
        print(json.dumps(result))
        return 0
    for key, value in result.items():
        print(f"{key:<32} {value:,.3f}" if isinstance(value, float) else f"{key:<32} {value}")
    return 0


def measure(config: Any, seconds: float) -> dict[str, Any]:
    """Times acting, environment, replay and update alone, and the whole loop."""
    import jax
    import jax.numpy as jnp

    from muesli import replay as ring
    from muesli.envs.base import auto_reset_step
    from muesli.runners.train import build

    parts = build(config)
    agent, env, batch = parts.agent, parts.env, config.batch
    num_envs, length = config.env.num_envs, batch.sequence_length
    began = time.monotonic()
    state = jax.jit(parts.anakin.init)(jax.random.key(config.seed))
    warm_up = jax.jit(parts.anakin.warm_up)
    for _ in range(3):
        state, _ = warm_up(state)
    keys = jax.random.split(jax.random.key(1), num_envs)

    act = jax.jit(lambda s, t, a, k: agent.act(agent.acting(s), t, a, k)[0])
    actions = act(state.agent, state.timesteps, state.actors, keys)
    step = jax.jit(jax.vmap(lambda *x: auto_reset_step(env, *x)))
    seconds_act = _time(lambda: act(state.agent, state.timesteps, state.actors, keys), seconds)
    seconds_env = _time(lambda: step(state.env_states, state.timesteps, actions, keys), seconds)
    iterate = jax.jit(lambda s: parts.anakin.iterate(s, 8))
    seconds_loop = _time(lambda: iterate(state), seconds) / 8
    result: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "act_ms": 1e3 * seconds_act,
        "env_step_ms": 1e3 * seconds_env,
        "env_steps_per_second_alone": num_envs / seconds_env,
    }
    if state.replay is not None:
        replayed = batch.batch_sequences - batch.online_sequences
        sample = jax.jit(lambda r, k: ring.sample(r, k, replayed).batch)
        seconds_sample = _time(lambda: sample(state.replay, keys[0]), seconds)
        result["replay_sample_ms"] = 1e3 * seconds_sample
        some = sample(state.replay, keys[0])
        repeat = -(-batch.batch_sequences // replayed)
        full = jax.tree.map(lambda x: jnp.tile(x, (repeat,) + (1,) * (x.ndim - 1)), some)
        full = jax.tree.map(lambda x: x[: batch.batch_sequences], full)
        update = jax.jit(agent.update)
        result["update_ms"] = 1e3 * _time(lambda: update(state.agent, full, keys[0]), seconds)
    updates = parts.schedule.updates_per_iteration
    return result | {
        "iteration_ms": 1e3 * seconds_loop,
        "env_steps_per_second": num_envs * length / seconds_loop,
        "updates_per_second": updates / seconds_loop,
        "trained_records_per_second": updates * batch.batch_sequences * length / seconds_loop,
        "total_seconds_with_compilation": time.monotonic() - began,
    }


def _time(call: Callable[[], Any], seconds: float) -> float:
    """Median seconds of one call, after two to warm up."""
    import jax

    for _ in range(2):
        jax.block_until_ready(call())
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        began = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]
