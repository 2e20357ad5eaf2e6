"""``muesli bench``: how fast each part runs alone, and all of them together."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from muesli.cli.configure import choice, parse_config
from muesli.cli.main import UsageError
from muesli.cli.options import Parser


def bench_command(argv: Sequence[str]) -> int:
    """``muesli bench [PRESET] [--seconds S] [--json] [--field VALUE …]``."""
    arguments = list(argv)
    preset = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    parser = Parser(
        prog="muesli bench",
        usage="muesli bench [PRESET] [--seconds S] [--json] [--FIELD VALUE ...]",
        description="Times each part of a run alone, and all of them together. Fields are those "
        "of 'muesli train PRESET --help'.",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each part is timed")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    own, rest = parser.parse_known_args(arguments)
    if not 0.0 < own.seconds < math.inf:
        raise UsageError(f"--seconds: must be a positive number, got {own.seconds:g}")
    name, config = parse_config(preset, rest)
    if (remark := choice(preset)) is not None:
        print(remark, flush=True)
    result = {"preset": name, **measure(config, own.seconds)}
    if own.json:
        print(json.dumps(result))
        return 0
    width = max(map(len, result))
    for key, value in result.items():
        print(f"{key:<{width}}  {f'{value:,.3f}' if isinstance(value, float) else value}")
    return 0


def measure(config: Any, seconds: float) -> dict[str, Any]:
    """Times the parts of a run alone, and the whole loop."""
    from muesli.runners.device import prepare_device
    from muesli.runners.parts import build

    prepare_device()
    parts = build(config)
    return _measure_sebulba(parts, seconds) if parts.sebulba else _measure_anakin(parts, seconds)


def _to_slowest(bounds: Mapping[str, float], together: float) -> dict[str, float]:
    """What each part alone would allow, and what all do together, over the slowest part's rate."""
    slowest = min(bounds.values())
    rates = {**bounds, "end_to_end": together}
    return {f"{name}_to_slowest_bound": rate / slowest for name, rate in rates.items()}


def _measure_anakin(parts: Any, seconds: float) -> dict[str, Any]:
    """Acting, environment, replay and update alone, and the whole jitted loop.

    Here the parts take turns, so that together they are slower than the slowest of them.
    """
    import jax
    import jax.numpy as jnp

    from muesli import replay as ring
    from muesli.envs.base import auto_reset_step
    from muesli.runners.anakin import make_anakin

    config, anakin = parts.config, make_anakin(parts)
    agent, env, batch = parts.agent, parts.trained_env, config.batch
    num_envs, length = config.env.num_envs, batch.sequence_length
    began = time.monotonic()
    state = jax.jit(anakin.init)(jax.random.key(config.seed))
    warm_up = jax.jit(anakin.warm_up)
    for _ in range(3):
        state, _ = warm_up(state)
    keys = jax.random.split(jax.random.key(1), num_envs)

    act = jax.jit(lambda s, t, a, k: agent.act(agent.acting(s), t, a, k)[0])
    actions = act(state.agent, state.timesteps, state.actors, keys)
    step = jax.jit(jax.vmap(lambda *x: auto_reset_step(env, *x)))
    seconds_act = _time(lambda: act(state.agent, state.timesteps, state.actors, keys), seconds)
    seconds_env = _time(lambda: step(state.env_states, state.timesteps, actions, keys), seconds)
    iterate = jax.jit(lambda s: anakin.iterate(s, 8))
    seconds_loop = _time(lambda: iterate(state), seconds) / 8
    # What an update is given has the shape of the batch that the loop hands back.
    shapes = jax.eval_shape(lambda s: anakin.iterate_some(s, 1, 1), state)[1].skipped
    batch_of_zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    update = jax.jit(agent.update)
    seconds_update = _time(lambda: update(state.agent, batch_of_zeros, keys[0]), seconds)
    updates = parts.schedule.updates_per_iteration
    bounds = {
        "environments": num_envs / seconds_env,
        "acting": num_envs / seconds_act,
        "learner": num_envs * length / (updates * seconds_update),
    }
    together = num_envs * length / seconds_loop
    result: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "act_ms": 1e3 * seconds_act,
        "env_step_ms": 1e3 * seconds_env,
        "update_ms": 1e3 * seconds_update,
    }
    if state.replay is not None:
        replayed = batch.batch_sequences - batch.online_sequences
        sample = jax.jit(lambda r, k: ring.sample(r, k, replayed).batch)
        seconds_sample = _time(lambda: sample(state.replay, keys[0]), seconds)
        result["replay_sample_ms"] = 1e3 * seconds_sample
    return result | {
        "iteration_ms": 1e3 * seconds_loop,
        **{f"{name}_env_steps_per_second_alone": rate for name, rate in bounds.items()},
        "env_steps_per_second": together,
        "updates_per_second": updates / seconds_loop,
        "trained_records_per_second": updates * batch.batch_sequences * length / seconds_loop,
        **_to_slowest(bounds, together),
        "total_seconds_with_compilation": time.monotonic() - began,
    }


