"""The appendix on conservative policy iteration, by exact linear algebra on random MDPs.

Training on an older policy's data maximises a surrogate of the objective J. What the surrogate
misses is bounded by the total variation between the policies, which CMPO bounds by its clipping.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from muesli.distributions import Categorical
from muesli.ops.targets import cmpo_policy, threshold_for_total_variation

STATES, ACTIONS = 5, 3

seeds = st.integers(0, 2**32 - 1)
discounts = st.sampled_from([0.0, 0.5, 0.9, 0.97])
distances = st.floats(0.01, 0.9)
quick = settings(max_examples=30, deadline=None)


class MDP(NamedTuple):
    """start: [S]; transition: [S, A, S]; reward: [S, A]; discount γ."""

    start: np.ndarray
    transition: np.ndarray
    reward: np.ndarray
    discount: float


def random_mdp(rng: np.random.Generator, discount: float) -> MDP:
    return MDP(
        start=rng.dirichlet(np.ones(STATES)),
        transition=rng.dirichlet(np.full(STATES, 0.3), size=(STATES, ACTIONS)),
        reward=rng.normal(size=(STATES, ACTIONS)),
        discount=discount,
    )


def random_policy(rng: np.random.Generator) -> np.ndarray:
    return rng.dirichlet(np.ones(ACTIONS), size=STATES)


def moves(mdp: MDP, policy: np.ndarray) -> np.ndarray:
    """P_π(s'|s), [S, S]."""
    return np.einsum("sa,sax->sx", policy, mdp.transition)


def values(mdp: MDP, policy: np.ndarray) -> np.ndarray:
    resolvent = np.eye(len(mdp.start)) - mdp.discount * moves(mdp, policy)
    return np.linalg.solve(resolvent, np.sum(policy * mdp.reward, axis=1))


def objective(mdp: MDP, policy: np.ndarray) -> float:
    """J(π) = E_{S∼μ} v_π(S)."""
    return float(mdp.start @ values(mdp, policy))


def advantages(mdp: MDP, policy: np.ndarray) -> np.ndarray:
    """adv_π(s, a), [S, A]."""
    v = values(mdp, policy)
    return mdp.reward + mdp.discount * mdp.transition @ v - v[:, None]


def visitation(mdp: MDP, policy: np.ndarray) -> np.ndarray:
    """d_π = (1 − γ) Σ_t γ^t P(S_t = ·), [S], by summing the series until nothing is left."""
    state, weight, total = mdp.start, 1.0 - mdp.discount, np.zeros_like(mdp.start)
    step = moves(mdp, policy)
    while weight > 1e-16:
        total += weight * state
        state, weight = state @ step, weight * mdp.discount
    return total


def surrogate(mdp: MDP, policy: np.ndarray, prior: np.ndarray) -> float:
    """TotalAdv_prior(π): the prior's states, the prior's advantages, the new policy's actions."""
    gains = np.sum(policy * advantages(mdp, prior), axis=1)
    return float(visitation(mdp, prior) @ gains) / (1.0 - mdp.discount)


def largest_total_variation(policy: np.ndarray, prior: np.ndarray) -> float:
    """α = max_s ½ Σ_a |π − π_prior|."""
    return float(np.max(0.5 * np.sum(np.abs(policy - prior), axis=1)))


def penalty(mdp: MDP, prior: np.ndarray, alpha: float) -> float:
    """4 α² γ ε_max / (1 − γ)²."""
    largest = np.abs(advantages(mdp, prior)).max()
    return 4.0 * alpha**2 * mdp.discount * largest / (1.0 - mdp.discount) ** 2


def draw(seed: int, discount: float, mixing: float = 1.0) -> tuple[MDP, np.ndarray, np.ndarray]:
    """An MDP, a prior, and a policy that is the prior mixed with another one."""
    rng = np.random.default_rng(seed)
    mdp, prior, other = random_mdp(rng, discount), random_policy(rng), random_policy(rng)
    return mdp, prior, (1.0 - mixing) * prior + mixing * other


# --- the lemma and the bounds ---------------------------------------------------------------------


@quick
@given(seeds, discounts)
def test_performance_difference_lemma(seed: int, discount: float) -> None:
    mdp, prior, policy = draw(seed, discount)
    gains = np.sum(policy * advantages(mdp, prior), axis=1)
    difference = objective(mdp, policy) - objective(mdp, prior)
    assert_allclose(visitation(mdp, policy) @ gains / (1.0 - discount), difference, atol=1e-9)


@quick
@given(seeds, discounts)
def test_difference_is_the_surrogate_plus_what_it_misses(seed: int, discount: float) -> None:
    mdp, prior, policy = draw(seed, discount)
    shift = visitation(mdp, policy) - visitation(mdp, prior)
    missed = shift @ np.sum((policy - prior) * advantages(mdp, prior), axis=1) / (1.0 - discount)
    difference = objective(mdp, policy) - objective(mdp, prior)
    assert_allclose(surrogate(mdp, policy, prior) + missed, difference, atol=1e-9)


@quick
@given(seeds, discounts, st.floats(0.0, 1.0))
def test_similar_policies_visit_similar_states(seed: int, discount: float, mixing: float) -> None:
    mdp, prior, policy = draw(seed, discount, mixing)
    alpha = largest_total_variation(policy, prior)
    shift = np.abs(visitation(mdp, policy) - visitation(mdp, prior)).sum()
    assert shift <= 2.0 * alpha * discount / (1.0 - discount) + 1e-9


@quick
@given(seeds, discounts, st.floats(0.0, 1.0))
def test_lower_bound_by_total_variation(seed: int, discount: float, mixing: float) -> None:
    mdp, prior, policy = draw(seed, discount, mixing)
    alpha = largest_total_variation(policy, prior)
    difference = objective(mdp, policy) - objective(mdp, prior)
    assert difference >= surrogate(mdp, policy, prior) - penalty(mdp, prior, alpha) - 1e-9


def test_the_visitation_bound_is_tight_to_first_order() -> None:
    # From state 0, action 1 leaves for good. π leaves with probability α, the prior never:
    #   ‖d_π − d_prior‖ = 2 α γ / (1 − γ + α γ), which is the bound 2 α γ / (1 − γ) for small α.
    discount, alpha = 0.5, 1e-4
    transition = np.zeros((2, 2, 2))
    transition[0, 0, 0] = transition[0, 1, 1] = transition[1, :, 1] = 1.0
    mdp = MDP(np.array([1.0, 0.0]), transition, np.zeros((2, 2)), discount)
    prior = np.array([[1.0, 0.0], [1.0, 0.0]])
    policy = np.array([[1.0 - alpha, alpha], [1.0, 0.0]])
    shift = np.abs(visitation(mdp, policy) - visitation(mdp, prior)).sum()
    assert_allclose(shift, 2 * alpha * discount / (1 - discount), rtol=2e-4)


def test_maximising_the_surrogate_alone_can_ruin_the_policy() -> None:
    # The illustrative MDP, whose policy is the same in all states: states 1, 2, 3 and the absorbing
    # end are 0, 1, 2, 3; the actions are up and down; γ is close to 1.
    transition = np.zeros((4, 2, 4))
    transition[0, 0, 1] = transition[0, 1, 2] = 1.0
    transition[1:, :, 3] = 1.0
    reward = np.array([[1.0, 0.0], [-1.0, 1.0], [1.0, -1.0], [0.0, 0.0]])
    mdp = MDP(np.array([1.0, 0.0, 0.0, 0.0]), transition, reward, 0.99)

    def tied(p: float) -> np.ndarray:
        return np.tile([p, 1.0 - p], (4, 1))

    prior = tied(0.625)
    # The surrogate is linear in p: its maximum is one of the deterministic policies.
    best = max((tied(0.0), tied(1.0)), key=lambda policy: surrogate(mdp, policy, prior))
    assert surrogate(mdp, best, prior) > 0.0
    assert objective(mdp, best) < objective(mdp, prior) - 0.5


# --- what CMPO's clipping buys --------------------------------------------------------------------


@jax.jit
def cmpo(prior: jax.Array, adv: jax.Array, distance: float) -> jax.Array:
    """π_CMPO of every state with the threshold c = 2 artanh(ε), [S, A]."""
    threshold = threshold_for_total_variation(distance)
    return cmpo_policy(Categorical(jnp.log(prior)), adv, threshold).probs()


def cmpo_in_float64(prior: np.ndarray, adv: np.ndarray, distance: float) -> np.ndarray:
    policy = np.asarray(cmpo(prior.astype(np.float32), adv.astype(np.float32), distance), float)
    return policy / policy.sum(axis=1, keepdims=True)


@quick
@given(seeds, distances, st.sampled_from([1.0, 100.0]))
def test_cmpo_stays_within_the_distance_it_was_given(
    seed: int, distance: float, scale: float
) -> None:
    mdp, prior, _ = draw(seed, 0.9)
    policy = cmpo_in_float64(prior, scale * advantages(mdp, prior), distance)
    alpha = largest_total_variation(policy, prior)
    assert 0.0 < alpha <= distance + 1e-6


@quick
@given(distances)
def test_cmpo_can_use_the_whole_distance(distance: float) -> None:
    # Two actions at ±c, the better one with prior p* = (1 − e^{−c}) / (e^c − e^{−c}).
    c = 2.0 * np.arctanh(distance)
    p = (1.0 - np.exp(-c)) / (np.exp(c) - np.exp(-c))
    prior = np.array([[p, 1.0 - p]])
    policy = cmpo_in_float64(prior, np.array([[1e3, -1e3]]), distance)
    assert_allclose(largest_total_variation(policy, prior), distance, atol=1e-5)


@quick
@given(seeds, discounts, distances)
def test_the_distance_given_to_cmpo_bounds_the_loss_in_performance(
    seed: int, discount: float, distance: float
) -> None:
    # The advantages it is given may be wrong (noise is added): the bound holds all the same.
    mdp, prior, _ = draw(seed, discount)
    noise = np.random.default_rng(seed + 1).normal(size=prior.shape)
    policy = cmpo_in_float64(prior, advantages(mdp, prior) + noise, distance)
    difference = objective(mdp, policy) - objective(mdp, prior)
    # 1e-6: the policy was computed in float32.
    allowed = penalty(mdp, prior, distance + 1e-6)
    assert difference >= surrogate(mdp, policy, prior) - allowed - 1e-6


@quick
@given(seeds, discounts, distances)
def test_cmpo_with_exact_advantages_improves_every_policy(
    seed: int, discount: float, distance: float
) -> None:
    # exp(clip(adv)) rises with adv, so Σ_a π_CMPO adv ≥ Σ_a π_prior adv = 0 in every state, and
    # the lemma turns that into J(π_CMPO) ≥ J(π_prior).
    mdp, prior, _ = draw(seed, discount)
    adv = advantages(mdp, prior)
    policy = cmpo_in_float64(prior, adv, distance)
    assert np.all(np.sum(policy * adv, axis=1) > 0.0)
    assert objective(mdp, policy) > objective(mdp, prior)
