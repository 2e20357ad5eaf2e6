"""All that the losses hold constant: returns, normalised advantages, candidates."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from muesli.agent.predictions import look_ahead, supports
from muesli.config import Config
from muesli.diagnostics import masked_mean
from muesli.distributions import Categorical, Policy
from muesli.networks.network import Network
from muesli.ops.moments import deviation, update_moment
from muesli.ops.returns import clipped_importance_ratio, importance_ratio, retrace, vtrace
from muesli.ops.targets import (
    all_actions,
    clip_advantages,
    log_normaliser,
    mix_prior,
    sampled_actions,
)
from muesli.ops.values import decode
from muesli.search import search_target
from muesli.types import (
    AgentState,
    Array,
    Candidates,
    EnvSpec,
    Moment,
    PolicyInputs,
    PRNGKey,
    PyTree,
    ReturnEstimates,
    RootOutput,
    Targets,
    Trajectory,
    is_last,
)


class _ActionValues(NamedTuple):
    """q̂_prior where it is needed, each [B, T + 1, ...].

    taken: [B, T1]; expected: [B, T1], E_{A∼π} q̂; candidates: [B, T1, N]; every: [B, T1, A] or None.
    """

    taken: Array
    expected: Array
    candidates: Array
    every: Array | None


class Estimates(NamedTuple):
    """Targets before the advantages are normalised: theirs are in units of reward.

    targets: Targets; every: [B, T + 1, A], q̂ − v̂ of all actions, and mixed: the prior with its
    mixture, both None unless the oracle normaliser wants them.
    """

    targets: Targets
    every: Array | None
    mixed: Policy | None


def make_targets(
    network: Network,
    config: Config,
    spec: EnvSpec,
    state: AgentState,
    batch: Trajectory,
    online: RootOutput,
    prior: RootOutput,
    key: PRNGKey,
) -> tuple[Targets, Moment]:
    """Everything the losses hold constant, batch-major, and the updated advantage moment."""
    keys = jax.random.split(key, batch.transitions.reward.shape[0])
    estimates = estimate(network, config, spec, state, batch, online, prior, keys)
    # var := β var + (1 − β) mean (G − v̂)², and the normalised advantages.
    estimates, moment = balance(estimates, state.moment, config)
    return normalise(estimates, moment, config), moment


def balance(estimates: Estimates, moment: Moment, config: Config) -> tuple[Estimates, Moment]:
    """The advantage moment with these records in it, and their advantages, centred if asked for."""
    trained = ~is_last(estimates.targets.step_type[..., :-1])
    errors = estimates.targets.policy.advantage[..., :-1]
    moment = update_moment(moment, errors, trained, config.agent.moment_decay)
    return centre(estimates, trained) if config.agent.centre_advantages else estimates, moment


def centre(estimates: Estimates, trained: Array) -> Estimates:
    """Advantages less their batch means: one for returns, one for q̂. trained: [..., T] bool."""
    inputs = estimates.targets.policy
    of_returns = masked_mean(inputs.advantage[..., :-1], trained)
    of_q = masked_mean(inputs.q_advantage[..., :-1], trained)
    inputs = inputs._replace(
        advantage=inputs.advantage - of_returns,
        q_advantage=inputs.q_advantage - of_q,
        candidates=inputs.candidates._replace(advantages=inputs.candidates.advantages - of_q),
    )
    every = None if estimates.every is None else estimates.every - of_q
    return estimates._replace(targets=estimates.targets._replace(policy=inputs), every=every)


def estimate(
    network: Network,
    config: Config,
    spec: EnvSpec,
    state: AgentState,
    batch: Trajectory,
    online: RootOutput,
    prior: RootOutput,
    keys: Array,
) -> Estimates:
    """Returns, baselines and candidates of a batch, each sequence with its own key: [B]."""
    records = batch.transitions
    behaviour = _with_bootstrap(records.behaviour, prior.policy)
    newest = jax.tree.map(lambda x: x[:, -1:], prior.policy)
    taken = _with_bootstrap(records.action, newest.mode())
    mixed = prior.policy
    if config.update.prior_mixing:
        mixed = mix_prior(
            prior.policy,
            behaviour,
            config.update.uniform_prior_weight,
            config.update.behaviour_prior_weight,
        )
    actions, weights, log_prior = _candidate_actions(mixed, keys, config.update.kl_samples)
    q = _action_values(
        network, config, spec, state.prior, prior.embedding, taken, actions, online.policy, keys
    )

    # v̂_prior, and the baseline.
    root_value = decode(prior.value_logits, supports(config)[1])
    value = root_value
    if config.agent.baseline == "expected_q":
        value = jnp.sum(weights * q.candidates, axis=-1)

    # G and v*, bootstrapping from q̂_prior (V-trace: from v̂_prior).
    log_pi = online.policy.log_prob(taken)
    log_behaviour = behaviour.log_prob(taken)
    rewards = records.reward[:, :-1]
    discounts = config.agent.discount * records.discount[:, :-1]
    ratio = importance_ratio(log_pi, log_behaviour)[:, :-1]
    returns = _estimate_returns(config, q, root_value, rewards, discounts, ratio, records.step_type)
    policy_returns = q.taken[:, :-1] if config.agent.return_estimator == "q" else returns.returns

    inputs = PolicyInputs(
        policy=None,
        prior=prior.policy,
        behaviour=behaviour,
        action=taken,
        advantage=jnp.pad(policy_returns - value[:, :-1], ((0, 0), (0, 1))),
        q_advantage=q.taken - value,
        rho=clipped_importance_ratio(log_pi, log_behaviour),
        candidates=Candidates(actions, weights, log_prior, q.candidates - value[..., None], None),
        temperature=jnp.broadcast_to(jnp.exp(state.dual.log_temperature), value.shape),
    )
    if config.agent.act_with == "mcts":
        # The actors searched: what they acted by is π_MCTS.
        inputs = inputs._replace(search=jax.vmap(jax.vmap(search_target))(behaviour))
    values, valid = _value_targets(config, returns, records.step_type)
    targets = Targets(
        returns.returns, values, valid, rewards, discounts, records.step_type, inputs, value
    )
    if not _wants_oracle(config):
        return Estimates(targets, None, None)
    assert q.every is not None
    return Estimates(targets, q.every - value[..., None], mixed)


def normalise(estimates: Estimates, moment: Moment, config: Config) -> Targets:
    """The targets with advantages divided by their standard deviation σ."""
    sigma = deviation(moment, config.agent.moment_epsilon)
    inputs = estimates.targets.policy
    candidates = inputs.candidates._replace(advantages=inputs.candidates.advantages / sigma)
    if estimates.every is not None:
        assert isinstance(estimates.mixed, Categorical)
        advantages = config.update.advantage_scale * estimates.every / sigma
        gains = clip_advantages(advantages, config.update.clip_threshold)
        log_z = jax.vmap(jax.vmap(log_normaliser))(gains, estimates.mixed.probs())
        candidates = candidates._replace(log_z=log_z)
    inputs = inputs._replace(
        advantage=inputs.advantage / sigma,
        q_advantage=inputs.q_advantage / sigma,
        candidates=candidates,
    )
    return estimates.targets._replace(policy=inputs)


def _wants_oracle(config: Config) -> bool:
    return config.update.sampled_normaliser == "oracle" and config.update.kl_samples is not None


def _with_bootstrap(records: PyTree, prior: PyTree) -> PyTree:
    """What the actors did, with the prior's choice at the bootstrap record, where none was made."""
    return jax.tree.map(lambda r, p: jnp.concatenate([r[:, :-1], p[:, -1:]], 1), records, prior)


