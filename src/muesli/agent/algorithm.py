"""Algorithm 1: the agent as three pure functions, ``init``, ``act`` and ``update``.

The agent does not know where it runs. Batches are batch-major, ``[B, T + 1, ...]``; networks are
handed ``[T, B]``; the mathematics of ``ops``, ``policy_updates`` and ``losses`` is mapped over the
batch in this package and nowhere else. No mesh axis is named: under ``jit`` with a sharded batch
every mean is the global one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from muesli.agent.acting import Acting, initial_actor, make_act
from muesli.agent.objective import Findings, total_loss
from muesli.agent.pieces import gradient_in_pieces
from muesli.agent.predictions import as_seen, unroll
from muesli.agent.targets import make_targets
from muesli.config import Config, UpdateConfig
from muesli.distributions import Policy
from muesli.networks.network import Network
from muesli.ops.moments import deviation, init_moment
from muesli.ops.standardise import init_statistics, update_statistics
from muesli.optim import clipped_share, make_optimiser
from muesli.policy_updates import mpo_dual_gradient
from muesli.types import (
    ActorState,
    AgentState,
    Array,
    EnvSpec,
    Faults,
    Frequencies,
    Metrics,
    Moment,
    PRNGKey,
    PyTree,
    Statistics,
    TimeStep,
    Trajectory,
)


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

    def init(key: PRNGKey) -> AgentState:
        params = network.init(key)
        return AgentState(
            online=params,
            prior=jax.tree.map(jnp.copy, params),
            optimiser=optimiser.init(params),
            moment=init_moment(),
            dual=init_dual(config.update),
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

    def update(state: AgentState, batch: Trajectory, key: PRNGKey) -> tuple[AgentState, Metrics]:
        differentiate = gradient if config.batch.micro_batches == 1 else gradient_in_pieces
        gradients, moment, (metrics, frequencies, divergence) = differentiate(
            network, config, state, batch, key
        )
        updates, optimiser_state = optimiser.update(gradients, state.optimiser, state.online)
        online = optax.apply_updates(state.online, updates)
        online = inform_heads(network, config, online, frequencies, state.step)
        rate = config.agent.target_rate
        prior = jax.tree.map(lambda p, o: (1.0 - rate) * p + rate * o, state.prior, online)
        dual = state.dual
        if divergence is not None:
            dual = update_dual(dual, divergence, config.update)
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

    def acting(state: AgentState) -> Acting:
        params = state.online if config.agent.act_with == "online" else state.prior
        # Before the first update that was made there is no moment yet: advantages are left as is.
        sigma = deviation(state.moment, config.agent.moment_epsilon)
        known = state.moment.decay_product < 1.0
        return Acting(params, jnp.where(known, sigma, 1.0), state.normaliser)

    return Agent(
        init=init,
        initial_actor=lambda batch: initial_actor(spec, network, batch, config.batch.symmetries),
        acting=acting,
        act=make_act(spec, network, config, config.agent.act_with, explore=True),
        observe=observe,
        update=update,
    )


def gradient(
    network: Network,
    config: Config,
    state: AgentState,
    batch: Trajectory,
    key: PRNGKey,
) -> tuple[PyTree, Moment, Findings]:
    """The gradient of L_total on one batch, in one pass."""
    batch = as_seen(batch, state.normaliser, config)

    def loss_fn(params: PyTree) -> tuple[Array, tuple[Moment, Findings]]:
        # Form the minibatch's predictions, with gradients (online) and without (prior).
        online = unroll(network, params, batch)
        prior = unroll(network, state.prior, batch)
        # Returns, the advantage moment, normalised advantages: all that losses hold constant.
        targets, moment = make_targets(network, config, state, batch, online, prior, key)
        loss, findings = total_loss(network, config, params, batch, online, targets, moment)
        return loss, (moment, findings)

    gradients, (moment, findings) = jax.grad(loss_fn, has_aux=True)(state.online)
    return gradients, moment, findings


def inform_heads(
    network: Network, config: Config, params: PyTree, frequencies: Frequencies, step: Array
) -> PyTree:
    """Tells heads that want to know how often each reward and value was a target."""
    if network.expect is None:
        return params
    # The first batch says all there is to know; from then on a moving average.
    share = jnp.maximum(config.network.value_head_prior_rate, 1.0 / (step + 1.0))
    return network.expect(params, frequencies, share)


def init_dual(config: UpdateConfig) -> Dual:
    """The temperature that MPO's first target has."""
    log_temperature = jnp.log(jnp.float32(config.mpo_init_temperature))
    return Dual(log_temperature, _dual_optimiser(config).init(log_temperature))


def update_dual(dual: Dual, divergence: Array, config: UpdateConfig) -> Dual:
    """One step of the temperature towards the limit on ``divergence``, E KL(π_MPO, π)."""
    slope = mpo_dual_gradient(divergence, config)
    step, optimiser_state = _dual_optimiser(config).update(slope, dual.optimiser)
    log_temperature = optax.apply_updates(dual.log_temperature, step)
    floor = jnp.log(config.mpo_min_temperature)
    return Dual(jnp.maximum(log_temperature, floor), optimiser_state)


def _dual_optimiser(config: UpdateConfig) -> optax.GradientTransformation:
    return optax.adam(config.mpo_dual_learning_rate)


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
