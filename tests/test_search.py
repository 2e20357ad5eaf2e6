"""Search over hand-made models whose best play is known, and over the agent's own."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import presets
from muesli.agent import make_act
from muesli.config import Config, ConfigError, SearchConfig, validate
from muesli.distributions import Categorical
from muesli.networks.network import Network
from muesli.ops.values import Support, encode
from muesli.runners.anakin import make_anakin
from muesli.runners.evaluate import make_evaluate
from muesli.runners.parts import build
from muesli.search import learnt_model, make_search, search_target
from muesli.types import ModelOutput, RootOutput

replace = dataclasses.replace
SUPPORT = Support(-4.0, 4.0, 801)


def logits_of(x):
    """Value logits that decode to ``x``."""
    return jnp.log(jnp.maximum(encode(x, SUPPORT), 1e-30))


def tabular(transitions, rewards):
    """A perfect model of a finite MDP that knows nothing of values and has a uniform policy.

    transitions, rewards: [S, A]; embeddings are state numbers.
    """
    transitions, rewards = jnp.asarray(transitions), jnp.asarray(rewards, jnp.float32)
    actions = transitions.shape[1]

    def model_step(params, embedding, action):
        zeros = jnp.zeros(embedding.shape)
        return ModelOutput(
            reward_logits=logits_of(rewards[embedding, action]),
            value_logits=logits_of(zeros),
            policy=Categorical(jnp.zeros((*embedding.shape, actions))),
            embedding=transitions[embedding, action],
        )

    return Network(None, None, None, model_step, None)


def root_of(states, actions, legal=None):
    states = jnp.asarray(states)
    policy = Categorical.masked(jnp.zeros((len(states), actions)), legal)
    return RootOutput(policy, logits_of(jnp.zeros(len(states))), states)


def searcher(network, discount, **options):
    config = Config(
        agent=replace(Config().agent, discount=discount), search=SearchConfig(**options)
    )
    model = learnt_model(network, config, (SUPPORT, SUPPORT))
    search = make_search(model, config.search, SUPPORT, explore=False)
    return jax.jit(
        lambda root, seed: search(
            None, root, root.embedding, keys(seed, len(root.value_logits)), 1.0
        )
    )


def keys(seed, batch):
    return jax.random.split(jax.random.key(seed), batch)


# A corridor: three steps to the right pay 1, all else nothing.
#   state 0 -right-> 1 -right-> 2 -right-> 3 (absorbing); left from anywhere ends in 3.
CORRIDOR = tabular([[3, 1], [3, 2], [3, 3], [3, 3]], [[0, 0], [0, 0], [0, 1], [0, 0]])


@pytest.mark.parametrize("algorithm", ["muzero", "gumbel"])
def test_a_perfect_model_shows_the_reward_three_steps_away(algorithm):
    search = searcher(CORRIDOR, 0.99, algorithm=algorithm, simulations=60)
    both, left, right = [True, True], [True, False], [False, True]
    found = search(root_of([0, 1, 2, 0, 0], 2, jnp.array([both, both, both, left, right])), 0)
    assert np.argmax(found.policy.probs(), axis=-1).tolist() == [1, 1, 1, 0, 1]
    assert found.policy.logits.shape == (5, 2) and found.value.shape == (5,)
    # Illegal actions are never visited at the root.
    assert np.asarray(found.visits).sum(axis=-1).tolist() == [60] * 5
    np.testing.assert_array_equal(found.visits[3:], [[60, 0], [0, 60]])
    np.testing.assert_allclose(found.policy.probs()[3:], [[1, 0], [0, 1]], atol=1e-6)


def test_a_search_that_may_not_look_so_far_does_not_see_it():
    shallow = searcher(CORRIDOR, 0.99, simulations=60, max_depth=2)
    # From state 0 the reward is three steps away, from state 1 two.
    found = shallow(root_of([0, 1], 2), 0)
    assert abs(found.value[0]) < 1e-6 and found.value[1] > 0.5
    assert np.argmax(found.policy.probs(), axis=-1)[1] == 1


def nim(stones):
    """Take 1, 2 or 3 stones; whoever takes the last wins. State = stones left; 0 is absorbing.

    Taking more than there are loses.
    """
    transitions = np.zeros((stones + 1, 3), int)
    rewards = np.zeros((stones + 1, 3))
    for left, take in itertools.product(range(1, stones + 1), (1, 2, 3)):
        transitions[left, take - 1] = max(0, left - take)
        if take >= left:
            rewards[left, take - 1] = 1.0 if take == left else -1.0
    return tabular(transitions, rewards)


@pytest.mark.parametrize("algorithm", ["muzero", "gumbel"])
def test_two_players_search_with_a_discount_of_minus_one(algorithm):
    # In Nim, leaving a multiple of four wins; with 4 left every move loses.
    search = searcher(nim(7), -1.0, algorithm=algorithm, simulations=150)
    found = search(root_of([5, 6, 7, 4], 3), 1)
    assert np.argmax(found.policy.probs(), axis=-1)[:3].tolist() == [0, 1, 2]
    if algorithm == "muzero":  # gumbel shares its visits out, so its mean is no value of best play
        assert (np.asarray(found.value)[:3] > 0.0).all() and found.value[3] < 0.0


@pytest.mark.parametrize(("algorithm", "favoured"), [("muzero", 0.6), ("gumbel", 0.9)])
def test_differences_far_below_a_standard_deviation_are_not_blown_up(algorithm, favoured):
    # One action pays a thousandth more than the other two; then everything is over.
    tiny = tabular([[1, 1, 1], [1, 1, 1]], [[0.0, 0.001, 0.0], [0.0, 0.0, 0.0]])

    def share(least_spread):
        search = searcher(tiny, 0.9, algorithm=algorithm, simulations=60, least_spread=least_spread)
        return float(search(root_of([0], 3), 0).policy.probs()[0, 1])

    assert share(0.0) > favoured and share(0.1) < 0.45


@pytest.mark.slow
def test_noise_is_for_training_alone_and_each_state_has_its_own():
    config = replace(presets.catch(), search=SearchConfig(simulations=16))
    model = learnt_model(nim(7), config, (SUPPORT, SUPPORT))

    def visits(states, its_keys, explore):
        root = root_of(states, 3)
        # A prior that leaves two actions out: only noise brings them in.
        root = root._replace(policy=Categorical(jnp.array([[12.0, 0.0, 0.0]] * len(states))))
        search = make_search(model, config.search, SUPPORT, explore)
        return np.asarray(search(None, root, root.embedding, its_keys, 1.0).visits)

    noisy = visits([6, 6, 6, 6], keys(3, 4), explore=True)
    assert (noisy[:, 1:].sum(-1) > 0).any()
    assert (visits([6, 6], keys(3, 2), explore=False)[:, 1:] == 0).all()
    # A state is searched alike whatever is searched beside it.
    np.testing.assert_array_equal(noisy[1:3], visits([6, 6], keys(3, 4)[1:3], explore=True))


def test_what_is_distilled_is_the_policy_of_the_search():
    policy = Categorical.masked(jnp.array([0.5, 2.0, 1.0]), jnp.array([True, False, True]))
    target = search_target(policy)
    np.testing.assert_allclose(target.weights.sum(), 1.0, rtol=1e-6)
    assert target.weights[1] == 0.0 and target.actions.tolist() == [0, 1, 2]


def small_tic_tac_toe(**options):
    base = presets.tic_tac_toe()
    return replace(
        base,
        network=replace(base.network, torso_units=16, model_units=16),
        search=SearchConfig(simulations=6),
        **options,
    )


def test_acting_by_search_keeps_to_legal_moves_of_a_real_network():
    config = small_tic_tac_toe()
    config = replace(config, search=replace(config.search, algorithm="gumbel"))
    parts = build(config)
    act = make_act(parts.spec, parts.network, config, "mcts", explore=True)
    state, timestep = jax.vmap(parts.env.reset)(keys(0, 4))
    actors, acting = parts.agent.initial_actor(4), parts.agent.acting(
        parts.agent.init(jax.random.key(0))
    )  # fmt: skip
    for t in range(3):
        action, policy, actors = jax.jit(act)(acting, timestep, actors, keys(t, 4))
        assert np.take_along_axis(np.asarray(timestep.legal_actions), action[:, None], 1).all()
        assert (np.asarray(policy.probs())[~np.asarray(timestep.legal_actions)] == 0.0).all()
        state, timestep = jax.vmap(parts.env.step)(state, action, keys(t, 4))


def by_rules(**options):
    """An untrained agent of tic-tac-toe that searches the game itself."""
    config = small_tic_tac_toe()
    config = replace(config, search=SearchConfig(model="rules", **options))
    parts = build(config)
    act = make_act(parts.spec, parts.network, config, "mcts", greedy=True, rules=parts.rules)
    return parts, parts.agent.acting(parts.agent.init(jax.random.key(0))), jax.jit(act)


@pytest.mark.parametrize("algorithm", ["muzero", "gumbel"])
def test_a_search_of_the_rules_needs_no_training_to_win_and_to_defend(algorithm):
    parts, acting, act = by_rules(simulations=200, algorithm=algorithm)
    # 0 1 2 / 3 4 5 / 6 7 8. The first to move completes 0 1 2; then it must keep 2 from the other.
    for moves, best in (([0, 3, 1, 4], 2), ([8, 0, 3, 1], 2)):
        state, timestep = parts.env.reset(jax.random.key(0))
        for move in moves:
            state, timestep = parts.env.step(state, jnp.int32(move), jax.random.key(0))
        state, timestep = jax.tree.map(lambda x: x[None], (state, timestep))
        action, policy, _ = act(acting, timestep, parts.agent.initial_actor(1), keys(0, 1), state)
        assert action.tolist() == [best]
        assert (np.asarray(policy.probs())[~np.asarray(timestep.legal_actions)] == 0.0).all()


def test_a_search_of_the_rules_beats_a_random_player_untrained():
    parts, acting, act = by_rules(simulations=120)
    evaluate = jax.jit(make_evaluate(parts.env, act, parts.agent.initial_actor, 64))
    # Two random players would share: 0. It came to 0.80 over 192 games.
    assert np.mean(evaluate(acting, jax.random.key(1)).returns) > 0.5


def test_rules_are_searched_only_to_play_games_of_two():
    config = replace(presets.catch(), search=SearchConfig(model="rules"))
    parts = build(config)
    with pytest.raises(ConfigError, match=r"search\.model: rules are for playing games"):
        make_act(parts.spec, parts.network, config, "mcts", rules=parts.rules)
    training = small_tic_tac_toe()
    training = replace(
        training,
        agent=replace(training.agent, act_with="mcts"),
        search=SearchConfig(model="rules"),
    )
    with pytest.raises(ConfigError, match=r"search\.model: rules are for playing games"):
        build(training)


def test_the_mcts_update_must_act_by_search():
    config = presets.with_update(presets.catch(), "mcts")
    with pytest.raises(ConfigError, match=r"agent\.act_with: must be mcts"):
        validate(config)
    acting = replace(config, agent=replace(config.agent, act_with="mcts"))
    validate(acting)
    with pytest.raises(ConfigError, match=r"model\.q_model"):
        validate(replace(acting, model=replace(acting.model, q_model="direct")))
    with pytest.raises(ConfigError, match=r"search\.simulations"):
        validate(replace(acting, search=SearchConfig(simulations=0)))


@pytest.mark.slow
def test_the_mcts_update_distils_what_the_actors_acted_by():
    base = presets.with_update(small_tic_tac_toe(), "mcts")
    config = replace(
        base,
        agent=replace(base.agent, act_with="mcts"),
        search=replace(base.search, simulations=3),
        # Of a drawn move there is nothing to distil.
        env=replace(base.env, num_envs=4, opening_moves=0),
        batch=replace(base.batch, batch_sequences=4, online_sequences=4, sequence_length=5),
    )
    parts = build(config)
    anakin = make_anakin(parts)
    state = anakin.init(jax.random.key(0))
    after, metrics, _ = jax.jit(lambda s: anakin.iterate(s, 1))(state)
    # The first policy is uniform over legal moves, the visits of three simulations are not.
    assert 0.5 < float(metrics["loss_mcts"]) < np.log(9)
    assert np.isfinite(float(metrics["loss_policy_model"]))
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), after.agent, state.agent).online
    assert max(jax.tree.leaves(moved)) > 0.0


def test_continuous_actions_cannot_be_searched():
    spec = build(presets.catch()).spec._replace(num_actions=None, action_size=2)
    with pytest.raises(ValueError, match="finite"):
        make_act(spec, None, presets.catch(), "mcts")
