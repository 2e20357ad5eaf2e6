"""The paper's policy updates side by side, each a pure function of one state.

An update maps ``(PolicyInputs, UpdateConfig)`` to a ``PolicyOutput``. Three atoms cover them all:
the policy-gradient term, distillation towards a ``PolicyTarget``, and KL or entropy penalties. Only
``inputs.policy`` carries gradients; everything else arrived through the gradient door of
``agent.update``. A new idea is a new function here and one entry in ``UPDATES``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import jax
import jax.numpy as jnp

from muesli.checks import check_shape, check_vector, leading_size
from muesli.config import UpdateConfig
from muesli.ops.returns import importance_ratio
from muesli.ops.targets import (
    clip_advantages,
    distillation,
    leave_one_out_normaliser,
    log_normaliser,
    reweighted_target,
)
from muesli.types import Array, PolicyInputs, PolicyOutput, PolicyTarget

PolicyUpdate: TypeAlias = Callable[[PolicyInputs, UpdateConfig], PolicyOutput]


# --- atom 1: the policy gradient ------------------------------------------------------------


def policy_gradient(inputs: PolicyInputs, beta_loo: bool) -> Array:
    """−E_{A∼π} adv(s, A) as a loss, [], sampled at the action taken with ρ̄ = min(1, π/π_b).

    Plain: −ρ̄ (G − v̂)/σ · log π(a). With β-LOO, the sampled part corrects the model's value of the
    taken action and the rest is the model's own expectation, which removes what clipping lost::

        −ρ̄ (G − q̂(s, a))/σ · log π(a) − Σ_b π(b) (q̂(s, b) − v̂(s))/σ
    """
    for argument in ("advantage", "q_advantage", "rho"):
        check_shape("policy_gradient", argument, getattr(inputs, argument), ())
    log_pi = inputs.policy.log_prob(inputs.action)
    if not beta_loo:
        return -inputs.rho * inputs.advantage * log_pi
    correction = inputs.advantage - inputs.q_advantage
    return -inputs.rho * correction * log_pi - expected_advantage(inputs)


def expected_advantage(inputs: PolicyInputs) -> Array:
    """E_{A∼π} (q̂(s, A) − v̂(s))/σ, [], differentiable in π: candidates reweighted by π/π_prior."""
    candidates = inputs.candidates
    check_vector(
        "expected_advantage",
        leading_size("expected_advantage", "candidates.actions", candidates.actions),
        weights=candidates.weights,
        log_prior=candidates.log_prior,
        advantages=candidates.advantages,
    )
    weights = candidates.weights * _candidate_ratio(inputs)
    return jnp.sum(weights * candidates.advantages)


def _candidate_ratio(inputs: PolicyInputs) -> Array:
    """π/π_prior at the candidates, [N], differentiable in π."""
    log_pi = jax.vmap(inputs.policy.log_prob)(inputs.candidates.actions)
    return importance_ratio(log_pi, inputs.candidates.log_prior)


# --- atom 2: targets to distil --------------------------------------------------------------


def cmpo_target(inputs: PolicyInputs, config: UpdateConfig) -> PolicyTarget:
    """π_CMPO at the candidates: gains are clip(adv, −c, c)."""

    def gain(advantages: Array) -> Array:
        return clip_advantages(config.advantage_scale * advantages, config.clip_threshold)

    return _reweighted(inputs, config, gain)


def mpo_target(inputs: PolicyInputs, config: UpdateConfig) -> PolicyTarget:
    """π_MPO at the candidates: gains are adv/η."""
    return _reweighted(inputs, config, lambda advantages: advantages / inputs.temperature)


def _reweighted(
    inputs: PolicyInputs, config: UpdateConfig, gain: Callable[[Array], Array]
) -> PolicyTarget:
    """π_prior exp(gain(adv)) / z at the candidates, with z as the configuration estimates it."""
    candidates = inputs.candidates
    log_gains = gain(candidates.advantages)
    if config.kl_samples is None or config.sampled_normaliser == "candidates":
        log_z = log_normaliser(log_gains, candidates.weights)
    elif config.sampled_normaliser == "leave_one_out":
        log_z = leave_one_out_normaliser(log_gains, config.z_init)
    else:
        every = inputs.oracle
        if every is None:
            raise ValueError("update.sampled_normaliser: oracle needs inputs.oracle, every action")
        log_z = log_normaliser(gain(every.advantages), every.weights)
    return reweighted_target(candidates, log_gains, log_z)


# --- atom 3: bonuses and penalties ----------------------------------------------------------


def entropy_bonus(inputs: PolicyInputs, config: UpdateConfig) -> Array | float:
    """λ_H H[π], []."""
    if isinstance(config.entropy_weight, float) and config.entropy_weight == 0.0:
        # Not multiplied by 0: among ten thousand actions its gradient would still cost.
        return 0.0
    return config.entropy_weight * inputs.policy.entropy()


def prior_penalty(inputs: PolicyInputs, config: UpdateConfig) -> Array:
    """KL(π, π_prior), []: in closed form, or as E_{π_prior}(x log x − x + 1) with x = π/π_prior.

    The prior here is the target network's own policy; the candidates came from the mixed one, so
    they are weighted by the ratio of the two.
    """
    if config.kl_samples is None:
        return inputs.policy.kl(inputs.prior)
    candidates = inputs.candidates
    log_prior = jax.vmap(inputs.prior.log_prob)(candidates.actions)
    ratio = importance_ratio(jax.vmap(inputs.policy.log_prob)(candidates.actions), log_prior)
    divergence = jax.scipy.special.xlogy(ratio, ratio) - ratio + 1.0
    unmixed = importance_ratio(log_prior, candidates.log_prior)
    return jnp.sum(candidates.weights * unmixed * divergence)


def behaviour_penalty(inputs: PolicyInputs, config: UpdateConfig) -> Array:
    """KL(π_b, π), []: in closed form, or at the action taken, which is a sample of π_b."""
    if config.kl_samples is None:
        return inputs.behaviour.kl(inputs.policy)
    return inputs.behaviour.log_prob(inputs.action) - inputs.policy.log_prob(inputs.action)


# --- the updates ----------------------------------------------------------------------------


def muesli(inputs: PolicyInputs, config: UpdateConfig) -> PolicyOutput:
    """L_PG+CMPO = −E_π adv + λ KL(π_CMPO, π), less λ_H H[π] where that is asked for."""
    gradient = policy_gradient(inputs, config.beta_loo)
    target = cmpo_target(inputs, config)
    regulariser = distillation(inputs.policy, target)
    loss = gradient + config.cmpo_weight * regulariser - entropy_bonus(inputs, config)
    return PolicyOutput(loss, target, {"loss_pg": gradient, "loss_cmpo": regulariser})


def cmpo(inputs: PolicyInputs, config: UpdateConfig) -> PolicyOutput:
    """λ KL(π_CMPO, π) alone: the indirect method."""
    target = cmpo_target(inputs, config)
    regulariser = distillation(inputs.policy, target)
    return PolicyOutput(config.cmpo_weight * regulariser, target, {"loss_cmpo": regulariser})


def mpo(inputs: PolicyInputs, config: UpdateConfig) -> PolicyOutput:
    """KL(π_MPO, π); the temperature's own step, ``mpo_dual_gradient``, keeps its mean below ε.

    What the dual sees has weights that sum to 1 whatever the loss has: other estimates have the
    right gradient but no bound.
    """
    target = mpo_target(inputs, config)
    loss = distillation(inputs.policy, target)
    bounded = mpo_target(inputs, replace(config, sampled_normaliser="candidates"))
    divergence = distillation(inputs.policy, bounded)
    return PolicyOutput(loss, target, {"loss_mpo": divergence}, divergence)


def mpo_dual_gradient(mean_divergence: Array, config: UpdateConfig) -> Array:
    """What descends log η, []: the gradient (ε − E KL(π_MPO, π)) / ε.

    The Lagrangian's slope in η is ε − E KL. A divergence above ε raises the temperature, which
    brings π_MPO back towards the prior.
    """
    return 1.0 - mean_divergence / config.mpo_kl_limit


def direct_mpo(inputs: PolicyInputs, config: UpdateConfig) -> PolicyOutput:
    """−E_π adv + λ KL(π, π_prior): the direct method."""
    gradient = policy_gradient(inputs, config.beta_loo)
    penalty = prior_penalty(inputs, config)
    loss = gradient + config.direct_mpo_weight * penalty
    return PolicyOutput(loss, None, {"loss_pg": gradient, "loss_prior_penalty": penalty})


def pg(inputs: PolicyInputs, config: UpdateConfig) -> PolicyOutput:
    """−E_π adv − λ_H H[π]."""
    gradient = policy_gradient(inputs, config.beta_loo)
    loss = gradient - entropy_bonus(inputs, config)
    return PolicyOutput(loss, None, {"loss_pg": gradient})


def trpo_penalty(inputs: PolicyInputs, config: UpdateConfig) -> PolicyOutput:
    """−E_π adv − λ_H H[π] + λ_TRPO KL(π_b, π)."""
    gradient = policy_gradient(inputs, config.beta_loo)
    penalty = behaviour_penalty(inputs, config)
    loss = gradient - entropy_bonus(inputs, config) + config.trpo_weight * penalty
    return PolicyOutput(loss, None, {"loss_pg": gradient, "loss_behaviour_penalty": penalty})


def ppo(inputs: PolicyInputs, config: UpdateConfig) -> PolicyOutput:
    """−min(ρ adv, clip(ρ, 1 − ε, 1 + ε) adv) − λ_H H[π], at the action taken."""
    log_pi = inputs.policy.log_prob(inputs.action)
    ratio = importance_ratio(log_pi, inputs.behaviour.log_prob(inputs.action))
    clipped = jnp.clip(ratio, 1.0 - config.ppo_clip, 1.0 + config.ppo_clip)
    surrogate = -jnp.minimum(ratio * inputs.advantage, clipped * inputs.advantage)
    loss = surrogate - entropy_bonus(inputs, config)
    return PolicyOutput(loss, None, {"loss_pg": surrogate})


def mcts(inputs: PolicyInputs, config: UpdateConfig) -> PolicyOutput:
    """KL(π_MCTS, π): distils the visit counts of a search."""
    del config
    if inputs.search is None:
        raise ValueError("mcts: inputs.search must hold the search's visit distribution")
    divergence = distillation(inputs.policy, inputs.search)
    return PolicyOutput(divergence, inputs.search, {"loss_mcts": divergence})


UPDATES: dict[str, PolicyUpdate] = {
    "muesli": muesli,
    "cmpo": cmpo,
    "mpo": mpo,
    "direct_mpo": direct_mpo,
    "pg": pg,
    "trpo_penalty": trpo_penalty,
    "ppo": ppo,
    "mcts": mcts,
}
"""Every policy update by name. Add your own: ``UPDATES["mine"] = my_update``."""
