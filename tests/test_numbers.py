"""One program for a whole sweep: as separate runs, to rounding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_anakin import tiny

from muesli import replay as ring
from muesli.config import ConfigError
from muesli.fields import leaves, set_field
from muesli.presets import with_update
from muesli.runners.anakin import make_anakin
from muesli.runners.engines.anakin import over_runs
from muesli.runners.numbers import TRACEABLE, families, varying, with_numbers
from muesli.runners.parts import build
from muesli.runners.train import train_many

replace = dataclasses.replace


def test_what_can_be_traced_is_a_number():
    values = dict(leaves(tiny()))
    assert set(TRACEABLE) <= set(values)
    assert all(isinstance(values[name], float) for name in TRACEABLE)


def test_families_share_everything_but_seeds_and_numbers():
    base = tiny()
    configs = [
        base,
        replace(base, seed=1),
        set_field(base, "optimiser.learning_rate", 0.1),
        set_field(base, "update.clip_threshold", None),  # no number: another program
        set_field(base, "model.unroll_steps", 1),
        set_field(base, "update.clip_threshold", 3.0),
    ]
    assert families(configs) == [[0, 1, 2, 5], [3], [4]]
    numbers = varying([configs[0], configs[2], configs[5]])
    assert set(numbers) == {"optimiser.learning_rate", "update.clip_threshold"}
    np.testing.assert_allclose(numbers["update.clip_threshold"], [1.0, 1.0, 3.0])


@pytest.mark.parametrize("name", ["muesli", "mpo", "ppo", "direct_mpo", "trpo_penalty"])
def test_every_number_of_every_update_can_be_traced(name):
    """Nothing branches on a number: the whole iteration traces with all of them unknown."""
    parts = build(with_update(tiny(), name))
    state = jax.eval_shape(make_anakin(parts).init, jax.random.key(0))
    unknown = {field: jax.ShapeDtypeStruct((), jnp.float32) for field in TRACEABLE}
    jax.eval_shape(lambda n, s: make_anakin(with_numbers(parts, n)).iterate(s, 1), unknown, state)


@pytest.fixture(scope="module")
def swept():
    # A large epsilon, so that Adam's first step is no mere sign of a tiny gradient.
    base = set_field(tiny(), "optimiser.adam_epsilon", 1e-3)
    # Heads that are told to expect 0 and see nothing else, or start near zero, would hardly move.
    base = set_field(base, "network.value_head_prior_rate", 0.0)
    base = set_field(base, "network.value_head_scale", 1.0)
    other = set_field(base, "optimiser.learning_rate", 0.02)
    return [base, replace(set_field(other, "update.advantage_scale", 30.0), seed=7)]


def test_an_update_with_traced_numbers_is_the_update_with_plain_ones(swept):
    """Side by side, as on a GPU."""
    parts = build(swept[0])
    anakin = make_anakin(parts)
    state, warm_up = jax.jit(anakin.init)(jax.random.key(0)), jax.jit(anakin.warm_up)
    for _ in range(2):
        state, _ = warm_up(state)
    sequences, key = ring.sample(state.replay, jax.random.key(1), 8).batch, jax.random.key(2)
    update = lambda agent, s: agent.update(s, sequences, key)[0].online
    together = jax.jit(jax.vmap(lambda n: update(with_numbers(parts, n).agent, state.agent)))
    found = together(varying(swept))
    alone = jax.jit(lambda s: update(build(swept[1]).agent, s))(state.agent)
    before, moved = jax.tree.leaves(state.agent.online), []
    for start, one, other in zip(
        before, jax.tree.leaves(found), jax.tree.leaves(alone), strict=True
    ):
        step = np.abs(other - start).max()
        np.testing.assert_allclose(one[1], other, rtol=0, atol=1e-6 + 1e-3 * step)
        moved.append(step > 1e-4)
        assert not moved[-1] or np.abs(one[0] - other).max() > 0.3 * step
    assert np.mean(moved) > 0.5


def test_runs_of_different_kinds_are_refused(tmp_path):
    base = tiny()
    odd = set_field(base, "model.unroll_steps", 2)
    with pytest.raises(ConfigError, match="configs: only seeds and traceable numbers"):
        train_many([base, odd], [tmp_path / "a", tmp_path / "b"])
    bad = set_field(base, "optimiser.learning_rate", -1.0)
    with pytest.raises(ConfigError, match="optimiser.learning_rate: must be positive"):
        train_many([base, bad], [tmp_path / "a", tmp_path / "b"])


def test_side_by_side_and_in_turn_agree(monkeypatch):
    function = lambda a, b, shared: (a["x"] * b, b + shared)
    arguments = {"x": jnp.arange(3.0)}, jnp.array([1.0, 2.0, 4.0]), jnp.array(7.0)
    in_turn = over_runs(function)(*arguments)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    beside = over_runs(function)(*arguments)
    jax.tree.map(np.testing.assert_array_equal, in_turn, beside)
