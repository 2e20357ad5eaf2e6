"""The illustrative MDP (figure 2 and its appendix), by enumeration of every trajectory.

Four states, one representation φ: the policy is one number p = π(up|φ). The best p is 5/8, where
both Q-values are 1/4; Monte-Carlo returns find it, bootstrapping from v(φ) does not.
"""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from muesli.ops.returns import retrace
from muesli.types import StepType

UP, DOWN = 0, 1
TERMINAL = 4
# (state, action) -> (reward, next state), read off the figure.
MDP = {
    (1, UP): (1, 2),
    (1, DOWN): (0, 3),
    (2, UP): (-1, TERMINAL),
    (2, DOWN): (1, TERMINAL),
    (3, UP): (1, TERMINAL),
    (3, DOWN): (-1, TERMINAL),
}
BEST = Fraction(5, 8)

exact_probabilities = st.fractions(0, 1, max_denominator=64)
quick = settings(max_examples=25, deadline=None)


def policy(p: Fraction) -> tuple[Fraction, Fraction]:
    return (p, 1 - p)


def value(state: int, p: Fraction) -> Fraction:
    """v_π(s) by recursion over the table."""
    if state == TERMINAL:
        return Fraction(0)
    return sum(policy(p)[a] * action_value(state, a, p) for a in (UP, DOWN))


def action_value(state: int, action: int, p: Fraction) -> Fraction:
    reward, successor = MDP[state, action]
    return reward + value(successor, p)


class Trajectory(NamedTuple):
    probability: Fraction
    states: tuple[int, ...]
    actions: tuple[int, ...]
    rewards: tuple[int, ...]


def trajectories(p: Fraction) -> list[Trajectory]:
    """All four episodes; each has two steps."""
    episodes = []
    for actions in product((UP, DOWN), repeat=2):
        state, states, rewards, probability = 1, [], [], Fraction(1)
        for action in actions:
            reward, successor = MDP[state, action]
            states.append(state)
            rewards.append(reward)
            probability *= policy(p)[action]
            state = successor
        episodes.append(Trajectory(probability, tuple(states), actions, tuple(rewards)))
    return episodes


def visits(p: Fraction) -> dict[int, Fraction]:
    """P_π(s|φ): the share of all visited states that s has, counted over the trajectories."""
    counts = dict.fromkeys((1, 2, 3), Fraction(0))
    for episode in trajectories(p):
        for state in episode.states:
            counts[state] += episode.probability
    total = sum(counts.values())
    return {state: count / total for state, count in counts.items()}


def aliased_action_value(action: int, p: Fraction) -> Fraction:
    """q_π(φ, a) = Σ_s P_π(s|φ) q_π(s, a), the appendix's definition."""
    return sum(share * action_value(s, action, p) for s, share in visits(p).items())


def aliased_value(p: Fraction) -> Fraction:
    """v_π(φ) = Σ_s P_π(s|φ) v_π(s)."""
    return sum(share * value(s, p) for s, share in visits(p).items())


# --- the appendix's formulas ----------------------------------------------------------------------


@quick
@given(exact_probabilities)
def test_state_values_are_the_printed_polynomials(p: Fraction) -> None:
    assert value(3, p) == 2 * p - 1
    assert value(2, p) == -2 * p + 1
    assert value(1, p) == -4 * p**2 + 5 * p - 1
    assert value(1, p) == sum(e.probability * sum(e.rewards) for e in trajectories(p))


@quick
@given(exact_probabilities)
def test_aliased_values_are_the_printed_polynomials(p: Fraction) -> None:
    assert visits(p) == {1: Fraction(1, 2), 2: p / 2, 3: (1 - p) / 2}
    assert aliased_action_value(UP, p) == -2 * p + Fraction(3, 2)
    assert aliased_action_value(DOWN, p) == 2 * p - 1
    assert aliased_value(p) == -4 * p**2 + Fraction(9, 2) * p - 1


@quick
@given(exact_probabilities)
def test_five_eighths_is_better_than_any_other_policy(p: Fraction) -> None:
    assert value(1, BEST) == Fraction(9, 16)
    if p != BEST:
        assert value(1, p) < value(1, BEST)


@quick
@given(exact_probabilities)
def test_the_slope_of_the_objective_is_the_gap_of_the_q_values(p: Fraction) -> None:
    # The policy gradient theorem, two visits of φ an episode: dv(1)/dp = 2 (q_up − q_down).
    step = Fraction(1, 1000)
    slope = (value(1, p + step) - value(1, p - step)) / (2 * step)  # exact: a quadratic
    assert slope == -8 * p + 5
    assert slope == 2 * (aliased_action_value(UP, p) - aliased_action_value(DOWN, p))


def test_at_the_optimum_both_q_values_are_a_quarter() -> None:
    assert aliased_action_value(UP, BEST) == aliased_action_value(DOWN, BEST) == Fraction(1, 4)


