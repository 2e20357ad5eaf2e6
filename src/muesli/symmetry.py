"""The eight symmetries of a square board, for playing and training on turned and mirrored games.

A sequence is seen by the learner as its actor saw it. Turned only where it is learnt from, it would
be off-policy: a network says different things of a position and of its mirror image.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from muesli.config import ConfigError
from muesli.distributions import Categorical, Policy
from muesli.types import ActorState, Array, EnvSpec, PyTree, TimeStep, Trajectory

COUNT = 8

Act = Callable[..., tuple[Array, Policy, ActorState]]


def check_board(spec: EnvSpec) -> None:
    """Raises a ConfigError unless actions are the points of a square board, or these and a pass."""
    shape, actions = spec.observation_shape, spec.num_actions
    if not spec.is_board or shape[0] != shape[1]:
        raise ConfigError(
            "batch.symmetries: needs a square board whose points are the actions; observations of "
            f"shape {list(shape)} and {actions} actions are none"
        )


def symmetries(size: int, actions: int) -> np.ndarray:
    """For each symmetry and each action, which action of the original it is: [8, actions] i32."""
    points = np.arange(size**2).reshape(size, size)
    turned = [np.rot90(board, k) for board in (points, points.T) for k in range(4)]
    rest = np.arange(size**2, actions)
    return np.stack([np.concatenate([t.reshape(-1), rest]) for t in turned]).astype(np.int32)


def first_symmetry(batch: int) -> Array:
    """The symmetries that ``batch`` copies begin with: all eight, again and again."""
    return jnp.arange(batch, dtype=jnp.int32) % COUNT


def next_symmetry(actors: ActorState) -> ActorState:
    """Actors as they begin their next sequence: each sees its game from the next side."""
    if actors.symmetry is None:
        return actors
    return actors._replace(symmetry=(actors.symmetry + 1) % COUNT)


def act_turned(act: Act, spec: EnvSpec) -> Act:
    """``act``, shown every board under its actor's symmetry; what it says is turned back."""

    def turned(
        acting: PyTree, timestep: TimeStep, actor: ActorState, keys: Array, states: PyTree = None
    ) -> tuple[Array, Policy, ActorState]:
        assert actor.symmetry is not None
        source, goes_to = _tables(spec, actor.symmetry)
        legal = timestep.legal_actions
        seen = timestep._replace(
            observation=_turn_boards(timestep.observation, source),
            legal_actions=None if legal is None else _pick(legal, source),
        )
        before = actor._replace(last_action=_pick(goes_to, actor.last_action))
        action, policy, after = act(acting, seen, before, keys, states)
        assert isinstance(policy, Categorical)
        action = _pick(source, action)
        policy = Categorical(_pick(policy.logits, goes_to))
        return action, policy, after._replace(last_action=action)

    return turned


def turn(batch: Trajectory, spec: EnvSpec) -> Trajectory:
    """Every sequence of a batch [B, T + 1] as its actor saw it."""
    return jax.vmap(lambda sequence: turn_one(sequence, spec, sequence.start.symmetry))(batch)


def turn_one(sequence: Trajectory, spec: EnvSpec, which: Array) -> Trajectory:
    """One sequence [T + 1] under symmetry number ``which``."""
    source, goes_to = _tables(spec, which)
    records, start = sequence
    behaviour, legal = records.behaviour, records.legal_actions
    assert isinstance(behaviour, Categorical)
    every = jnp.broadcast_to(source, (records.action.shape[0], *source.shape))
    records = records._replace(
        observation=_turn_boards(records.observation, every),
        action=goes_to[records.action],
        behaviour=Categorical(behaviour.logits[:, source]),
        legal_actions=None if legal is None else legal[:, source],
    )
    return Trajectory(records, start._replace(last_action=goes_to[start.last_action]))


def _tables(spec: EnvSpec, which: Array) -> tuple[Array, Array]:
    """Of symmetry ``which``: where each action comes from and where each goes, [..., actions]."""
    assert spec.num_actions is not None
    table = symmetries(spec.observation_shape[0], spec.num_actions)
    return jnp.asarray(table)[which], jnp.asarray(np.argsort(table, axis=1), jnp.int32)[which]


def _turn_boards(observation: Array, source: Array) -> Array:
    """Boards [B, size, size, planes], each by its own row of ``source`` [B, actions]."""
    count, points = observation.shape[0], observation.shape[1] * observation.shape[2]
    flat = observation.reshape((count, points, -1))
    return jax.vmap(lambda x, at: x[at])(flat, source[:, :points]).reshape(observation.shape)


def _pick(values: Array, at: Array) -> Array:
    """In each row of [B, A], what stands at the places [B] or [B, A]."""
    return jax.vmap(lambda row, places: row[places])(values, at)
