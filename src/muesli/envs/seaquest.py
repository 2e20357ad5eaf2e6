"""MinAtar's Seaquest as pgx plays it, number for number, without its loops.

pgx goes through fish, submarines, bullets and divers one by one, which on a GPU is a long queue of
tiny kernels. Here all rows of a table are worked out at once. Rows in use come first, the others
are −1 throughout, and removals keep the order: so those that go are marked, and the tables are
closed up once, at the end.

The columns are x, y and whether it heads right; then, but for bullets, the steps until it moves;
then, of enemy submarines, the steps until it shoots. The player is at x, y.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from muesli.types import Array, PRNGKey


class Draws(NamedTuple):
    """What chance decides in a step, each []: the action, which may be the last one again, and
    where an enemy and a diver would appear.
    """

    action: Array
    enemy_right: Array
    enemy_is_sub: Array
    enemy_y: Array
    diver_right: Array
    diver_y: Array


class Things(NamedTuple):
    """x, y, right and there: [N]; ``there`` is false for rows not in use and those taken away."""

    x: Array
    y: Array
    right: Array
    there: Array


class Fleet(NamedTuple):
    """Fish [25, 4], submarines [25, 5] and their bullets [25, 3]; own bullets [5, 3]."""

    fish: Array
    subs: Array
    bullets: Array
    own_bullets: Array


def seaquest() -> Any:
    """pgx's environment, its step free of loops."""
    # Imported late: pgx computes as it is imported, which would start JAX's devices with it.
    from pgx.minatar.seaquest import MinAtarSeaquest

    class Seaquest(MinAtarSeaquest):
        def _step(self, state: Any, action: Array, key: PRNGKey) -> Any:
            state = state.replace(legal_action_mask=self.legal_action_mask)
            action = self.minimal_action_set[action]
            return _play(state, _draw(state, action, key, self.sticky_action_prob))

    return Seaquest()


def _draw(state: Any, action: Array, key: PRNGKey, sticky: float) -> Draws:
    """The same numbers from the same key as pgx draws."""
    keys = jax.random.split(key, 6)
    return Draws(
        jnp.where(jax.random.uniform(keys[0]) < sticky, state._last_action, jnp.int32(action)),
        jax.random.randint(keys[1], (), 0, 2) == 0,
        # jax.random.choice with probabilities (⅓, ⅔); that would search in a loop.
        1.0 - jax.random.uniform(keys[2]) <= 1 / 3,
        jax.random.randint(keys[3], (), 1, 9),
        jax.random.randint(keys[4], (), 0, 2) == 0,
        jax.random.randint(keys[5], (), 1, 9),
    )


def _play(state: Any, draws: Draws) -> Any:
    """One step of a game that has not ended; the observation is left to the caller."""
    state = _act(_spawn(state, draws), draws.action)
    x, y = state._sub_x, state._sub_y
    divers, diver_count = _step_divers(state._divers, state._diver_count, x, y)
    fleet = Fleet(state._e_fish, state._e_subs, state._e_bullets, state._f_bullets)
    fleet, hits, caught = _step_fleet(fleet, x, y, state._move_speed)
    e_bullets, shot = _step_enemy_bullets(fleet.bullets, x, y)
    state, bonus, drowned = _breathe(state.replace(_diver_count=diver_count))
    terminal = state._terminal | caught | shot | drowned
    return state.replace(
        _f_bullets=fleet.own_bullets,
        _e_bullets=e_bullets,
        _e_fish=fleet.fish,
        _e_subs=fleet.subs,
        _divers=divers,
        _e_spawn_timer=state._e_spawn_timer - (state._e_spawn_timer > 0),
        _d_spawn_timer=state._d_spawn_timer - (state._d_spawn_timer != 0),
        _shot_timer=state._shot_timer - (state._shot_timer > 0),
        _terminal=terminal,
        _last_action=draws.action,
        rewards=(hits + bonus).astype(jnp.float32)[None],
        terminated=terminal,
    )


def _spawn(state: Any, draws: Draws) -> Any:
    """An enemy and a diver appear when they are due."""
    import pgx.minatar.seaquest as rules

    subs, fish = rules._spawn_enemy(
        state._e_subs,
        state._e_fish,
        state._move_speed,
        draws.enemy_right,
        draws.enemy_is_sub,
        draws.enemy_y,
    )
    divers = rules._spawn_diver(state._divers, draws.diver_right, draws.diver_y)
    enemy, diver = state._e_spawn_timer == 0, state._d_spawn_timer == 0
    return state.replace(
        _e_subs=jnp.where(enemy, subs, state._e_subs),
        _e_fish=jnp.where(enemy, fish, state._e_fish),
        _e_spawn_timer=jnp.where(enemy, state._e_spawn_speed, state._e_spawn_timer),
        _divers=jnp.where(diver, divers, state._divers),
        _d_spawn_timer=jnp.where(diver, rules.DIVER_SPAWN_SPEED, state._d_spawn_timer),
    )


