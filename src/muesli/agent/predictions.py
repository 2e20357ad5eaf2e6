"""What the networks say: along sequences, of the model unrolled, and one step ahead."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from muesli.config import Config
from muesli.losses import ModelPredictions, unroll_index
from muesli.networks.network import Network, UnrollInputs
from muesli.ops.standardise import standardise
from muesli.ops.values import Support, decode
from muesli.types import Array, PyTree, RootOutput, Statistics, Trajectory, is_first


def supports(config: Config) -> tuple[Support, Support]:
    """The reward and value supports of the configured network."""
    net = config.network
    return (
        Support(-net.reward_max, net.reward_max, net.reward_bins),
        Support(-net.value_max, net.value_max, net.value_bins),
    )


def _swap(tree: PyTree) -> PyTree:
    """Batch-major to time-major and back."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)


def as_seen(batch: Trajectory, normaliser: Statistics | None, config: Config) -> Trajectory:
    """The batch as the network sees it: with standardised observations, where those are wanted."""
    records = batch.transitions
    seen = standardise(normaliser, records.observation, config.network.observation_clip)
    return batch._replace(transitions=records._replace(observation=seen))


def unroll(network: Network, params: PyTree, batch: Trajectory) -> RootOutput:
    """The representation network along every sequence, from its stored start: [B, T + 1]."""
    records = batch.transitions
    previous = lambda start, x: jnp.concatenate([start[:, None], x[:, :-1]], axis=1)  # noqa: E731
    inputs = UnrollInputs(
        observation=records.observation,
        legal_actions=records.legal_actions,
        last_action=previous(batch.start.last_action, records.action),
        last_reward=previous(batch.start.last_reward, records.reward),
        first=is_first(records.step_type),
    )
    root, _ = network.unroll(params, _swap(inputs), batch.start.recurrent)
    return _swap(root)


def unroll_model(
    network: Network, params: PyTree, batch: Trajectory, root: RootOutput, config: Config
) -> ModelPredictions:
    """The model unrolled K steps from every trained record with the actions taken: [B, T, K]."""
    steps, gradient_scale = config.model.unroll_steps, config.agent.dynamics_gradient_scale
    batch_size, length = (
        batch.transitions.reward.shape[0],
        batch.transitions.reward.shape[1] - 1,
    )
    flat = lambda x: x[:, :-1].reshape((batch_size * length, *x.shape[2:]))  # noqa: E731
    start = jax.tree.map(flat, root.embedding)
    actions = batch.transitions.action[:, unroll_index(length, steps) - 1]
    actions = jnp.moveaxis(actions, 2, 0).reshape((steps, batch_size * length, *actions.shape[3:]))

    def step(embedding: PyTree, action: Array) -> tuple[PyTree, PyTree]:
        output = network.model_step(params, embedding, action)
        return scale_gradient(output.embedding, gradient_scale), (
            output.reward_logits,
            output.value_logits,
            output.policy,
        )

    _, outputs = jax.lax.scan(step, start, actions)

    def arrange(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape((batch_size, length, steps, *x.shape[2:]))

    reward_logits, value_logits, policy = jax.tree.map(arrange, outputs)
    return ModelPredictions(reward_logits, value_logits, policy, root.value_logits[:, :-1])


def scale_gradient(tree: PyTree, scale: float) -> PyTree:
    """The same values, with the gradient that flows back through them multiplied by ``scale``."""
    if scale == 1.0:
        return tree
    return jax.tree.map(lambda x: scale * x + (1.0 - scale) * jax.lax.stop_gradient(x), tree)


def look_ahead(
    network: Network, config: Config, params: PyTree, embedding: PyTree, actions: Array
) -> Array:
    """q̂(s, a) = r̂_1(s, a) + γ v̂_1(s, a) in real units: [M, N]. actions: [M, N]."""
    reward_support, value_support = supports(config)
    reward_logits, value_logits = network.look_ahead(params, embedding, actions)
    value = decode(value_logits, value_support)
    if config.model.q_model == "direct":
        return value
    return decode(reward_logits, reward_support) + config.agent.discount * value


def baseline(config: Config, root_value: Array, weights: Array, q: Array) -> Array:
    """What an advantage is taken over, [...]: v̂, or E_{A∼π_prior} q̂ over candidates [..., N]."""
    if config.agent.baseline == "expected_q":
        return jnp.sum(weights * q, axis=-1)
    return root_value
