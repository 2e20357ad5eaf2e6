"""Algorithm 1: the agent as three pure functions, ``init``, ``act`` and ``update``.

The agent does not know where it runs. Batches are batch-major, ``[B, T + 1, ...]``; networks are
handed ``[T, B]``; the mathematics of ``ops``, ``policy_updates`` and ``losses`` is mapped over the
batch here and nowhere else. No mesh axis is named: under ``jit`` with a sharded batch every mean
below is the global one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from muesli.config import Config, ConfigError
from muesli.diagnostics import diagnostics, masked_mean
from muesli.distributions import Categorical, Policy
from muesli.losses import ModelPredictions, model_losses, unroll_index
from muesli.networks.network import Network, UnrollInputs
from muesli.ops.moments import deviation, init_moment, update_moment
from muesli.ops.returns import (
    clipped_importance_ratio,
    importance_ratio,
    retrace,
    vtrace,
)
from muesli.ops.standardise import init_statistics, standardise, update_statistics
from muesli.ops.targets import (
    all_actions,
    clip_advantages,
    cmpo_policy,
    log_normaliser,
    mix_prior,
    sampled_actions,
)
from muesli.ops.values import Support, decode
from muesli.optim import clipped_share, make_optimiser
from muesli.policy_updates import UPDATES, mpo_dual_gradient
from muesli.search import make_search, search_target
from muesli.types import (
    ActorState,
    AgentState,
    Array,
    Candidates,
    EnvSpec,
    Faults,
    Metrics,
    Moment,
    PolicyInputs,
    PRNGKey,
    PyTree,
    ReturnEstimates,
    RootOutput,
    Statistics,
    Targets,
    TimeStep,
    Trajectory,
    is_first,
    is_last,
)


class Acting(NamedTuple):
    """What an actor needs of the agent. params: of the network that acts; sigma: [] f32;
    normaliser: the Statistics these parameters came with, or None.
    """

    params: PyTree
    sigma: Array
    normaliser: Statistics | None = None


class Dual(NamedTuple):
    """MPO's dual variable. log_temperature: [] f32; optimiser: its own Adam state."""

    log_temperature: Array
    optimiser: PyTree


class Agent(NamedTuple):
    """The agent as pure functions.

    init(key) -> AgentState; initial_actor(batch) -> ActorState [B]; acting(AgentState) -> Acting;
    act(Acting, TimeStep [B], ActorState [B], keys [B]) -> (action [B], behaviour [B], ActorState);
    observe(AgentState, Trajectory [B', T + 1]) -> AgentState: takes in the observations of fresh
    sequences, each once; update(AgentState, Trajectory [B, T + 1], key) -> (AgentState, metrics).
    """

    init: Callable[[PRNGKey], AgentState]
    initial_actor: Callable[[int], ActorState]
    acting: Callable[[AgentState], Acting]
    act: Callable[[Acting, TimeStep, ActorState, Array], tuple[Array, Policy, ActorState]]
    observe: Callable[[AgentState, Trajectory], AgentState]
    update: Callable[[AgentState, Trajectory, PRNGKey], tuple[AgentState, Metrics]]