def _act(state: Any, action: Array) -> Any:
    """The player moves or shoots."""
    import pgx.minatar.seaquest as rules

    bullets, timer, x, y, right = rules._resolve_action(
        action, state._shot_timer, state._f_bullets, state._sub_x, state._sub_y, state._sub_or
    )
    return state.replace(_f_bullets=bullets, _shot_timer=timer, _sub_x=x, _sub_y=y, _sub_or=right)


def _breathe(state: Any) -> tuple[Any, Array, Array]:
    """Oxygen goes under water and comes back above; also the reward for that, and whether the game
    ends: no oxygen was left, or the player came up without a diver.
    """
    import pgx.minatar.seaquest as rules

    under = state._sub_y > 0
    risen = ~under & ~state._surface
    welcome = risen & (state._diver_count != 0)
    oxygen = state._oxygen - under
    speeds = (state._move_speed, state._e_spawn_speed, state._ramp_index)
    before = (jnp.int32(0), oxygen, state._diver_count, *speeds)
    after = rules._surface(
        state._diver_count,
        oxygen,
        state._e_spawn_speed,
        state._move_speed,
        rules.TRUE,
        state._ramp_index,
    )
    bonus, oxygen, diver_count, move_speed, spawn_speed, ramp_index = (
        jnp.where(welcome, new, old) for new, old in zip(after, before, strict=True)
    )
    drowned = (state._oxygen < 0) | (risen & ~welcome)
    state = state.replace(
        _oxygen=oxygen,
        _diver_count=diver_count,
        _move_speed=move_speed,
        _e_spawn_speed=spawn_speed,
        _ramp_index=ramp_index,
        _surface=~under & (state._surface | welcome),
    )
    return state, bonus, drowned


def _step_fleet(fleet: Fleet, x: Array, y: Array, speed: Array) -> tuple[Fleet, Array, Array]:
    """Own bullets fly, then enemies move and shoot: also how many were hit, and whether one is
    where the player is.

    A bullet tries fish before submarines, each from the first row on; enemies move from the last
    row to the first, submarines before fish. As one table of fish and then submarines [50] both
    are a single order.
    """
    import pgx.minatar.seaquest as rules

    count = fleet.fish.shape[0]
    table = jnp.concatenate([fleet.fish, fleet.subs[:, :4]])
    enemies, wait = _things(table), table[:, 3]
    bullets = _things(fleet.own_bullets)
    bullets = _moved(bullets, bullets.there)
    bullets_hit, enemies_hit = _meet(bullets, enemies)
    bullets = _without(bullets, bullets_hit)
    enemies = _without(enemies, enemies_hit)
    hits = _sum(enemies_hit)

    caught = jnp.any(_at(enemies, x, y))
    moves = enemies.there & (wait == 0)
    enemies = _moved(enemies, moves)
    at_player = _at(enemies, x, y)
    caught |= jnp.any(at_player)
    # One that has run into the player is past being shot.
    movers = enemies._replace(there=enemies.there & moves & ~at_player)
    enemies_hit, bullets_hit = _meet(movers, bullets)
    bullets = _without(bullets, bullets_hit)
    enemies = _without(enemies, enemies_hit)
    hits += _sum(enemies_hit)

    wait = jnp.where(moves, speed, wait - 1)
    fish = jax.tree.map(lambda column: column[:count], enemies)
    subs = jax.tree.map(lambda column: column[count:], enemies)
    shot_timer = fleet.subs[:, 4]
    shoots = subs.there & (shot_timer == 0)
    shot_timer = jnp.where(shoots, rules.ENEMY_SHOT_INTERVAL, shot_timer - 1)
    fleet = Fleet(
        _rows(fish, wait[:count]),
        _rows(subs, wait[count:], shot_timer),
        _shoot(fleet.bullets, subs, shoots),
        _rows(bullets),
    )
    return fleet, hits, caught


