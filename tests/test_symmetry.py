"""A turned game is the game of the turned moves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import envs, presets
from muesli.agent.predictions import unroll
from muesli.config import ConfigError
from muesli.distributions import Categorical
from muesli.runners.anakin import make_anakin
from muesli.runners.parts import build
from muesli.symmetry import next_symmetry, symmetries, turn, turn_one
from muesli.types import ActorState, Trajectory, Transition


def test_there_are_eight_and_each_is_a_permutation():
    table = symmetries(3, 10)
    assert len({tuple(row) for row in table.tolist()}) == 8
    assert (np.sort(table, axis=1) == np.arange(10)).all()
    assert (table[:, [4, 9]] == [4, 9]).all()  # the centre and the pass stay


def played(env, step, actions):
    """A sequence of records of these actions, its behaviour preferring low-numbered points."""
    state, timestep = env.reset(jax.random.key(0))
    records = []
    for action in actions:
        state, after = step(state, jnp.asarray(action), jax.random.key(0))
        logits = 0.1 * timestep.observation[..., 2].reshape(-1) * timestep.legal_actions[:-1]
        records.append(
            Transition(
                timestep.observation,
                jnp.asarray(action),
                Categorical(jnp.append(logits, 0.5)),
                after.reward,
                after.discount,
                timestep.step_type,
                timestep.legal_actions,
            )
        )
        timestep = after
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *records)
    return Trajectory(stacked, ActorState((), jnp.asarray(actions[0]), jnp.zeros(())))


def test_turning_a_game_of_go_is_playing_it_turned():
    env = envs.make("go_3x3")
    step = jax.jit(env.step)
    moves = [0, 1, 5, 9, 3]
    original = played(env, step, moves)
    table = symmetries(3, 10)
    for which in range(8):
        goes_to = np.argsort(table[which])
        wanted = played(env, step, [int(goes_to[m]) for m in moves])
        turned = turn_one(original, env.spec, jnp.asarray(which))
        jax.tree.map(np.testing.assert_array_equal, turned, wanted)


def test_each_sequence_is_turned_as_its_actor_saw_it():
    env = envs.make("go_3x3")
    one = played(env, jax.jit(env.step), [0, 1])
    batch = jax.tree.map(lambda x: jnp.stack([x] * 8), one)
    sides = jnp.arange(8)[::-1]
    turned = turn(batch._replace(start=batch.start._replace(symmetry=sides)), env.spec)
    for row, side in enumerate(sides):
        wanted = turn_one(one, env.spec, side)
        jax.tree.map(
            np.testing.assert_array_equal,
            jax.tree.map(lambda x, row=row: x[row], turned.transitions),
            wanted.transitions,
        )
    firsts = np.asarray(turned.transitions.action[:, 0]).tolist()
    assert sorted(firsts) == [0, 0, 2, 2, 6, 6, 8, 8]  # a corner goes to every corner, twice


def small_go():
    base = presets.go_5x5()
    config = dataclasses.replace(
        base,
        env=dataclasses.replace(base.env, name="go_3x3"),
        network=dataclasses.replace(base.network, torso_channels=(4,), torso_units=16),
        batch=dataclasses.replace(base.batch, symmetries=True, sequence_length=6),
    )
    return build(config)


def test_what_is_fresh_is_on_policy_from_every_side():
    """The network says of a turned board what the actor said: all importance ratios are 1."""
    parts = small_go()
    loop = make_anakin(parts)
    first = loop.init(jax.random.key(3))
    state, _ = loop.warm_up(first)
    assert (state.actors.symmetry == (first.actors.symmetry + 1) % 8).all()
    # What the second chunk would be, its records kept.
    acting = parts.agent.acting(state.agent)
    start, batch = collected(parts, state, acting)
    assert set(np.asarray(start.symmetry).tolist()) == set(range(8))
    turned = turn(batch, parts.spec)
    root = unroll(parts.network, acting.params, turned)
    said = root.policy.log_prob(turned.transitions.action)
    done = turned.transitions.behaviour.log_prob(turned.transitions.action)
    np.testing.assert_allclose(said, done, atol=2e-5)
    # As it would be without: the same records as they lie on the board.
    plain = unroll(parts.network, acting.params, batch).policy.log_prob(batch.transitions.action)
    assert np.abs(np.asarray(plain - done))[np.asarray(start.symmetry) > 0].max() > 1e-3


def collected(parts, state, acting):
    """Six moves of every copy: its actors as they began, and a batch [E, 6]."""
    actors, env_states, timestep = state.actors, state.env_states, state.timesteps
    step, records = jax.jit(jax.vmap(parts.env.step)), []
    act = jax.jit(parts.agent.act)
    for t in range(6):
        keys = jax.random.split(jax.random.key(t), actors.last_action.shape[0])
        action, behaviour, actors = act(acting, timestep, actors, keys)
        legal = np.asarray(timestep.legal_actions)
        assert legal[np.arange(len(action)), np.asarray(action)].all()
        env_states, after = step(env_states, action, keys)
        records.append(
            Transition(
                timestep.observation, action, behaviour, after.reward, after.discount,
                timestep.step_type, timestep.legal_actions,
            )
        )  # fmt: skip
        timestep = after
    stacked = jax.tree.map(lambda *x: jnp.stack(x, 1), *records)
    return state.actors, Trajectory(stacked, state.actors)


def test_nothing_turns_without_the_field():
    parts = build(presets.go_5x5())
    actors = parts.agent.initial_actor(4)
    assert actors.symmetry is None
    assert next_symmetry(actors) is actors


def test_only_boards_can_be_turned():
    base = presets.catch()
    config = dataclasses.replace(base, batch=dataclasses.replace(base.batch, symmetries=True))
    with pytest.raises(ConfigError, match=r"batch\.symmetries"):
        build(config)
