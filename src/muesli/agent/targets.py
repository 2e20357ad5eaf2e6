"""All that the losses hold constant: returns, normalised advantages, candidates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from muesli.agent.predictions import baseline, look_ahead, supports
from muesli.config import Config
from muesli.diagnostics import masked_mean
from muesli.distributions import Categorical, Policy
from muesli.networks.network import Network
from muesli.ops.moments import deviation, update_moment
from muesli.ops.returns import clipped_importance_ratio, retrace, vtrace
from muesli.ops.targets import all_actions, mix_prior, sampled_actions
from muesli.ops.values import decode
from muesli.search import search_target
from muesli.types import (
    AgentState,
    Array,
    Candidates,
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


def make_targets(
    network: Network,
    config: Config,
    state: AgentState,
    batch: Trajectory,
    online: RootOutput,
    prior: RootOutput,
    key: PRNGKey,
) -> tuple[Targets, Moment]:
    """Everything the losses hold constant, batch-major, and the updated advantage moment."""
    keys = jax.random.split(key, batch.transitions.reward.shape[0])
    raw = raw_targets(network, config, state, batch, online, prior, keys)
    moment = advantage_moment(raw, state.moment, config)
    return normalise(centre(raw, config), moment, config), moment


def raw_targets(
    network: Network,
    config: Config,
    state: AgentState,
    batch: Trajectory,
    online: RootOutput,
    prior: RootOutput,
    keys: Array,
) -> Targets:
    """Returns, baselines and candidates of a batch, each sequence with its own key: [B].

    Advantages are in units of reward still.
    """
    records = batch.transitions
    behaviour = _with_bootstrap(records.behaviour, prior.policy)
    newest = jax.tree.map(lambda x: x[:, -1:], prior.policy)
    taken = _with_bootstrap(records.action, newest.mode())

    # π_prior, its candidates, and q̂_prior wherever it is needed.
    mixed = _mixed_prior(prior.policy, behaviour, config)
    actions, weights, log_prior = _candidate_actions(mixed, keys, config.update.kl_samples)
    q_hat = partial(_look_ahead, network, config, state.prior, prior.embedding)
    q = _action_values(q_hat, config, taken, actions, online.policy, keys)

    # v̂_prior, and the baseline.
    root_value = decode(prior.value_logits, supports(config)[1])
    value = baseline(config, root_value, weights, q.candidates)

    # G and v*, bootstrapping from q̂_prior (V-trace: from v̂_prior).
    rho = clipped_importance_ratio(online.policy.log_prob(taken), behaviour.log_prob(taken))
    rewards = records.reward[:, :-1]
    discounts = config.agent.discount * records.discount[:, :-1]
    returns = _estimate_returns(
        config, q, root_value, rewards, discounts, rho[:, :-1], records.step_type
    )
    policy_returns = q.taken[:, :-1] if config.agent.return_estimator == "q" else returns.returns

    oracle = None
    if _wants_oracle(config):
        assert q.every is not None and isinstance(mixed, Categorical)
        oracle = Candidates(*jax.vmap(jax.vmap(all_actions))(mixed), q.every - value[..., None])
    inputs = PolicyInputs(
        policy=None,
        prior=prior.policy,
        behaviour=behaviour,
        action=taken,
        advantage=jnp.pad(policy_returns - value[:, :-1], ((0, 0), (0, 1))),
        q_advantage=q.taken - value,
        rho=rho,
        candidates=Candidates(actions, weights, log_prior, q.candidates - value[..., None]),
        temperature=jnp.broadcast_to(jnp.exp(state.dual.log_temperature), value.shape),
        oracle=oracle,
    )
    if config.agent.act_with == "mcts":
        # The actors searched: what they acted by is π_MCTS.
        inputs = inputs._replace(search=jax.vmap(jax.vmap(search_target))(behaviour))
    values, valid = _value_targets(config, returns, records.step_type)
    return Targets(
        returns.returns, values, valid, rewards, discounts, records.step_type, inputs, value
    )


def advantage_moment(raw: Targets, moment: Moment, config: Config) -> Moment:
    """var := β var + (1 − β) mean (G − v̂)², over all records that are trained on."""
    trained = ~is_last(raw.step_type[..., :-1])
    return update_moment(moment, raw.policy.advantage[..., :-1], trained, config.agent.moment_decay)


def centre(raw: Targets, config: Config) -> Targets:
    """Advantages less their batch means, one for returns and one for q̂, if that is asked for."""
    if not config.agent.centre_advantages:
        return raw
    inputs, trained = raw.policy, ~is_last(raw.step_type[..., :-1])
    of_returns = masked_mean(inputs.advantage[..., :-1], trained)
    of_q = masked_mean(inputs.q_advantage[..., :-1], trained)
    inputs = _map_q_advantages(lambda x: x - of_q, inputs)
    return raw._replace(policy=inputs._replace(advantage=inputs.advantage - of_returns))


def normalise(raw: Targets, moment: Moment, config: Config) -> Targets:
    """adv / √(var + ε_var): one number for returns and q̂ alike."""
    sigma = deviation(moment, config.agent.moment_epsilon)
    inputs = _map_q_advantages(lambda x: x / sigma, raw.policy)
    return raw._replace(policy=inputs._replace(advantage=inputs.advantage / sigma))


def _map_q_advantages(change: Callable[[Array], Array], inputs: PolicyInputs) -> PolicyInputs:
    """The same with every q̂ − v̂ changed: of the action taken, of candidates, of all actions."""

    def of(candidates: Candidates) -> Candidates:
        return candidates._replace(advantages=change(candidates.advantages))

    return inputs._replace(
        q_advantage=change(inputs.q_advantage),
        candidates=of(inputs.candidates),
        oracle=None if inputs.oracle is None else of(inputs.oracle),
    )


def _wants_oracle(config: Config) -> bool:
    return config.update.sampled_normaliser == "oracle" and config.update.kl_samples is not None


def _with_bootstrap(records: PyTree, prior: PyTree) -> PyTree:
    """What the actors did, with the prior's choice at the bootstrap record, where none was made."""
    return jax.tree.map(lambda r, p: jnp.concatenate([r[:, :-1], p[:, -1:]], 1), records, prior)