def _step_divers(divers: Array, carried: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Divers [5, 4] swim, and come aboard from the last row to the first while there is room."""
    import pgx.minatar.seaquest as rules

    before, wait = _things(divers), divers[:, 3]
    moves = before.there & (wait == 0)
    after = _moved(before, moves)
    reached = _at(before, x, y) | _at(after, x, y)
    aboard = reached & (carried + _sum(reached & _later(len(wait))) < 6)
    wait = jnp.where(moves, rules.DIVER_MOVE_INTERVAL, wait - 1)
    return _rows(_without(after, aboard), wait), carried + _sum(aboard)


def _step_enemy_bullets(bullets: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Enemy bullets [25, 3] fly, and whether one hits the player.

    As in pgx, only those before the first row with x = −1 fly or hit, none if there is no such
    row, and those that leave the board stay in the table.
    """
    free = bullets[:, 0] == -1
    flying = (_sum(free & ~_later(len(free))) == 0) & jnp.any(free)
    before = Things(bullets[:, 0], bullets[:, 1], bullets[:, 2], flying)
    after = before._replace(x=_ahead(before, flying))
    hit = jnp.any(_at(before, x, y) | _at(after, x, y))
    return jnp.stack(after[:3], axis=1), hit


def _shoot(bullets: Array, subs: Things, shoots: Array) -> Array:
    """Enemy bullets [25, 3] with those of the submarines [25] that shoot, from the last row on.

    Each takes the first row with x = −1, or the first of all where there is none.
    """
    rows = len(bullets)
    free = bullets[:, 0] == -1
    turn = _sum(shoots & _later(rows))
    # Which shot a row keeps: the first row, where free ones run out, keeps the last of all.
    shots = _sum(shoots)
    wanted = jnp.where(free, _sum(free & _later(rows).T), -1)
    run_out = (jnp.arange(rows) == 0) & (shots > _sum(free))
    wanted = jnp.where(run_out, shots - 1, wanted)
    written = shoots & (turn == wanted[:, None])
    shooter = _sum(jnp.where(written, jnp.arange(rows) + 1, 0)) - 1
    new = jnp.stack(subs[:3], axis=1)[shooter]
    return jnp.where(shooter[:, None] < 0, bullets, new)


def _meet(takers: Things, targets: Things) -> tuple[Array, Array]:
    """Takers [N] go from last row to first; each takes the first target [M] left at its place.

    Returns who took one [N] and who was taken [M]: at each place the n-th taker takes the n-th
    target, while there are any.
    """
    taker, target = _cell(takers, -1), _cell(targets, -2)
    turn = _sum((taker[:, None] == taker) & _later(len(taker)))
    queue = _sum((target[:, None] == target) & _later(len(target)).T)
    together = taker[:, None] == target
    return turn < _sum(together), queue < _sum(together.T)


def _cell(things: Things, absent: int) -> Array:
    """[N]: the place as one number, or ``absent``."""
    return jnp.where(things.there, 16 * things.x + things.y, absent)


def _at(things: Things, x: Array, y: Array) -> Array:
    """[N]: which are there, at that place."""
    return things.there & (things.x == x) & (things.y == y)


def _things(rows: Array) -> Things:
    """The first columns of a table [N, 3 or more]."""
    return Things(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 0] != -1)


def _moved(things: Things, moves: Array) -> Things:
    """Those that move [N] are one further on; who so leaves the board is no longer there."""
    x = _ahead(things, moves)
    return things._replace(x=x, there=things.there & ~(moves & ((x < 0) | (x > 9))))


def _ahead(things: Things, moves: Array) -> Array:
    return things.x + jnp.where(moves, jnp.where(things.right != 0, 1, -1), 0)


def _without(things: Things, taken: Array) -> Things:
    return things._replace(there=things.there & ~taken)


def _rows(things: Things, *timers: Array) -> Array:
    """The table [N, 3 or more] of those still there, in order, then rows of −1."""
    there, index = things.there, jnp.arange(len(things.there))
    up_to = _sum(there & ~_later(len(there)))
    # The row that comes k-th has k before it that stay; past the last of them there is none.
    source = _sum(up_to <= index[:, None])
    table = jnp.stack([*things[:3], *timers], axis=1)
    return table.at[source].get(mode="fill", fill_value=-1)


def _later(rows: int) -> Array:
    """[N, N]: in row i, the rows after i."""
    index = jnp.arange(rows)
    return index > index[:, None]


def _sum(numbers: Array) -> Array:
    """The sum along the last axis; of truths, how many there are."""
    return jnp.sum(numbers, axis=-1, dtype=jnp.int32)