def test_both_deterministic_policies_are_worse() -> None:
    assert value(1, Fraction(1)) == 0
    assert value(1, Fraction(0)) == -1


# --- what our returns make of it ------------------------------------------------------------------


@jax.jit
def expected_targets(p, q, lambda_):
    """E[G | φ, a] over all trajectories, [2], when q̂(φ, ·) = q is all that Retrace may look at."""
    pi = jax.numpy.stack([p, 1 - p])
    episodes = trajectories(Fraction(1, 2))  # for actions and rewards; probabilities come from p
    actions = np.array([e.actions for e in episodes])
    rewards = np.array([e.rewards for e in episodes], np.float32)
    discounts = np.array([1.0, 0.0], np.float32)
    step_type = np.array([StepType.FIRST, StepType.MID, StepType.LAST])
    expected_q = jax.numpy.full(3, pi @ q)

    def returns(a, r):
        return retrace(q[a], expected_q, r, discounts, np.ones(2, np.float32), step_type, lambda_)

    g = jax.vmap(returns)(actions, rewards).returns
    probability = jax.numpy.prod(pi[actions], axis=1, keepdims=True)
    shares = [probability * (actions == a) for a in (UP, DOWN)]
    return jax.numpy.stack([(w * g).sum() / w.sum() for w in shares])


unit = st.floats(1 / 16, 15 / 16, width=32)
guesses = st.tuples(st.floats(-2, 2, width=32), st.floats(-2, 2, width=32))


@quick
@given(unit, guesses)
def test_monte_carlo_returns_give_the_right_q_values_whatever_the_guess(p: float, guess) -> None:
    q = np.array(guess, np.float32)
    assert_allclose(expected_targets(p, q, 1.0), [-2 * p + 1.5, 2 * p - 1], atol=1e-5)


@quick
@given(unit)
def test_bootstrapping_puts_the_value_of_phi_where_that_of_a_state_belongs(p: float) -> None:
    # Even from the true q_π(φ, ·), one-step targets replace v(2) and v(3) by v(φ):
    #   q(φ, up)   → ½ (1 + v(φ)) + ½ (−p + 1 − p) = 1 − p + ½ v(φ)
    #   q(φ, down) → ½ v(φ) + ½ (p − (1 − p))      = p − ½ + ½ v(φ)
    q = np.array([-2 * p + 1.5, 2 * p - 1], np.float32)
    v = -4 * p**2 + 4.5 * p - 1
    assert_allclose(expected_targets(p, q, 0.0), [1 - p + v / 2, p - 0.5 + v / 2], atol=1e-5)


def test_at_the_optimum_bootstrapping_says_that_up_is_twice_as_good() -> None:
    p, truth = 5 / 8, np.array([0.25, 0.25], np.float32)
    assert_allclose(expected_targets(p, truth, 1.0), [0.25, 0.25], atol=1e-6)
    # v(φ) = 1/4, though v(2) = −1/4.
    assert_allclose(expected_targets(p, truth, 0.0), [0.5, 0.25], atol=1e-6)


@pytest.mark.parametrize(("lambda_", "expected"), [(1.0, 5 / 8), (0.0, 3 / 4)])
def test_policy_improvement_settles_where_the_estimated_q_values_meet(lambda_, expected) -> None:
    # Gradient ascent on p along E[G|up] − E[G|down], with q̂ learnt from the same targets. One-step
    # targets differ by 3/2 − 2p whatever v(φ) is, so they settle at 3/4, whose value is only 1/2.
    p, q = 0.5, np.zeros(2, np.float32)
    for _ in range(60):
        q = np.asarray(expected_targets(p, q, lambda_))
        p = float(np.clip(p + 0.1 * (q[UP] - q[DOWN]), 0.0, 1.0))
    assert_allclose(p, expected, atol=1e-4)
    assert value(1, Fraction(expected)) == (Fraction(9, 16) if lambda_ else Fraction(1, 2))


# --- the example that draws it --------------------------------------------------------------------


def load_example():
    path = Path(__file__).parents[2] / "examples" / "illustrative_mdp.py"
    spec = importlib.util.spec_from_file_location("illustrative_mdp", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_draws_the_true_curves(tmp_path: Path) -> None:
    example = load_example()
    curves = example.analyse(np.array([0.25, 0.625, 0.75], np.float32))
    assert_allclose(curves.start_value, [0.0, 0.5625, 0.5], atol=1e-6)
    assert_allclose(curves.monte_carlo_q, [[1.0, -0.5], [0.25, 0.25], [0.0, 0.5]], atol=1e-6)
    assert_allclose(curves.aliased_value, [-0.125, 0.25, 0.125], atol=1e-6)
    assert_allclose(curves.bootstrap_q[1], [0.5, 0.25], atol=1e-6)
    assert_allclose(curves.bootstrap_q[2, 0], curves.bootstrap_q[2, 1], atol=1e-6)

    picture = tmp_path / "mdp.png"
    example.main(["-o", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000
