"""Fixed points of the returns on small tabular problems, with every expectation taken exactly.

Retrace evaluates π from any behaviour: q_π is its fixed point, and applying it brings any guess
nearer. V-trace evaluates the clipped policy instead. With discount −1, both play two-player games.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from muesli.ops.returns import retrace, vtrace
from muesli.types import StepType

STATES, ACTIONS, HORIZON = 3, 2, 3
GAMMA = 0.8
LAMBDAS = [0.0, 0.7, 1.0]

seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=10, deadline=None)


class Problem(NamedTuple):
    """A random MDP with the policy to evaluate and the policy that acts.

    transition: [S, A, S]; reward: [S, A, S], of arriving; target, behaviour: [S, A].
    """

    transition: np.ndarray
    reward: np.ndarray
    target: np.ndarray
    behaviour: np.ndarray


def random_problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)

    def simplex(*shape: int) -> np.ndarray:
        return rng.dirichlet(np.ones(shape[-1]), size=shape[:-1]).astype(np.float32)

    def policy() -> np.ndarray:
        # No action is rarer than 1/5, so that clipped ratios cannot slow V-trace down for long.
        return (0.6 * simplex(STATES, ACTIONS) + 0.4 / ACTIONS).astype(np.float32)

    return Problem(
        transition=simplex(STATES, ACTIONS, STATES),
        reward=rng.normal(size=(STATES, ACTIONS, STATES)).astype(np.float32),
        target=policy(),
        behaviour=policy(),
    )


def evaluate(problem: Problem, policy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """q and v of a policy by linear algebra: [S, A] and [S]."""
    transition, reward = problem.transition.astype(float), problem.reward.astype(float)
    expected_reward = np.einsum("sax,sax->sa", transition, reward)
    moves = np.einsum("sa,sax->sx", policy, transition)
    gains = np.einsum("sa,sa->s", policy, expected_reward)
    v = np.linalg.solve(np.eye(STATES) - GAMMA * moves, gains)
    return expected_reward + GAMMA * transition @ v, v


# Every path s_0, a_0, s_1, …, a_{T−1}, s_T: [paths, T + 1] and [paths, T].
_PATHS = np.array(
    list(product(*([range(STATES), range(ACTIONS)] * HORIZON + [range(STATES)]))), np.int32
)
PATH_STATES, PATH_ACTIONS = _PATHS[:, 0::2], _PATHS[:, 1::2]


def path_probabilities(problem: Problem) -> tuple[jax.Array, jax.Array]:
    """Of each path given s_0 (actions by the behaviour), and its ratios π/π_b, [paths, T]."""
    s, a, successor = PATH_STATES[:, :-1], PATH_ACTIONS, PATH_STATES[:, 1:]
    behaviour, target = problem.behaviour[s, a], problem.target[s, a]
    probability = jnp.prod(behaviour * problem.transition[s, a, successor], axis=1)
    return probability, target / behaviour


DISCOUNTS = np.full(HORIZON, GAMMA, np.float32)
STEP_TYPE = np.full(HORIZON + 1, StepType.MID, np.int32)


@jax.jit
def apply_retrace(problem: Problem, q: jax.Array, lambda_: float) -> jax.Array:
    """q(s, a) ← E_{π_b}[G_0 | s_0 = s, a_0 = a], [S, A]."""
    problem = jax.tree.map(jnp.asarray, problem)
    probability, rho = path_probabilities(problem)
    expected_q = jnp.sum(problem.target * q, axis=1)

    def first_return(states, actions, ratios):
        rewards = problem.reward[states[:-1], actions, states[1:]]
        q_taken = q[states[:-1], actions]
        return retrace(
            q_taken, expected_q[states], rewards, DISCOUNTS, ratios, STEP_TYPE, lambda_
        ).returns[0]

    returns = jax.vmap(first_return)(PATH_STATES, PATH_ACTIONS, rho)
    sums = jnp.zeros((STATES, ACTIONS)).at[PATH_STATES[:, 0], PATH_ACTIONS[:, 0]]
    return sums.add(probability * returns) / problem.behaviour


@jax.jit
def apply_vtrace(problem: Problem, v: jax.Array, lambda_: float) -> jax.Array:
    """v(s) ← E_{π_b}[v*_0 | s_0 = s], [S]."""
    problem = jax.tree.map(jnp.asarray, problem)
    probability, rho = path_probabilities(problem)

    def first_value(states, actions, ratios):
        rewards = problem.reward[states[:-1], actions, states[1:]]
        return vtrace(v[states], rewards, DISCOUNTS, ratios, STEP_TYPE, lambda_).values[0]

    values = jax.vmap(first_value)(PATH_STATES, PATH_ACTIONS, rho)
    return jnp.zeros(STATES).at[PATH_STATES[:, 0]].add(probability * values)


@quick
@given(seeds, st.sampled_from(LAMBDAS))
def test_retrace_leaves_the_true_action_values_alone(seed: int, lambda_: float) -> None:
    problem = random_problem(seed)
    q, _ = evaluate(problem, problem.target)
    assert_allclose(apply_retrace(problem, q.astype(np.float32), lambda_), q, atol=2e-5)


@quick
@given(seeds, st.sampled_from(LAMBDAS))
def test_retrace_contracts_towards_the_true_action_values(seed: int, lambda_: float) -> None:
    # Munos et al. (2016), theorem 1: ‖R q − q_π‖ ≤ γ ‖q − q_π‖ in the largest component.
    problem = random_problem(seed)
    q, _ = evaluate(problem, problem.target)
    guess = q + np.random.default_rng(seed).normal(size=q.shape)
    after = np.asarray(apply_retrace(problem, guess.astype(np.float32), lambda_))
    assert np.abs(after - q).max() <= GAMMA * np.abs(guess - q).max() + 1e-5


@quick
@given(seeds, st.sampled_from(LAMBDAS))
def test_iterating_retrace_off_policy_converges_to_the_true_action_values(
    seed: int, lambda_: float
) -> None:
    problem = random_problem(seed)
    q, _ = evaluate(problem, problem.target)
    guess = np.full((STATES, ACTIONS), 5.0, np.float32)
    for _ in range(70):  # γ^70 < 1e-6
        guess = apply_retrace(problem, guess, lambda_)
    assert_allclose(guess, q, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_full_traces_on_policy_look_further_than_one_step(seed: int) -> None:
    # On policy with λ = 1 the error of a constant guess shrinks by γ^T, with λ = 0 only by γ.
    problem = random_problem(seed)
    problem = problem._replace(behaviour=problem.target)
    q, _ = evaluate(problem, problem.target)
    guess = (q + 1.0).astype(np.float32)
    far = np.asarray(apply_retrace(problem, guess, 1.0))
    near = np.asarray(apply_retrace(problem, guess, 0.0))
    assert_allclose(far, q + GAMMA**HORIZON, atol=2e-5)
    assert_allclose(near, q + GAMMA, atol=2e-5)


def clipped_policy(problem: Problem) -> np.ndarray:
    """π_ρ̄ ∝ min(π_b, π) for ρ̄ = 1 (Espeholt et al., 2018)."""
    smaller = np.minimum(problem.behaviour, problem.target).astype(float)
    return smaller / smaller.sum(axis=1, keepdims=True)


@quick
@given(seeds, st.sampled_from(LAMBDAS))
def test_iterating_vtrace_converges_to_the_value_of_the_clipped_policy(
    seed: int, lambda_: float
) -> None:
    problem = random_problem(seed)
    _, v = evaluate(problem, clipped_policy(problem))
    assert_allclose(apply_vtrace(problem, v.astype(np.float32), lambda_), v, atol=2e-5)
    guess = np.full(STATES, 5.0, np.float32)
    for _ in range(200):  # clipping slows it down: each step moves only by E ρ̄ ≥ 0.4
        guess = apply_vtrace(problem, guess, lambda_)
    assert_allclose(guess, v, atol=1e-3)


def test_vtrace_off_policy_is_not_the_value_of_the_target_policy() -> None:
    problem = random_problem(0)
    _, clipped = evaluate(problem, clipped_policy(problem))
    _, target = evaluate(problem, problem.target)
    assert np.abs(clipped - target).max() > 0.05


# --- a two-player game ----------------------------------------------------------------------------

# A complete binary tree, three moves deep. Node n has the children 2n + 1 and 2n + 2; the nodes
# 0..6 are positions, 7..14 are finished games. The reward of the last move is its mover's result.
DEPTH, POSITIONS = 3, 7
GAMES = np.array(list(product(range(2), repeat=DEPTH)), np.int32)


def game_positions() -> np.ndarray:
    """The positions of each game, [games, 3]."""
    rows = []
    for moves in GAMES:
        node, row = 0, []
        for move in moves:
            row.append(node)
            node = 2 * node + 1 + move
        rows.append(row)
    return np.array(rows)


def negamax(results: np.ndarray, node: int, policy: np.ndarray | None) -> tuple[float, np.ndarray]:
    """v(node) for its mover and q of all positions; the best play where ``policy`` is None."""
    q = np.zeros((POSITIONS, 2))

    def visit(position: int) -> float:
        for move in range(2):
            child = 2 * position + 1 + move
            finished = child >= POSITIONS
            q[position, move] = results[child - POSITIONS] if finished else -visit(child)
        row = q[position]
        return float(row.max() if policy is None else policy[position] @ row)

    return visit(node), q


@jax.jit
def apply_retrace_to_games(q, policy, behaviour, results, lambda_):
    """q(s, a) ← E_{π_b}[G | s, a] over all games, [positions, 2]; discount −1, and 0 at the end."""
    positions = game_positions()
    rho = policy[positions, GAMES] / behaviour[positions, GAMES]
    expected_q = jnp.append(jnp.sum(policy * q, axis=1), 99.0)  # the end's value must not matter
    discounts = np.array([-1.0, -1.0, 0.0], np.float32)
    step_type = np.array([StepType.FIRST, StepType.MID, StepType.MID, StepType.LAST])

    def returns(nodes, moves, ratios):
        leaf = 2 * nodes[-1] + 1 + moves[-1] - POSITIONS
        rewards = jnp.zeros(DEPTH).at[-1].set(results[leaf])
        values = expected_q[jnp.append(nodes, POSITIONS)]
        return retrace(q[nodes, moves], values, rewards, discounts, ratios, step_type, lambda_)

    g = jax.vmap(returns)(positions, GAMES, rho).returns
    probability = jnp.prod(behaviour[positions, GAMES], axis=1, keepdims=True)
    weights = jnp.broadcast_to(probability, g.shape)
    table = jnp.zeros((POSITIONS, 2))
    total = table.at[positions, GAMES].add(weights * g)
    return total / table.at[positions, GAMES].add(weights)


@quick
@given(seeds, st.sampled_from(LAMBDAS))
def test_retrace_of_a_game_is_negamax_for_the_policy_evaluated(seed: int, lambda_: float) -> None:
    rng = np.random.default_rng(seed)
    results = rng.choice([-1.0, 0.0, 1.0], size=2**DEPTH).astype(np.float32)
    policy = rng.dirichlet(np.ones(2), size=POSITIONS).astype(np.float32)
    behaviour = np.full((POSITIONS, 2), 0.5, np.float32)
    _, expected = negamax(results, 0, policy)
    q = np.zeros((POSITIONS, 2), np.float32)
    for _ in range(DEPTH):  # each pass makes one more layer of the tree exact
        q = apply_retrace_to_games(q, policy, behaviour, results, lambda_)
    assert_allclose(q, expected, atol=1e-5)


@quick
@given(seeds)
def test_retrace_of_the_best_play_gives_the_minimax_value(seed: int) -> None:
    rng = np.random.default_rng(seed)
    results = rng.normal(size=2**DEPTH).astype(np.float32)
    behaviour = np.full((POSITIONS, 2), 0.5, np.float32)
    value, best = negamax(results, 0, None)
    policy = np.eye(2, dtype=np.float32)[best.argmax(axis=1)]
    q = np.zeros((POSITIONS, 2), np.float32)
    for _ in range(DEPTH):
        q = apply_retrace_to_games(q, policy, behaviour, results, 1.0)
    assert_allclose(q, best, atol=1e-5)
    # Minimax, spelt out for three moves: we choose, they choose against us, we choose.
    by_move = results.reshape(2, 2, 2)
    assert_allclose(value, by_move.max(axis=2).min(axis=1).max(), atol=1e-6)
