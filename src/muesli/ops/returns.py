"""Multi-step returns from off-policy sequences: Retrace and V-trace.

A sequence has T trained records and one bootstrap record. ``discounts[t]`` is γ_{t+1}, of any sign:
0 where the episode terminates, −1 between the moves of two players. The trace is cut at LAST
records, whose action was never executed, so a truncated episode bootstraps from its own last state.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from muesli.checks import check_shape, check_vector, leading_size
from muesli.types import Array, ReturnEstimates, is_last


def importance_ratio(log_pi: Array, log_behaviour: Array) -> Array:
    """ρ = π(a|s) / π_b(a|s), any shape."""
    return jnp.exp(log_pi - log_behaviour)


def clipped_importance_ratio(log_pi: Array, log_behaviour: Array) -> Array:
    """ρ̄ = min(1, π/π_b): the weight of the policy-gradient term and the root of every trace.

    The minimum is taken on the logarithm, so a vanishing π_b cannot overflow.
    """
    return jnp.exp(jnp.minimum(0.0, log_pi - log_behaviour))


def retrace(
    q_taken: Array,
    expected_q: Array,
    rewards: Array,
    discounts: Array,
    rho: Array,
    step_type: Array,
    lambda_: float | Array = 1.0,
) -> ReturnEstimates:
    """Retrace(λ) in its state-value form and its return form.

    With c_t = λ·min(1, ρ_t), cut at LAST records::

        G_t  = r_{t+1} + γ_{t+1} v*_{t+1}
        v*_t = E_{A∼π} q̂(s_t, A) + c_t (G_t − q̂(s_t, a_t)),     v*_T = E_{A∼π} q̂(s_T, A)

    q_taken: [T], q̂(s_t, a_t); expected_q: [T + 1], E_{A∼π} q̂(s_t, A); rewards: [T], r_{t+1};
    discounts: [T], γ_{t+1}; rho: [T], π/π_b of the taken action (clipped here); step_type: [T + 1].
    G of a LAST record is not a return of anything; mask it.
    """
    length = leading_size("retrace", "rewards", rewards)
    check_vector(
        "retrace",
        length,
        q_taken=q_taken,
        rewards=rewards,
        discounts=discounts,
        rho=rho,
    )
    check_vector("retrace", length + 1, expected_q=expected_q)
    check_shape("retrace", "step_type", step_type, (length + 1,))
    trace = lambda_ * jnp.minimum(1.0, rho) * ~is_last(step_type[:-1])

    def backwards(value: Array, record: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        reward, discount, c, q, expectation = record
        return_ = reward + discount * value
        value = expectation + c * (return_ - q)
        return value, (return_, value)

    records = (rewards, discounts, trace, q_taken, expected_q[:-1])
    # What is carried is of the dtype that all of them make, however they are mixed.
    last = jnp.asarray(expected_q[-1], jnp.result_type(*records))
    _, (returns, values) = jax.lax.scan(backwards, last, records, reverse=True)
    return ReturnEstimates(returns, jnp.append(values, expected_q[-1]))


def vtrace(
    values: Array,
    rewards: Array,
    discounts: Array,
    rho: Array,
    step_type: Array,
    lambda_: float | Array = 1.0,
) -> ReturnEstimates:
    """V-trace with ρ̄ = c̄ = 1::

        δ_t  = min(1, ρ_t) (r_{t+1} + γ_{t+1} v̂(s_{t+1}) − v̂(s_t))
        v*_t = v̂(s_t) + δ_t + γ_{t+1} λ min(1, ρ_t) (v*_{t+1} − v̂(s_{t+1})),     v*_T = v̂(s_T)
        G_t  = r_{t+1} + γ_{t+1} v*_{t+1}

    values: [T + 1], v̂(s_t); the rest as in ``retrace``.
    """
    length = leading_size("vtrace", "rewards", rewards)
    check_vector("vtrace", length, rewards=rewards, discounts=discounts, rho=rho)
    check_vector("vtrace", length + 1, values=values)
    check_shape("vtrace", "step_type", step_type, (length + 1,))
    ratio = jnp.minimum(1.0, rho) * ~is_last(step_type[:-1])
    errors = ratio * (rewards + discounts * values[1:] - values[:-1])

    def backwards(correction: Array, record: tuple[Array, ...]) -> tuple[Array, Array]:
        error, decay = record
        correction = error + decay * correction
        return correction, correction

    records = (errors, discounts * lambda_ * ratio)
    zero = jnp.zeros((), jnp.result_type(*records))
    _, corrections = jax.lax.scan(backwards, zero, records, reverse=True)
    targets = values + jnp.append(corrections, zero)
    return ReturnEstimates(rewards + discounts * targets[1:], targets)
