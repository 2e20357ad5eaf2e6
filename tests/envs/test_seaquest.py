"""Seaquest without loops is pgx's, number for number."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pgx
from jax.extend.core import jaxprs_in_params
from pgx.minatar.seaquest import State

from muesli import envs
from muesli.envs.seaquest import seaquest

COPIES = 64
LEFT, UP, RIGHT, DOWN, FIRE = range(1, 6)


def primitives(jaxpr):
    """The names of all operations, however deep."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from primitives(inner)


def loops(function, *arguments):
    return {"while", "scan"} & set(primitives(jax.make_jaxpr(function)(*arguments).jaxpr))


def test_a_step_has_no_loop():
    keys = jax.random.split(jax.random.key(0), 2)
    env = envs.make("minatar_seaquest")
    state, _ = jax.eval_shape(jax.vmap(env.reset), keys)
    assert loops(jax.vmap(env.step), state, jnp.zeros(2, jnp.int32), keys) == set()


def test_loops_are_seen():
    counted = lambda n: jax.lax.fori_loop(0, n, lambda i, x: x + i, 0)
    assert loops(jax.jit(counted), 3) == {"while"}
    assert loops(lambda p: jax.lax.cond(p, lambda: counted(3), lambda: 0), True) == {"scan"}


@functools.cache
def stepper():
    """(states, actions, keys) -> pgx's next states, and which leaves of ours are the same."""
    theirs, ours = pgx.make("minatar-seaquest"), seaquest()

    @jax.jit
    def step(states, actions, keys):
        after = jax.vmap(theirs.step)(states, actions, keys)
        own = jax.vmap(ours.step)(states, actions, keys)
        return after, jax.tree.map(same, after, own)

    return step


def same(left, right):
    if left.dtype != right.dtype or left.shape != right.shape:
        return jnp.zeros((), bool)
    return jnp.all(left == right)


def differing(flags):
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(flags))
    return [jax.tree_util.keystr(path) for path, flag in leaves if not flag]


def choose(condition, yes, no):
    spread = lambda x: condition.reshape(condition.shape + (1,) * (x.ndim - 1))
    return jax.tree.map(lambda a, b: jnp.where(spread(a), a, b), yes, no)


@jax.jit
def carry_on(before, after, start, immortal):
    """A game that has ended stands still for a step and begins again; an immortal one goes on."""
    after = choose(before.terminated, start, after)
    alive, oxygen = jnp.zeros(COPIES, bool), jnp.maximum(after._oxygen, 0)
    return choose(immortal, after.replace(terminated=alive, _terminal=alive, _oxygen=oxygen), after)


@jax.jit
def seen(state):
    """The most there was of each, in any copy; games that have ended, and the rewards."""
    tables = (state._e_fish, state._e_subs, state._e_bullets, state._f_bullets)
    most = [jnp.sum(table[..., 0] != -1, axis=-1).max() for table in tables]
    return jnp.stack([*most, state._diver_count.max()]), state.terminated, state.rewards.sum()


