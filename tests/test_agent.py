"""The agent's contracts: the gradient door, the mesh, the prior, the estimators."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from muesli import presets
from muesli import replay as ring
from muesli.agent import (
    loss_weights,
    make_act,
    make_targets,
    raw_targets,
    supports,
    total_loss,
    unroll,
)
from muesli.config import UPDATE_DEFAULTS, Config, ConfigError
from muesli.ops.moments import deviation
from muesli.ops.targets import cmpo_policy
from muesli.ops.values import encode
from muesli.policy_updates import UPDATES
from muesli.runners.anakin import make_anakin
from muesli.runners.parts import build
from muesli.types import Moment, PolicyOutput, StepType, TimeStep, is_last

replace = dataclasses.replace


def small(env="catch", **changes) -> Config:
    base = presets.catch()
    config = replace(
        base,
        env=replace(base.env, name=env, num_envs=8),
        network=replace(
            base.network,
            torso_units=16,
            model_units=16,
            core_units=16,
            value_bins=21,
            value_max=10.0,
            reward_bins=21,
            reward_max=10.0,
            # Told that all is 0, heads would begin with gradients that are mostly rounding.
            value_head_prior_rate=0.0,
        ),
        # So that v̂ of the root matters.
        agent=replace(base.agent, baseline="value"),
        batch=replace(base.batch, batch_sequences=16, sequence_length=6),
        model=replace(base.model, unroll_steps=3),
    )
    return replace(config, **changes)


class Run(NamedTuple):
    """A built run, a batch of real experience from it, and its compiled update."""

    parts: Any
    state: Any
    batch: Any
    update: Any


def collected(config, iterations=3) -> Run:
    parts = build(config)
    state = jax.jit(make_anakin(parts).init)(jax.random.key(0))
    warm_up = jax.jit(make_anakin(parts).warm_up)
    for _ in range(iterations):
        state, _ = warm_up(state)
    batch = ring.sample(state.replay, jax.random.key(1), 16).batch
    return Run(parts, state.agent, batch, jax.jit(parts.agent.update))


@pytest.fixture(scope="module")
def catch_run():
    return collected(small())


def test_update_on_eight_devices_equals_one_device(catch_run):
    parts, state, batch, update = catch_run  # noqa: RUF059
    alone, alone_metrics = update(state, batch, jax.random.key(5))

    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    sharded = jax.device_put(batch, NamedSharding(mesh, P("data")))
    replicated = jax.device_put(state, NamedSharding(mesh, P()))
    together, metrics = update(replicated, sharded, jax.random.key(5))
    for a, b in zip(jax.tree.leaves(alone.online), jax.tree.leaves(together.online), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    # The moment is the global one, not a shard's.
    np.testing.assert_allclose(alone.moment.second, together.moment.second, rtol=1e-5)
    np.testing.assert_allclose(alone_metrics["loss_total"], metrics["loss_total"], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "samples", "normaliser"),
    [
        ("muesli", 2, "oracle"),
        pytest.param("muesli", None, "leave_one_out", marks=pytest.mark.slow),
        pytest.param("mpo", 4, "leave_one_out", marks=pytest.mark.slow),
    ],
)
def test_an_update_in_pieces_is_the_whole_update(catch_run, name, samples, normaliser):
    config = small()
    update = replace(UPDATE_DEFAULTS[name], kl_samples=samples, sampled_normaliser=normaliser)
    agent = replace(config.agent, retrace_samples=samples)
    results = []
    for pieces in (1, 4):
        batch = replace(config.batch, micro_batches=pieces)
        parts = build(replace(config, update=update, agent=agent, batch=batch))
        results.append(
            jax.jit(parts.agent.update)(catch_run.state, catch_run.batch, jax.random.key(7))
        )
    (whole, whole_metrics), (summed, metrics) = results
    # Pieces hold different numbers of LAST records, so a plain mean of means would differ.
    ends = np.asarray(catch_run.batch.transitions.step_type == 2).reshape(4, -1).sum(1)
    assert len(set(ends.tolist())) > 1
    for a, b in zip(
        jax.tree.leaves((whole.optimiser, whole.moment, whole.dual)),
        jax.tree.leaves((summed.optimiser, summed.moment, summed.dual)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-7)
    assert set(whole_metrics) == set(metrics)
    for same in ("loss_total", "loss_policy", "advantage_sigma", "policy_entropy", "gradient_norm"):
        np.testing.assert_allclose(whole_metrics[same], metrics[same], rtol=1e-4)


@pytest.mark.parametrize("pieces", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_an_update_tells_the_heads_how_often_each_target_came(pieces):
    config = small()
    network = replace(config.network, value_head_prior_rate=0.25)
    batch = replace(config.batch, micro_batches=pieces)
    run = collected(replace(config, network=network, batch=batch))
    _, value_support = supports(run.parts.config)

    def of_targets(state, key):
        online, prior = (
            unroll(run.parts.network, p, run.batch) for p in (state.online, state.prior)
        )
        targets, _ = make_targets(
            run.parts.network, run.parts.config, state, run.batch, online, prior, key
        )
        trained = ~np.asarray(targets.step_type == 2)[:, :-1]
        following = np.where(targets.discounts == 0.0, 0.0, targets.values[:, 1:])
        # The model speaks of the next state. All values are valid here.
        return {
            heads: np.asarray(encode(values, value_support))[trained].mean(0)
            for heads, values in (
                ("root_heads", targets.values[:, :-1]), ("model_heads", following)
            )
        }  # fmt: skip

    def expected(state, heads):
        return state.online[heads]["value_head"]["frequencies"]

    first, second = jax.random.split(jax.random.key(7))
    after, _ = run.update(run.state, run.batch, first)
    once = of_targets(run.state, first)
    for heads in ("root_heads", "model_heads"):
        np.testing.assert_allclose(expected(after, heads), once[heads], atol=1e-6)
    # The second batch has a share of one half, and of value_head_prior_rate from the fourth on.
    for step, share in ((1, 0.5), (10, 0.25)):
        state = after._replace(step=jnp.int32(step))
        later, _ = run.update(state, run.batch, second)
        twice = of_targets(state, second)
        for heads in ("root_heads", "model_heads"):
            wanted = (1 - share) * once[heads] + share * twice[heads]
            np.testing.assert_allclose(expected(later, heads), wanted, atol=1e-6)


def test_the_prior_is_the_moving_average_of_the_online_parameters(catch_run):
    parts, state, batch, update = catch_run
    after, _ = update(state, batch, jax.random.key(0))
    rate = parts.config.agent.target_rate
    for old, new, prior in zip(
        jax.tree.leaves(state.prior),
        jax.tree.leaves(after.online),
        jax.tree.leaves(after.prior),
        strict=True,
    ):
        np.testing.assert_allclose(prior, (1 - rate) * old + rate * new, atol=1e-7)
    assert int(after.step) == 1


def test_losses_hold_their_targets_constant(catch_run):
    parts, state, batch, _ = catch_run
    online, prior = (unroll(parts.network, p, batch) for p in (state.online, state.prior))
    targets, moment = make_targets(
        parts.network, parts.config, state, batch, online, prior, jax.random.key(0)
    )
    leaves, tree = jax.tree.flatten(targets)
    floats = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)]

    def loss(floats):
        rest = iter(floats)
        moved = [next(rest) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in leaves]
        arguments = (parts.network, parts.config, state.online, batch, online)
        return total_loss(*arguments, tree.unflatten(moved), moment)[0]

    gradients = jax.jit(jax.grad(loss))(floats)
    assert len(gradients) > 5
    assert all(float(jnp.abs(g).max()) == 0.0 for g in gradients)


def targets_of(run, online=None, prior=None, prior_parameters=None):
    """Targets, their moment and the raw estimates, with some of what they are made of replaced."""
    parts, state, batch, _ = run
    online = online or unroll(parts.network, state.online, batch)
    prior = prior or unroll(parts.network, state.prior, batch)
    # Whoever reads the online parameters here gets nothing but NaN.
    state = state._replace(
        online=jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), state.online),
        prior=prior_parameters or state.prior,
    )
    common = (parts.network, parts.config, state, batch)
    key = jax.random.key(3)
    targets, moment = make_targets(*common, online, prior, key)
    keys = jax.random.split(key, batch.transitions.reward.shape[0])
    return targets, moment, raw_targets(*common, online, prior, keys)


def test_one_deviation_normalises_every_advantage(catch_run):
    targets, moment, raw = targets_of(catch_run)
    sigma = float(deviation(moment, 1e-12))
    assert abs(sigma - 1.0) > 0.1
    ours, theirs = targets.policy, raw.policy
    for a, b in (
        (ours.advantage, theirs.advantage),
        (ours.q_advantage, theirs.q_advantage),
        (ours.candidates.advantages, theirs.candidates.advantages),
    ):
        np.testing.assert_allclose(a, np.asarray(b) / sigma, rtol=1e-5)
    # In units of reward: G − v̂ at the action taken, and q̂ − v̂ of the candidates.
    value = np.asarray(targets.baseline)
    np.testing.assert_allclose(
        theirs.advantage[:, :-1], np.asarray(targets.returns) - value[:, :-1], atol=1e-5
    )


def test_the_baseline_may_be_the_models_value_but_vtrace_is_made_of_the_roots(catch_run):
    def estimates_of(baseline, estimator):
        config = catch_run.parts.config
        agent = replace(config.agent, baseline=baseline, return_estimator=estimator)
        parts = catch_run.parts._replace(config=replace(config, agent=agent))
        return targets_of(catch_run._replace(parts=parts))[2]

    for estimator in ("retrace", "vtrace"):
        ours, theirs = (estimates_of(baseline, estimator) for baseline in ("expected_q", "value"))
        # G and v* are those of the estimator, whatever the baseline.
        np.testing.assert_array_equal(ours.returns, theirs.returns)
        np.testing.assert_array_equal(ours.values, theirs.values)
        # Σ π_prior q̂ less itself: over the candidates, advantages then have a mean of 0.
        candidates = ours.policy.candidates
        means = np.sum(candidates.weights * candidates.advantages, -1)
        np.testing.assert_allclose(means, 0.0, atol=1e-5)
        apart = np.asarray(ours.baseline - theirs.baseline)
        assert np.abs(apart).max() > 1e-3
        np.testing.assert_allclose(
            theirs.policy.advantage[:, :-1] - ours.policy.advantage[:, :-1], apart[:, :-1],
            atol=1e-5,
        )  # fmt: skip


@pytest.mark.parametrize("centred", [False, True])
def test_the_error_ratio_compares_action_values_with_values(centred):
    base = small()
    run = collected(replace(base, agent=replace(base.agent, centre_advantages=centred)))
    # A v̂ that is too high by much, so that q̂ − v̂ has a mean.
    high = jax.tree.map(
        lambda x: x + jnp.arange(x.size) if x.shape == (21,) else x, run.state.prior["root_heads"]
    )
    run = run._replace(state=run.state._replace(prior=run.state.prior | {"root_heads": high}))
    _, _, raw = targets_of(run)
    trained = ~np.asarray(is_last(run.batch.transitions.step_type[:, :-1]))
    of_values = np.asarray(raw.policy.advantage)[:, :-1][trained]  # G − v̂
    of_actions = of_values - np.asarray(raw.policy.q_advantage)[:, :-1][trained]  # G − q̂
    spread = np.var if centred else lambda x: np.mean(np.square(x))
    _, metrics = run.update(run.state, run.batch, jax.random.key(3))
    wanted = spread(of_actions) / spread(of_values)
    np.testing.assert_allclose(metrics["q_error_ratio"], wanted, rtol=1e-4)
    assert abs(np.mean(of_values - of_actions)) > 0.1  # or centring would change nothing
    # What knowing the action adds to the model's own value of the state, Σ π q̂.
    candidates = raw.policy.candidates
    expected = np.sum(candidates.weights * candidates.advantages, -1)[:, :-1][trained]
    wanted = spread(of_actions) / spread(of_values - expected)
    np.testing.assert_allclose(metrics["q_action_error_ratio"], wanted, rtol=1e-4)
    apart = np.sqrt(spread(expected)) / metrics["advantage_sigma"]
    np.testing.assert_allclose(metrics["value_disagreement_sigmas"], apart, rtol=1e-4)


def test_action_values_come_from_the_prior_alone_and_ratios_from_the_online_policy(catch_run):
    parts, state, batch, _ = catch_run
    nan = lambda tree: jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), tree)
    wanted, _, _ = targets_of(catch_run)
    online, prior = (unroll(parts.network, p, batch) for p in (state.online, state.prior))
    # Of the online network only its policy is read, and none of its parameters.
    blind = online._replace(embedding=nan(online.embedding), value_logits=nan(online.value_logits))
    found, _, _ = targets_of(catch_run, blind, prior)
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(a, b)
    # The prior's embedding and the prior's model heads make q̂.
    deaf, _, _ = targets_of(catch_run, online, prior._replace(embedding=nan(prior.embedding)))
    broken = state.prior | {"model_heads": nan(state.prior["model_heads"])}
    mute, _, _ = targets_of(catch_run, online, prior, prior_parameters=broken)
    for targets in (deaf, mute):
        assert np.isnan(targets.policy.q_advantage).all() and np.isnan(targets.returns).any()
        assert np.isfinite(targets.baseline).all() and np.isfinite(targets.policy.rho).all()


def test_every_parameter_is_trained(catch_run):
    parts, state, batch, update = catch_run  # noqa: RUF059
    before = state
    for k in range(3):
        state, _ = update(state, batch, jax.random.key(k))
    moved = jax.tree_util.tree_map_with_path(
        lambda path, a, b: (jax.tree_util.keystr(path), float(jnp.abs(a - b).max())),
        before.online,
        state.online,
    )
    still = [name for name, size in jax.tree.leaves(moved, is_leaf=lambda x: isinstance(x, tuple))
             if size == 0.0]  # fmt: skip
    assert still == []


NAMES = [n for n in UPDATES if n != "mcts"]


@pytest.mark.parametrize(
    ("name", "samples"),
    # tests/learning trains with every update, and would notice.
    [("muesli", None), ("muesli", 5)]
    + [
        pytest.param(n, samples, marks=pytest.mark.slow)
        for n in sorted(set(NAMES) - {"muesli"})
        for samples in (None, 5)
    ],
)
def test_every_update_runs_finite_with_both_estimators(catch_run, name, samples):
    parts, state, batch, update = catch_run  # noqa: RUF059
    config = replace(
        parts.config,
        update=replace(UPDATE_DEFAULTS[name], kl_samples=samples),
        agent=replace(parts.config.agent, retrace_samples=samples),
    )
    after, metrics = jax.jit(build(config).agent.update)(state, batch, jax.random.key(0))
    assert all(np.isfinite(np.asarray(v)).all() for v in metrics.values()), metrics
    # Only updates with a target train the model's policy.
    trains = name in ("muesli", "cmpo", "mpo")
    assert (float(metrics["loss_policy_model"]) != 0.0) == trains
    assert (after.dual.log_temperature != state.dual.log_temperature) == (name == "mpo")


def test_before_the_first_reward_the_policy_is_not_trained_on_rounding(catch_run):
    """As the Atari presets begin: heads that expect 0, and a whole batch in which that is true."""
    records = catch_run.batch.transitions
    batch = catch_run.batch._replace(
        transitions=records._replace(reward=jnp.zeros_like(records.reward))
    )
    config = small()
    network = replace(config.network, value_head_scale=1.0, value_head_prior_rate=0.5)
    gaps = []
    for epsilon in (1e-12, presets.atari().agent.moment_epsilon):
        agent = replace(config.agent, baseline="expected_q", moment_epsilon=epsilon)
        parts = build(replace(config, network=network, agent=agent))
        state, update = parts.agent.init(jax.random.key(0)), jax.jit(parts.agent.update)
        for step in range(5):
            state, metrics = update(state, batch, jax.random.key(step))
        gaps.append(float(metrics["q_action_gap_sigmas"]))
    assert gaps[0] > 0.1 and gaps[1] < 0.01, gaps


@pytest.mark.slow
def test_an_update_with_a_divergence_has_a_temperature_trained(catch_run, monkeypatch):
    def mine(inputs, config):
        return UPDATES["mpo"](inputs, config)

    monkeypatch.setitem(UPDATES, "mine", mine)
    config = replace(small(), update=replace(UPDATE_DEFAULTS["mpo"], name="mine"))
    parts = build(config)
    after, _ = jax.jit(parts.agent.update)(catch_run.state, catch_run.batch, jax.random.key(0))
    assert after.dual.log_temperature != catch_run.state.dual.log_temperature


def test_an_update_that_loses_mpos_divergence_is_told(catch_run, monkeypatch):
    def mine(inputs, config):
        output = UPDATES["mpo"](inputs, config)
        return PolicyOutput(output.loss, output.target, output.metrics)

    monkeypatch.setitem(UPDATES, "mine", mine)
    parts = build(replace(small(), update=replace(UPDATE_DEFAULTS["mpo"], name="mine")))
    with pytest.raises(ValueError, match=r"update\.name: mine passes on mpo's loss without"):
        jax.eval_shape(parts.agent.update, catch_run.state, catch_run.batch, jax.random.key(0))


@pytest.mark.slow
def test_the_temperature_of_mpo_has_a_floor(catch_run):
    # With nothing learnt yet KL(π_MPO, π) is far below its limit, so the dual step lowers η; a
    # floor of 1, where it starts, holds it.
    mpo = replace(UPDATE_DEFAULTS["mpo"], mpo_min_temperature=1.0)
    config = replace(catch_run.parts.config, update=mpo)
    after, metrics = jax.jit(build(config).agent.update)(
        catch_run.state, catch_run.batch, jax.random.key(0)
    )
    assert float(metrics["loss_mpo"]) < config.update.mpo_kl_limit
    assert float(after.dual.log_temperature) == 0.0


@pytest.mark.slow
def test_sampled_estimators_approach_the_exact_ones(catch_run):
    parts, state, batch, update = catch_run  # noqa: RUF059

    def loss(samples):
        config = replace(
            parts.config,
            update=replace(parts.config.update, kl_samples=samples),
            agent=replace(parts.config.agent, retrace_samples=samples),
        )
        update = jax.jit(build(config).agent.update)
        return np.mean(
            [float(update(state, batch, jax.random.key(k))[1]["kl_cmpo_online"]) for k in range(3)]
        )

    assert abs(loss(600) - loss(None)) < 0.2 * abs(loss(2) - loss(None)) + 1e-4


@pytest.mark.parametrize(
    "changes",
    [
        {"agent": {"baseline": "expected_q"}},
        pytest.param({"model": {"value_target": "return"}}, marks=pytest.mark.slow),
        pytest.param({"model": {"absorbing": True}}, marks=pytest.mark.slow),
        pytest.param({"agent": {"dynamics_gradient_scale": 0.5}}, marks=pytest.mark.slow),
    ],
    ids=lambda c: "-".join(f"{k}.{f}" for k, v in c.items() for f in v),
)
def test_switches_that_no_suite_has_change_the_update_and_keep_it_finite(catch_run, changes):
    parts, state, batch, update = catch_run
    # A second update, so that the policy has moved away from where everything is symmetric.
    state, _ = update(state, batch, jax.random.key(7))
    sections = {k: replace(getattr(parts.config, k), **v) for k, v in changes.items()}
    other = build(replace(parts.config, **sections))
    base_after, _ = update(state, batch, jax.random.key(0))
    after, metrics = jax.jit(other.agent.update)(state, batch, jax.random.key(0))
    assert all(np.isfinite(np.asarray(v)).all() for v in metrics.values())
    difference = jax.tree.map(
        lambda a, b: float(jnp.abs(a - b).max()), base_after.online, after.online
    )
    assert max(jax.tree.leaves(difference)) > 0.0


def test_the_loss_is_the_weighted_sum_of_its_parts(catch_run):
    parts, state, batch, update = catch_run
    _, metrics = update(state, batch, jax.random.key(0))
    total = sum(w * float(metrics[f"loss_{n}"]) for n, w in loss_weights(parts.config).items())
    np.testing.assert_allclose(total, metrics["loss_total"], rtol=1e-5)


@pytest.mark.parametrize("act_with", ["prior", "online", "cmpo", "q_softmax"])
def test_acting_modes_give_distributions_over_legal_actions(act_with):
    config = small("tic_tac_toe")
    config = replace(config, agent=replace(config.agent, discount=-1.0, act_with=act_with))
    parts = build(config)
    state = jax.jit(parts.agent.init)(jax.random.key(0))
    env_state, timestep = jax.jit(jax.vmap(parts.env.reset))(jax.random.split(jax.random.key(0), 8))
    _, timestep = jax.jit(jax.vmap(parts.env.step))(env_state, jnp.arange(8), jax.random.split(
        jax.random.key(0), 8))  # fmt: skip
    keys = jax.random.split(jax.random.key(1), 8)
    actor = parts.agent.initial_actor(8)
    action, policy, _ = jax.jit(parts.agent.act)(parts.agent.acting(state), timestep, actor, keys)
    legal = np.asarray(timestep.legal_actions)
    assert legal[np.arange(8), np.asarray(action)].all()
    probs = np.asarray(policy.probs())
    np.testing.assert_allclose(probs.sum(-1), 1.0, rtol=1e-5)
    assert (probs[~legal] == 0.0).all()


@pytest.mark.parametrize("baseline", ["value", "expected_q"])
def test_acting_by_cmpo_is_what_training_distils(catch_run, baseline):
    config = catch_run.parts.config
    config = replace(
        config,
        agent=replace(config.agent, baseline=baseline),
        update=replace(config.update, prior_mixing=False),
    )
    run = catch_run._replace(parts=catch_run.parts._replace(config=config))
    state = run.state._replace(moment=Moment(jnp.float32(0.002), jnp.float32(0.5)))
    acting = run.parts.agent.acting(state)
    records = jax.tree.map(lambda x: x[:, 0], run.batch.transitions)
    ones = jnp.ones(records.reward.shape)
    seen = TimeStep(records.observation, 0 * ones, ones, jnp.full(ones.shape, StepType.MID), None)
    act = make_act(run.parts.spec, run.parts.network, config, "cmpo")
    keys = jax.random.split(jax.random.key(0), ones.shape[0])
    _, policy, _ = act(acting, seen, run.parts.agent.initial_actor(ones.shape[0]), keys)
    raw = jax.tree.map(lambda x: x[:, 0], targets_of(run)[2].policy)
    wanted = cmpo_policy(raw.prior, raw.candidates.advantages / acting.sigma)
    np.testing.assert_allclose(policy.probs(), wanted.probs(), atol=1e-6)
    assert np.abs(policy.probs() - raw.prior.probs()).max() > 1e-3


def test_advantages_are_left_as_they_are_until_an_update_was_made(catch_run):
    # A first update that is skipped counts as a step, but leaves no moment behind.
    agent = catch_run.parts.agent
    fresh = agent.init(jax.random.key(0))
    assert float(agent.acting(fresh._replace(step=jnp.int32(1))).sigma) == 1.0
    after, _ = catch_run.update(fresh, catch_run.batch, jax.random.key(0))
    assert 0.0 < float(agent.acting(after).sigma) != 1.0


def test_exploration_is_a_share_of_the_uniform_policy_while_training_alone():
    config = small("tic_tac_toe")
    config = replace(config, agent=replace(config.agent, discount=-1.0, exploration=0.2))
    parts = build(config)
    state = jax.jit(parts.agent.init)(jax.random.key(0))
    env_state, timestep = jax.vmap(parts.env.reset)(jax.random.split(jax.random.key(0), 2))
    _, timestep = jax.vmap(parts.env.step)(env_state, jnp.arange(2), jax.random.split(
        jax.random.key(0), 2))  # fmt: skip
    asked = (parts.agent.acting(state), timestep, parts.agent.initial_actor(2),
             jax.random.split(jax.random.key(1), 2))  # fmt: skip
    behaviour = parts.agent.act(*asked)[1].probs()
    plain = make_act(parts.spec, parts.network, config, "prior")(*asked)[1].probs()
    legal = np.asarray(timestep.legal_actions)
    np.testing.assert_allclose(behaviour, 0.8 * plain + 0.2 * legal / 8, atol=1e-6)
    with pytest.raises(ConfigError, match=r"agent\.exploration: must be 0 for continuous"):
        make_act(parts.spec._replace(num_actions=None), parts.network, config, "prior")
