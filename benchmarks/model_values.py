"""What the model's action values are worth: q̂ beside what really follows each action.

    python benchmarks/model_values.py RUN_DIR [--states 192] [--rollouts 64] [--horizon 40]

For states that a trained agent meets in an environment inside JAX, each action is given a value by

- q̂, the model's r̂ + γ v̂ of the state after it;
- one step of the real environment, then the network's own v̂ of the state it led to;
- ``horizon`` real steps played by the policy, then v̂: the reference.

Printed are how far apart the actions of a state are by each of them (in units of the deviation of
the reference's own samples), and the correlations of their advantages (values less their mean over
the actions of the state) with the reference's.
"""

import argparse
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import muesli
from muesli.agent import look_ahead, make_act, root_of, supports
from muesli.envs.base import JaxEnv
from muesli.ops.values import decode
from muesli.types import StepType


def make_measure(player: Any, rollouts: int, horizon: int, one_step: int = 16) -> Any:
    """measure(env state, TimeStep, ActorState, key) of one state -> values [4, A], deviation []."""
    parts, acting = player.parts, player.acting("prior")
    config, env, network = parts.config, parts.env, parts.network
    assert isinstance(env, JaxEnv), "needs an environment that runs inside JAX"
    act = make_act(parts.spec, network, config, "prior")
    gamma, actions = config.agent.discount, jnp.arange(parts.spec.num_actions)

    def value(timestep: Any, actor: Any) -> Any:
        root, _ = root_of(network, config, acting, timestep, actor)
        return decode(root.value_logits, supports(config)[1])

    def step(states: Any, taken: Any, keys: Any) -> Any:
        return jax.vmap(env.step)(states, taken, keys)

    def play(state: Any, timestep: Any, actor: Any, first: Any, key: Any, steps: int) -> Any:
        """The return of one action and what the policy does then, [copies]."""
        copies = first.shape[0]
        spread = lambda x: jnp.broadcast_to(x, (copies, *x.shape))  # noqa: E731
        states, actors = jax.tree.map(spread, (state, actor))
        seen = jax.tree.map(spread, timestep)
        # The first action is given; acting moves on whatever the network remembers.
        _, _, actors = act(acting, seen, actors, jax.random.split(key, copies))
        actors = actors._replace(last_action=first)

        def one(carry: Any, t: Any) -> Any:
            states, actors, taken, total, weight = carry
            keys = jax.random.split(jax.random.fold_in(key, t), 2 * copies)
            states, after = step(states, taken, keys[:copies])
            actors = actors._replace(last_reward=after.reward)
            total = total + weight * after.reward
            weight = weight * gamma * after.discount * (after.step_type != StepType.LAST)
            boot = value(after, actors)
            taken, _, actors = act(acting, after, actors, keys[copies:])
            return (states, actors, taken, total, weight), total + weight * boot

        start = (states, actors, first, jnp.zeros(copies), jnp.ones(copies))
        return jax.lax.scan(one, start, jnp.arange(steps))[1][-1]

    def measure(state: Any, timestep: Any, actor: Any, key: Any) -> Any:
        alone = jax.tree.map(lambda x: x[None], (timestep, actor))
        root, _ = root_of(network, config, acting, *alone)
        q = look_ahead(network, config, acting.params, root.embedding, actions[None])[0]
        policy = root.policy.log_probs()[0]
        keys = jax.random.split(key, 2)
        each = lambda copies, steps, key: jax.vmap(  # noqa: E731
            lambda a: play(state, timestep, actor, jnp.full(copies, a), key, steps)
        )(actions)
        near, far = each(one_step, 1, keys[0]), each(rollouts, horizon, keys[1])
        values = jnp.stack([q, near.mean(1), far.mean(1), policy])
        return values, far.std(1).mean()

    return jax.jit(jax.vmap(measure))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir")
    parser.add_argument("--states", type=int, default=192)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--horizon", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    player = muesli.load(args.run_dir)
    parts, acting = player.parts, player.acting("prior")
    env, act = parts.env, make_act(parts.spec, parts.network, parts.config, "prior")
    batch = 16
    keys = jax.random.split(jax.random.key(args.seed), batch)
    state, timestep = jax.jit(jax.vmap(env.reset))(keys)
    actor = parts.agent.initial_actor(batch)
    measure = make_measure(player, args.rollouts, args.horizon)

    @jax.jit
    def move(state: Any, timestep: Any, actor: Any, key: Any) -> Any:
        keys = jax.random.split(key, 3 * batch)
        action, _, actor = act(acting, timestep, actor, keys[:batch])
        stepped = jax.vmap(env.step)(state, action, keys[batch : 2 * batch])
        fresh = jax.vmap(env.reset)(keys[2 * batch :])
        over = timestep.step_type == StepType.LAST
        choose = lambda a, b: jnp.where(over.reshape((-1,) + (1,) * (a.ndim - 1)), a, b)  # noqa: E731
        state, timestep = jax.tree.map(choose, fresh, stepped)
        return state, timestep, actor._replace(last_reward=timestep.reward)

    found, deviations, count = [], [], 0
    key = jax.random.key(args.seed + 1)
    while count < args.states:
        for _ in range(7):  # some moves between two looks
            key, moving = jax.random.split(key)
            state, timestep, actor = move(state, timestep, actor, moving)
        key, looking = jax.random.split(key)
        values, deviation = measure(state, timestep, actor, jax.random.split(looking, batch))
        going_on = np.asarray(timestep.step_type) != StepType.LAST
        legal = np.ones(values.shape[-1], bool)
        legal = (
            np.asarray(timestep.legal_actions)
            if timestep.legal_actions is not None
            else np.broadcast_to(legal, (batch, len(legal)))
        )
        for b in np.flatnonzero(going_on):
            mine = np.asarray(values[b])[:, legal[b]]
            if mine.shape[1] > 1:
                found.append(mine - mine.mean(1, keepdims=True))
                deviations.append(float(deviation[b]))
        count += int(going_on.sum())
    sigma = float(np.mean(deviations))
    flat = np.concatenate(found, axis=1)
    apart = np.sqrt(np.mean(flat[:3] ** 2, axis=1)) / sigma
    names = ("q̂", "one real step, then v̂", "the policy's log-probabilities")
    result = {
        "states": len(found),
        "deviation of returns": sigma,
        "noise of the reference": float(1.0 / np.sqrt(args.rollouts)),
        "apart": dict(zip((*names[:2], "reference"), apart.tolist(), strict=True)),
        "correlation with the reference": {
            name: float(np.corrcoef(flat[i], flat[2])[0, 1])
            for name, i in zip(names, (0, 1, 3), strict=True)
        },
        "correlation of q̂ and one real step": float(np.corrcoef(flat[0], flat[1])[0, 1]),
        "q̂ picks the best of the reference": float(
            np.mean([m[0].argmax() == m[2].argmax() for m in found])
        ),
    }
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
