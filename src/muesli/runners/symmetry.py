"""The eight symmetries of a square board, for training on turned and mirrored games."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from muesli.config import ConfigError
from muesli.distributions import Categorical
from muesli.types import Array, EnvSpec, PRNGKey, Trajectory


def check_board(spec: EnvSpec) -> None:
    """Raises a ConfigError unless actions are the points of a square board, or these and a pass."""
    shape, actions = spec.observation_shape, spec.num_actions
    square = len(shape) == 3 and shape[0] == shape[1]
    if not square or actions not in (shape[0] ** 2, shape[0] ** 2 + 1):
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


def turn(batch: Trajectory, spec: EnvSpec, key: PRNGKey) -> Trajectory:
    """Every sequence of a batch [B, T + 1] under a symmetry of its own, drawn at random."""
    count = batch.transitions.reward.shape[0]
    which = jax.random.randint(key, (count,), 0, 8)
    return jax.vmap(lambda sequence, g: turn_one(sequence, spec, g))(batch, which)


def turn_one(sequence: Trajectory, spec: EnvSpec, which: Array) -> Trajectory:
    """One sequence [T + 1] under symmetry number ``which``."""
    size, actions = spec.observation_shape[0], spec.num_actions
    assert actions is not None
    source = jnp.asarray(symmetries(size, actions))[which]
    goes_to = jnp.argsort(source)
    records = sequence.transitions
    observation = records.observation
    flat = observation.reshape((observation.shape[0], size * size, -1))
    behaviour = records.behaviour
    assert isinstance(behaviour, Categorical)
    legal = records.legal_actions
    records = records._replace(
        observation=flat[:, source[: size * size]].reshape(observation.shape),
        action=goes_to[records.action],
        behaviour=Categorical(behaviour.logits[:, source]),
        legal_actions=None if legal is None else legal[:, source],
    )
    start = sequence.start._replace(last_action=goes_to[sequence.start.last_action])
    return Trajectory(records, start)