def make_agent(spec: EnvSpec, network: Network, config: Config, total_updates: int) -> Agent:
    """The agent of ``config`` on ``network`` for an environment of ``spec``."""
    optimiser = make_optimiser(config.optimiser, total_updates)
    dual_optimiser = optax.adam(config.update.mpo_dual_learning_rate)
    policy_update = UPDATES[config.update.name]
    reward_support, value_support = supports(config)
    clip = config.network.observation_clip

    def init(key: PRNGKey) -> AgentState:
        params = network.init(key)
        log_temperature = jnp.log(jnp.float32(config.update.mpo_init_temperature))
        return AgentState(
            online=params,
            prior=jax.tree.map(jnp.copy, params),
            optimiser=optimiser.init(params),
            moment=init_moment(),
            dual=Dual(log_temperature, dual_optimiser.init(log_temperature)),
            normaliser=_init_normaliser(spec, config),
            step=jnp.zeros((), jnp.int32),
            faults=Faults(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)),
        )

    def observe(state: AgentState, fresh: Trajectory) -> AgentState:
        if state.normaliser is None:
            return state
        # The bootstrap record opens the next sequence and is counted there.
        seen = jax.tree.map(lambda x: x[:, :-1], fresh.transitions.observation)
        return state._replace(normaliser=update_statistics(state.normaliser, seen))

    def look(batch: Trajectory, normaliser: Statistics | None) -> Trajectory:
        """The batch as the network sees it."""
        records = batch.transitions
        seen = standardise(normaliser, records.observation, clip)
        return batch._replace(transitions=records._replace(observation=seen))

    def update(state: AgentState, batch: Trajectory, key: PRNGKey) -> tuple[AgentState, Metrics]:
        if config.batch.micro_batches == 1:
            gradients, moment, metrics = differentiate(state, batch, key)
        else:
            gradients, moment, metrics = accumulate(state, batch, key)
        updates, optimiser_state = optimiser.update(gradients, state.optimiser, state.online)
        online = optax.apply_updates(state.online, updates)
        rate = config.agent.target_rate
        prior = jax.tree.map(lambda p, o: (1.0 - rate) * p + rate * o, state.prior, online)
        dual = state.dual
        if config.update.name == "mpo":
            dual = update_dual(dual, metrics["loss_mpo"])
        metrics |= {
            "gradient_norm": optax.tree.norm(gradients),
            "update_clip_share": clipped_share(optimiser_state),
            "mpo_temperature": jnp.exp(dual.log_temperature),
        }
        made = state._replace(
            online=online, prior=prior, optimiser=optimiser_state, moment=moment, dual=dual
        )
        finite = jnp.isfinite(metrics["loss_total"]) & jnp.isfinite(metrics["gradient_norm"])
        state = unless_not_finite(state, made, finite, config.optimiser.max_skipped_updates)
        metrics["update_skipped"] = 1.0 - finite.astype(jnp.float32)
        return state._replace(step=state.step + 1), metrics

    def differentiate(
        state: AgentState, batch: Trajectory, key: PRNGKey
    ) -> tuple[PyTree, Moment, Metrics]:
        """The gradient of L_total on one batch, in one pass."""
        batch = look(batch, state.normaliser)

        def loss_fn(params: PyTree) -> tuple[Array, tuple[Moment, Metrics]]:
            # Form the minibatch's predictions, with gradients (online) and without (prior).
            online = unroll(network, params, batch)
            prior = unroll(network, state.prior, batch)
            # Returns, the advantage moment, normalised advantages: all that losses hold constant.
            targets, moment = make_targets(network, config, spec, state, batch, online, prior, key)
            total, metrics = losses_of(params, batch, online, targets, moment)
            return total, (moment, metrics)

        gradients, (moment, metrics) = jax.grad(loss_fn, has_aux=True)(state.online)
        return gradients, moment, metrics

    def accumulate(
        state: AgentState, batch: Trajectory, key: PRNGKey
    ) -> tuple[PyTree, Moment, Metrics]:
        """The same gradient from pieces of the batch, in a fraction of its memory.

        The moment is that of the whole batch, so the targets of all pieces come first; the online
        network runs over each piece a second time for its gradient.
        """
        count = config.batch.micro_batches
        size = batch.transitions.reward.shape[0]
        whole = (batch, jax.random.split(key, size))

        def piece_of(tree: PyTree, c: Array) -> PyTree:
            """Every ``count``-th sequence from c on: as many of each device that holds some."""

            def take(x: Array) -> Array:
                rows = x.reshape((size // count, count, *x.shape[1:]))
                return jax.lax.dynamic_index_in_dim(rows, c, axis=1, keepdims=False)

            return jax.tree.map(take, tree)

        def estimate_piece(_: None, c: Array) -> tuple[None, Estimates]:
            piece, its_keys = piece_of(whole, c)
            piece = look(piece, state.normaliser)
            online = unroll(network, state.online, piece)
            prior = unroll(network, state.prior, piece)
            return None, estimate(network, config, spec, state, piece, online, prior, its_keys)

        _, estimates = jax.lax.scan(estimate_piece, None, jnp.arange(count))
        trained = ~is_last(estimates.targets.step_type[:, :, :-1])
        errors = estimates.targets.policy.advantage[..., :-1]
        moment = update_moment(state.moment, errors, trained, config.agent.moment_decay)
        if config.agent.centre_advantages:
            estimates = centre(estimates, trained)
        shares = jnp.sum(trained, (1, 2)) / jnp.maximum(1, jnp.sum(trained))

        def add_piece(total: PyTree, of_piece: PyTree) -> tuple[PyTree, Metrics]:
            c, raw, share = of_piece
            piece = look(piece_of(batch, c), state.normaliser)
            targets = normalise(raw, moment, config)

            def loss_fn(params: PyTree) -> tuple[Array, Metrics]:
                online = unroll(network, params, piece)
                loss, metrics = losses_of(params, piece, online, targets, moment)
                return share * loss, jax.tree.map(lambda x: share * x, metrics)

            gradients, metrics = jax.grad(loss_fn, has_aux=True)(state.online)
            return jax.tree.map(jnp.add, total, gradients), metrics

        zeros = jax.tree.map(jnp.zeros_like, state.online)
        gradients, metrics = jax.lax.scan(add_piece, zeros, (jnp.arange(count), estimates, shares))
        return gradients, moment, jax.tree.map(lambda x: jnp.sum(x, 0), metrics)

    def losses_of(
        params: PyTree,
        batch: Trajectory,
        online: RootOutput,
        targets: Targets,
        moment: Moment,
    ) -> tuple[Array, Metrics]:
        """L_total of a batch whose targets are known. Nothing in them carries gradients."""
        targets = jax.lax.stop_gradient(targets)
        # L_PG+CMPO (or another policy loss) in every state.
        inputs = targets.policy._replace(policy=online.policy)
        policy = jax.vmap(jax.vmap(lambda x: policy_update(x, config.update)))(inputs)
        # L_m, L_v and L_r of the model unrolled from every state.
        predictions = unroll_model(network, params, batch, online, config)
        model = jax.vmap(
            lambda p, t, pi: model_losses(p, t, pi, config.model, reward_support, value_support)
        )(predictions, targets, policy.target)
        losses = {
            "policy": policy.loss[:, :-1],
            "policy_model": model.policy,
            "value": model.value,
            "reward": model.reward,
        }
        weights = loss_weights(config)
        assert set(losses) == set(weights)
        trained = ~is_last(targets.step_type[:, :-1])
        losses = {name: masked_mean(loss, trained) for name, loss in losses.items()}
        total = sum((weights[name] * loss for name, loss in losses.items()), jnp.zeros(()))
        metrics = {f"loss_{name}": loss for name, loss in losses.items()} | {"loss_total": total}
        metrics |= {k: masked_mean(v[:, :-1], trained) for k, v in policy.metrics.items()}
        metrics |= diagnostics(config, inputs, online, targets, model, moment)
        return total, metrics

    def update_dual(dual: Dual, divergence: Array) -> Dual:
        gradient = mpo_dual_gradient(divergence, config.update)
        step, optimiser_state = dual_optimiser.update(gradient, dual.optimiser)
        log_temperature = optax.apply_updates(dual.log_temperature, step)
        floor = jnp.log(config.update.mpo_min_temperature)
        return Dual(jnp.maximum(log_temperature, floor), optimiser_state)

    def acting(state: AgentState) -> Acting:
        params = state.online if config.agent.act_with == "online" else state.prior
        # Before the first update there is no moment yet: the advantages are left as they are.
        sigma = deviation(state.moment, config.agent.moment_epsilon)
        return Acting(params, jnp.where(state.step > 0, sigma, 1.0), state.normaliser)

    return Agent(
        init=init,
        initial_actor=lambda batch: initial_actor(spec, network, batch),
        acting=acting,
        act=make_act(spec, network, config, config.agent.act_with, explore=True),
        observe=observe,
        update=update,
    )


def _init_normaliser(spec: EnvSpec, config: Config) -> Statistics | None:
    if not config.network.normalise_observations:
        return None
    return init_statistics(jax.ShapeDtypeStruct(spec.observation_shape, jnp.float32))


def unless_not_finite(
    before: AgentState, after: AgentState, finite: Array, limit: int
) -> AgentState:
    """The state after an update, or before it where the update is not to be made; and counted.

    After ``limit`` in a row none is made any more: what stops the run may look only now and then.
    """
    faults = before.faults
    make = finite & (faults.in_a_row < limit)
    state = jax.tree.map(partial(jnp.where, make), after, before)
    skipped = (~make).astype(jnp.int32)
    in_a_row = jnp.where(make, 0, faults.in_a_row + 1)
    return state._replace(faults=Faults(faults.skipped + skipped, in_a_row))


# --- acting ---------------------------------------------------------------------------------


def initial_actor(spec: EnvSpec, network: Network, batch: int) -> ActorState:
    """Actors before their first step: [B]."""
    if spec.num_actions is None:
        action = jnp.zeros((batch, spec.action_size), jnp.float32)
    else:
        action = jnp.zeros((batch,), jnp.int32)
    return ActorState(network.initial_state(batch), action, jnp.zeros((batch,), jnp.float32))


def root_of(
    network: Network, config: Config, acting: Acting, timestep: TimeStep, actor: ActorState
) -> tuple[RootOutput, PyTree]:
    """What the network says of the states that actors are in, [B], and its next recurrent state."""
    inputs = UnrollInputs(
        observation=standardise(
            acting.normaliser, timestep.observation, config.network.observation_clip
        ),
        legal_actions=timestep.legal_actions,
        last_action=actor.last_action,
        last_reward=actor.last_reward,
        first=is_first(timestep.step_type),
    )
    one_step = jax.tree.map(lambda x: x[None], inputs)
    root, recurrent = network.unroll(acting.params, one_step, actor.recurrent)
    return jax.tree.map(lambda x: x[0], root), recurrent


def make_act(
    spec: EnvSpec,
    network: Network,
    config: Config,
    act_with: str,
    greedy: bool = False,
    explore: bool = False,
) -> Callable[[Acting, TimeStep, ActorState, Array], tuple[Array, Policy, ActorState]]:
    """The acting function of one mode: "prior" and "online" sample the network's policy,
    "cmpo" its improvement by the model, "q_softmax" the model's action values alone, "mcts" the
    visits of a tree search, which with ``explore`` is given noise at its root.
    """
    if spec.num_actions is None and act_with in ("cmpo", "q_softmax", "mcts"):
        raise ConfigError(f"agent.act_with: {act_with} needs a finite set of actions")
    if act_with == "mcts" and config.model.q_model == "direct":
        raise ConfigError("model.q_model: a search adds up rewards and needs reward_value")
    search = make_search(network, config, supports(config), explore)

    def act(
        acting: Acting, timestep: TimeStep, actor: ActorState, keys: Array
    ) -> tuple[Array, Policy, ActorState]:
        root, recurrent = root_of(network, config, acting, timestep, actor)
        policy = improve(acting, root, keys)
        if greedy:
            action = policy.mode()
        else:
            action = jax.vmap(lambda p, key: p.sample(key))(policy, keys)
        return action, policy, ActorState(recurrent, action, actor.last_reward)

    def improve(acting: Acting, root: RootOutput, keys: Array) -> Policy:
        if act_with == "mcts":
            search_keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
            return search(acting.params, root, search_keys).policy
        if act_with not in ("cmpo", "q_softmax"):
            return root.policy
        assert isinstance(root.policy, Categorical)
        batch = root.policy.logits.shape[0]
        actions = jnp.broadcast_to(jnp.arange(spec.num_actions), (batch, spec.num_actions))
        q = look_ahead(network, config, acting.params, root.embedding, actions)
        if act_with == "q_softmax":
            logits = q / (acting.sigma * config.agent.q_softmax_temperature)
            legal = root.policy.log_probs() > -1e29
            return Categorical.masked(logits, legal)
        value = decode(root.value_logits, supports(config)[1])
        advantages = config.update.advantage_scale * (q - value[:, None]) / acting.sigma
        return cmpo_policy(root.policy, advantages, config.update.clip_threshold)

    return act


# --- predictions ----------------------------------------------------------------------------


def supports(config: Config) -> tuple[Support, Support]:
    """The reward and value supports of the configured network."""
    net = config.network
    return (
        Support(-net.reward_max, net.reward_max, net.reward_bins),
        Support(-net.value_max, net.value_max, net.value_bins),
    )


def loss_weights(config: Config) -> dict[str, float]:
    """The weight of every term of L_total."""
    return {
        "policy": config.update.total_weight,
        "policy_model": config.update.total_weight,
        "value": config.model.value_weight,
        "reward": config.model.reward_weight,
    }


def _swap(tree: PyTree) -> PyTree:
    """Batch-major to time-major and back."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)


def unroll(network: Network, params: PyTree, batch: Trajectory) -> RootOutput:
    """The representation network along every sequence, from its stored start: [B, T + 1]."""
    records = batch.transitions
    previous = lambda start, x: jnp.concatenate([start[:, None], x[:, :-1]], axis=1)  # noqa: E731
    inputs = UnrollInputs(
        observation=records.observation,
        legal_actions=records.legal_actions,
        last_action=previous(batch.start.last_action, records.action),
        last_reward=previous(batch.start.last_reward, records.reward),
        first=is_first(records.step_type),
    )
    root, _ = network.unroll(params, _swap(inputs), batch.start.recurrent)
    return _swap(root)


def unroll_model(
    network: Network, params: PyTree, batch: Trajectory, root: RootOutput, config: Config
) -> ModelPredictions:
    """The model unrolled K steps from every trained record with the actions taken: [B, T, K]."""
    steps, gradient_scale = config.model.unroll_steps, config.agent.dynamics_gradient_scale
    batch_size, length = (
        batch.transitions.reward.shape[0],
        batch.transitions.reward.shape[1] - 1,
    )
    flat = lambda x: x[:, :-1].reshape((batch_size * length, *x.shape[2:]))  # noqa: E731
    start = jax.tree.map(flat, root.embedding)
    actions = batch.transitions.action[:, unroll_index(length, steps) - 1]
    actions = jnp.moveaxis(actions, 2, 0).reshape((steps, batch_size * length, *actions.shape[3:]))

    def step(embedding: PyTree, action: Array) -> tuple[PyTree, PyTree]:
        output = network.model_step(params, embedding, action)
        return scale_gradient(output.embedding, gradient_scale), (
            output.reward_logits,
            output.value_logits,
            output.policy,
        )

    _, outputs = jax.lax.scan(step, start, actions)

    def arrange(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape((batch_size, length, steps, *x.shape[2:]))

    reward_logits, value_logits, policy = jax.tree.map(arrange, outputs)
    return ModelPredictions(reward_logits, value_logits, policy, root.value_logits[:, :-1])


def scale_gradient(tree: PyTree, scale: float) -> PyTree:
    """The same values, with the gradient that flows back through them multiplied by ``scale``."""
    if scale == 1.0:
        return tree
    return jax.tree.map(lambda x: scale * x + (1.0 - scale) * jax.lax.stop_gradient(x), tree)


def look_ahead(
    network: Network, config: Config, params: PyTree, embedding: PyTree, actions: Array
) -> Array:
    """q̂(s, a) = r̂_1(s, a) + γ v̂_1(s, a) in real units: [M, N]. actions: [M, N]."""
    reward_support, value_support = supports(config)
    reward_logits, value_logits = network.look_ahead(params, embedding, actions)
    value = decode(value_logits, value_support)
    if config.model.q_model == "direct":
        return value
    return decode(reward_logits, reward_support) + config.agent.discount * value


# --- targets --------------------------------------------------------------------------------


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
    trained = ~is_last(batch.transitions.step_type[:, :-1])
    errors = estimates.targets.policy.advantage[:, :-1]
    moment = update_moment(state.moment, errors, trained, config.agent.moment_decay)
    if config.agent.centre_advantages:
        estimates = centre(estimates, trained)
    return normalise(estimates, moment, config), moment


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

    # v̂_prior, the baseline.
    value = decode(prior.value_logits, supports(config)[1])
    if config.agent.baseline == "expected_q":
        value = jnp.sum(weights * q.candidates, axis=-1)

    # G and v*, bootstrapping from q̂_prior.
    log_pi = online.policy.log_prob(taken)
    log_behaviour = behaviour.log_prob(taken)
    rewards = records.reward[:, :-1]
    discounts = config.agent.discount * records.discount[:, :-1]
    ratio = importance_ratio(log_pi, log_behaviour)[:, :-1]
    returns = _estimate_returns(config, q, value, rewards, discounts, ratio, records.step_type)
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
