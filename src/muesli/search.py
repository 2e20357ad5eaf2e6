"""Tree search over the agent's own model, on mctx: MuZero's, and Gumbel MuZero's.

It improves the policy of real states by looking many steps ahead, for acting (π_MCTS), for the
``mcts`` update (which distils π_MCTS), or at evaluation alone. Masks hold at the root; inside the
model nobody knows which actions are legal. A discount of −1 makes it a search of two players.
Games can be searched by their own rules instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from muesli.config import Config, SearchConfig
from muesli.distributions import LOG_ZERO, Categorical
from muesli.networks.network import Network
from muesli.ops.values import Support, decode
from muesli.types import Array, PolicyTarget, PRNGKey, PyTree, RootOutput, TimeStep


class Searched(NamedTuple):
    """What a search found. policy: π_MCTS, [B]; value: [B], of the root; visits: [B, A] i32."""

    policy: Categorical
    value: Array
    visits: Array


Step = Callable[[PyTree, Array, PRNGKey], tuple[PyTree, TimeStep]]
"""The step of one copy of an environment: (state, action, key) -> (state, TimeStep)."""
Search = Callable[[PyTree, RootOutput, PyTree, Array, Array], Searched]
Model = Callable[[PyTree, PRNGKey, Array, PyTree], tuple[Any, PyTree]]
"""An mctx recurrent function: (params, key, action [B], state [B]) -> (what comes of it, state)."""


def learnt_model(network: Network, config: Config, supports: tuple[Support, Support]) -> Model:
    """The network's own model, whose states are embeddings."""
    reward_support, value_support = supports

    def model(params: PyTree, key: PRNGKey, action: Array, embedding: PyTree) -> tuple[Any, PyTree]:
        import mctx

        del key
        output = network.model_step(params, embedding, action)
        value = decode(output.value_logits, value_support)
        step = mctx.RecurrentFnOutput(
            reward=decode(output.reward_logits, reward_support),
            discount=jnp.full_like(value, config.agent.discount),
            prior_logits=output.policy.log_probs(),
            value=value,
        )
        return step, output.embedding

    return model


def rules_model(
    step: Step,
    judge: Callable[[PyTree, TimeStep], RootOutput],
    config: Config,
    value_support: Support,
) -> Model:
    """A game of two players as what a search looks into: ``step`` of one copy of it, positions
    judged by ``judge(params, TimeStep [B])``. Its states are the game's and whether it is over.
    """

    def model(params: PyTree, key: PRNGKey, action: Array, states: PyTree) -> tuple[Any, PyTree]:
        import mctx

        games, over = states
        each = jax.random.split(key, action.shape[0])
        games, after = jax.vmap(step)(games, action, each)
        root = judge(params, after)
        # A search goes on below a game's end, where nothing counts any more.
        ended = over | (after.discount == 0.0)
        outcome = mctx.RecurrentFnOutput(
            reward=jnp.where(over, 0.0, after.reward),
            discount=jnp.where(ended, 0.0, config.agent.discount),
            prior_logits=root.policy.log_probs(),
            value=jnp.where(ended, 0.0, decode(root.value_logits, value_support)),
        )
        return outcome, (games, ended)

    return model


def make_search(
    model: Model, config: SearchConfig, value_support: Support, explore: bool
) -> Search:
    """search(params, RootOutput [B], the model's states there [B], keys [B], σ) -> Searched [B].

    params are the model's, σ the advantages' standard deviation. With ``explore``, the root's prior
    is mixed with Dirichlet noise (muzero), or actions are chosen with Gumbel noise (gumbel): for
    behaviour while training.
    """

    def search(
        params: PyTree, root: RootOutput, states: PyTree, keys: Array, sigma: Array
    ) -> Searched:
        value = decode(root.value_logits, value_support)
        one = partial(search_one, model, config, explore, params, sigma)
        return jax.vmap(one)(root.policy, value, states, keys)

    return search


def search_one(
    model: Model,
    config: SearchConfig,
    explore: bool,
    params: PyTree,
    sigma: Array,
    policy: Categorical,
    value: Array,
    state: PyTree,
    key: PRNGKey,
) -> Searched:
    """The search from one state, with a key of its own whatever is searched beside it.

    model: called with batches of one; policy: of the root, its illegal actions at probability 0;
    value: []; state: the model's at the root.
    """
    # Imported late: of those who never search, nobody should wait for it.
    import mctx

    batch = partial(jax.tree.map, lambda x: jnp.asarray(x)[None])
    root = mctx.RootFnOutput(
        prior_logits=policy.log_probs()[None],
        value=jnp.asarray(value)[None],
        embedding=batch(state),
    )
    illegal = ~policy.possible()[None]
    # mctx divides by at least this.
    epsilon = jnp.maximum(config.least_spread * sigma, 1e-8)
    run = mctx.muzero_policy if config.algorithm == "muzero" else mctx.gumbel_muzero_policy
    options: dict[str, Any] = (
        {
            "dirichlet_fraction": config.dirichlet_fraction if explore else 0.0,
            "dirichlet_alpha": config.dirichlet_alpha,
            "pb_c_init": config.pb_c_init,
            "pb_c_base": config.pb_c_base,
            "qtransform": partial(mctx.qtransform_by_parent_and_siblings, epsilon=epsilon),
        }
        if config.algorithm == "muzero"
        else {
            "max_num_considered_actions": config.considered_actions,
            "gumbel_scale": 1.0 if explore else 0.0,
            "qtransform": partial(mctx.qtransform_completed_by_mix_value, epsilon=epsilon),
        }
    )
    output = run(params, key, root, model, config.simulations, illegal, config.max_depth, **options)
    weights = output.action_weights[0]
    summary = output.search_tree.summary()
    # Probability 0 is an exact LOG_ZERO, so that the actor never samples it.
    logits = jnp.where(
        (weights > 0.0) & ~illegal[0], jnp.log(jnp.maximum(weights, 1e-30)), LOG_ZERO
    )
    return Searched(Categorical(logits), summary.value[0], summary.visit_counts[0])


def search_target(policy: Categorical) -> PolicyTarget:
    """π_MCTS of one state as what the ``mcts`` update distils: every action, [A]."""
    return PolicyTarget(jnp.arange(policy.num_actions), policy.probs(), policy.log_probs())
