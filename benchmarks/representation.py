"""How soon does the network see what matters? The agent's own updates on random play of one game.

Records random play of an Atari game, then makes updates on it as a run would, at a constant rate.
Prints what the model knows along the way, once for each variant of the configuration:

    python benchmarks/representation.py --game ms_pacman --updates 600 \\
        --variant "" --variant network.value_head_prior_rate=0 --variant update.total_weight=0

A processor is enough for a small network on small pictures, with
``--preset atari_small --fields "env.atari.size_pixels=48;env.atari.grey=True;..."``.

The first column is what matters: the share of what can be known of the next reward that is known.
0 is no more than how often each reward comes. The last column is the same of copies that are never
trained on, a quarter of them: what the first has above it was learnt by heart.
"""

from __future__ import annotations

import argparse
import ast
import time
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from muesli.agent import make_agent
from muesli.config import Config, validate
from muesli.distributions import Categorical
from muesli.envs import make
from muesli.envs.base import HostEnvs
from muesli.networks import make_network
from muesli.presets import PRESETS
from muesli.replay import stacked
from muesli.runners.parts import seen_spec
from muesli.suites.records import set_fields
from muesli.types import Array, EnvSpec, StepType, Trajectory, Transition

SHOWN = (
    "reward_explained", "value_explained", "feature_variation", "value_explained_variance",
    "q_error_ratio", "q_action_gap_sigmas", "policy_entropy", "gradient_norm",
)  # fmt: skip
TESTS = 8
"""Batches of copies held out that are looked at for each row."""


class Play(NamedTuple):
    """Random play of E copies. records: Transition [E, S], behaviour aside, of single frames;
    spec: the game's.
    """

    records: Transition
    spec: EnvSpec


def record(config: Config, steps: int) -> Play:
    """Plays the configured copies at random."""
    family = make(config.env.name, config.env)
    assert isinstance(family, HostEnvs)
    assert family.spec.num_actions is not None
    copies = config.env.num_envs
    env, rng = family.make(range(copies), config.seed), np.random.default_rng(config.seed)
    rows, seen = [], env.reset()
    for _ in range(steps):
        action = rng.integers(0, family.spec.num_actions, copies)
        after = env.step(action)
        rows.append(
            (seen.observation, action, after.reward, after.discount, np.asarray(seen.step_type))
        )
        seen = after
    env.close()
    columns = [jnp.asarray(np.stack(column, axis=1)) for column in zip(*rows, strict=True)]
    observation, action, reward, discount, step_type = columns
    records = Transition(
        observation, action.astype(jnp.int32), None, reward, discount, step_type.astype(jnp.int32)
    )
    # A LAST record leads nowhere: what comes after it belongs to the next episode.
    ends = records.step_type == StepType.LAST
    return Play(records._replace(reward=jnp.where(ends, 0.0, records.reward)), family.spec)


def train(play: Play, config: Config, updates: int, every: int) -> None:
    """Makes updates on random sequences of the play and prints what they say."""
    spec, stack = seen_spec(config, play.spec)
    network = make_network(spec, config.network)
    agent = make_agent(spec, network, config, total_updates=10**9)
    actions = spec.num_actions
    assert actions is not None
    size, length = config.batch.batch_sequences, config.batch.sequence_length
    copies, steps = play.records.reward.shape
    held_out = max(1, copies // 4)

    def sample(records: Transition, key: Array, first: int, last: int) -> Trajectory:
        where, when = jax.random.split(key)
        slots = jax.random.randint(where, (size, 1), first, last)
        starts = jax.random.randint(when, (size, 1), 1 + stack.reach, steps - length)
        chunk = jax.tree.map(lambda x: x[slots, starts + jnp.arange(length + 1)], records)
        if not stack.plain:
            seen = stacked(records, slots[:, 0], starts[:, 0], length + 1, stack)
            chunk = chunk._replace(observation=seen)
        uniform = Categorical(jnp.zeros((size, length + 1, actions)))
        before = jax.tree.map(lambda x: x[slots[:, 0], starts[:, 0] - 1], records)
        start = agent.initial_actor(size)
        start = start._replace(last_action=before.action, last_reward=before.reward)
        return Trajectory(chunk._replace(behaviour=uniform), start)

    @jax.jit
    def step(state, records, number):
        batch_key, key = jax.random.split(jax.random.fold_in(jax.random.key(3), number))
        batch = sample(records, batch_key, held_out, copies)
        return agent.update(agent.observe(state, batch), batch, key)

    @jax.jit
    def test(state, records, number):
        """What an update on a batch held out would find; it is not made."""
        batch_key, key = jax.random.split(jax.random.fold_in(jax.random.key(4), number))
        _, metrics = agent.update(state, sample(records, batch_key, 0, held_out), key)
        return metrics["reward_explained"]

    state = jax.jit(agent.init)(jax.random.key(config.seed))
    rows, began = [], time.monotonic()
    for number in range(updates):
        state, metrics = step(state, play.records, jnp.int32(number))
        rows.append({name: metrics[name] for name in SHOWN})
        if (number + 1) % every == 0:
            rows = jax.device_get(rows)
            means = [np.mean([row[name] for row in rows]) for name in SHOWN]
            tests = [test(state, play.records, jnp.int32(batch)) for batch in range(TESTS)]
            means.append(np.mean(jax.device_get(tests)))
            seconds = time.monotonic() - began
            print(f"{number + 1:>6} {seconds:>5.0f} s", *(f"{x:>9.3f}" for x in means), flush=True)
            rows = []


def parse(variant: str) -> dict[str, object]:
    """The fields of one variant, "a.b=1;c.d=True"."""

    def value(text: str) -> object:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text

    pairs = (part.split("=", 1) for part in filter(None, variant.split(";")))
    return {name: value(text) for name, text in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="atari_h200")
    parser.add_argument("--game", default="ms_pacman")
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--copies", type=int, default=96)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--fields", default="", help="of all variants, as in one of them")
    parser.add_argument("--variant", action="append", default=[])
    options = parser.parse_args()
    if options.copies < 2:
        parser.error("--copies: at least 2, so that one can be held out")
    base = PRESETS[options.preset]()
    env = replace(base.env, name=f"atari:{options.game}", num_envs=options.copies, processes=0)
    base = set_fields(replace(base, env=env), parse(options.fields))
    play = record(base, options.steps)
    print("update, seconds,", ", ".join((*SHOWN, "reward_explained held out")))
    for variant in options.variant or [""]:
        config = set_fields(base, parse(variant))
        validate(config)
        print(f"# {variant or options.preset}", flush=True)
        train(play, config, options.updates, options.every)


if __name__ == "__main__":
    main()
