"""L_total: every loss of a batch whose targets are known, weighted and summed."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from muesli.agent.predictions import supports, unroll_model
from muesli.config import Config, ConfigError
from muesli.diagnostics import diagnostics, explained_shares, masked_mean
from muesli.losses import model_losses, target_frequencies
from muesli.networks.network import Network
from muesli.policy_updates import UPDATES
from muesli.types import (
    Array,
    Frequencies,
    Metrics,
    Moment,
    PyTree,
    RootOutput,
    Targets,
    Trajectory,
    is_last,
)


class Findings(NamedTuple):
    """What an update learnt of its batch beside the gradient; all of it means over records.

    metrics: each []; frequencies: those of the targets; divergence: [], what MPO's temperature is
    trained on, or None.
    """

    metrics: Metrics
    frequencies: Frequencies
    divergence: Array | None


def total_loss(
    network: Network,
    config: Config,
    params: PyTree,
    batch: Trajectory,
    online: RootOutput,
    targets: Targets,
    moment: Moment,
) -> tuple[Array, Findings]:
    """L_total of a batch whose targets are known. Nothing in them carries gradients.

    batch: as the network sees it, [B, T + 1]; online: the network of ``params`` unrolled over it.
    """
    targets = jax.lax.stop_gradient(targets)
    # L_PG+CMPO (or another policy loss) in every state.
    policy_update = UPDATES[config.update.name]
    inputs = targets.policy._replace(policy=online.policy)
    policy = jax.vmap(jax.vmap(lambda x: policy_update(x, config.update)))(inputs)
    # L_m, L_v and L_r of the model unrolled from every state.
    predictions = unroll_model(network, params, batch, online, config)
    reward_support, value_support = supports(config)
    model = jax.vmap(
        lambda p, t, pi: model_losses(p, t, pi, config.model, reward_support, value_support)
    )(predictions, targets, policy.target)
    losses = {
        "policy": policy.loss[:, :-1],
        "policy_model": model.policy,
        "value": model.value,
        "reward": model.reward,
    }
    weights = loss_weights(config)
    assert set(losses) == set(weights)
    trained = ~is_last(targets.step_type[:, :-1])
    losses = {name: masked_mean(loss, trained) for name, loss in losses.items()}
    total = sum((weights[name] * loss for name, loss in losses.items()), jnp.zeros(()))

    metrics = {f"loss_{name}": loss for name, loss in losses.items()} | {"loss_total": total}
    metrics |= {k: masked_mean(v[:, :-1], trained) for k, v in policy.metrics.items()}
    frequencies = target_frequencies(targets, trained, reward_support, value_support)
    metrics |= diagnostics(config, inputs, online, targets, model, moment)
    if config.model.q_model != "direct":  # its heads have other targets
        metrics |= explained_shares(metrics, frequencies)
    divergence = None
    if policy.divergence is None and "loss_mpo" in policy.metrics:
        raise ConfigError(
            f"update.name: {config.update.name} passes on mpo's loss without its divergence, and "
            "the temperature would stand still; change an output by output._replace(loss=...)"
        )
    if policy.divergence is not None:
        divergence = masked_mean(policy.divergence[:, :-1], trained)
    return total, Findings(metrics, frequencies, divergence)


def loss_weights(config: Config) -> dict[str, float]:
    """The weight of every term of L_total."""
    return {
        "policy": config.update.total_weight,
        "policy_model": config.update.total_weight,
        "value": config.model.value_weight,
        "reward": config.model.reward_weight,
    }
