"""How soon does the Atari network see what matters? Reward and return of random play, predicted.

Records random play of one game, then trains the network of ``atari_h200`` to predict each reward
(with its model) and each discounted return (with its value head), with and without the noise that
a policy gradient adds: advantages of unit variance that know nothing, at the paper's weight of 3.
Prints, along the way, the share of the explainable cross-entropy that is explained: 0 knows only
how often each reward comes, 1 knows every one in advance.

    python benchmarks/representation.py --game breakout --updates 200
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from muesli import presets
from muesli.agent import supports
from muesli.config import Config, NetworkConfig
from muesli.envs import make
from muesli.envs.base import HostEnvs
from muesli.networks.network import UnrollInputs, make_network
from muesli.ops.standardise import init_statistics, standardise, update_statistics
from muesli.ops.values import encode
from muesli.types import EnvSpec, StepType

LENGTH, BATCH = 30, 96


class Play(NamedTuple):
    """Random play, [E, T]: observation, action, reward after it, first, discounted return."""

    observation: Any
    action: Any
    reward: Any
    first: Any
    returns: Any


def record(config: Config, envs: int, steps: int) -> tuple[Play, EnvSpec]:
    """Plays ``envs`` copies at random, as the agent would see them."""
    family = make(config.env.name, replace(config.env, num_envs=envs))
    assert isinstance(family, HostEnvs)
    env, rng = family.make(range(envs), config.seed), np.random.default_rng(config.seed)
    rows, seen = [], env.reset()
    for _ in range(steps):
        action = rng.integers(0, family.spec.num_actions, envs)
        after = env.step(action)
        first = np.asarray(seen.step_type) == StepType.FIRST
        rows.append((seen.observation, action, after.reward, after.discount, first))
        seen = after
    env.close()
    observation, action, reward, discount, first = (
        np.stack(column, axis=1) for column in zip(*rows, strict=True)
    )
    returns = np.zeros((envs, steps + 1), np.float32)
    for t in reversed(range(steps)):
        returns[:, t] = reward[:, t] + config.agent.discount * discount[:, t] * returns[:, t + 1]
    return Play(observation, action, reward, first, returns[:, :-1]), family.spec


def explained(losses: jax.Array, targets: jax.Array) -> jax.Array:
    """The share of a categorical target's information that predictions of these losses hold."""
    entropy = lambda p: -jnp.sum(p * jnp.log(p + 1e-12), -1)  # noqa: E731
    nothing, everything = entropy(targets.mean(0)), entropy(targets).mean()
    return (nothing - losses.mean()) / (nothing - everything)


def train(play: Play, spec: EnvSpec, config: Config, noise: float, updates: int) -> list[str]:
    """Trains one network; the explained shares of reward and return after each eighth."""
    network = make_network(spec, config.network)
    reward_support, value_support = supports(config)
    optimiser = optax.adam(config.optimiser.learning_rate)
    statistics = None
    if config.network.normalise_observations:
        statistics = init_statistics(jnp.zeros(spec.observation_shape))
        statistics = jax.jit(update_statistics)(statistics, play.observation[:, ::7])

    def loss(params: Any, batch: Play, key: jax.Array) -> tuple[jax.Array, Any]:
        batch = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batch)
        before = lambda x: jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])  # noqa: E731
        seen = standardise(statistics, batch.observation, config.network.observation_clip)
        inputs = UnrollInputs(seen, None, before(batch.action), before(batch.reward), batch.first)
        root, _ = network.unroll(params, inputs, network.initial_state(BATCH))
        flat = lambda x: x.reshape((-1, *x.shape[2:]))  # noqa: E731
        model = network.model_step(params, jax.tree.map(flat, root.embedding), flat(batch.action))
        rewards = encode(flat(batch.reward), reward_support)
        returns = encode(flat(batch.returns), value_support)
        entropies = [
            -jnp.sum(target * jax.nn.log_softmax(logits.astype(jnp.float32)), -1)
            for target, logits in (
                (rewards, model.reward_logits), (returns, flat(root.value_logits))
            )
        ]  # fmt: skip
        log_probs = jax.tree.map(flat, root.policy).log_prob(flat(batch.action))
        advantages = jax.random.normal(key, log_probs.shape)
        total = entropies[0].mean() + 0.25 * entropies[1].mean()
        total -= noise * jnp.mean(advantages * log_probs)
        return total, (explained(entropies[0], rewards), explained(entropies[1], returns))

    @jax.jit
    def step(params: Any, state: Any, play: Play, number: jax.Array) -> tuple[Any, Any, Any]:
        where, when, key = jax.random.split(jax.random.fold_in(jax.random.key(3), number), 3)
        envs, steps = play.reward.shape
        slots = jax.random.randint(where, (BATCH, 1), 0, envs)
        starts = jax.random.randint(when, (BATCH, 1), 0, steps - LENGTH)
        batch = jax.tree.map(lambda x: x[slots, starts + jnp.arange(LENGTH)], play)
        gradients, shares = jax.grad(loss, has_aux=True)(params, batch, key)
        change, state = optimiser.update(gradients, state)
        shares = jnp.stack([*shares, optax.tree.norm(gradients)])
        return optax.apply_updates(params, change), state, shares

    params = network.init(jax.random.key(0))
    state, rows, lines = optimiser.init(params), [], []
    play = jax.tree.map(jnp.asarray, play)
    for number in range(updates):
        params, state, shares = step(params, state, play, jnp.int32(number))
        rows.append(shares)
        if (number + 1) % max(1, updates // 8) == 0:
            reward, value, norm = np.mean(jax.device_get(rows), axis=0)
            lines.append(f"{number + 1:>5} {reward:+.2f} {value:+.2f} |g| {norm:.2g}")
            rows = []
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="breakout")
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--envs", type=int, default=128)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--small", action="store_true", help="the network of atari_small")
    options = parser.parse_args()
    base = presets.atari_small() if options.small else presets.atari_h200()
    base = replace(base, env=replace(base.env, name=f"atari:{options.game}", processes=0))
    play, spec = record(base, options.envs, options.steps)
    plain = replace(base.network, normalise_observations=False, value_head_scale=0.01)
    networks: dict[str, NetworkConfig] = {
        "plain pictures, heads near zero": plain,
        "plain pictures, heads of scale 1": replace(plain, value_head_scale=1.0),
        "standardised, heads near zero": replace(base.network, value_head_scale=0.01),
        "standardised, heads of scale 1": base.network,
    }
    for noise in (0.0, 3.0):
        for name, network in networks.items():
            began = time.monotonic()
            lines = train(play, spec, replace(base, network=network), noise, options.updates)
            print(f"{name}, noise {noise:g} ({time.monotonic() - began:.0f} s)")
            print("      update, explained share of reward and of return, length of the gradient")
            print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