def _candidate_actions(
    mixed: Policy, keys: Array, num_samples: int | None
) -> tuple[Array, Array, Array]:
    """Candidates of every state: actions, weights and log π_prior, each [B, T + 1, N, ...]."""
    if num_samples is None:
        if not isinstance(mixed, Categorical):
            raise ValueError("update.kl_samples: continuous actions need a number of samples")
        return jax.vmap(jax.vmap(all_actions))(mixed)
    length = jax.tree.leaves(mixed)[0].shape[1]
    state_keys = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(k, 0), length))(keys)
    sample = lambda policy, k: sampled_actions(policy, k, num_samples)  # noqa: E731
    return jax.vmap(jax.vmap(sample))(mixed, state_keys)


def _action_values(
    network: Network,
    config: Config,
    spec: EnvSpec,
    params: PyTree,
    embedding: PyTree,
    taken: Array,
    candidates: Array,
    policy: Policy,
    keys: Array,
) -> _ActionValues:
    """q̂ at the action taken, at the candidates and in expectation under π, with one look-ahead.

    Where there are fewer actions than samples, every action is looked at once and the samples are
    read from that.
    """
    # V-trace has no use for E_{A∼π} q̂.
    samples = 0 if config.agent.return_estimator == "vtrace" else config.agent.retrace_samples
    drawn = candidates[:, :, :0]
    if samples:
        sample = lambda p, k: p.sample(jax.random.fold_in(k, 1), (samples,))  # noqa: E731
        drawn = jnp.moveaxis(jax.vmap(sample)(policy, keys), 1, 2)
    wanted = 1 + candidates.shape[2] + (samples or 0)
    exact = samples is None or config.update.kl_samples is None
    oracle = _wants_oracle(config)
    shape = taken.shape[:2]
    flatten = lambda x: x.reshape((-1, *x.shape[2:]))  # noqa: E731
    flat_embedding = jax.tree.map(flatten, embedding)

    if spec.num_actions is not None and (exact or oracle or spec.num_actions <= wanted):
        everything = jnp.broadcast_to(jnp.arange(spec.num_actions), (*shape, spec.num_actions))
        every = look_ahead(network, config, params, flat_embedding, flatten(everything))
        every = every.reshape(everything.shape)
        at = lambda a: jnp.take_along_axis(every, a, axis=2)  # noqa: E731
        assert isinstance(policy, Categorical)
        expected = jnp.sum(policy.probs() * every, 2) if samples is None else _mean(at(drawn))
        of_candidates = every if config.update.kl_samples is None else at(candidates)
        return _ActionValues(at(taken[..., None])[..., 0], expected, of_candidates, every)

    if samples is None:
        raise ValueError("agent.retrace_samples: continuous actions need a number of samples")
    actions = jnp.concatenate([taken[:, :, None], drawn, candidates], axis=2)
    values = look_ahead(network, config, params, flat_embedding, flatten(actions))
    values = values.reshape((*shape, wanted))
    return _ActionValues(
        values[..., 0],
        _mean(values[..., 1 : 1 + samples]),
        values[..., 1 + samples :],
        None,
    )


def _mean(x: Array) -> Array:
    """Mean over the last axis; 0 where it is empty."""
    return jnp.sum(x, axis=-1) / max(1, x.shape[-1])


def _estimate_returns(
    config: Config,
    q: _ActionValues,
    value: Array,
    rewards: Array,
    discounts: Array,
    ratio: Array,
    step_type: Array,
) -> ReturnEstimates:
    """G and v* along every sequence: Retrace from q̂, or V-trace from v̂."""
    trace = config.agent.trace_lambda
    if config.agent.return_estimator == "vtrace":
        return jax.vmap(partial(vtrace, lambda_=trace))(value, rewards, discounts, ratio, step_type)
    return jax.vmap(partial(retrace, lambda_=trace))(
        q.taken[:, :-1], q.expected, rewards, discounts, ratio, step_type
    )


def _value_targets(
    config: Config, returns: ReturnEstimates, step_type: Array
) -> tuple[Array, Array]:
    """Targets of the value predictions and where they exist, each [B, T + 1]."""
    if config.model.value_target == "state_value":
        return returns.values, jnp.ones_like(step_type, bool)
    padded = jnp.pad(returns.returns, ((0, 0), (0, 1)))
    return padded, (~is_last(step_type)).at[:, -1].set(False)
