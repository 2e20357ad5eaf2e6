"""The model's dynamics: from a state of the model and an action to its next state.

Each dynamics offers ``start`` (from the representation's features), ``step`` (one action per state)
and ``expand`` (N actions per state, sharing whatever does not depend on the action). Model states
keep one flat batch axis ``[M, ...]``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from muesli.config import ConfigError, NetworkConfig
from muesli.distributions import MANY_ACTIONS
from muesli.networks.layers import (
    Dtype,
    Lstm,
    PreActivationBlock,
    centre_and_scale,
    conv,
    linear,
)
from muesli.networks.torsos import scale_planes
from muesli.types import Array, EnvSpec, PyTree


class Summary(NamedTuple):
    """What heads read of a state. features: [M, units]; points: [M, H·W, C], what lies at each
    point of a board whose actions are its points, or None.
    """

    features: Array
    points: Array | None = None


def encode_action(action: Array, spec: EnvSpec, dtype: Dtype) -> Array:
    """One-hot for discrete actions, the vector itself for continuous ones: [..., size]."""
    if spec.num_actions is None:
        return action.astype(dtype)
    return jax.nn.one_hot(action, spec.num_actions, dtype=dtype)


class LstmDynamics(nnx.Module):
    """One LSTM layer over actions; its cell starts as a linear map of the features."""

    def __init__(
        self,
        features: tuple[int, ...],
        spec: EnvSpec,
        config: NetworkConfig,
        rngs: nnx.Rngs,
    ):
        self.dtype = jnp.dtype(config.compute_dtype)
        self.spec = spec
        self.enter = linear(features[-1], config.model_units, self.dtype, rngs)
        loudness = None if spec.num_actions is None else config.model_action_scale
        self.lstm = Lstm(spec.action_inputs, config.model_units, self.dtype, rngs, loudness)
        self.out_size = config.model_units

    def start(self, features: Array) -> PyTree:
        cell = self.enter(features).astype(jnp.float32)
        return cell, jnp.tanh(cell)

    def step(self, state: PyTree, action: Array) -> tuple[PyTree, Summary]:
        cell, hidden = state
        gates = self.lstm.from_hidden(hidden) + self._from_action(action)
        cell, hidden = self.lstm.advance(cell, gates)
        return (cell, hidden), Summary(hidden)

    def expand(self, state: PyTree, actions: Array) -> Array:
        cell, hidden = state
        shared = self.lstm.from_hidden(hidden)[:, None]
        _, outputs = self.lstm.advance(cell[:, None], shared + self._from_action(actions))
        return outputs

    def _from_action(self, action: Array) -> Array:
        if self.spec.num_actions is not None and self.spec.num_actions > MANY_ACTIONS:
            return self.lstm.from_input.look_up(action)
        return self.lstm.from_input(encode_action(action, self.spec, self.dtype))


class MuZeroDynamics(nnx.Module):
    """Residual blocks over planes of state and action.

    On a board whose actions are its points and a pass, an action is one marked point (and a plane
    that is full for the pass); elsewhere it is one full plane out of as many as there are actions.
    """

    def __init__(
        self,
        features: tuple[int, ...],
        spec: EnvSpec,
        config: NetworkConfig,
        rngs: nnx.Rngs,
    ):
        self.dtype = jnp.dtype(config.compute_dtype)
        self.spec = spec
        height, width, planes = features
        self.board = (height, width)
        # A picture that was made smaller may have as many places as there are actions by chance.
        self.is_board = spec.is_board and spec.observation_shape[:2] == self.board
        self.point_planes = config.head_planes if config.point_policy else None
        if config.point_policy and not self.is_board:
            raise ConfigError("network.point_policy: is for boards whose actions are their points")
        inputs = 2 if self.is_board else spec.action_inputs
        self.from_state = conv(planes, planes, 3, self.dtype, rngs)
        self.from_action = conv(inputs, planes, 3, self.dtype, rngs)
        blocks = config.blocks if config.model_blocks is None else config.model_blocks
        self.tower = nnx.List([PreActivationBlock(planes, self.dtype, rngs) for _ in range(blocks)])
        self.squeeze_planes = conv(planes, config.head_planes, 1, self.dtype, rngs)
        self.out = linear(height * width * config.head_planes, config.model_units, self.dtype, rngs)
        self.out_size = config.model_units
        self.normalise = config.normalise_features

    def start(self, features: Array) -> PyTree:
        return features

    def step(self, state: PyTree, action: Array) -> tuple[PyTree, Summary]:
        planes = self.from_state(state) + self.from_action(self._action_planes(action))
        state = self._advance(planes)
        return state, self.read(state)

    def expand(self, state: PyTree, actions: Array) -> Array:
        flat = actions.reshape((-1, *actions.shape[2:]))
        moved = self.from_action(self._action_planes(flat))
        shared = jnp.repeat(self.from_state(state), actions.shape[1], axis=0)
        outputs = self.read(self._advance(shared + moved)).features
        return outputs.reshape((*actions.shape[:2], -1))

    def read(self, state: Array) -> Summary:
        """What the heads see of planes, [M, H, W, planes]."""
        x = self._activate(self.squeeze_planes(state))
        features = self._activate(self.out(x.reshape(x.shape[0], -1)))
        if self.point_planes is None:
            return Summary(features)
        return Summary(features, x.reshape(x.shape[0], -1, self.point_planes))

    def _activate(self, x: Array) -> Array:
        # Planes lie in [0, 1], so most of what is summed is the same for all states; without the
        # mean taken out, many units end up silent.
        return jax.nn.relu(centre_and_scale(x) if self.normalise else x)

    def _advance(self, x: Array) -> Array:
        for block in self.tower:
            x = block(x)
        return scale_planes(x)

    def _action_planes(self, action: Array) -> Array:
        height, width = self.board
        if not self.is_board:
            flat = encode_action(action, self.spec, self.dtype)[:, None, None, :]
            return jnp.broadcast_to(flat, (flat.shape[0], height, width, flat.shape[-1]))
        points = height * width
        point = jax.nn.one_hot(action, points, dtype=self.dtype).reshape(-1, height, width)
        passed = jnp.broadcast_to((action == points)[:, None, None], point.shape)
        return jnp.stack([point, passed.astype(self.dtype)], axis=-1)


DYNAMICS: dict[str, Any] = {"lstm": LstmDynamics, "muzero": MuZeroDynamics}
