"""How actors choose: the policy, or what the model or a search makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from muesli.agent.predictions import look_ahead, supports
from muesli.config import Config, ConfigError
from muesli.distributions import Categorical, Policy
from muesli.networks.network import Network, UnrollInputs
from muesli.ops.standardise import standardise
from muesli.ops.targets import cmpo_policy
from muesli.ops.values import decode
from muesli.search import make_search
from muesli.types import (
    ActorState,
    Array,
    EnvSpec,
    PyTree,
    RootOutput,
    Statistics,
    TimeStep,
    is_first,
)


class Acting(NamedTuple):
    """What an actor needs of the agent. params: of the network that acts; sigma: [] f32;
    normaliser: the Statistics these parameters came with, or None.
    """

    params: PyTree
    sigma: Array
    normaliser: Statistics | None = None


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
