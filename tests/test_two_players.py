"""Every link of self-play, against an agent that knows the exact values of its own policy.

Tic-tac-toe is solved here by plain recursion for some policy. A network that answers with these
values must find each target to be what it already says: a sign, a mask or a record that is one off
anywhere between the game and the losses would make them differ.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import presets
from muesli.agent import look_ahead, raw_targets, supports, unroll, unroll_model
from muesli.distributions import Categorical
from muesli.losses import reward_targets, unroll_masks, value_targets
from muesli.networks import NETWORKS, Network
from muesli.ops.values import Support, decode, encode
from muesli.runners.anakin import make_anakin, make_collect
from muesli.runners.parts import build
from muesli.symmetry import turn
from muesli.types import ModelOutput, RootOutput, is_last

replace = dataclasses.replace

LINES = (
    (0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6),
)  # fmt: skip
# A position is a number: Σ 3^i · (1 where the mover has point i, 2 where the opponent has it).
POWERS, POSITIONS = 3 ** np.arange(9), 3**9
# Some policy, decided enough that its values differ from those of chance.
LOGITS = 2.0 * np.random.default_rng(0).normal(size=(POSITIONS, 9))


@functools.cache
def solve():
    """What follows each move, [POSITIONS, 9] each: reward, the next mover's value and position.

    And the value of the policy in each position, [POSITIONS].
    """
    rewards, values_after = np.zeros((POSITIONS, 9)), np.zeros((POSITIONS, 9))
    after, values = np.zeros((POSITIONS, 9), int), np.full(POSITIONS, np.nan)

    def value(board):
        number = sum(p * cell for p, cell in zip(POWERS.tolist(), board, strict=True))
        if not np.isnan(values[number]):
            return number
        moves = [a for a in range(9) if board[a] == 0]
        odds = np.exp(LOGITS[number, moves])
        total = 0.0
        for a, share in zip(moves, odds / odds.sum(), strict=True):
            stones = [*board[:a], 1, *board[a + 1 :]]
            if any(all(stones[i] == 1 for i in line) for line in LINES):
                rewards[number, a] = 1.0
            elif 0 in stones:
                after[number, a] = value(tuple((0, 2, 1)[cell] for cell in stones))
                values_after[number, a] = values[after[number, a]]
            total += share * (rewards[number, a] - values_after[number, a])
        values[number] = total
        return number

    value((0,) * 9)
    return rewards, values_after, after, np.nan_to_num(values)


def all_knowing(spec, config):
    """A network without parameters that looks everything up."""
    rewards, values_after, after, values = (jnp.asarray(x) for x in solve())
    logits = jnp.asarray(LOGITS, jnp.float32)
    of_rewards = Support(-config.reward_max, config.reward_max, config.reward_bins)
    of_values = Support(-config.value_max, config.value_max, config.value_bins)

    def surely(x, support):
        return jnp.log(jnp.maximum(encode(x.astype(jnp.float32), support), 1e-20))

    def run(params, inputs, state):
        stones = jnp.asarray(inputs.observation, jnp.int32).reshape((*inputs.first.shape, 9, 2))
        number = jnp.sum(jnp.asarray(POWERS) * (stones[..., 0] + 2 * stones[..., 1]), -1)
        policy = Categorical.masked(logits[number], inputs.legal_actions)
        return RootOutput(policy, surely(values[number], of_values), number), state

    def outcomes(number, actions):
        at = (number, actions)
        return surely(rewards[at], of_rewards), surely(values_after[at], of_values)

    def step(params, number, action):
        following = after[number, action]
        return ModelOutput(*outcomes(number, action), Categorical(logits[following]), following)

    return Network(
        init=lambda key: {"nothing": jnp.zeros(())},
        initial_state=lambda batch: (),
        unroll=run,
        model_step=step,
        look_ahead=lambda params, number, actions: outcomes(number[:, None], actions),
    )


def played(monkeypatch, estimator="retrace", symmetries=False, exploration=0.0, envs=64):
    """Parts, the agent's state and what lies in a second chunk, as the learner sees it."""
    monkeypatch.setitem(NETWORKS, "all_knowing", all_knowing)
    base = presets.tic_tac_toe()
    config = replace(
        base,
        # A drawn move is nothing that the policy's own values know of.
        env=replace(base.env, num_envs=envs, opening_moves=0),
        network=replace(base.network, maker="all_knowing"),
        update=replace(base.update, beta_loo=estimator == "retrace"),
        agent=replace(base.agent, return_estimator=estimator, exploration=exploration),
        batch=replace(
            base.batch, symmetries=symmetries, batch_sequences=envs, online_sequences=envs
        ),
    )
    parts = build(config)
    state = make_anakin(parts).init(jax.random.key(0))
    collect = jax.jit(make_collect(parts))
    # The second chunk begins in the middle of games, which end anywhere in it.
    _, batch, _ = collect(collect(state)[0])
    return parts, state.agent, turn(batch, parts.spec) if symmetries else batch


