"""How actors choose: the policy, or what the model or a search makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from muesli.agent.predictions import baseline, look_ahead, supports
from muesli.config import Config, ConfigError
from muesli.distributions import Categorical, Policy, mixture, uniform_like
from muesli.networks.network import Network, UnrollInputs
from muesli.ops.standardise import standardise
from muesli.ops.targets import cmpo_policy
from muesli.ops.values import decode
from muesli.search import Step, learnt_model, make_search, rules_model
from muesli.symmetry import act_turned, first_symmetry
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


def initial_actor(
    spec: EnvSpec, network: Network, batch: int, symmetries: bool = False
) -> ActorState:
    """Actors before their first step: [B]."""
    if spec.num_actions is None:
        action = jnp.zeros((batch, spec.action_size), jnp.float32)
    else:
        action = jnp.zeros((batch,), jnp.int32)
    reward, side = jnp.zeros((batch,), jnp.float32), first_symmetry(batch) if symmetries else None
    return ActorState(network.initial_state(batch), action, reward, side)


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


class Setting(NamedTuple):
    """What a way to act is made from. explore: whether this is training; rules: the step of one
    copy of the environment, where it is inside JAX.
    """

    spec: EnvSpec
    network: Network
    config: Config
    explore: bool
    rules: Step | None


Improve = Callable[[Acting, RootOutput, Array, PyTree], Policy]
"""(Acting, what the network says [B], keys [B], the environment's states [B]) -> Policy [B]."""


def _as_it_is(setting: Setting) -> Improve:
    """The network's own policy."""
    del setting
    return lambda acting, root, keys, states: root.policy


def _by_cmpo(setting: Setting) -> Improve:
    """π_CMPO: the policy, improved by the model's values of all actions."""
    config, update = setting.config, setting.config.update
    support = supports(config)[1]

    def improve(acting: Acting, root: RootOutput, keys: Array, states: PyTree) -> Policy:
        assert isinstance(root.policy, Categorical)
        q = _values_of_all(setting, acting, root)
        value = baseline(config, decode(root.value_logits, support), root.policy.probs(), q)
        advantages = (q - value[:, None]) / acting.sigma
        return cmpo_policy(root.policy, update.advantage_scale * advantages, update.clip_threshold)

    return improve


def _by_values(setting: Setting) -> Improve:
    """A softmax of the model's values alone."""
    temperature = setting.config.agent.q_softmax_temperature

    def improve(acting: Acting, root: RootOutput, keys: Array, states: PyTree) -> Policy:
        logits = _values_of_all(setting, acting, root) / (acting.sigma * temperature)
        return Categorical.masked(logits, root.policy.possible())

    return improve


def _values_of_all(setting: Setting, acting: Acting, root: RootOutput) -> Array:
    """q̂ of every action: [B, A]."""
    assert isinstance(root.policy, Categorical)
    actions = jnp.arange(setting.spec.num_actions)
    every = jnp.broadcast_to(actions, root.policy.logits.shape)
    return look_ahead(setting.network, setting.config, acting.params, root.embedding, every)


def _by_search(setting: Setting) -> Improve:
    """The visits of a tree search over the agent's model, or over the rules of the game."""
    spec, network, config, explore, rules = setting
    reward_value = supports(config)
    if config.model.q_model == "direct":
        raise ConfigError("model.q_model: a search adds up rewards and needs reward_value")
    by_rules = config.search.model == "rules"
    if not by_rules:
        model = learnt_model(network, config, reward_value)
    elif rules is None or spec.players != 2:
        raise ConfigError(
            "search.model: rules are for playing games of two players inside JAX; use learnt"
        )
    elif config.network.core != "none":
        raise ConfigError("search.model: rules are for agents without memory (network.core)")
    else:

        def judge(acting: Acting, timestep: TimeStep) -> RootOutput:
            actor = initial_actor(spec, network, timestep.reward.shape[0])
            return root_of(network, config, acting, timestep, actor)[0]

        model = rules_model(rules, judge, config, reward_value[1])
    search = make_search(model, config.search, reward_value[1], explore)

    def improve(acting: Acting, root: RootOutput, keys: Array, states: PyTree) -> Policy:
        search_keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
        if by_rules:
            begin = states, jnp.zeros(keys.shape[0], bool)
            return search(acting, root, begin, search_keys, acting.sigma).policy
        return search(acting.params, root, root.embedding, search_keys, acting.sigma).policy

    return improve


_WAYS: dict[str, Callable[[Setting], Improve]] = {
    "prior": _as_it_is,
    "online": _as_it_is,
    "cmpo": _by_cmpo,
    "q_softmax": _by_values,
    "mcts": _by_search,
}


def make_act(
    spec: EnvSpec,
    network: Network,
    config: Config,
    act_with: str,
    greedy: bool = False,
    explore: bool = False,
    rules: Step | None = None,
) -> Callable[..., tuple[Array, Policy, ActorState]]:
    """The acting function of one of the ``_WAYS``. With ``explore`` (while training) a search is
    given noise at its root, ``agent.exploration`` of every policy is uniform, and boards are seen
    under their actors' symmetries.

    act(Acting, TimeStep [B], ActorState [B], keys [B], the environment's states [B]) -> (action
    [B], Policy [B], ActorState [B]). Only a search of the ``rules`` looks at the states; others can
    do without.
    """
    if act_with not in _WAYS:
        raise ConfigError(f"agent.act_with: there is no '{act_with}'; there are {', '.join(_WAYS)}")
    way = _WAYS[act_with]
    if spec.num_actions is None and way is not _as_it_is:
        raise ConfigError(f"agent.act_with: {act_with} needs a finite set of actions")
    if spec.num_actions is None and config.agent.exploration > 0.0:
        raise ConfigError("agent.exploration: must be 0 for continuous actions")
    share = config.agent.exploration if explore else 0.0
    improve = way(Setting(spec, network, config, explore, rules))

    def act(
        acting: Acting, timestep: TimeStep, actor: ActorState, keys: Array, states: PyTree = None
    ) -> tuple[Array, Policy, ActorState]:
        root, recurrent = root_of(network, config, acting, timestep, actor)
        policy = improve(acting, root, keys, states)
        if share > 0.0:
            assert isinstance(policy, Categorical)
            policy = mixture((policy, uniform_like(root.policy)), (1.0 - share, share))
        if greedy:
            action = policy.mode()
        else:
            action = jax.vmap(lambda p, key: p.sample(key))(policy, keys)
        return action, policy, actor._replace(recurrent=recurrent, last_action=action)

    return act_turned(act, spec) if explore and config.batch.symmetries else act
