"""What every run logs about its own health; ``docs/troubleshooting.md`` says how to read it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.special import entr

from muesli.config import Config
from muesli.losses import ModelLosses
from muesli.ops.moments import deviation
from muesli.ops.targets import distillation
from muesli.policy_updates import cmpo_target
from muesli.types import (
    Array,
    Frequencies,
    Metrics,
    Moment,
    PolicyInputs,
    RootOutput,
    Targets,
    is_last,
)


def masked_mean(x: Array, mask: Array) -> Array:
    """Mean of x over the records that count, []."""
    return jnp.sum(jnp.where(mask, x, 0.0)) / jnp.maximum(1.0, jnp.sum(mask))


def explained_shares(metrics: Metrics, frequencies: Frequencies) -> Metrics:
    """How much of what can be known of rewards and values the model knows one step ahead, each [].

    0: no more than how often each occurs; 1: every one in advance. metrics: those of
    ``diagnostics``.
    """
    shares = {}
    for name, occurring in (("reward", frequencies.reward), ("value", frequencies.next_value)):
        nothing = jnp.sum(entr(occurring))
        everything = getattr(frequencies, f"{name}_floor")
        gained = nothing - metrics[f"loss_{name}_step_1"]
        # A batch in which there is next to nothing to know must not outweigh all others in a mean.
        shares[f"{name}_explained"] = gained / jnp.maximum(nothing - everything, 1e-3)
    return shares


def diagnostics(
    config: Config,
    inputs: PolicyInputs,
    root: RootOutput,
    targets: Targets,
    model: ModelLosses,
    moment: Moment,
) -> Metrics:
    """One number per question, each [], from one batch: records [B, T + 1]."""
    trained = ~is_last(targets.step_type[:, :-1])
    mean = lambda x: masked_mean(x, trained)  # noqa: E731
    head = lambda x: x[:, :-1]  # noqa: E731
    sigma = deviation(moment, config.agent.moment_epsilon)
    value = targets.baseline[:, :-1]
    errors = targets.returns - value
    q_errors = errors - head(inputs.q_advantage) * sigma
    spread = targets.returns - mean(targets.returns)
    advantages, weights = inputs.candidates.advantages, inputs.candidates.weights
    possible = weights > 0.0
    count = jnp.maximum(1, jnp.sum(possible, -1))
    # E_{A∼π_prior} q̂ − v̂: where the model and v̂ disagree about the state itself.
    expected = head(jnp.sum(weights * advantages, -1)) * sigma

    def power(x: Array) -> Array:
        # Where q̂ − v̂ was centred, so is all else: old actions are worse than π's on average.
        return mean(jnp.square(x - mean(x) if config.agent.centre_advantages else x))

    best = jnp.max(jnp.where(possible, advantages, -jnp.inf), -1)
    gap = best - jnp.sum(advantages * possible, -1) / count
    threshold = jnp.inf if config.update.clip_threshold is None else config.update.clip_threshold
    clipped = possible & (jnp.abs(config.update.advantage_scale * advantages) > threshold)
    cmpo = jax.vmap(jax.vmap(lambda x: distillation(x.policy, cmpo_target(x, config.update))))
    ratio = inputs.policy.log_prob(inputs.action) - inputs.behaviour.log_prob(inputs.action)
    features = jax.tree.leaves(root.embedding)[0].astype(jnp.float32)
    feature_power = jnp.mean(jnp.square(features))
    metrics = {
        "policy_entropy": mean(head(inputs.policy.entropy())),
        "kl_prior_online": mean(head(inputs.prior.kl(inputs.policy))),
        "kl_cmpo_online": mean(head(cmpo(inputs))),
        "advantage_sigma": sigma,
        "advantage_clipped_share": mean(head(jnp.sum(clipped, axis=-1) / count)),
        "q_action_gap_sigmas": mean(head(gap)),
        "q_error_ratio": power(q_errors) / jnp.maximum(power(errors), 1e-12),
        "q_action_error_ratio": power(q_errors) / jnp.maximum(power(errors - expected), 1e-12),
        "value_disagreement_sigmas": jnp.sqrt(power(expected)) / sigma,
        "value_explained_variance": 1.0
        - mean(jnp.square(errors - mean(errors))) / jnp.maximum(mean(jnp.square(spread)), 1e-12),
        "value_mean": mean(value),
        "return_mean": mean(targets.returns),
        "reward_mean": mean(targets.rewards),
        "rho_mean": mean(head(inputs.rho)),
        "rho_clipped_share": mean(head(ratio > 0.0)),
        "feature_scale": jnp.sqrt(feature_power),
        "feature_variation": jnp.mean(jnp.var(features, axis=(0, 1)))
        / jnp.maximum(feature_power, 1e-12),
    }
    return metrics | _losses_by_step(model, trained)


def _losses_by_step(model: ModelLosses, trained: Array) -> Metrics:
    """What each step of the unrolled model adds to its losses, each [], over those that count."""
    metrics = {}
    for name, losses, valid in (
        ("reward", model.reward_steps, model.outcome_valid),
        ("value", model.value_steps, model.outcome_valid),
        ("policy", model.policy_steps, model.policy_valid),
    ):
        for k in range(losses.shape[-1]):
            counted = valid[:, :, k] & trained
            metrics[f"loss_{name}_step_{k + 1}"] = masked_mean(losses[:, :, k], counted)
    return metrics