def targets_of(parts, state, batch):
    root = unroll(parts.network, state.prior, batch)
    keys = jax.random.split(jax.random.key(1), batch.transitions.reward.shape[0])
    return root, raw_targets(parts.network, parts.config, state, batch, root, root, keys)


@pytest.mark.parametrize("symmetries", [False, True])
def test_with_exact_action_values_every_target_is_what_the_agent_says(monkeypatch, symmetries):
    # Nothing is random in this game but the moves, whose values Retrace is told: no noise is left.
    parts, state, batch = played(monkeypatch, symmetries=symmetries, exploration=0.3)
    root, targets = targets_of(parts, state, batch)
    support = supports(parts.config)
    rewards, values_after, _, values = solve()
    number, action = np.asarray(root.embedding), np.asarray(batch.transitions.action)
    going_on = ~np.asarray(is_last(batch.transitions.step_type))
    assert going_on.mean() < 0.95  # games do end in here

    # G = r + γ E q̂ of the next state is q of the move; v* is v, at the bootstrap record too.
    exact = rewards[number, action] - values_after[number, action]
    close = functools.partial(np.testing.assert_allclose, atol=1e-5)
    close(targets.returns[going_on[:, :-1]], exact[:, :-1][going_on[:, :-1]])
    close(targets.values[going_on], values[number][going_on])

    # q̂ of all moves, legal ones weighted, is v̂; those of the masked moves have no weight.
    candidates = targets.policy.candidates
    legal = np.asarray(batch.transitions.legal_actions)
    assert np.all(np.asarray(candidates.weights)[~legal] == 0.0)
    every = jnp.broadcast_to(jnp.arange(9), (number.size, 9))
    flat = jnp.asarray(number.reshape(-1))
    q = look_ahead(parts.network, parts.config, state.prior, flat, every).reshape(*legal.shape)
    close(jnp.sum(root.policy.probs() * q, -1)[going_on], values[number][going_on])
    close((candidates.advantages + targets.baseline[..., None])[legal], q[legal])

    # After k moves in the model, its predictions are their targets: reward, value, whose turn.
    model = unroll_model(parts.network, state.online, batch, root, parts.config)
    for b in range(len(number)):
        one = jax.tree.map(lambda x, b=b: x[b], targets)
        masks = unroll_masks(one.step_type, one.discounts, parts.config.model.unroll_steps)
        counts = np.asarray(masks.outcome) & going_on[b, :-1, None]
        assert np.array_equal(counts[:, 0], going_on[b, :-1])  # a last move's reward, too
        wanted, exist = value_targets(one, masks)
        assert np.array_equal(exist, masks.outcome)
        close(decode(model.value_logits[b], support[1])[counts], wanted[counts])
        close(
            decode(model.reward_logits[b], support[0])[counts],
            reward_targets(one.rewards, masks)[counts],
        )


def test_v_traces_of_whole_games_have_the_exact_values_as_their_means(monkeypatch):
    parts, state, batch = played(monkeypatch, estimator="vtrace", envs=2048)
    root, targets = targets_of(parts, state, batch)
    rewards, values_after, _, _ = solve()
    number, action = np.asarray(root.embedding), np.asarray(batch.transitions.action)
    exact = (rewards[number, action] - values_after[number, action])[:, :-1]
    going_on = ~np.asarray(is_last(batch.transitions.step_type))[:, :-1]
    errors = np.asarray(targets.returns) - exact
    assert np.std(errors[going_on]) > 0.2  # of the moves that follow
    # For either player, early and late in a game.
    stones = (np.asarray(batch.transitions.observation)[:, :-1] != 0).sum((2, 3, 4))
    for moves in range(8):
        here = errors[going_on & (stones == moves)]
        assert abs(here.mean()) < 4.0 * here.std() / np.sqrt(len(here)) + 1e-6, moves
