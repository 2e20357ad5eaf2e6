"""Claims about π_CMPO: its largest total variation (the theorem), and the natural gradient."""

import importlib.util
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muesli.distributions import Categorical
from muesli.ops.targets import (
    cmpo_policy,
    max_total_variation,
    threshold_for_total_variation,
    total_variation,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "cmpo_bound.py"
spec = importlib.util.spec_from_file_location("cmpo_bound", EXAMPLE)
cmpo_bound = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cmpo_bound)

THRESHOLDS = np.array(cmpo_bound.THRESHOLDS)


def bound_by_hand(c):
    """(e^c − 1)/(e^c + 1), the closing line of the proof."""
    return (np.exp(c) - 1) / (np.exp(c) + 1)


def test_at_the_papers_threshold_the_bound_is_0_46212():
    np.testing.assert_allclose(max_total_variation(1.0), 0.46212, atol=5e-6)
    np.testing.assert_allclose(
        max_total_variation(THRESHOLDS), bound_by_hand(THRESHOLDS), rtol=1e-5
    )


@pytest.mark.parametrize("num_actions", cmpo_bound.NUM_ACTIONS)
def test_gradient_ascent_reaches_the_bound_and_never_exceeds_it(num_actions):
    keys = jax.random.split(jax.random.key(num_actions), len(THRESHOLDS))
    climb = jax.vmap(cmpo_bound.ascend, in_axes=(0, 0, None, None))
    distances = np.asarray(climb(keys, jnp.asarray(THRESHOLDS), num_actions, 3000))
    bounds = bound_by_hand(THRESHOLDS)
    assert (distances[:, 0] < 0.5 * bounds).all()  # the climb began far below
    np.testing.assert_allclose(distances[:, -1], bounds, atol=1e-4)
    assert (distances <= bounds[:, None] + 1e-6).all()


distance = jax.jit(cmpo_bound.distance)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-20, 20), min_size=6, max_size=6),
    st.lists(st.floats(-100, 100), min_size=6, max_size=6),
    st.floats(0.01, 8.0),
)
def test_no_prior_and_no_advantages_exceed_the_bound(logits, advantages, threshold):
    found = distance(np.float32(logits), np.float32(advantages), np.float32(threshold))
    assert 0.0 <= found <= bound_by_hand(threshold) + 1e-6


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("num_actions", [2, 5])
def test_the_bound_is_attained_at_the_proofs_p_star(threshold, num_actions):
    # p* = (1 − e^−c)/(e^c − e^−c) is the prior mass of the actions whose advantage is +c (here the
    # first, and with more actions the second too); the others have −c.
    p_star = (1 - np.exp(-threshold)) / (np.exp(threshold) - np.exp(-threshold))

    def attained(p):
        ups = max(1, num_actions // 2)
        prior = np.concatenate([np.full(ups, p / ups), np.full(num_actions - ups, (1 - p))])
        prior[ups:] /= num_actions - ups
        advantages = np.where(np.arange(num_actions) < ups, 1e3, -1e3)
        return float(distance(np.float32(np.log(prior)), np.float32(advantages), threshold))

    np.testing.assert_allclose(attained(p_star), bound_by_hand(threshold), atol=1e-6)
    # The distance is concave in p, so a step to either side is lower.
    step = 0.2 * min(p_star, 1 - p_star)
    assert max(attained(p_star - step), attained(p_star + step)) < attained(p_star) - 1e-4


def test_without_clipping_there_is_no_such_bound():
    # All advantage on an action of prior probability 1e-3: π moves there altogether.
    prior = Categorical(jnp.log(jnp.array([0.999, 0.001])))
    target = cmpo_policy(prior, jnp.array([-30.0, 30.0]), None)
    assert total_variation(target, prior) > 0.998


@pytest.mark.parametrize("distance_wanted", [0.01, 0.1, 0.46212, 0.9, 0.99])
def test_two_artanh_inverts_the_bound(distance_wanted):
    threshold = threshold_for_total_variation(distance_wanted)
    # artanh ε = ½ log((1 + ε)/(1 − ε)), so c = log((1 + ε)/(1 − ε)).
    by_hand = np.log((1 + distance_wanted) / (1 - distance_wanted))
    np.testing.assert_allclose(threshold, by_hand, rtol=1e-5)
    np.testing.assert_allclose(max_total_variation(threshold), distance_wanted, rtol=1e-5)


# --- the natural gradient -------------------------------------------------------------------------


def natural_gradient(logits, action_values):
    """F⁺ ∇ E_π q with respect to the logits, by automatic differentiation and a pseudo-inverse.

    The Fisher matrix F = Σ_a π(a) ∇log π(a) ∇log π(a)ᵀ is singular: adding a constant to all logits
    changes nothing.
    """
    gradient, scores, probs = (np.asarray(x, np.float64) for x in parts(logits, action_values))
    fisher = np.einsum("a,ai,aj->ij", probs, scores, scores)
    return np.linalg.pinv(fisher, rcond=1e-6) @ gradient


@jax.jit
def parts(logits, action_values):
    """∇ E_π q, ∇ log π(a) for every a, and π."""
    gradient = jax.grad(lambda x: jnp.sum(jax.nn.softmax(x) * action_values))(logits)
    return gradient, jax.jacobian(jax.nn.log_softmax)(logits), jax.nn.softmax(logits)


@pytest.mark.parametrize("threshold", [0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_cmpo_is_the_clipped_natural_gradient_step_on_the_logits(seed, threshold):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=5).astype(np.float32)
    action_values = (1.0 + 2.0 * rng.normal(size=5)).astype(np.float32)
    prior = np.exp(logits) / np.exp(logits).sum()

    # The free constant is fixed as for advantages: none on average under the prior.
    step = natural_gradient(logits, action_values)
    step = step - prior @ step
    advantages = action_values - prior @ action_values
    np.testing.assert_allclose(step, advantages, atol=1e-4)

    assert (np.abs(step) > threshold).any()  # so that the clip matters
    stepped = logits + np.clip(step, -threshold, threshold)
    target = cmpo_policy(Categorical(jnp.asarray(logits)), jnp.asarray(advantages), threshold)
    np.testing.assert_allclose(target.probs(), np.exp(stepped) / np.exp(stepped).sum(), atol=1e-5)


# --- the example ----------------------------------------------------------------------------------


def test_the_example_draws_the_figure(tmp_path, capsys):
    output = tmp_path / "bound.png"
    cmpo_bound.main(["-o", str(output), "--steps", "3000"])  # as above: nothing is compiled anew
    assert output.read_bytes().startswith(b"\x89PNG\r\n")
    printed = capsys.readouterr().out
    assert re.search(r"1\.00 +0\.462117 +0\.4621\d+ +0\.4621\d+ +0\.4621\d+\n", printed)
    assert f"wrote {output}" in printed