def _measure_sebulba(parts: Any, seconds: float) -> dict[str, Any]:
    """Environments, acting and learner alone, and all of them together.

    In frames per second, what each part alone would allow: the slowest of them bounds the whole.
    """
    import jax

    from muesli.runners.host import host_envs
    from muesli.runners.memory import GIB, check_memory, compiled_bytes, plan_beside
    from muesli.runners.sebulba import Sebulba

    config, frames, batch = parts.config, parts.frames_per_step, parts.config.batch
    num_envs, envs = config.env.num_envs, host_envs(parts.trained_env)
    size = num_envs // config.actors.groups
    began = time.monotonic()
    slots = [range(first, first + size) for first in range(0, num_envs, size)]
    copies = _in_threads([partial(envs.make, s, config.seed) for s in slots])
    _in_threads([env.reset for env in copies])
    start_seconds = time.monotonic() - began
    seconds_envs = _time_envs(copies, envs.spec, size, seconds)

    # The run gets the copies that were just measured.
    made = dict(zip(slots, copies, strict=True))
    sebulba = Sebulba(parts._replace(env=envs._replace(make=lambda s, seed: made[s])), config.seed)
    compile_began = time.monotonic()
    sebulba.prepare()
    compile_seconds = time.monotonic() - compile_began
    plan = check_memory(plan_beside(sebulba, compiled_bytes(sebulba.learn_slice)), config)
    load = _under_load(sebulba, parts, seconds)
    learn, act = _learner_alone(sebulba), _acting_alone(sebulba)
    seconds_learn, seconds_act = _time(learn, seconds), _time(act, seconds)

    updates = parts.schedule.updates_per_iteration
    per_update = batch.online_sequences * batch.sequence_length * frames
    bounds = {
        "environments": num_envs / seconds_envs * frames,
        "acting": size / seconds_act * frames,
        "learner": per_update / seconds_learn,
    }
    together = num_envs * batch.sequence_length * frames / load.iteration_seconds
    stats = jax.devices()[0].memory_stats() or {}
    return {
        "device": jax.devices()[0].device_kind,
        "env_start_seconds": start_seconds,
        "compile_seconds": compile_seconds,
        "act_ms": 1e3 * seconds_act,
        "update_ms": 1e3 * seconds_learn,
        "env_step_ms_under_load": 1e3 * load.env_step_seconds,
        "act_wait_ms_under_load": 1e3 * load.act_wait_seconds,
        "learner_waiting_share": load.learner_waiting_share,
        **{f"{name}_frames_per_second_alone": value for name, value in bounds.items()},
        "frames_per_second": together,
        "updates_per_second": updates / load.iteration_seconds,
        **_to_slowest(bounds, together),
        "memory_planned_gib": plan.total / GIB,
        "memory_peak_gib": stats.get("peak_bytes_in_use", 0) / GIB,
        "total_seconds": time.monotonic() - began,
    }


class _Load(NamedTuple):
    """What the parts take while all of them work: seconds of an iteration, of a group's step and of
    its wait for actions; and the share of the time in which the learner waits.
    """

    iteration_seconds: float
    env_step_seconds: float
    act_wait_seconds: float
    learner_waiting_share: float


def _under_load(sebulba: Any, parts: Any, seconds: float) -> _Load:
    """Trains for so long, and closes the run."""
    sebulba.start(sebulba.fresh_state())
    for _ in range(max(2, parts.schedule.warm_up)):
        sebulba.collect_iteration()
    sebulba.train_iteration()
    chunks: list[Any] = []
    began, iterations, waited = time.monotonic(), 0, 0.0
    while time.monotonic() - began < seconds or iterations < 2:
        _, taken, idle = sebulba.train_iteration()
        iterations, waited, chunks = iterations + 1, waited + idle, chunks + taken
    elapsed = time.monotonic() - began
    sebulba.close()
    steps = len(chunks) * parts.config.batch.sequence_length
    return _Load(
        elapsed / iterations,
        sum(c.env_seconds for c in chunks) / steps,
        sum(c.act_seconds for c in chunks) / steps,
        waited / elapsed,
    )


def _learner_alone(sebulba: Any) -> Callable[[], Any]:
    """One update on stored experience, with nobody else on the device."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from muesli.runners.mesh import spread

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), sebulba.example_chunk())
    chunk, held = spread(zeros, sebulba.topology), sebulba.state
    lag = spread(np.zeros(1, np.float32), sebulba.topology)

    def learn() -> Any:
        nonlocal held
        agent, _, row = sebulba.learn_slice(
            held.agent, held.replay, chunk, np.int32(0), held.key, lag
        )
        held = held._replace(agent=agent)
        return row.values

    return learn


def _acting_alone(sebulba: Any) -> Callable[[], Any]:
    """One step's actions of one group, observations included, with nobody else on the device."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    timestep = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), sebulba.example_timestep())
    functions, slots = sebulba.functions[0], jnp.arange(sebulba.group_size)
    carry = functions.begin(timestep)

    def act() -> Any:
        nonlocal carry
        acting = sebulba.published.on(0)
        actions, carry = functions.advance(
            acting, sebulba.key, slots, carry, timestep, np.int32(1), np.int32(1)
        )
        return np.asarray(actions)

    return act


def _in_threads(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The answers of several calls made at once."""
    answers: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        answers[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _time_envs(envs: Sequence[Any], spec: Any, size: int, seconds: float) -> float:
    """Seconds in which every copy makes one random step, all groups at once."""
    import numpy as np

    def play(env: Any) -> int:
        random, steps = np.random.default_rng(0), 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if spec.num_actions is None:
                actions = random.uniform(-1, 1, (size, spec.action_size)).astype(np.float32)
            else:
                actions = random.integers(0, spec.num_actions, size).astype(np.int32)
            env.step(actions)
            steps += 1
        return steps

    began = time.monotonic()
    steps = _in_threads([partial(play, env) for env in envs])
    return (time.monotonic() - began) * len(envs) / sum(steps)


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
