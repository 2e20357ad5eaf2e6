"""From action values to policies: prior mixing, π_MPO, π_CMPO, sampled weights, distillation.

Everything here speaks of one state and its ``Candidates``. Listing every action gives the exact
estimator, sampling them from the prior gives the paper's sampled one; the formulas are the same.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from muesli.checks import check_float, check_shape, check_vector, leading_size
from muesli.distributions import Categorical, Policy, mixture, uniform_like
from muesli.types import Array, Candidates, PolicyTarget, PRNGKey


def mix_prior(
    prior: Policy,
    behaviour: Policy,
    uniform_weight: float | Array,
    behaviour_weight: float | Array,
) -> Policy:
    """π_prior as the target network's policy with a little of the uniform and behaviour policies.

    Only over actions the prior allows. Continuous policies are not mixed.
    """
    if not isinstance(prior, Categorical) or not isinstance(behaviour, Categorical):
        return prior
    rest = jnp.maximum(0.0, 1.0 - uniform_weight - behaviour_weight)
    allowed = Categorical.masked(behaviour.logits, prior.possible())
    components = (prior, uniform_like(prior), allowed)
    return mixture(components, (rest, uniform_weight, behaviour_weight))


def all_actions(prior: Categorical) -> tuple[Array, Array, Array]:
    """Every action, its weight π_prior(a) and its log π_prior(a), each [A]: the exact estimator."""
    return jnp.arange(prior.num_actions), prior.probs(), prior.log_probs()


def sampled_actions(prior: Policy, key: PRNGKey, num_samples: int) -> tuple[Array, Array, Array]:
    """N actions drawn from the prior with replacement, their weights 1/N, their log π_prior."""
    actions = prior.sample(key, (num_samples,))
    log_prior = jax.vmap(prior.log_prob)(actions)
    return actions, jnp.full((num_samples,), 1.0 / num_samples), log_prior


def clip_advantages(advantages: Array, threshold: float | Array | None) -> Array:
    """clip(adv, −c, c), [N]; unchanged if the threshold is None."""
    return advantages if threshold is None else jnp.clip(advantages, -threshold, threshold)


def max_total_variation(threshold: float | Array) -> Array:
    """tanh(c/2): how far, at most, π_CMPO can be from its prior in total variation."""
    return jnp.tanh(0.5 * jnp.asarray(threshold))


def threshold_for_total_variation(distance: float | Array) -> Array:
    """c = 2 artanh(ε): the clipping threshold whose maximum total variation is ε."""
    return 2.0 * jnp.arctanh(jnp.asarray(distance))


def total_variation(p: Categorical, q: Categorical) -> Array:
    """½ Σ_a |p(a) − q(a)|, [...]."""
    return 0.5 * jnp.sum(jnp.abs(p.probs() - q.probs()), axis=-1)


def cmpo_policy(
    prior: Categorical, advantages: Array, threshold: float | Array | None = 1.0
) -> Categorical:
    """π_CMPO ∝ π_prior exp(clip(adv, −c, c)), over all actions. advantages: [..., A]."""
    check_float("cmpo_policy", "advantages", advantages)
    check_shape("cmpo_policy", "advantages", advantages, prior.logits.shape)
    return Categorical(prior.log_probs() + clip_advantages(advantages, threshold))


def mpo_policy(prior: Categorical, advantages: Array, temperature: float | Array) -> Categorical:
    """π_MPO ∝ π_prior exp(q̂/η), over all actions (an advantage in place of q̂ changes only z)."""
    check_float("mpo_policy", "advantages", advantages)
    check_shape("mpo_policy", "advantages", advantages, prior.logits.shape)
    return Categorical(prior.log_probs() + advantages / temperature)


def log_normaliser(log_gains: Array, weights: Array) -> Array:
    """log z = log E_{π_prior} exp(gain), [], over the candidates. log_gains, weights: [N].

    Exact where they are all actions; where they are samples, their weights then sum to 1.
    """
    length = leading_size("log_normaliser", "weights", weights)
    check_vector("log_normaliser", length, log_gains=log_gains, weights=weights)
    return jax.nn.logsumexp(log_gains, b=weights)


def leave_one_out_normaliser(log_gains: Array, z_init: float | Array = 1.0) -> Array:
    """log z̃^(i) = log (z_init + Σ_{k≠i} exp(gain_k)) / N, [N], each blind to its own sample.

    log_gains: [N], the clipped advantages of actions sampled from the prior. The sums are taken
    without subtracting a sample from the total, so nothing cancels.
    """
    check_vector("leave_one_out_normaliser", log_gains=log_gains)
    log_gains = jnp.asarray(log_gains)
    num = log_gains.shape[0]
    others = jnp.where(jnp.eye(num, dtype=bool), -jnp.inf, log_gains[None, :])
    init = jnp.full((num, 1), jnp.log(jnp.asarray(z_init, log_gains.dtype)))
    return jax.nn.logsumexp(jnp.concatenate([init, others], axis=1), axis=1) - jnp.log(num)


def reweighted_target(candidates: Candidates, log_gains: Array, log_z: Array) -> PolicyTarget:
    """The policy π_prior exp(gain) / z seen at the candidates.

    log_gains: [N]; log_z: [], or [N] where each candidate has an estimate of its own.
    """
    check_vector(
        "reweighted_target",
        leading_size("reweighted_target", "candidates.weights", candidates.weights),
        log_gains=log_gains,
        log_prior=candidates.log_prior,
    )
    gains = log_gains - log_z
    # Multiplied as logarithms: an illegal action's weight stays 0 however large its unclipped gain.
    return PolicyTarget(
        actions=candidates.actions,
        weights=jnp.exp(jnp.log(candidates.weights) + gains),
        log_probs=candidates.log_prior + gains,
    )


def distillation(policy: Policy, target: PolicyTarget) -> Array:
    """KL(target, π) of one state, []: Σ_k w_k (log target(a_k) − log π(a_k)).

    Exact when the target lists every action; otherwise the sampled estimate, whose gradient is that
    of the cross-entropy −Σ_k w_k log π(a_k), since the target is constant.
    """
    length = leading_size("distillation", "target.actions", target.actions)
    check_vector("distillation", length, weights=target.weights, log_probs=target.log_probs)
    log_pi = jax.vmap(policy.log_prob)(target.actions)
    return jnp.sum(target.weights * (target.log_probs - log_pi))