def _mixed_prior(prior: Policy, behaviour: Policy, config: Config) -> Policy:
    """π_prior as it enters π_CMPO and π_MPO."""
    update = config.update
    if not update.prior_mixing:
        return prior
    return mix_prior(prior, behaviour, update.uniform_prior_weight, update.behaviour_prior_weight)


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


class _ActionValues(NamedTuple):
    """q̂_prior where it is needed, each [B, T + 1, ...].

    taken: [B, T1]; expected: [B, T1], E_{A∼π} q̂; candidates: [B, T1, N]; every: [B, T1, A] or None.
    """

    taken: Array
    expected: Array
    candidates: Array
    every: Array | None


def _action_values(
    q_hat: Callable[[Array], Array],
    config: Config,
    taken: Array,
    candidates: Array,
    policy: Policy,
    keys: Array,
) -> _ActionValues:
    """q̂ at the action taken, at the candidates and in expectation under π, with one look-ahead.

    q_hat: of actions [B, T1, n, ...]. Where there are fewer actions than samples, every action is
    looked at once and the samples are read from that.
    """
    # V-trace has no use for E_{A∼π} q̂.
    samples = 0 if config.agent.return_estimator == "vtrace" else config.agent.retrace_samples
    drawn = candidates[:, :, :0]
    if samples:
        sample = lambda p, k: p.sample(jax.random.fold_in(k, 1), (samples,))  # noqa: E731
        drawn = jnp.moveaxis(jax.vmap(sample)(policy, keys), 1, 2)
    actions = jnp.concatenate([taken[:, :, None], drawn, candidates], axis=2)

    exact = samples is None or config.update.kl_samples is None or _wants_oracle(config)
    every = None
    if isinstance(policy, Categorical) and (exact or policy.num_actions <= actions.shape[2]):
        every = q_hat(
            jnp.broadcast_to(jnp.arange(policy.num_actions), (*taken.shape, policy.num_actions))
        )
        values = jnp.take_along_axis(every, actions, axis=2)
    else:
        values = q_hat(actions)
    of_taken, of_drawn, of_candidates = jnp.split(values, [1, 1 + drawn.shape[2]], axis=2)
    if samples is None:
        if every is None:
            raise ValueError("agent.retrace_samples: continuous actions need a number of samples")
        assert isinstance(policy, Categorical)
        expected = jnp.sum(policy.probs() * every, axis=-1)
    else:
        expected = jnp.sum(of_drawn, axis=-1) / max(1, samples)
    return _ActionValues(of_taken[..., 0], expected, of_candidates, every)


def _look_ahead(
    network: Network, config: Config, params: PyTree, embedding: PyTree, actions: Array
) -> Array:
    """``look_ahead`` of every record: [B, T1, n]. actions: [B, T1, n, ...]."""
    flatten = lambda x: x.reshape((-1, *x.shape[2:]))  # noqa: E731
    flat = look_ahead(network, config, params, jax.tree.map(flatten, embedding), flatten(actions))
    return flat.reshape(actions.shape[:3])


def _estimate_returns(
    config: Config,
    q: _ActionValues,
    value: Array,
    rewards: Array,
    discounts: Array,
    rho: Array,
    step_type: Array,
) -> ReturnEstimates:
    """G and v* along every sequence: Retrace from q̂, or V-trace from v̂."""
    trace = config.agent.trace_lambda
    if config.agent.return_estimator == "vtrace":
        return jax.vmap(partial(vtrace, lambda_=trace))(value, rewards, discounts, rho, step_type)
    return jax.vmap(partial(retrace, lambda_=trace))(
        q.taken[:, :-1], q.expected, rewards, discounts, rho, step_type
    )


def _value_targets(
    config: Config, returns: ReturnEstimates, step_type: Array
) -> tuple[Array, Array]:
    """Targets of the value predictions and where they exist, each [B, T + 1]."""
    if config.model.value_target == "state_value":
        return returns.values, jnp.ones_like(step_type, bool)
    padded = jnp.pad(returns.returns, ((0, 0), (0, 1)))
    return padded, (~is_last(step_type)).at[:, -1].set(False)
