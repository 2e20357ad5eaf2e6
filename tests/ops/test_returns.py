"""Retrace and V-trace: by hand, by their definitions as forward sums, and against rlax."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from muesli.distributions import LOG_ZERO
from muesli.ops.returns import clipped_importance_ratio, importance_ratio, retrace, vtrace
from muesli.types import StepType

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
T = 12

seeds = st.integers(0, 2**32 - 1)
lambdas = st.sampled_from([0.0, 0.5, 0.95, 1.0])
quick = settings(max_examples=25, deadline=None)


class Sequence(NamedTuple):
    """The arguments of ``retrace`` in their order; ``expected_q`` doubles as v̂ of ``vtrace``."""

    q_taken: np.ndarray
    expected_q: np.ndarray
    rewards: np.ndarray
    discounts: np.ndarray
    rho: np.ndarray
    step_type: np.ndarray


def mid_steps(length: int) -> np.ndarray:
    """Step types of a piece from the middle of one long episode."""
    return np.full(length + 1, MID, np.int32)


def random_sequence(seed: int, length: int = T, episodes: bool = True) -> Sequence:
    """A piece of a stream of short episodes, or of one long episode.

    Episodes end by termination (γ = 0) or by truncation. What a LAST record says of its action
    (reward, discount, ratio, q̂) is noise, for nothing may depend on it.
    """
    rng = np.random.default_rng(seed)
    step_type = mid_steps(length)
    discounts = rng.choice([1.0, 0.9, -1.0, 0.5], size=length)
    if episodes:
        step_type[0] = rng.choice([FIRST, MID])
        for t in range(length):
            if step_type[t] == LAST:
                step_type[t + 1] = FIRST
            elif rng.random() < 0.35:
                step_type[t + 1] = LAST
                discounts[t] *= rng.choice([0.0, 1.0])
    return Sequence(
        q_taken=rng.normal(size=length).astype(np.float32),
        expected_q=rng.normal(size=length + 1).astype(np.float32),
        rewards=rng.normal(size=length).astype(np.float32),
        discounts=discounts.astype(np.float32),
        rho=np.exp(rng.normal(size=length)).astype(np.float32),
        step_type=step_type,
    )


def retrace_by_definition(s: Sequence, lambda_: float) -> tuple[np.ndarray, np.ndarray]:
    """Munos et al. (2016): G_t = q̂_t + Σ_{k≥t} (Π_{t<i≤k} γ_i c_i) δ_k, within the episode."""
    length = len(s.rewards)
    returns, values = np.zeros(length), np.zeros(length + 1)
    for t in range(length):
        total, weight = float(s.q_taken[t]), 1.0
        for k in range(t, length):
            if k > t:
                if s.step_type[k] == LAST:
                    break
                weight *= s.discounts[k - 1] * lambda_ * min(1.0, float(s.rho[k]))
            delta = s.rewards[k] + s.discounts[k] * s.expected_q[k + 1] - s.q_taken[k]
            total += weight * delta
        returns[t] = total
    for t in range(length + 1):
        values[t] = s.expected_q[t]
        if t < length and s.step_type[t] != LAST:
            values[t] += lambda_ * min(1.0, float(s.rho[t])) * (returns[t] - s.q_taken[t])
    return returns, values


def vtrace_by_definition(s: Sequence, lambda_: float) -> np.ndarray:
    """Espeholt et al. (2018), eq. 1: v_t + Σ_{k≥t} (Π_{t≤i<k} γ_{i+1} c_i) ρ̄_k δ_k."""
    length = len(s.rewards)
    values = s.expected_q.astype(np.float64)
    for t in range(length):
        weight = 1.0
        for k in range(t, length):
            if s.step_type[k] == LAST:
                break
            clipped = min(1.0, float(s.rho[k]))
            v_k, v_next = s.expected_q[k], s.expected_q[k + 1]
            values[t] += weight * clipped * (s.rewards[k] + s.discounts[k] * v_next - v_k)
            weight *= s.discounts[k] * lambda_ * clipped
    return values


@jax.jit
def run_retrace(s: Sequence, lambda_: float):
    return retrace(*s, lambda_)


rlax_general_returns = jax.jit(rlax.general_off_policy_returns_from_q_and_v)
rlax_retrace_errors = jax.jit(rlax.retrace_continuous)
rlax_vtrace_errors = jax.jit(rlax.vtrace)
rlax_vtrace_outputs = jax.jit(rlax.vtrace_td_error_and_advantage)
rlax_lambda_returns = jax.jit(rlax.lambda_returns)
rlax_n_step_returns = jax.jit(rlax.n_step_bootstrapped_returns, static_argnums=3)


@jax.jit
def run_vtrace(s: Sequence, lambda_: float):
    return vtrace(s.expected_q, s.rewards, s.discounts, s.rho, s.step_type, lambda_)


# --- by hand --------------------------------------------------------------------------------------


def test_trace_coefficient_is_lambda_times_the_clipped_ratio() -> None:
    # G_0 = γ c_1 G_1 with everything else zero and G_1 = r_2 = 1. For ρ_1 = 0.5 and λ = 0.95,
    # c_1 = 0.95 · 0.5 = 0.475.
    zeros = np.zeros(2, np.float32)
    rewards = np.array([0.0, 1.0], np.float32)
    rho = np.array([7.0, 0.5], np.float32)
    out = retrace(zeros, np.zeros(3, np.float32), rewards, zeros + 1, rho, mid_steps(2), 0.95)
    assert_allclose(out.returns, [0.475, 1.0], rtol=1e-6)
    # v*_0 = c_0 G_0 with ρ_0 = 7 clipped to 1, so c_0 = 0.95.
    assert_allclose(out.values, [0.95 * 0.475, 0.475, 0.0], rtol=1e-6)


def test_retrace_by_hand() -> None:
    # λ = 1/2, so c = [1/2, 1/4, 1/2]. Backwards, from v*_3 = E q̂(s_3) = 4:
    #   G_2 = 3 + 1/2 · 4 = 5          v*_2 = 2 + 1/2 (5 − 1) = 4
    #   G_1 = 2 + 1/2 · 4 = 4          v*_1 = 1 + 1/4 (4 − 2) = 1.5
    #   G_0 = 1 + 1/2 · 1.5 = 1.75     v*_0 = 0 + 1/2 (1.75 − 3) = −0.625
    out = retrace(
        q_taken=np.array([3.0, 2.0, 1.0]),
        expected_q=np.array([0.0, 1.0, 2.0, 4.0]),
        rewards=np.array([1.0, 2.0, 3.0]),
        discounts=np.array([0.5, 0.5, 0.5]),
        rho=np.array([1.0, 0.5, 3.0]),
        step_type=mid_steps(3),
        lambda_=0.5,
    )
    assert_allclose(out.returns, [1.75, 4.0, 5.0], rtol=1e-6)
    assert_allclose(out.values, [-0.625, 1.5, 4.0, 4.0], rtol=1e-6)


def test_vtrace_by_hand() -> None:
    # λ = 1/2, γ = 1/2, v̂ = [0, 1, 2], r = [1, 2], ρ = [1/2, 4].
    #   δ_1 = 1 (2 + 1/2 · 2 − 1) = 2        v*_1 = 1 + 2 = 3
    #   δ_0 = 1/2 (1 + 1/2 · 1 − 0) = 3/4    v*_0 = 0 + 3/4 + 1/2 · 1/2 · 1/2 (3 − 1) = 1
    #   G_1 = 2 + 1/2 · 2 = 3                G_0 = 1 + 1/2 · 3 = 2.5
    out = vtrace(
        values=np.array([0.0, 1.0, 2.0]),
        rewards=np.array([1.0, 2.0]),
        discounts=np.array([0.5, 0.5]),
        rho=np.array([0.5, 4.0]),
        step_type=mid_steps(2),
        lambda_=0.5,
    )
    assert_allclose(out.values, [1.0, 3.0, 2.0], rtol=1e-6)
    assert_allclose(out.returns, [2.5, 3.0], rtol=1e-6)


# A truncated episode of two steps, a terminated one of one step, and the start of a third:
#   record      0      1     2            3       4             5 (bootstrap)
#   step type   FIRST  MID   LAST (trunc) FIRST   LAST (term)   FIRST
# What the LAST records 2 and 4 hold for an action is 999, which must show up nowhere.
ENDS = Sequence(
    q_taken=np.array([1.0, 1.0, 999.0, 1.0, 999.0]),
    expected_q=np.array([2.0, 3.0, 10.0, 5.0, 20.0, 30.0]),
    rewards=np.array([1.0, 2.0, 999.0, 7.0, 999.0]),
    discounts=np.array([0.5, 0.5, 999.0, 0.0, 999.0]),
    rho=np.ones(5),
    step_type=np.array([FIRST, MID, LAST, FIRST, LAST, FIRST], np.int32),
)
TRAINED = ENDS.step_type[:-1] != LAST


def test_retrace_bootstraps_a_truncated_episode_and_not_a_terminated_one() -> None:
    #   truncated: v*_2 = 10, its own last state; G_1 = 2 + 1/2 · 10 = 7
    #              v*_1 = 3 + (7 − 1) = 9;        G_0 = 1 + 1/2 · 9 = 5.5;  v*_0 = 2 + 4.5 = 6.5
    #   terminated: G_3 = 7 + 0 · 20 = 7;         v*_3 = 5 + (7 − 1) = 11
    out = retrace(*ENDS, 1.0)
    assert_allclose(out.returns[TRAINED], [5.5, 7.0, 7.0], rtol=1e-6)
    assert_allclose(out.values, [6.5, 9.0, 10.0, 11.0, 20.0, 30.0], rtol=1e-6)


def test_vtrace_bootstraps_a_truncated_episode_and_not_a_terminated_one() -> None:
    # With ρ = λ = 1 these are n-step returns: v*_1 = 2 + 1/2 · 10 = 7, v*_0 = 1 + 1/2 · 7 = 4.5
    # and v*_3 = 7; states at which an episode ends keep v̂.
    out = vtrace(ENDS.expected_q, ENDS.rewards, ENDS.discounts, ENDS.rho, ENDS.step_type)
    assert_allclose(out.values, [4.5, 7.0, 10.0, 7.0, 20.0, 30.0], rtol=1e-6)
    assert_allclose(out.returns[TRAINED], [4.5, 7.0, 7.0], rtol=1e-6)


def test_discount_minus_one_turns_the_result_around_for_each_player() -> None:
    # Three moves; the mover of the last one wins. For the players to move: +1, −1, +1.
    args = Sequence(
        q_taken=np.zeros(3),
        expected_q=np.zeros(4),
        rewards=np.array([0.0, 0.0, 1.0]),
        discounts=np.array([-1.0, -1.0, 0.0]),
        rho=np.ones(3),
        step_type=np.array([FIRST, MID, MID, LAST], np.int32),
    )
    assert_allclose(run_retrace(args, 1.0).returns, [1.0, -1.0, 1.0])
    assert_allclose(run_vtrace(args, 1.0).returns, [1.0, -1.0, 1.0])
    # A game that goes on, where the next to move expects to win (v = 1): bad for us, good before.
    unfinished = args._replace(
        expected_q=np.array([0.0, 0.0, 0.0, 1.0]),
        rewards=np.zeros(3),
        discounts=-np.ones(3),
        step_type=mid_steps(3),
    )
    assert_allclose(run_retrace(unfinished, 1.0).returns, [-1.0, 1.0, -1.0])
    assert_allclose(run_vtrace(unfinished, 1.0).returns, [-1.0, 1.0, -1.0])


def test_bootstrap_value_reaches_back_through_ordinary_steps() -> None:
    # Only E q̂(s_T) = 1 is not zero: G_t = γ^{T−t} c^{T−t−1} with γ = 0.9 and c = 0.8.
    length = 4
    zeros = np.zeros(length, np.float32)
    expected_q = np.append(zeros, np.float32(1.0))
    out = retrace(zeros, expected_q, zeros, zeros + 0.9, zeros + 1.0, mid_steps(length), 0.8)
    assert_allclose(out.returns, [0.9**n * 0.8 ** (n - 1) for n in (4, 3, 2, 1)], rtol=1e-6)


# --- definitions and oracles ----------------------------------------------------------------------


@quick
@given(seeds, lambdas)
def test_retrace_is_the_forward_sum_of_its_definition(seed: int, lambda_: float) -> None:
    s = random_sequence(seed)
    returns, values = retrace_by_definition(s, lambda_)
    out = run_retrace(s, lambda_)
    trained = s.step_type[:-1] != LAST
    assert_allclose(out.returns[trained], returns[trained], rtol=1e-4, atol=5e-5)
    assert_allclose(out.values, values, rtol=1e-4, atol=5e-5)


@quick
@given(seeds, lambdas)
def test_vtrace_is_the_forward_sum_of_its_definition(seed: int, lambda_: float) -> None:
    s = random_sequence(seed)
    out = run_vtrace(s, lambda_)
    assert_allclose(out.values, vtrace_by_definition(s, lambda_), rtol=1e-4, atol=5e-5)


@quick
@given(seeds, lambdas)
def test_return_is_reward_plus_discounted_value_target(seed: int, lambda_: float) -> None:
    s = random_sequence(seed)
    for out in (run_retrace(s, lambda_), run_vtrace(s, lambda_)):
        values = np.asarray(out.values)
        assert_allclose(out.returns, s.rewards + s.discounts * values[1:], rtol=1e-5, atol=1e-5)


@quick
@given(seeds, lambdas)
def test_retrace_agrees_with_rlax(seed: int, lambda_: float) -> None:
    # rlax asks for q, c of the records 1..T−1 and v of 1..T: the trace of record 0 plays no part
    # in its return. The traces are handed over cut, since rlax does not know LAST records.
    s = random_sequence(seed)
    trace = lambda_ * np.minimum(1.0, s.rho) * (s.step_type[:-1] != LAST)
    oracle = rlax_general_returns(
        s.q_taken[1:], s.expected_q[1:], s.rewards, s.discounts, trace[1:].astype(np.float32)
    )
    assert_allclose(run_retrace(s, lambda_).returns, oracle, rtol=1e-4, atol=5e-5)


@quick
@given(seeds, lambdas)
def test_retrace_agrees_with_rlax_from_log_ratios(seed: int, lambda_: float) -> None:
    s = random_sequence(seed, episodes=False)
    errors = rlax_retrace_errors(
        q_tm1=s.q_taken,
        q_t=s.q_taken[1:],
        v_t=s.expected_q[1:],
        r_t=s.rewards,
        discount_t=s.discounts,
        log_rhos=np.log(s.rho[1:]),
        lambda_=lambda_,
    )
    out = run_retrace(s, lambda_)
    assert_allclose(out.returns, s.q_taken + np.asarray(errors), rtol=1e-4, atol=5e-5)


@quick
@given(seeds, lambdas)
def test_vtrace_agrees_with_rlax(seed: int, lambda_: float) -> None:
    s = random_sequence(seed)
    v = s.expected_q
    rho = np.where(s.step_type[:-1] == LAST, 0.0, s.rho).astype(np.float32)
    errors = rlax_vtrace_errors(v[:-1], v[1:], s.rewards, s.discounts, rho, lambda_)
    assert_allclose(run_vtrace(s, lambda_).values[:-1], v[:-1] + errors, rtol=1e-4, atol=5e-5)


@quick
@given(seeds)
def test_vtrace_returns_agree_with_rlax_at_lambda_one(seed: int) -> None:
    # Below 1, rlax mixes v̂ into the policy gradient's return a second time; ours is r + γ v*.
    s = random_sequence(seed, episodes=False)
    v = s.expected_q
    oracle = rlax_vtrace_outputs(v[:-1], v[1:], s.rewards, s.discounts, s.rho, 1.0).q_estimate
    assert_allclose(run_vtrace(s, 1.0).returns, oracle, rtol=1e-4, atol=5e-5)


# --- reductions -----------------------------------------------------------------------------------


@quick
@given(seeds)
def test_lambda_zero_gives_one_step_expected_sarsa(seed: int) -> None:
    s = random_sequence(seed)
    out = run_retrace(s, 0.0)
    assert_allclose(out.returns, s.rewards + s.discounts * s.expected_q[1:], rtol=1e-6, atol=1e-6)
    assert_array_equal(out.values, s.expected_q)


@quick
@given(seeds)
def test_ratio_zero_gives_one_step_targets_too(seed: int) -> None:
    s = random_sequence(seed)
    s = s._replace(rho=np.zeros_like(s.rho))
    assert_array_equal(run_retrace(s, 1.0).values, s.expected_q)
    assert_array_equal(run_vtrace(s, 1.0).values, s.expected_q)


@quick
@given(seeds)
def test_on_policy_full_traces_telescope_to_the_monte_carlo_return(seed: int) -> None:
    # With c = 1, Σ_k Γ_k δ_k telescopes: G_0 = Σ_k Γ_k r_{k+1} + Γ_T E q̂(s_T)
    #   + Σ_{k=1}^{T−1} Γ_k (E q̂(s_k) − q̂(s_k, a_k)),   Γ_k = γ_1 ⋯ γ_k,
    # whose last sum is a control variate with mean zero.
    s = random_sequence(seed, episodes=False)
    s = s._replace(rho=np.ones_like(s.rho))
    products = np.append(1.0, np.cumprod(s.discounts.astype(np.float64)))
    monte_carlo = np.sum(products[:-1] * s.rewards) + products[-1] * s.expected_q[-1]
    control = np.sum(products[1:-1] * (s.expected_q[1:-1] - s.q_taken[1:]))
    out = run_retrace(s, 1.0)
    assert_allclose(out.returns[0], monte_carlo + control, rtol=1e-4, atol=5e-5)


@quick
@given(seeds, lambdas)
def test_on_policy_vtrace_is_the_lambda_return(seed: int, lambda_: float) -> None:
    s = random_sequence(seed, episodes=False)
    s = s._replace(rho=np.ones_like(s.rho))
    oracle = rlax_lambda_returns(s.rewards, s.discounts, s.expected_q[1:], lambda_)
    assert_allclose(run_vtrace(s, lambda_).values[:-1], oracle, rtol=1e-4, atol=5e-5)


@quick
@given(seeds)
def test_on_policy_vtrace_with_lambda_one_is_the_n_step_return(seed: int) -> None:
    s = random_sequence(seed, episodes=False)
    s = s._replace(rho=np.ones_like(s.rho))
    oracle = rlax_n_step_returns(s.rewards, s.discounts, s.expected_q[1:], T)
    out = run_vtrace(s, 1.0)
    assert_allclose(out.values[:-1], oracle, rtol=1e-4, atol=5e-5)
    assert_allclose(out.returns, oracle, rtol=1e-4, atol=5e-5)


@quick
@given(seeds, lambdas)
def test_on_policy_both_agree_when_action_values_ignore_the_action(
    seed: int, lambda_: float
) -> None:
    # q̂(s, a) = v̂(s) and ρ = 1 make V-trace's δ equal Retrace's; V-trace then corrects v̂ by the
    # whole first δ, Retrace by λ of it, so it is the returns' bootstraps that differ by λ.
    s = random_sequence(seed)
    s = s._replace(rho=np.ones_like(s.rho), q_taken=s.expected_q[:-1])
    correction = np.asarray(run_vtrace(s, lambda_).values) - s.expected_q
    assert_allclose(
        run_retrace(s, lambda_).values, s.expected_q + lambda_ * correction, rtol=1e-4, atol=5e-5
    )


@quick
@given(seeds)
def test_episodes_in_one_sequence_equal_the_episodes_alone(seed: int) -> None:
    # Episodes of 3, 1 and 4 steps: each has that many trained records and a LAST record.
    rng = np.random.default_rng(seed)
    lengths = (3, 1, 4)
    step_type = np.concatenate([[FIRST] + [MID] * (n - 1) + [LAST] for n in lengths])
    total = len(step_type) - 1
    s = random_sequence(seed, total, episodes=False)._replace(step_type=step_type.astype(np.int32))
    ends = np.cumsum([n + 1 for n in lengths]) - 1
    for end in ends:
        s.discounts[end - 1] *= rng.choice([0.0, 1.0])
    for run in (run_retrace, run_vtrace):
        together = run(s, 0.9)
        for n, end in zip(lengths, ends, strict=True):
            start = end - n
            alone = run(
                Sequence(
                    q_taken=s.q_taken[start:end],
                    expected_q=s.expected_q[start : end + 1],
                    rewards=s.rewards[start:end],
                    discounts=s.discounts[start:end],
                    rho=s.rho[start:end],
                    step_type=s.step_type[start : end + 1],
                ),
                0.9,
            )
            close = {"rtol": 1e-5, "atol": 1e-6}
            assert_allclose(together.returns[start:end], alone.returns, **close)
            assert_allclose(together.values[start : end + 1], alone.values, **close)


# --- ratios ---------------------------------------------------------------------------------------


def test_importance_ratios_by_hand() -> None:
    log_pi = np.log(np.array([0.5, 0.25, 0.2], np.float32))
    log_behaviour = np.log(np.array([0.25, 0.5, 0.2], np.float32))
    assert_allclose(importance_ratio(log_pi, log_behaviour), [2.0, 0.5, 1.0], rtol=1e-6)
    assert_allclose(clipped_importance_ratio(log_pi, log_behaviour), [1.0, 0.5, 1.0], rtol=1e-6)


def test_clipped_ratio_never_overflows_even_in_its_gradient() -> None:
    log_pi = jnp.array([0.0, 0.0, LOG_ZERO, LOG_ZERO])
    log_behaviour = jnp.array([-200.0, LOG_ZERO, 0.0, LOG_ZERO])
    ratio, slope = jax.vmap(jax.value_and_grad(clipped_importance_ratio))(log_pi, log_behaviour)
    assert_array_equal(ratio, [1.0, 1.0, 0.0, 1.0])
    assert np.isfinite(slope).all()
    assert_array_equal(slope[:3], [0.0, 0.0, 0.0])


def test_infinite_ratios_act_like_a_ratio_of_one() -> None:
    s = random_sequence(0)
    huge = importance_ratio(jnp.zeros(T), jnp.full(T, -200.0))
    assert np.isinf(huge).all()
    for run in (run_retrace, run_vtrace):
        expected = run(s._replace(rho=np.ones_like(s.rho)), 0.95)
        out = run(s._replace(rho=np.asarray(huge)), 0.95)
        assert_array_equal(out.returns, expected.returns)
        assert_array_equal(out.values, expected.values)


# --- transformations, precisions, errors ----------------------------------------------------------


@pytest.mark.parametrize("run", [run_retrace, run_vtrace])
def test_vmap_equals_a_loop(run) -> None:
    sequences = [random_sequence(seed) for seed in range(3)]
    batch = jax.tree.map(lambda *x: np.stack(x), *sequences)
    out = jax.vmap(run, in_axes=(0, None))(batch, 0.95)
    for i, s in enumerate(sequences):
        alone = run(s, 0.95)
        assert_allclose(out.returns[i], alone.returns, rtol=1e-5, atol=1e-6)
        assert_allclose(out.values[i], alone.values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("run", [run_retrace, run_vtrace])
def test_bfloat16_inputs_stay_bfloat16_and_close(run) -> None:
    s = random_sequence(1)
    low = Sequence(*(jnp.asarray(x, jnp.bfloat16) for x in s[:-1]), s.step_type)
    out, exact = run(low, 0.95), run(s, 0.95)
    assert out.returns.dtype == out.values.dtype == jnp.bfloat16
    assert_allclose(out.values.astype(np.float32), exact.values, atol=0.1)


@pytest.mark.parametrize("run", [run_retrace, run_vtrace])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_reward_that_is_not_finite_shows_in_every_return_before_it(run, bad: float) -> None:
    s = random_sequence(2, episodes=False)
    s.rewards[5] = bad
    out = run(s, 0.95)
    assert not np.isfinite(out.returns[:6]).any()
    assert not np.isfinite(out.values[:6]).any()
    assert np.isfinite(out.returns[6:]).all()
    assert np.isfinite(out.values[6:]).all()


@pytest.mark.parametrize("run", [run_retrace, run_vtrace])
def test_a_ratio_that_is_nan_shows(run) -> None:
    s = random_sequence(2, episodes=False)
    s.rho[5] = np.nan
    assert np.isnan(run(s, 0.95).values[:6]).all()


RETRACE_ARGUMENTS = list(Sequence._fields)
VTRACE_ARGUMENTS = ["values", "rewards", "discounts", "rho", "step_type"]


def trace_arguments(function) -> dict[str, np.ndarray]:
    s = random_sequence(3)
    if function is retrace:
        return s._asdict()
    return dict(zip(VTRACE_ARGUMENTS, s[1:], strict=True))


@pytest.mark.parametrize(
    ("function", "argument"),
    [(retrace, a) for a in RETRACE_ARGUMENTS if a != "rewards"]
    + [(vtrace, a) for a in VTRACE_ARGUMENTS if a != "rewards"],
)
def test_a_wrong_length_raises_and_names_the_argument(function, argument: str) -> None:
    arguments = trace_arguments(function)
    arguments[argument] = arguments[argument][:-1]
    with pytest.raises(ValueError, match=f"{function.__name__}: {argument} must have shape"):
        jax.eval_shape(function, **arguments)


@pytest.mark.parametrize("function", [retrace, vtrace])
def test_a_batch_axis_raises(function) -> None:
    batch = {name: np.stack([x, x], axis=1) for name, x in trace_arguments(function).items()}
    with pytest.raises(ValueError, match=rf"must have shape \[{T}\], got \[{T}, 2\]"):
        jax.eval_shape(function, **batch)


@pytest.mark.parametrize(
    ("function", "argument"),
    [(retrace, a) for a in RETRACE_ARGUMENTS[:-1]] + [(vtrace, a) for a in VTRACE_ARGUMENTS[:-1]],
)
def test_integers_raise_and_name_the_argument(function, argument: str) -> None:
    arguments = trace_arguments(function)
    arguments[argument] = arguments[argument].astype(np.int32)
    with pytest.raises(TypeError, match=f"{function.__name__}: {argument} must be a floating"):
        jax.eval_shape(function, **arguments)


@pytest.mark.parametrize("function", [retrace, vtrace])
def test_scalars_and_lists_raise_and_name_the_argument(function) -> None:
    arguments = trace_arguments(function)
    with pytest.raises(
        ValueError, match=f"{function.__name__}: rewards must have at least one axi"
    ):
        function(**{**arguments, "rewards": 1.0})
    with pytest.raises(TypeError, match=f"{function.__name__}: rho must be .* got a list"):
        function(**{**arguments, "rho": [1.0] * T})
