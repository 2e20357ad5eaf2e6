"""A turned game is the game of the turned moves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import envs, presets
from muesli.config import ConfigError
from muesli.distributions import Categorical
from muesli.runners.parts import build
from muesli.runners.symmetry import symmetries, turn, turn_one
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


def test_each_sequence_is_turned_by_itself():
    env = envs.make("go_3x3")
    one = played(env, jax.jit(env.step), [0, 1])
    batch = jax.tree.map(lambda x: jnp.stack([x] * 32), one)
    turned = turn(batch, env.spec, jax.random.key(0))
    firsts = set(np.asarray(turned.transitions.action[:, 0]).tolist())
    assert firsts == {0, 2, 6, 8}  # a corner goes to every corner


def test_only_boards_can_be_turned():
    base = presets.catch()
    config = dataclasses.replace(base, batch=dataclasses.replace(base.batch, symmetries=True))
    with pytest.raises(ConfigError, match=r"batch\.symmetries"):
        build(config)
