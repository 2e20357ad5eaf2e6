"""How actors choose: the policy, or what the model or a search makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from muesli.agent.predictions import look_ahead, supports
from muesli.config import Config, ConfigError
from muesli.distributions import Categorical, Policy, mixture, uniform_like
from muesli.networks.network import Network, UnrollInputs
from muesli.ops.standardise import standardise
from muesli.ops.targets import cmpo_policy
from muesli.ops.values import decode
from muesli.search import learnt_model, make_search, rules_model
from muesli.types import (
    ActorState,
    Array,
    EnvSpec,
    PRNGKey,
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
    rules: Callable[[PyTree, Array, PRNGKey], tuple[PyTree, TimeStep]] | None = None,
) -> Callable[..., tuple[Array, Policy, ActorState]]:
    """The acting function of one mode: "prior" and "online" sample the network's policy,
    "cmpo" its improvement by the model, "q_softmax" the model's action values alone, "mcts" the
    visits of a tree search. With ``explore`` (while training) a search is given noise at its root,
    and ``agent.exploration`` of every policy is uniform.

    act(Acting, TimeStep [B], ActorState [B], keys [B], the environment's states [B]) -> (action
    [B], Policy [B], ActorState [B]). Only a search of the rules looks at the states; others can do
    without. rules: the step of one copy of the environment, where it is inside JAX.
    """
    if spec.num_actions is None and act_with in ("cmpo", "q_softmax", "mcts"):
        raise ConfigError(f"agent.act_with: {act_with} needs a finite set of actions")
    if spec.num_actions is None and config.agent.exploration > 0.0:
        raise ConfigError("agent.exploration: must be 0 for continuous actions")
    if act_with == "mcts" and config.model.q_model == "direct":
        raise ConfigError("model.q_model: a search adds up rewards and needs reward_value")

    def judge(acting: Acting, timestep: TimeStep) -> RootOutput:
        actor = initial_actor(spec, network, timestep.reward.shape[0])
        return root_of(network, config, acting, timestep, actor)[0]

    by_rules = act_with == "mcts" and config.search.model == "rules"
    if by_rules:
        if rules is None or spec.players != 2:
            raise ConfigError(
                "search.model: rules are for playing games of two players inside JAX; use learnt"
            )
        if config.network.core != "none":
            raise ConfigError("search.model: rules are for agents without memory (network.core)")
        model = rules_model(rules, judge, config, supports(config)[1])
    else:
        model = learnt_model(network, config, supports(config))
    search = make_search(model, config.search, supports(config)[1], explore)

    def act(
        acting: Acting, timestep: TimeStep, actor: ActorState, keys: Array, states: PyTree = None
    ) -> tuple[Array, Policy, ActorState]:
        root, recurrent = root_of(network, config, acting, timestep, actor)
        policy = improve(acting, root, keys, states)
        if explore and config.agent.exploration > 0.0:
            assert isinstance(policy, Categorical)
            share = config.agent.exploration
            policy = mixture((policy, uniform_like(root.policy)), (1.0 - share, share))
        if greedy:
            action = policy.mode()
        else:
            action = jax.vmap(lambda p, key: p.sample(key))(policy, keys)
        return action, policy, ActorState(recurrent, action, actor.last_reward)

    def improve(acting: Acting, root: RootOutput, keys: Array, states: PyTree) -> Policy:
        if act_with == "mcts":
            search_keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
            if by_rules:
                states = states, jnp.zeros(keys.shape[0], bool)
                return search(acting, root, states, search_keys, acting.sigma).policy
            params, states = acting.params, root.embedding
            return search(params, root, states, search_keys, acting.sigma).policy
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