def test_play_is_the_same():
    """Games with four habits; half of them cannot be lost, and have new enemies at every step."""
    random = np.random.default_rng(0)
    step, rows = stepper(), np.arange(COPIES)
    immortal = jnp.asarray(rows % 2 == 0)
    start = jax.jit(jax.vmap(seaquest().init))(jax.random.split(jax.random.key(0), COPIES))
    start = start.replace(
        _e_spawn_speed=jnp.where(immortal, 1, start._e_spawn_speed),
        _move_speed=jnp.asarray(2 + rows // 2 % 4, jnp.int32),
        _diver_count=jnp.asarray(rows % 6, jnp.int32),
    )
    habits = np.full((4, 6), 0.05)
    habits[0] = 1 / 6
    habits[1, FIRE] = habits[2, DOWN] = 0.75  # shoot much; stay low
    habits[3, [LEFT, UP, RIGHT, DOWN]] = 0.2, 0.3, 0.2, 0.2  # come up often
    bounds = np.cumsum(habits / habits.sum(1, keepdims=True), axis=1)[rows // 8 % 4]

    states, record = start, []
    for t in range(300):
        actions = np.sum(random.random((COPIES, 1)) > bounds[:, :-1], axis=1).astype(np.int32)
        after, flags = step(states, actions, jax.random.split(jax.random.key(t), COPIES))
        assert not differing(flags), t
        record.append(jax.device_get(seen(after)))
        states = carry_on(states, after, start, immortal)
    # It was worth playing.
    most, ended, rewards = (np.stack(column) for column in zip(*record, strict=True))
    fish, subs, enemy_bullets, bullets, divers = most.max(0)
    assert fish > 12 and subs > 8 and enemy_bullets == 25 and bullets == 2 and divers == 6
    assert ended[:, 1::2].sum() > 200 and rewards.sum() > 200


def crowds(seed):
    """Random states: tables filled to any number of rows, all within a window of the board."""
    random = np.random.default_rng(seed)
    whole = lambda low, high, shape=(): random.integers(low, high, (COPIES, *shape)).astype("i4")
    left, top = whole(0, 10), whole(0, 9)
    width, height = random.choice([1, 2, 3, 10], (2, COPIES))

    def places(rows):
        x = left[:, None] + whole(0, 100, (rows,)) % width[:, None]
        y = top[:, None] + whole(0, 100, (rows,)) % height[:, None]
        return [np.minimum(x, 9), np.minimum(y, 8)]

    def table(rows, *columns):
        """Rows in use first; a quarter of the tables is full, a quarter holds few."""
        kind = whole(0, 4)
        filled = np.choose(kind, [whole(0, 3) % (rows + 1), rows, *[whole(0, rows + 1)] * 2])
        cells = np.stack([*places(rows), whole(0, 2, (rows,)), *columns], axis=-1)
        cells[np.arange(rows) >= filled[:, None]] = -1
        return cells.astype("i4")

    timer = lambda rows: whole(0, 3, (rows,))
    bullets = table(25)
    # Enemy bullets may be off the board: to the left by one, to the right by any number.
    outside = (bullets[..., 0] != -1) & (whole(0, 8, (25,)) == 0)
    bullets[..., 0] = np.where(
        outside, random.choice([-1, 10, 11, 14], (COPIES, 25)), bullets[..., 0]
    )
    x, y = (column[:, 0] for column in places(1))
    yes = lambda probability: random.random(COPIES) < probability
    terminal = yes(0.02)
    state = State(
        current_player=whole(0, 1),
        observation=np.zeros((COPIES, 10, 10, 10), bool),
        rewards=np.zeros((COPIES, 1), "f4"),
        terminated=terminal,
        truncated=np.zeros(COPIES, bool),
        legal_action_mask=np.ones((COPIES, 6), bool),
        _step_count=whole(0, 1000),
        _oxygen=np.where(yes(0.2), whole(-2, 3), whole(0, 201)),
        _diver_count=whole(-2, 7),
        _sub_x=x.astype("i4"),
        _sub_y=np.where(yes(0.1), 0, y).astype("i4"),
        _sub_or=yes(0.5),
        _f_bullets=table(5),
        _e_bullets=bullets,
        _e_fish=table(25, timer(25)),
        _e_subs=table(25, timer(25), timer(25)),
        _divers=table(5, timer(5)),
        _e_spawn_speed=whole(1, 21),
        _e_spawn_timer=whole(0, 3),
        _d_spawn_timer=whole(0, 3),
        _move_speed=whole(0, 6),
        _ramp_index=whole(0, 40),
        _shot_timer=whole(0, 3),
        _surface=yes(0.3),
        _terminal=terminal,
        _last_action=whole(0, 6),
    )
    return state, np.where(yes(0.3), FIRE, whole(0, 6)).astype("i4")


def test_crowded_states_step_the_same():
    step, rewards, ended = stepper(), [], []
    for seed in range(128):
        states, actions = crowds(seed)
        after, flags = step(states, actions, jax.random.split(jax.random.key(seed), COPIES))
        assert not differing(flags), seed
        rewards.append(np.asarray(after.rewards))
        ended.append(np.asarray(after.terminated))
    # Several hits in a step are common, and not every game is over.
    assert np.mean(np.stack(rewards) >= 3) > 0.05
    assert 0.2 < np.mean(ended) < 0.9
