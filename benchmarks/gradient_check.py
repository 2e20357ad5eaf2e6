"""Are the gradients of a preset right on this machine? In its own arithmetic and in float32.

    python benchmarks/gradient_check.py PRESET [--updates 0] [--top 12] [--FIELD VALUE ...]

Collects a batch with an agent of the preset (an environment inside JAX; before that it trains for
``--updates`` updates), makes one update of it in ``network.compute_dtype`` and one in float32, from
the same parameters, and compares the gradients of every parameter: their lengths, and the length of
their difference over that of float32's. On a processor, bfloat16 differed by half a percent in a
small network for Go. A compiler that mistakes itself shows as a parameter whose gradient is larger
by orders of magnitude, and training may still seem to work: Adam hides how long a gradient is.
"""

import argparse
import dataclasses
import json

import jax
import numpy as np
import optax

from muesli.cli.configure import parse_config
from muesli.runners.anakin import make_anakin, make_collect
from muesli.runners.parts import Parts, build
from muesli.symmetry import turn
from muesli.types import AgentState, Trajectory


def collect(parts: Parts, agent: AgentState, chunks: int, seed: int) -> Trajectory:
    """The last of ``chunks`` sequences of every copy: [B, T + 1], as the learner sees them."""
    state = make_anakin(parts).init(jax.random.key(seed))._replace(agent=agent)
    play = jax.jit(make_collect(parts))
    for _ in range(chunks):
        state, batch, _ = play(state)
    return turn(batch, parts.spec) if parts.config.batch.symmetries else batch


def gradients(parts: Parts, state: AgentState, batch: Trajectory) -> dict[str, np.ndarray]:
    """The gradient of every parameter, by name."""
    after, _ = jax.jit(parts.agent.update)(state, batch, jax.random.key(0))
    # Of an optimiser that has seen nothing else, the first moment is the gradient.
    share = 1.0 - parts.config.optimiser.adam_b1
    moment = optax.tree_utils.tree_get(after.optimiser, "mu")
    found = jax.tree_util.tree_leaves_with_path(moment)
    return {jax.tree_util.keystr(k): np.asarray(x, np.float64) / share for k, x in found}


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("preset")
    parser.add_argument("--updates", type=int, default=0)
    parser.add_argument("--top", type=int, default=12)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args, fields = parser.parse_known_args()
    config = parse_config(args.preset, fields)[1]
    # One batch from as many copies, all fresh; and gradients as they are.
    config = dataclasses.replace(
        config,
        env=dataclasses.replace(config.env, num_envs=config.batch.batch_sequences),
        batch=dataclasses.replace(
            config.batch, online_sequences=config.batch.batch_sequences, micro_batches=1
        ),
        optimiser=dataclasses.replace(config.optimiser, max_gradient_norm=None),
    )
    network = dataclasses.replace(config.network, compute_dtype="float32")
    parts = build(config)
    exact = build(dataclasses.replace(config, network=network))

    state = parts.agent.init(jax.random.key(args.seed))
    fresh = state.optimiser
    if args.updates:
        update = jax.jit(parts.agent.update)
        for number in range(args.updates):
            if number % 20 == 0:
                batch = collect(parts, state, args.chunks, args.seed + number)
            state, metrics = update(state, batch, jax.random.key(number))
            if number & (number + 1) == 0:
                norm = float(metrics["gradient_norm"])
                print(f"update {number + 1}: gradient_norm {norm:.4g}", flush=True)
        state = state._replace(optimiser=fresh)
    batch = collect(parts, state, args.chunks, args.seed + args.updates)
    own, reference = gradients(parts, state, batch), gradients(exact, state, batch)

    rows = []
    for name, right in reference.items():
        length, difference = np.linalg.norm(right), np.linalg.norm(own[name] - right)
        if length + difference > 0.0:  # some parameters are not trained
            share = difference / max(length, 1e-12)
            rows.append((difference, name, np.linalg.norm(own[name]), length, share))
    rows.sort(reverse=True)
    print(f"{config.network.compute_dtype:>12} {'float32':>12} {'difference':>12}")
    for _, name, here, length, share in rows[: args.top]:
        print(f"{here:12.4g} {length:12.4g} {share:11.1%}  {name}")
    norms = [float(np.sqrt(sum(np.sum(g**2) for g in x.values()))) for x in (own, reference)]
    worst = max(rows, key=lambda row: row[2] / max(row[3], 1e-12))
    summary = {
        "device": jax.devices()[0].device_kind, "jax": jax.__version__,
        "compute_dtype": config.network.compute_dtype, "updates": args.updates,
        "gradient_norm": norms[0], "gradient_norm_float32": norms[1],
        "longest_against_float32": worst[1], "times": worst[2] / max(worst[3], 1e-12),
    }  # fmt: skip
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
