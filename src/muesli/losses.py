"""The K-step losses of the model along one sequence: rewards, values and policies.

From every state s_t the model is unrolled with the actions that were really taken. Its prediction
after k actions speaks of the real step t + k. It counts only while t + k lies inside the sequence
and no episode has ended in between; the reward that came with an episode's end counts, and so does
the value 0 right after a termination.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr

from muesli.checks import check_shape, check_vector
from muesli.config import ModelLossConfig
from muesli.distributions import Policy
from muesli.ops.targets import distillation
from muesli.ops.values import Support, cross_entropy, encode
from muesli.types import Array, Frequencies, PolicyTarget, Targets, is_last


class ModelPredictions(NamedTuple):
    """What the model said along one sequence; axis K holds steps k = 1..K.

    reward_logits: [T, K, bins], r̂_k(s_t, a_{<t+k}); value_logits: [T, K, bins]; policy: a
    distribution [T, K]; root_value_logits: [T, bins], v̂(s_t).
    """

    reward_logits: Array
    value_logits: Array
    policy: Policy
    root_value_logits: Array


class UnrollMasks(NamedTuple):
    """Which predictions count, each [T, K] bool.

    outcome: rewards and values; policy: policy predictions; absorbed: of ``outcome``, those that
    speak of a time after a terminated episode (only with ``absorbing``): reward and value are 0.
    """

    outcome: Array
    policy: Array
    absorbed: Array


class ModelLosses(NamedTuple):
    """Losses of one sequence, each [T] f32, and each unroll step's own for the diagnostics.

    reward, value, policy: [T]; reward_steps, value_steps, policy_steps: [T, K], masked by
    outcome_valid, outcome_valid and policy_valid: [T, K] bool.
    """

    reward: Array
    value: Array
    policy: Array
    reward_steps: Array
    value_steps: Array
    policy_steps: Array
    outcome_valid: Array
    policy_valid: Array


def unroll_index(length: int, unroll_steps: int) -> np.ndarray:
    """t + k for t = 0..T−1 and k = 1..K, held at T: [T, K] i32."""
    index = np.arange(length)[:, None] + np.arange(1, unroll_steps + 1)[None, :]
    return np.minimum(index, length)


def unroll_masks(
    step_type: Array, discounts: Array, unroll_steps: int, absorbing: bool = False
) -> UnrollMasks:
    """Which k-step predictions of which records count. step_type: [T + 1]; discounts: [T]."""
    length = jnp.shape(discounts)[0]
    check_shape("unroll_masks", "step_type", step_type, (length + 1,))
    last = is_last(step_type)
    index = unroll_index(length, unroll_steps)
    inside = np.arange(length)[:, None] + np.arange(1, unroll_steps + 1)[None, :] <= length

    # Column k − 1 of window is the record that the k-th action was taken in, t + k − 1.
    window = index - 1
    alive = jnp.cumsum(last[window], axis=1) == 0  # no LAST record among t .. t+k−1
    ended = alive & jnp.equal(discounts, 0.0)[window]
    gone = (jnp.cumsum(ended, axis=1) - ended) > 0  # an earlier of these actions terminated it

    absorbed = gone & ~alive & inside & absorbing
    real = alive & inside
    return UnrollMasks(real | absorbed, real & ~last[index], absorbed)


def reward_targets(rewards: Array, masks: UnrollMasks) -> Array:
    """r_{t+k}: [T, K]. rewards: [T], r_{t+1} of each record."""
    length, unroll_steps = masks.outcome.shape
    shifted = rewards[unroll_index(length, unroll_steps) - 1]
    return jnp.where(masks.absorbed, 0.0, shifted)


def value_targets(targets: Targets, masks: UnrollMasks) -> tuple[Array, Array]:
    """The target of v̂_k and where there is one, each [T, K]: v*_{t+k}, or 0 after a termination."""
    length, unroll_steps = masks.outcome.shape
    index = unroll_index(length, unroll_steps)
    ended = jnp.equal(targets.discounts, 0.0)[index - 1] | masks.absorbed
    valid = masks.outcome & (targets.values_valid[index] | ended)
    return jnp.where(ended, 0.0, targets.values[index]), valid


def action_value_targets(returns: Array, masks: UnrollMasks) -> Array:
    """G_{t+k−1}, the target of a model that predicts q directly: [T, K]. returns: [T]."""
    length, unroll_steps = masks.outcome.shape
    shifted = returns[unroll_index(length, unroll_steps) - 1]
    return jnp.where(masks.absorbed, 0.0, shifted)


def policy_model_losses(policy: Policy, target: PolicyTarget) -> Array:
    """KL(π_target(·|s_{t+k}), π̂_k(·|s_t, a_{<t+k})): [T, K].

    policy: a distribution [T, K]; target: PolicyTarget with leading axis [T + 1].
    """
    length, unroll_steps = jax.tree.leaves(policy)[0].shape[:2]
    # Indexing beyond the end would silently read the last state's target instead.
    check_shape("policy_model_losses", "target", target.weights, (length + 1, None))
    index = unroll_index(length, unroll_steps)
    shifted = jax.tree.map(lambda x: x[index], target)
    return jax.vmap(jax.vmap(distillation))(policy, shifted)


def target_frequencies(
    targets: Targets, trained: Array, reward_support: Support, value_support: Support
) -> Frequencies:
    """How often each bin is the target of a reward or value: of records [B, T], where ``trained``.

    targets: Targets with leading axis [B]. Values after a termination are 0, as the model's are.
    """

    def mean(x: Array, counts: Array, support: Support) -> tuple[Array, Array]:
        shares = encode(x, support) * counts[..., None]
        number = jnp.maximum(1.0, jnp.sum(counts))
        return jnp.sum(shares, axis=(0, 1)) / number, jnp.sum(entr(shares)) / number

    valid, ended = targets.values_valid, jnp.equal(targets.discounts, 0.0)
    reward, reward_floor = mean(targets.rewards, trained, reward_support)
    value, _ = mean(targets.values[:, :-1], trained & valid[:, :-1], value_support)
    following = jnp.where(ended, 0.0, targets.values[:, 1:])
    next_value, floor = mean(following, trained & (valid[:, 1:] | ended), value_support)
    return Frequencies(reward, value, next_value, reward_floor, floor)


def _mean_over_steps(losses: Array, mask: Array, average_over: str) -> Array:
    """Σ of the steps that count, over their number ("valid") or over all steps ("all"): [T]."""
    steps = jnp.maximum(1.0, jnp.sum(mask, axis=1)) if average_over == "valid" else mask.shape[1]
    return jnp.sum(losses * mask, axis=1) / steps


def model_losses(
    predictions: ModelPredictions,
    targets: Targets,
    policy_target: PolicyTarget | None,
    config: ModelLossConfig,
    reward_support: Support,
    value_support: Support,
) -> ModelLosses:
    """Reward, value and policy losses of every record of one sequence.

    The policy loss is Σ_k KL_k / K as printed. Rewards and values (the latter together with the
    root's own) are averaged as ``config.average_over`` says. policy_target: leading axis [T + 1],
    or None if the update trains no policy model. Losses of LAST records mean nothing; the caller
    masks them.
    """
    length = jnp.shape(targets.rewards)[0]
    check_vector(
        "model_losses",
        length,
        rewards=targets.rewards,
        returns=targets.returns,
        discounts=targets.discounts,
    )
    check_vector("model_losses", length + 1, values=targets.values)
    check_shape("model_losses", "values_valid", targets.values_valid, (length + 1,))
    steps = config.unroll_steps
    masks = unroll_masks(targets.step_type, targets.discounts, steps, config.absorbing)

    if config.q_model == "direct":
        unrolled, valid = action_value_targets(targets.returns, masks), masks.outcome
        reward_steps = jnp.zeros((length, steps))
    else:
        unrolled, valid = value_targets(targets, masks)
        rewards = reward_targets(targets.rewards, masks)
        reward_steps = cross_entropy(predictions.reward_logits, rewards, reward_support)
    value_steps = cross_entropy(predictions.value_logits, unrolled, value_support)
    root = cross_entropy(predictions.root_value_logits, targets.values[:-1], value_support)

    root_valid = targets.values_valid[:-1]
    if config.root_value_in_mean:
        value = _mean_over_steps(
            jnp.concatenate([root[:, None], value_steps], axis=1),
            jnp.concatenate([root_valid[:, None], valid], axis=1),
            config.average_over,
        )
    else:
        unrolled_value = _mean_over_steps(value_steps, valid, config.average_over)
        value = root * root_valid + unrolled_value

    policy_steps = jnp.zeros((length, steps))
    if policy_target is not None and config.policy_model:
        policy_steps = policy_model_losses(predictions.policy, policy_target)
        check_shape("model_losses", "predictions.policy", policy_steps, (length, steps))
        policy_steps = policy_steps * masks.policy
    return ModelLosses(
        reward=_mean_over_steps(reward_steps, masks.outcome, config.average_over),
        value=value,
        policy=jnp.sum(policy_steps, axis=1) / steps,
        reward_steps=reward_steps * masks.outcome,
        value_steps=value_steps * valid,
        policy_steps=policy_steps,
        outcome_valid=masks.outcome,
        policy_valid=masks.policy,
    )
