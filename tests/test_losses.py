"""The K-step model losses: masks, targets and losses by hand and by slow loops over records."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from muesli.config import ModelLossConfig
from muesli.diagnostics import explained_shares
from muesli.distributions import Categorical, DiagonalNormal
from muesli.losses import (
    ModelLosses,
    ModelPredictions,
    action_value_targets,
    model_losses,
    policy_model_losses,
    reward_targets,
    target_frequencies,
    unroll_index,
    unroll_masks,
    value_targets,
)
from muesli.ops.values import Support
from muesli.types import Frequencies, PolicyTarget, StepType, Targets

FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
T, K, A, N = 9, 3, 4, 2
REWARD_SUPPORT, VALUE_SUPPORT = Support(-2.0, 2.0, 5), Support(-3.0, 3.0, 7)

seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=20, deadline=None)


# --- sequences ------------------------------------------------------------------------------------


def random_episodes(rng: np.random.Generator, length: int = T) -> tuple[np.ndarray, np.ndarray]:
    """Step types [T + 1] and discounts [T] of a piece of a stream of short episodes.

    Episodes end by termination (γ = 0) or truncation; the discount of a LAST record is noise.
    """
    step_type = np.full(length + 1, MID, np.int32)
    step_type[0] = rng.choice([FIRST, MID, LAST])
    discounts = rng.choice([0.99, -1.0], size=length)
    for t in range(length):
        if step_type[t] == LAST:
            step_type[t + 1] = FIRST
            discounts[t] = rng.choice([0.0, 1.0])
        elif rng.random() < 0.35:
            step_type[t + 1] = LAST
            discounts[t] *= rng.choice([0.0, 1.0])
    return step_type, discounts.astype(np.float32)


class Case(NamedTuple):
    """The array arguments of ``model_losses``."""

    predictions: ModelPredictions
    targets: Targets
    policy_target: PolicyTarget


def make_targets(step_type: list | np.ndarray, discounts: list | np.ndarray, **fields) -> Targets:
    """Targets of one sequence: rewards 1, 2, …; returns 10, 20, …; values 100, 200, …"""
    length = len(discounts)
    count = np.arange(1.0, length + 2, dtype=np.float32)
    defaults = {
        "returns": 10 * count[:-1],
        "values": 100 * count,
        "values_valid": np.ones(length + 1, bool),
        "rewards": count[:-1],
        "discounts": np.asarray(discounts, np.float32),
        "step_type": np.asarray(step_type, np.int32),
        "policy": None,
        "baseline": np.zeros(length + 1, np.float32),
    }
    return Targets(**(defaults | fields))


def random_case(seed: int, length: int = T, steps: int = K) -> Case:
    rng = np.random.default_rng(seed)
    step_type, discounts = random_episodes(rng, length)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    predictions = ModelPredictions(
        reward_logits=normal(length, steps, REWARD_SUPPORT.num_bins),
        value_logits=normal(length, steps, VALUE_SUPPORT.num_bins),
        policy=Categorical(normal(length, steps, A)),
        root_value_logits=normal(length, VALUE_SUPPORT.num_bins),
    )
    targets = make_targets(
        step_type,
        discounts,
        returns=3 * normal(length),
        values=3 * normal(length + 1),
        values_valid=rng.random(length + 1) < 0.8,
        rewards=normal(length),
    )
    policy_target = PolicyTarget(
        actions=rng.integers(A, size=(length + 1, N)).astype(np.int32),
        weights=rng.random((length + 1, N)).astype(np.float32),
        log_probs=normal(length + 1, N),
    )
    return Case(predictions, targets, policy_target)


# --- the same things, slowly ----------------------------------------------------------------------


def walk(
    step_type: np.ndarray, discounts: np.ndarray, t: int, k: int, absorbing: bool
) -> tuple[bool, bool, bool]:
    """Whether the prediction of k steps after record t counts: outcome, policy, absorbed."""
    if t + k > len(discounts):
        return False, False, False
    ends = [i for i in range(t, t + k) if step_type[i] == LAST]
    if not ends:
        return True, bool(step_type[t + k] != LAST), False
    terminated = ends[0] > t and discounts[ends[0] - 1] == 0.0
    absorbed = absorbing and terminated
    return absorbed, False, absorbed


def slow_cross_entropy(logits: np.ndarray, x: float, support: Support) -> float:
    """−Σ two-hot(h(x)) log softmax(logits), bin by bin."""
    squeezed = np.sign(x) * (np.sqrt(abs(x) + 1.0) - 1.0) + 1e-3 * x
    position = np.clip(squeezed, support.minimum, support.maximum) - support.minimum  # bins of 1
    lower = min(int(position), support.num_bins - 2)
    share = position - lower
    log_probs = slow_log_softmax(logits)
    return -((1.0 - share) * log_probs[lower] + share * log_probs[lower + 1])


def slow_log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return logits - np.log(np.sum(np.exp(logits)))


def slow_model_losses(case: Case, config: ModelLossConfig) -> ModelLosses:
    predictions, targets, policy_target = case
    length, steps = predictions.reward_logits.shape[:2]
    reward, value, policy = np.zeros(length), np.zeros(length), np.zeros(length)
    each = np.zeros((3, length, steps))
    counts = np.zeros((2, length, steps), bool)
    for t in range(length):
        reward_terms, value_terms = [], []
        for k in range(1, steps + 1):
            outcome, has_policy, absorbed = walk(
                targets.step_type, targets.discounts, t, k, config.absorbing
            )
            counts[:, t, k - 1] = outcome, has_policy
            value_logits = predictions.value_logits[t, k - 1]
            if outcome and config.q_model == "direct":
                target = 0.0 if absorbed else targets.returns[t + k - 1]
                each[1, t, k - 1] = slow_cross_entropy(value_logits, target, VALUE_SUPPORT)
                value_terms.append(each[1, t, k - 1])
            elif outcome:
                target = 0.0 if absorbed else targets.rewards[t + k - 1]
                logits = predictions.reward_logits[t, k - 1]
                each[0, t, k - 1] = slow_cross_entropy(logits, target, REWARD_SUPPORT)
                reward_terms.append(each[0, t, k - 1])
                ended = absorbed or targets.discounts[t + k - 1] == 0.0
                if ended or targets.values_valid[t + k]:
                    target = 0.0 if ended else targets.values[t + k]
                    each[1, t, k - 1] = slow_cross_entropy(value_logits, target, VALUE_SUPPORT)
                    value_terms.append(each[1, t, k - 1])
            if has_policy:
                log_pi = slow_log_softmax(predictions.policy.logits[t, k - 1])
                for n in range(N):
                    log_ratio = (
                        policy_target.log_probs[t + k, n] - log_pi[policy_target.actions[t + k, n]]
                    )
                    each[2, t, k - 1] += policy_target.weights[t + k, n] * log_ratio
                policy[t] += each[2, t, k - 1] / steps
        root = slow_cross_entropy(
            predictions.root_value_logits[t], targets.values[t], VALUE_SUPPORT
        )
        root_terms = [root] if targets.values_valid[t] else []
        mean = lambda terms, all_of_them: (
            np.sum(terms) / (max(1, len(terms)) if config.average_over == "valid" else all_of_them)
        )
        reward[t] = mean(reward_terms, steps)
        if config.root_value_in_mean:
            value[t] = mean(root_terms + value_terms, steps + 1)
        else:
            value[t] = np.sum(root_terms) + mean(value_terms, steps)
    return ModelLosses(reward, value, policy, *each, *counts)


def run(case: Case, config: ModelLossConfig) -> ModelLosses:
    return model_losses(*case, config, REWARD_SUPPORT, VALUE_SUPPORT)


jit_run = jax.jit(run, static_argnums=1)
jit_masks = jax.jit(unroll_masks, static_argnums=(2, 3))

DEFAULT = ModelLossConfig(unroll_steps=K)
CONFIGS = [
    ModelLossConfig(unroll_steps=K, q_model=q_model, root_value_in_mean=in_mean, absorbing=absorb)
    for q_model, in_mean, absorb in itertools.product(
        ["reward_value", "direct"], [True, False], [True, False]
    )
] + [
    ModelLossConfig(unroll_steps=K, average_over="all", root_value_in_mean=r) for r in (True, False)
]


# --- masks ----------------------------------------------------------------------------------------

# Two episodes: a termination between the records 1 and 2, a truncation between 4 and 5.
#   record        0      1    2            3      4    5 (bootstrap)
#   step type     FIRST  MID  LAST (term)  FIRST  MID  LAST (trunc)
TWO_EPISODES = make_targets([FIRST, MID, LAST, FIRST, MID, LAST], [0.9, 0.0, 1.0, 0.9, 0.9])


def two_episode_masks(absorbing: bool):
    return jit_masks(TWO_EPISODES.step_type, TWO_EPISODES.discounts, 3, absorbing)


def test_outcomes_count_up_to_and_including_the_step_that_ends_the_episode() -> None:
    masks = two_episode_masks(absorbing=False)
    expected = [
        [1, 1, 0],  # 0 → 1 → 2 (the end) ↛
        [1, 0, 0],  # 1 → 2 (the end) ↛
        [0, 0, 0],  # a LAST record predicts nothing
        [1, 1, 0],  # 3 → 4 → 5 (truncated) ↛ and the sequence ends, too
        [1, 0, 0],  # 4 → 5
    ]
    assert_array_equal(masks.outcome, np.array(expected, bool))
    assert not masks.absorbed.any()


def test_policies_count_only_where_an_action_was_taken() -> None:
    masks = two_episode_masks(absorbing=False)
    expected = [
        [1, 0, 0],  # at record 1; record 2 is LAST
        [0, 0, 0],
        [0, 0, 0],
        [1, 0, 0],  # at record 4; record 5 is LAST
        [0, 0, 0],
    ]
    assert_array_equal(masks.policy, np.array(expected, bool))


def test_absorbing_adds_the_steps_after_a_termination_not_after_a_truncation() -> None:
    masks = two_episode_masks(absorbing=True)
    added = [
        [0, 0, 1],  # record 2 + 1 step
        [0, 1, 1],
        [0, 0, 0],
        [0, 0, 0],  # truncated: what comes after is unknown
        [0, 0, 0],
    ]
    plain = two_episode_masks(absorbing=False)
    assert_array_equal(masks.absorbed, np.array(added, bool))
    assert_array_equal(masks.outcome, plain.outcome | np.array(added, bool))
    assert_array_equal(masks.policy, plain.policy)


def test_a_truncated_episode_is_not_absorbing_inside_a_sequence() -> None:
    step_type, discounts = np.array([MID, LAST, FIRST, MID]), np.array([0.9, 0.0, 0.9], np.float32)
    masks = jit_masks(step_type, discounts, 2, True)
    # The 0 at record 1 is what a LAST record says of an action that was never taken.
    assert_array_equal(masks.outcome, [[1, 0], [0, 0], [1, 0]])
    assert not masks.absorbed.any()


def test_predictions_beyond_the_sequence_do_not_count() -> None:
    masks = jit_masks(np.full(3, MID), np.full(2, 0.9, np.float32), 5, False)
    expected = np.array([[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]], bool)
    assert_array_equal(masks.outcome, expected)
    # The bootstrap record T has a policy target of its own.
    assert_array_equal(masks.policy, expected)


def test_unroll_index_stops_at_the_bootstrap_record() -> None:
    assert_array_equal(unroll_index(3, 2), [[1, 2], [2, 3], [3, 3]])


@quick
@given(seeds, st.booleans(), st.sampled_from([(9, 3), (2, 5)]))
def test_masks_equal_a_walk_along_the_records(
    seed: int, absorbing: bool, shape: tuple[int, int]
) -> None:
    length, steps = shape
    step_type, discounts = random_episodes(np.random.default_rng(seed), length)
    masks = jit_masks(step_type, discounts, steps, absorbing)
    for t in range(length):
        for k in range(1, steps + 1):
            got = tuple(bool(mask[t, k - 1]) for mask in masks)
            assert got == walk(step_type, discounts, t, k, absorbing), (t, k)


# --- targets --------------------------------------------------------------------------------------


def test_reward_targets_by_hand() -> None:
    # r_{t+1} of the records is 1, 2, 3, 4, 5; r̂_k of record t is trained towards r_{t+k}.
    for absorbing, after in ((False, None), (True, 0.0)):
        masks = two_episode_masks(absorbing)
        targets = np.asarray(reward_targets(jnp.asarray(TWO_EPISODES.rewards), masks))
        assert_array_equal(targets[0], [1, 2, 3 if after is None else after])
        assert targets[1, 0] == 2  # the reward that came with the end
        assert_array_equal(targets[3, :2], [4, 5])
        assert targets[4, 0] == 5


def test_value_targets_by_hand() -> None:
    # v* of the records is 100, 200, …, 600; v̂_k of record t is trained towards v*_{t+k}.
    values, valid = value_targets(TWO_EPISODES, two_episode_masks(absorbing=False))
    expected_valid = [[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0], [1, 0, 0]]
    assert_array_equal(valid, np.array(expected_valid, bool))
    assert_array_equal(values[0, :2], [200, 0])  # 0 right after the termination
    assert values[1, 0] == 0
    assert_array_equal(values[3, :2], [500, 600])  # a truncated episode's last state has its value
    assert values[4, 0] == 600

    values, valid = value_targets(TWO_EPISODES, two_episode_masks(absorbing=True))
    assert valid[0, 2] and valid[1, 1] and valid[1, 2]
    assert_array_equal([values[0, 2], values[1, 1], values[1, 2]], [0, 0, 0])


def test_where_no_value_target_exists_only_terminations_have_one() -> None:
    # As with raw returns for targets: neither LAST record has a return of its own.
    targets = TWO_EPISODES._replace(values_valid=np.array([1, 1, 0, 1, 1, 0], bool))
    values, valid = value_targets(targets, two_episode_masks(absorbing=False))
    expected_valid = [
        [1, 1, 0],  # record 2 by termination, at 0
        [1, 0, 0],
        [0, 0, 0],
        [1, 0, 0],  # record 5 was cut off: no target
        [0, 0, 0],
    ]
    assert_array_equal(valid, np.array(expected_valid, bool))
    assert values[0, 1] == values[1, 0] == 0


def test_action_value_targets_by_hand() -> None:
    # G of the records is 10, 20, …, 50. After k actions the model answers with q of the last one,
    # whose return is G_{t+k−1}.
    returns = jnp.asarray(TWO_EPISODES.returns)
    targets = action_value_targets(returns, two_episode_masks(absorbing=True))
    assert_array_equal(targets[0], [10, 20, 0])
    assert_array_equal(targets[1], [20, 0, 0])
    assert_array_equal(targets[3, :2], [40, 50])
    assert targets[4, 0] == 50
    plain = action_value_targets(returns, two_episode_masks(absorbing=False))
    assert_array_equal(plain[0, :2], [10, 20])


# --- the policy model -----------------------------------------------------------------------------


def test_policy_model_loss_is_the_kl_to_the_target_of_the_state_reached() -> None:
    # One record, one step: the target at record 1 is (3/4, 1/4), the prediction is uniform.
    #   KL = 3/4 log(3/2) + 1/4 log(1/2) = 0.130812…; record 0's own target must not be read.
    target = PolicyTarget(
        actions=np.array([[0, 1], [0, 1]]),
        weights=np.array([[0.0, 1.0], [0.75, 0.25]], np.float32),
        log_probs=np.log(np.array([[1e-9, 1.0], [0.75, 0.25]], np.float32)),
    )
    losses = policy_model_losses(Categorical(jnp.zeros((1, 1, 2))), target)
    assert_allclose(losses, [[0.75 * np.log(1.5) + 0.25 * np.log(0.5)]], rtol=1e-6)


def test_policy_model_loss_of_a_continuous_policy() -> None:
    rng = np.random.default_rng(0)
    length, steps, samples, dims = 4, 2, 3, 2
    loc = rng.normal(size=(length, steps, dims)).astype(np.float32)
    log_scale = 0.1 * rng.normal(size=(length, steps, dims)).astype(np.float32)
    target = PolicyTarget(
        actions=rng.normal(size=(length + 1, samples, dims)).astype(np.float32),
        weights=rng.random((length + 1, samples)).astype(np.float32),
        log_probs=rng.normal(size=(length + 1, samples)).astype(np.float32),
    )
    losses = policy_model_losses(DiagonalNormal(jnp.asarray(loc), jnp.asarray(log_scale)), target)
    for t in range(length):
        for k in range(1, steps + 1):
            if t + k > length:
                continue
            expected = 0.0
            for n in range(samples):
                standard = (target.actions[t + k, n] - loc[t, k - 1]) / np.exp(log_scale[t, k - 1])
                log_pi = -np.sum(0.5 * standard**2 + log_scale[t, k - 1] + 0.5 * np.log(2 * np.pi))
                expected += target.weights[t + k, n] * (target.log_probs[t + k, n] - log_pi)
            assert_allclose(losses[t, k - 1], expected, rtol=1e-4)


def test_policy_loss_divides_by_k_and_not_by_the_steps_that_count() -> None:
    # One trained record with K = 5: a single term counts, and it counts a fifth.
    case = random_case(0, length=1, steps=5)
    targets = case.targets._replace(step_type=np.array([MID, MID], np.int32))
    losses = jit_run(case._replace(targets=targets), ModelLossConfig(unroll_steps=5))
    assert losses.policy_steps[0, 0] != 0.0
    assert_array_equal(losses.policy_steps[0, 1:], np.zeros(4))
    assert_allclose(losses.policy[0], losses.policy_steps[0, 0] / 5, rtol=1e-6)


@pytest.mark.parametrize("off", ["no target", "switched off"])
def test_without_a_policy_target_the_policy_loss_is_zero(off: str) -> None:
    case, config = random_case(1), DEFAULT
    if off == "no target":
        case = case._replace(policy_target=None)
    else:
        config = ModelLossConfig(unroll_steps=K, policy_model=False)
    losses, full = jit_run(case, config), jit_run(random_case(1), DEFAULT)
    assert_array_equal(losses.policy, np.zeros(T))
    assert_array_equal(losses.policy_steps, np.zeros((T, K)))
    assert np.any(full.policy != 0.0)
    assert_allclose(losses.value, full.value, rtol=1e-6)
    assert_allclose(losses.reward, full.reward, rtol=1e-6)


# --- all losses together --------------------------------------------------------------------------


def test_losses_by_hand() -> None:
    # One bin at each of h = −1, 0, 1 and uniform logits: every cross-entropy is log 3, whatever the
    # target. Two ordinary records, K = 2: record 0 sees both steps, record 1 only the first.
    support = Support(-1.0, 1.0, 3)
    predictions = ModelPredictions(
        reward_logits=jnp.zeros((2, 2, 3)),
        value_logits=jnp.zeros((2, 2, 3)).at[0, 1, 1].set(jnp.log(4.0)),
        policy=Categorical(jnp.zeros((2, 2, 2))),
        root_value_logits=jnp.zeros((2, 3)).at[:, 2].set(jnp.log(2.0)),
    )
    targets = make_targets([MID] * 3, [1.0, 1.0], values=np.zeros(3, np.float32))
    policy_target = PolicyTarget(
        actions=np.array([[0], [0], [0]]),
        weights=np.ones((3, 1), np.float32),
        log_probs=np.zeros((3, 1), np.float32),
    )
    # Values: every target is 0, the middle bin. The root's logits give it 1/4: a loss of log 4.
    # v̂_1 gives it 1/3: log 3. v̂_2 of record 0 gives it 4/6: log 3/2.
    # Policies: the target is action 0 for sure, the predictions say 1/2: log 2 a step, over K = 2.
    config = ModelLossConfig(unroll_steps=2)
    compiled = jax.jit(model_losses, static_argnums=(3, 4, 5))
    losses = compiled(predictions, targets, policy_target, config, support, support)
    assert_allclose(losses.reward, [np.log(3), np.log(3)], rtol=1e-6)
    mean_0 = (np.log(4) + np.log(3) + np.log(1.5)) / 3
    assert_allclose(losses.value, [mean_0, (np.log(4) + np.log(3)) / 2], rtol=1e-6)
    assert_allclose(losses.policy, [np.log(2), np.log(2) / 2], rtol=1e-6)

    apart = ModelLossConfig(unroll_steps=2, root_value_in_mean=False)
    losses = compiled(predictions, targets, policy_target, apart, support, support)
    sum_0 = np.log(4) + (np.log(3) + np.log(1.5)) / 2
    assert_allclose(losses.value, [sum_0, np.log(4) + np.log(3)], rtol=1e-6)

    # Over all steps: K = 2 for rewards, K + 1 = 3 for values, however many count.
    over_all = ModelLossConfig(unroll_steps=2, average_over="all")
    losses = compiled(predictions, targets, policy_target, over_all, support, support)
    assert_allclose(losses.reward, [np.log(3), np.log(3) / 2], rtol=1e-6)
    assert_allclose(losses.value, [mean_0, (np.log(4) + np.log(3)) / 3], rtol=1e-6)


@pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: f"{c.q_model}-{c.root_value_in_mean}-{c.absorbing}"
)
@settings(max_examples=12, deadline=None)
@given(seeds)
def test_losses_equal_a_slow_loop(config: ModelLossConfig, seed: int) -> None:
    case = random_case(seed)
    losses, slow = jit_run(case, config), slow_model_losses(case, config)
    for name, got, expected in zip(ModelLosses._fields, losses, slow, strict=True):
        assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_averaged_over_all_steps_a_prediction_weighs_the_same_wherever_its_episode_ends() -> None:
    # The reward right after record 0 has the weight 1/K whether the episode goes on or ends there.
    logits = np.random.default_rng(0).normal(size=(T, K, REWARD_SUPPORT.num_bins)).astype("f4")
    case = random_case(5)
    case = case._replace(predictions=case.predictions._replace(reward_logits=logits))
    weights = []
    for second in (MID, LAST):
        step_type = np.full(T + 1, MID, np.int32)
        step_type[1] = second
        targets = case.targets._replace(step_type=step_type)
        gradient = jax.grad(
            lambda x, targets=targets: jit_run(
                Case(case.predictions._replace(reward_logits=x), targets, case.policy_target),
                ModelLossConfig(unroll_steps=K, average_over="all"),
            ).reward[0]
        )(logits)
        weights.append(gradient[0, 0])
    assert_allclose(weights[0], weights[1], rtol=1e-6)
    assert np.abs(weights[0]).max() > 0.0


@quick
@given(seed=seeds)
def test_frequencies_equal_a_count_over_the_records_that_are_trained(seed: int) -> None:
    cases = [random_case(seed), random_case(seed + 1)]
    targets = jax.tree.map(lambda *x: np.stack(x), *(case.targets for case in cases))
    trained = targets.step_type[:, :-1] != LAST
    wanted = {"reward": [], "value": [], "next_value": []}
    for b, t in zip(*np.nonzero(trained), strict=True):
        # After a termination there is a value, and it is 0.
        ended = targets.discounts[b, t] == 0.0
        following = 0.0 if ended else targets.values[b, t + 1]
        known = ended or targets.values_valid[b, t + 1]
        # −log of a bin's share is what a prediction of that bin alone would cost.
        for name, x, support, counts in (
            ("reward", targets.rewards[b, t], REWARD_SUPPORT, True),
            ("value", targets.values[b, t], VALUE_SUPPORT, targets.values_valid[b, t]),
            ("next_value", following, VALUE_SUPPORT, known),
        ):
            if counts:
                one_hot = np.eye(support.num_bins) * 50.0
                costs = [slow_cross_entropy(one_hot[i], x, support) for i in range(len(one_hot))]
                wanted[name].append(1.0 - np.array(costs) / 50.0)
    got = target_frequencies(targets, jnp.asarray(trained), REWARD_SUPPORT, VALUE_SUPPORT)
    for name, shares in wanted.items():
        support = REWARD_SUPPORT if name == "reward" else VALUE_SUPPORT
        mean = np.mean(shares, axis=0) if shares else np.zeros(support.num_bins)
        assert_allclose(getattr(got, name), mean, atol=1e-5)
        entropies = [-np.sum(p * np.log(np.maximum(p, 1e-12))) for p in np.clip(shares, 0, 1)]
        floors = {"reward": got.reward_floor, "next_value": got.value_floor}
        if name in floors:
            assert_allclose(floors[name], np.mean(entropies) if shares else 0.0, atol=1e-4)


def test_explained_shares_run_from_knowing_frequencies_to_knowing_each_target() -> None:
    # Rewards 0 and h⁻¹(1.5), as often: two bins hold a quarter each, and log 2 is left to each.
    reward = np.array([0.0, 0.0, 0.5, 0.25, 0.25])
    floor = 0.5 * np.log(2.0)
    value = np.full(7, 1 / 7)
    frequencies = Frequencies(reward, np.zeros(7), value, floor, 0.0)
    nothing = 0.5 * np.log(2.0) + 0.5 * np.log(4.0)
    for loss, share in ((nothing, 0.0), (floor, 1.0), (0.5 * (nothing + floor), 0.5)):
        metrics = {"loss_reward_step_1": loss, "loss_value_step_1": np.log(7.0)}
        shares = explained_shares(metrics, frequencies)
        assert_allclose(shares["reward_explained"], share, atol=1e-6)
        assert_allclose(shares["value_explained"], 0.0, atol=1e-6)


def test_a_direct_model_has_no_reward_loss() -> None:
    config = ModelLossConfig(unroll_steps=K, q_model="direct")
    losses = jit_run(random_case(2), config)
    assert_array_equal(losses.reward, np.zeros(T))
    assert np.any(losses.value != 0.0)


@pytest.mark.parametrize("config", [CONFIGS[1], CONFIGS[0], CONFIGS[5]], ids=str)
@settings(max_examples=10, deadline=None)
@given(seeds)
def test_gradients_reach_the_predictions_that_count_and_no_others(
    config: ModelLossConfig, seed: int
) -> None:
    case = random_case(seed)
    gradients = predictions_gradient(case, config)
    masks = jit_masks(case.targets.step_type, case.targets.discounts, K, config.absorbing)
    _, value_valid = value_targets(case.targets, masks)
    direct = config.q_model == "direct"
    expected = {
        "reward_logits": np.zeros((T, K), bool) if direct else masks.outcome,
        "value_logits": masks.outcome if direct else value_valid,
        "policy": masks.policy,
        "root_value_logits": case.targets.values_valid[:-1],
    }
    for name, mask in expected.items():
        (gradient,) = jax.tree.leaves(getattr(gradients, name))
        assert_array_equal(np.any(gradient != 0.0, axis=-1), mask, err_msg=name)


def _total(predictions: ModelPredictions, case: Case, config: ModelLossConfig) -> jax.Array:
    losses = run(case._replace(predictions=predictions), config)
    return jnp.sum(losses.reward + losses.value + losses.policy)


predictions_gradient = jax.jit(
    lambda case, config: jax.grad(_total)(case.predictions, case, config), static_argnums=1
)


def test_vmap_equals_a_loop() -> None:
    cases = [random_case(seed) for seed in range(3)]
    batch = jax.tree.map(lambda *x: np.stack(x), *cases)
    together = jax.vmap(lambda case: jit_run(case, DEFAULT))(batch)
    for i, case in enumerate(cases):
        for got, expected in zip(together, jit_run(case, DEFAULT), strict=True):
            assert_allclose(got[i], expected, rtol=1e-5, atol=1e-6)


def test_bfloat16_predictions_give_float32_losses_close_to_exact_ones() -> None:
    case = random_case(3)
    low = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), case.predictions)
    for got, exact in zip(
        jit_run(case._replace(predictions=low), DEFAULT), jit_run(case, DEFAULT), strict=True
    ):
        assert got.dtype == exact.dtype
        assert_allclose(got, exact, atol=0.05)


@pytest.mark.parametrize(
    ("field", "loss"), [("rewards", "reward"), ("values", "value"), ("log_probs", "policy")]
)
def test_a_target_that_is_nan_shows_in_its_loss(field: str, loss: str) -> None:
    ordinary = {"step_type": np.full(T + 1, MID, np.int32), "values_valid": np.ones(T + 1, bool)}
    case = random_case(4)
    case = case._replace(targets=case.targets._replace(discounts=np.ones(T, "f4"), **ordinary))
    holder = "policy_target" if field == "log_probs" else "targets"
    poisoned = np.array(getattr(getattr(case, holder), field))
    poisoned[5] = np.nan
    case = case._replace(**{holder: getattr(case, holder)._replace(**{field: poisoned})})
    losses = jit_run(case, DEFAULT)
    # Record 5 of the targets is looked at by the records K back; rewards[5] also by record 5.
    assert np.isnan(getattr(losses, loss)[3:5]).all()
    assert np.isfinite(getattr(losses, loss)[:2]).all()
    assert np.isfinite(getattr(losses, loss)[6:]).all()


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field", ["returns", "values", "values_valid", "discounts", "step_type", "rewards"]
)
def test_a_wrong_length_raises_and_names_the_field(field: str) -> None:
    case = random_case(5)
    targets = case.targets._replace(**{field: getattr(case.targets, field)[:-1]})
    # The other fields are measured against the rewards, so a short one makes its neighbour wrong.
    blamed = "returns" if field == "rewards" else field
    with pytest.raises(ValueError, match=f"{blamed} must have shape"):
        jax.eval_shape(lambda: run(case._replace(targets=targets), DEFAULT))


@pytest.mark.parametrize("field", ["rewards", "returns", "values", "discounts"])
def test_integer_targets_raise_and_name_the_field(field: str) -> None:
    case = random_case(5)
    integers = getattr(case.targets, field).astype(np.int32)
    targets = case.targets._replace(**{field: integers})
    with pytest.raises(TypeError, match=f"model_losses: {field} must be a floating"):
        jax.eval_shape(lambda: run(case._replace(targets=targets), DEFAULT))


@pytest.mark.parametrize("field", ["reward_logits", "value_logits", "root_value_logits"])
def test_logits_of_another_support_raise(field: str) -> None:
    case = random_case(5)
    logits = getattr(case.predictions, field)[..., :-1]
    predictions = case.predictions._replace(**{field: logits})
    with pytest.raises(ValueError, match="logits must have shape"):
        jax.eval_shape(lambda: run(case._replace(predictions=predictions), DEFAULT))


def test_a_policy_unrolled_for_another_number_of_steps_raises() -> None:
    case = random_case(5)
    one_step = Categorical(case.predictions.policy.logits[:, :1])
    predictions = case.predictions._replace(policy=one_step)
    with pytest.raises(ValueError, match="predictions.policy must have shape"):
        jax.eval_shape(lambda: run(case._replace(predictions=predictions), DEFAULT))


def test_a_policy_target_without_the_bootstrap_record_raises() -> None:
    case = random_case(5)
    short = jax.tree.map(lambda x: x[:-1], case.policy_target)
    with pytest.raises(ValueError, match=rf"target must have shape \[{T + 1}, any\]"):
        jax.eval_shape(lambda: run(case._replace(policy_target=short), DEFAULT))
