"""Every environment keeps the contract, and the check notices one that does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import envs
from muesli.envs.base import EnvError, auto_reset_step, first, later
from muesli.types import StepType, is_last


@pytest.mark.parametrize("name", sorted(envs.ENVS))
def test_conforms(name):
    envs.check(envs.make(name), steps=60)


def test_catch_as_a_picture_is_catch():
    board, picture = envs.make("catch"), envs.make("catch_pixels")
    key = jax.random.key(1)
    (state, plain), (drawn_state, drawn) = board.reset(key), picture.reset(key)
    empty = None
    for t in range(9):
        dots = np.argwhere((np.asarray(drawn.observation) == 255).all(-1))
        # Ball and paddle, four pixels each, where the board has them.
        assert len(dots) == 8
        cells = {(y * 10 // 96, x * 5 // 96) for y, x in dots}
        assert cells == set(map(tuple, np.argwhere(np.asarray(plain.observation[..., 0]))))
        background = np.asarray(drawn.observation).copy()
        background[tuple(dots.T)] = 0
        empty = background if empty is None else empty
        same = (background == empty).all(-1)
        assert (~same).sum() <= 16  # only where a dot is or was
        action = [0, 2, 1, 17, 3][t % 5]
        state, plain = board.step(state, jnp.asarray(action % 3), key)
        drawn_state, drawn = picture.step(drawn_state, jnp.asarray(action), key)
        assert float(plain.reward) == float(drawn.reward)


def play(env, actions, seed=0):
    """Steps of one episode: the rewards, and the last time step."""
    state, timestep = env.reset(jax.random.key(seed))
    rewards = []
    for t, action in enumerate(actions):
        state, timestep = env.step(state, jnp.asarray(action), jax.random.key(t))
        rewards.append(float(timestep.reward))
    return rewards, timestep


def test_catch_pays_for_standing_under_the_ball():
    env = envs.make("catch")
    for seed in range(12):
        _, timestep = env.reset(jax.random.key(seed))
        board = np.asarray(timestep.observation[..., 0])
        column = int(np.argmax(board[0]))
        move = 0 if column < 2 else 2
        catching = [move] * abs(column - 2) + [1] * (9 - abs(column - 2))
        rewards, last = play(env, catching, seed)
        assert rewards == [0.0] * 8 + [1.0]
        assert int(last.step_type) == StepType.LAST and float(last.discount) == 0.0
        away = [2 if column < 2 else 0] * 9
        assert play(env, away, seed)[0][-1] == -1.0


def test_the_illustrative_mdp_pays_as_the_paper_draws_it():
    env = envs.make("illustrative_mdp")
    up, down = 0, 1
    assert play(env, [up, up])[0] == [1.0, -1.0]
    assert play(env, [up, down])[0] == [1.0, 1.0]
    assert play(env, [down, up])[0] == [0.0, 1.0]
    assert play(env, [down, down])[0] == [0.0, -1.0]
    _, last = play(env, [up, up])
    assert int(last.step_type) == StepType.LAST


def test_recall_asks_for_the_cue_it_showed():
    env = envs.make("recall")
    for seed in range(6):
        _, timestep = env.reset(jax.random.key(seed))
        cue = int(timestep.observation[1])
        assert play(env, [0] * 5 + [cue], seed)[0][-1] == 1.0
        assert play(env, [0] * 5 + [1 - cue], seed)[0][-1] == -1.0


def test_tic_tac_toe_rewards_the_player_who_moved():
    env = envs.make("tic_tac_toe")
    # X: 0, 1, 2 wins on the fifth move; each reward is that of the mover.
    rewards, last = play(env, [0, 3, 1, 4, 2])
    assert rewards == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert int(last.step_type) == StepType.LAST and float(last.discount) == 0.0
    # O wins on the sixth: again the mover's reward is +1.
    assert play(env, [0, 3, 1, 4, 8, 5])[0][-1] == 1.0


def test_after_the_last_step_an_episode_begins_whatever_the_action():
    env = envs.make("bandit")
    state, timestep = env.reset(jax.random.key(0))
    state, timestep = auto_reset_step(env, state, timestep, jnp.asarray(1), jax.random.key(1))
    assert int(timestep.step_type) == StepType.LAST
    state, timestep = auto_reset_step(env, state, timestep, jnp.asarray(1), jax.random.key(2))
    assert int(timestep.step_type) == StepType.FIRST and float(timestep.reward) == 0.0


def broken(**changes):
    """Catch with one promise broken."""
    env = envs.make("catch")

    def change(pair):
        state, timestep = pair
        return state, timestep._replace(**{k: f(timestep) for k, f in changes.items()})

    return env._replace(
        reset=lambda key: change(env.reset(key)), step=lambda s, a, k: change(env.step(s, a, k))
    )


def respelt(**changes):
    """Catch with another spec."""
    env = envs.make("catch")
    return env._replace(spec=env.spec._replace(**changes))


def stepping(change):
    """Catch whose step answers something else."""
    env = envs.make("catch")
    return env._replace(step=lambda s, a, k: change(*env.step(s, a, k)))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (broken(observation=lambda t: t.observation[1:]), "observation has shape"),
        (broken(observation=lambda t: t.observation.astype(jnp.float32)), "observation is float32"),
        (broken(reward=lambda t: jnp.asarray(jnp.nan, jnp.float32)), "reward is nan"),
        (broken(reward=lambda t: jnp.asarray(1, jnp.int32)), "reward must be a float32"),
        (broken(discount=lambda t: jnp.zeros(())), "discount 0 on a time step that is not LAST"),
        (broken(discount=lambda t: jnp.full((), 0.9)), "discount must be 0 or 1"),
        (broken(step_type=lambda t: jnp.asarray(1)), "reset must return a FIRST"),
        (broken(step_type=lambda t: jnp.asarray(0)), "FIRST in the middle"),
        (broken(legal_actions=lambda t: jnp.ones(3, bool)), "legal_actions is given, or not"),
        (
            broken(observation=lambda t: {"a": t.observation}),
            "reset: observation must be one",
        ),
        (
            respelt(observation_shape=[10, 5, 1]),
            r"must be a tuple .* \[10, 5, 1\]",
        ),
        (respelt(num_actions=0, action_names=()), "num_actions must be at least 1, got 0"),
        (respelt(num_actions=None, action_names=()), "action_size must be at least 1 .* got 0"),
        (stepping(lambda state, t: state), r"step must return \(state, TimeStep\), got CatchState"),
        (stepping(lambda state, t: (state, tuple(t))), r"TimeStep\), got CatchState, tuple"),
        (stepping(lambda state, t: (state.ball, t)), "state must have the parts of the state that"),
        (
            stepping(lambda state, t: (state._replace(paddle=jnp.float32(1)), t)),
            r"step: state\.paddle must be int32\[\] as reset returns it, got float32\[\]",
        ),
        (
            stepping(lambda state, t: {}["arm"]),
            r"step raised KeyError: .* \(test_envs",
        ),
    ],
)
def test_the_check_names_what_is_broken(env, message):
    with pytest.raises(EnvError, match=message) as caught:
        envs.check(env, steps=20)
    assert "\n" not in str(caught.value)


def test_the_check_names_an_untraceable_reset():
    env = envs.make("catch")

    def reset(key):
        if jax.random.uniform(key) > 2.0:
            raise AssertionError
        return env.reset(key)

    with pytest.raises(EnvError, match=r"reset cannot be traced .* \(test_envs\.py:\d+\)"):
        envs.check(env._replace(reset=reset))


def test_truncation_ends_an_episode_without_ending_its_value():
    timestep = later(jnp.zeros(1), jnp.asarray(1.0), jnp.asarray(False), jnp.asarray(True))
    assert int(timestep.step_type) == StepType.LAST and float(timestep.discount) == 1.0
    assert int(first(jnp.zeros(1)).step_type) == StepType.FIRST


def test_the_check_steps_beyond_the_end_and_names_what_that_raises():
    env = envs.make("catch")

    def refuse(over):
        if over:
            raise RuntimeError("the game is over,\nbegin another")
        return np.int32(0)

    def reset(key):
        state, timestep = env.reset(key)
        return (state, jnp.array(False)), timestep

    def step(state, action, key):
        state, over = state
        nothing = jax.pure_callback(refuse, jax.ShapeDtypeStruct((), jnp.int32), over)
        state, timestep = env.step(state, action + nothing, key)
        return (state, is_last(timestep.step_type)), timestep

    with pytest.raises(EnvError) as caught:
        envs.check(env._replace(reset=reset, step=step))
    said = str(caught.value)
    assert said.startswith("step 8: step raised on a LAST time step, where its answer is discarded")
    assert said.endswith("RuntimeError: the game is over, begin another") and "\n" not in said
