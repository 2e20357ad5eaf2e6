"""Games whose first moves are dealt."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import presets
from muesli.cli.bench import measure
from muesli.config import ConfigError
from muesli.envs import check, make
from muesli.envs.openings import deal_openings
from muesli.runners.anakin import make_anakin
from muesli.runners.parts import build
from muesli.types import is_last

replace = dataclasses.replace
GAMES, MOST = 256, 3


@pytest.fixture(scope="module")
def played():
    """Games of 5×5 Go from their beginning: time steps and the states behind them, MOST + 2."""
    env = deal_openings(make("go_5x5"), MOST)
    state, timestep = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), GAMES))
    step = jax.jit(jax.vmap(env.step))
    states, timesteps = [state], [timestep]
    for k in range(MOST + 1):
        action = jnp.argmax(timestep.legal_actions, axis=-1)
        state, timestep = step(state, action, jax.random.split(jax.random.key(k + 1), GAMES))
        states.append(state)
        timesteps.append(timestep)
    return states, timesteps


def test_a_dealt_move_is_the_only_legal_one_and_no_pass(played):
    states, timesteps = played
    left = np.asarray(states[0].left)
    # Every number of moves from 0 to MOST, about as often.
    assert (np.abs(np.bincount(left, minlength=MOST + 1) - GAMES / (MOST + 1)) < 40).all()
    for k, timestep in enumerate(timesteps):
        legal = np.asarray(timestep.legal_actions)
        dealt = left > k
        assert (legal[dealt].sum(-1) == 1).all() and not legal[dealt, -1].any()
        # What follows is the game as it is: most points and a pass.
        assert (legal[~dealt].sum(-1) > 15).all() and legal[~dealt, -1].all()
        # It is legal in the game, too.
        mask = np.asarray(states[k].game.legal_action_mask)
        assert (mask | ~legal).all()


def test_openings_differ(played):
    _, timesteps = played
    first = np.asarray(timesteps[0].legal_actions)
    dealt = first[first.sum(-1) == 1].argmax(-1)
    assert len(set(dealt.tolist())) > 20


def test_such_games_keep_the_contract():
    check(deal_openings(make("go_5x5"), 4))
    check(deal_openings(make("tic_tac_toe"), 2))


def test_a_finished_game_is_dealt_nothing():
    # Tic-tac-toe dealt to its end: the last state is the game's own.
    env = deal_openings(make("tic_tac_toe"), 9)
    state, timestep = env.reset(jax.random.key(0))
    state = state._replace(left=jnp.int32(9))
    step = jax.jit(env.step)
    for k in range(9):
        action = jnp.argmax(timestep.legal_actions)
        state, timestep = step(state._replace(left=jnp.int32(9)), action, jax.random.key(k))
        if bool(is_last(timestep.step_type)):
            break
    assert bool(is_last(timestep.step_type)) and bool(timestep.legal_actions.all())


def test_training_deals_and_whoever_evaluates_does_not():
    base = presets.go_5x5()
    config = replace(base, env=replace(base.env, opening_moves=6))
    parts = build(config)
    anakin = make_anakin(parts)
    state = jax.jit(anakin.init)(jax.random.key(0))
    dealt = np.asarray(state.timesteps.legal_actions).sum(-1) == 1
    assert dealt.any() and not dealt.all()
    _, timestep = jax.vmap(parts.env.reset)(jax.random.split(jax.random.key(0), 8))
    assert (np.asarray(timestep.legal_actions).sum(-1) == 26).all()
    # What is dealt is played with certainty, so nothing has to be corrected for.
    asked = jax.random.split(jax.random.key(1), dealt.size)
    acting = parts.agent.acting(state.agent)
    action, policy, _ = jax.jit(parts.agent.act)(acting, state.timesteps, state.actors, asked)
    chosen = np.asarray(policy.log_prob(action))
    np.testing.assert_allclose(chosen[dealt], 0.0, atol=1e-6)
    assert (chosen[~dealt] < -1.0).all()


def test_openings_are_for_games_of_two():
    config = presets.catch()
    with pytest.raises(ConfigError, match=r"^env\.opening_moves: .* catch is none"):
        build(replace(config, env=replace(config.env, opening_moves=2)))
    with pytest.raises(ConfigError, match=r"^env\.opening_moves: "):
        build(replace(config, env=replace(config.env, opening_moves=-1)))


@pytest.mark.slow
def test_bench_deals_as_training_does():
    base = presets.go_5x5()
    measured = measure(replace(base, env=replace(base.env, opening_moves=4)), 0.05)
    assert measured["env_steps_per_second"] > 0.0
