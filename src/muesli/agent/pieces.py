"""An update's gradient from pieces of its batch, for batches that do not fit a device at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from muesli.agent.objective import Findings, total_loss
from muesli.agent.predictions import as_seen, unroll
from muesli.agent.targets import advantage_moment, centre, normalise, raw_targets
from muesli.config import Config
from muesli.networks.network import Network
from muesli.types import (
    AgentState,
    Array,
    Moment,
    PRNGKey,
    PyTree,
    Targets,
    Trajectory,
    is_last,
)


def gradient_in_pieces(
    network: Network,
    config: Config,
    state: AgentState,
    batch: Trajectory,
    key: PRNGKey,
) -> tuple[PyTree, Moment, Findings]:
    """The gradient of L_total from pieces of the batch, in a fraction of its memory.

    The moment is that of the whole batch, so the targets of all pieces come first; the online
    network runs over each piece a second time for its gradient.
    """
    count = config.batch.micro_batches
    size = batch.transitions.reward.shape[0]
    whole = (batch, jax.random.split(key, size))

    def piece_of(tree: PyTree, c: Array) -> PyTree:
        """Every ``count``-th sequence from c on: as many of each device that holds some."""

        def take(x: Array) -> Array:
            rows = x.reshape((size // count, count, *x.shape[1:]))
            return jax.lax.dynamic_index_in_dim(rows, c, axis=1, keepdims=False)

        return jax.tree.map(take, tree)

    def targets_of_piece(_: None, c: Array) -> tuple[None, Targets]:
        piece, its_keys = piece_of(whole, c)
        piece = as_seen(piece, state.normaliser, config)
        online = unroll(network, state.online, piece)
        prior = unroll(network, state.prior, piece)
        return None, raw_targets(network, config, state, piece, online, prior, its_keys)

    _, raw = jax.lax.scan(targets_of_piece, None, jnp.arange(count))
    moment = advantage_moment(raw, state.moment, config)
    targets = normalise(centre(raw, config), moment, config)
    trained = ~is_last(raw.step_type[:, :, :-1])
    shares = jnp.sum(trained, (1, 2)) / jnp.maximum(1, jnp.sum(trained))

    def add_piece(total: PyTree, of_piece: PyTree) -> tuple[PyTree, Findings]:
        c, its_targets, share = of_piece
        piece = as_seen(piece_of(batch, c), state.normaliser, config)

        def loss_fn(params: PyTree) -> tuple[Array, Findings]:
            online = unroll(network, params, piece)
            loss, findings = total_loss(network, config, params, piece, online, its_targets, moment)
            return share * loss, jax.tree.map(lambda x: share * x, findings)

        gradients, findings = jax.grad(loss_fn, has_aux=True)(state.online)
        return jax.tree.map(jnp.add, total, gradients), findings

    zeros = jax.tree.map(jnp.zeros_like, state.online)
    gradients, findings = jax.lax.scan(add_piece, zeros, (jnp.arange(count), targets, shares))
    return gradients, moment, jax.tree.map(lambda x: jnp.sum(x, 0), findings)
