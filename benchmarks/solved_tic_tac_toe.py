"""A tic-tac-toe agent beside exact answers, in all 4,520 positions where there is a move to make.

    python benchmarks/solved_tic_tac_toe.py RUN_DIR

Games against a random player say little of an agent: one that never makes a mistake, but chooses
evenly among perfect moves, returns 0.87, and 0.96 is the most there is. So, beside that return
(exact, not sampled):

- regret: how much worse than perfect the chosen move is, the mean over all positions, each once;
- beaten by: the mean return of the best possible opponent, who knows the agent (0: unbeatable);
- positions: how many its sampled games against itself visit, as the exponential of their entropy.

And of the network, beside the exact values of the agent's own policy, over all positions: the
correlations of v̂, and of advantages over all legal moves by q̂ and by one real move and then v̂.
``ratio`` is what q_action_error_ratio would be on games against itself; beside it, with an exact q̂.
"""

import argparse
import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import muesli
from muesli.agent import root_of, supports
from muesli.ops.values import decode
from muesli.types import StepType, TimeStep

LINES = np.array(
    [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
)


class Game(NamedTuple):
    """boards: [N, 9], 1 the mover's, −1 the opponent's; stones: [N]; legal: [N, 9]; rewards, after:
    [N, 9], of each move, and the number of the position that it leads to (−1: the game is over).
    """

    boards: np.ndarray
    stones: np.ndarray
    legal: np.ndarray
    rewards: np.ndarray
    after: np.ndarray

    def follows(self, values: np.ndarray) -> np.ndarray:
        """What the next position is worth to whoever moves there, 0 where there is none: [N, 9]."""
        return np.where(self.after >= 0, values[self.after], 0.0)

    def solve(self, choose: Any) -> np.ndarray:
        """Values from the last moves back: choose(rows, q [rows, 9]) -> [rows]."""
        values = np.zeros(len(self.boards))
        for stones in range(8, -1, -1):
            rows = self.stones == stones
            values[rows] = choose(rows, (self.rewards - self.follows(values))[rows])
        return values


def game() -> Game:
    boards, numbers = [(0,) * 9], {(0,) * 9: 0}
    rewards, after = [], []
    for board in boards:  # grows as it goes
        rewards.append(np.zeros(9))
        after.append(np.full(9, -1))
        for move in np.flatnonzero(np.array(board) == 0):
            played = np.array(board)
            played[move] = 1
            if np.any(played[LINES].sum(1) == 3):
                rewards[-1][move] = 1.0
            elif np.any(played == 0):
                following = tuple((-played).tolist())
                if following not in numbers:
                    numbers[following] = len(boards)
                    boards.append(following)
                after[-1][move] = numbers[following]
    table = np.array(boards)
    return Game(table, (table != 0).sum(1), table == 0, np.array(rewards), np.array(after))


def mean_return(g: Game, ours: np.ndarray, theirs: np.ndarray | None) -> float:
    """Of the first policy, over both colours, against the second or (None) the best opponent."""
    to_move, waiting = np.zeros(len(g.boards)), np.zeros(len(g.boards))
    for stones in range(8, -1, -1):
        rows = g.stones == stones
        q, q_theirs = g.rewards + g.follows(waiting), -g.rewards + g.follows(to_move)
        to_move[rows] = (ours * q).sum(1)[rows]
        if theirs is None:
            waiting[rows] = np.where(g.legal, q_theirs, np.inf).min(1)[rows]
        else:
            waiting[rows] = (theirs * q_theirs).sum(1)[rows]
    return float(0.5 * (to_move[0] + waiting[0]))


def greedy(g: Game, preference: np.ndarray) -> np.ndarray:
    return np.eye(9)[np.where(g.legal, preference, -np.inf).argmax(1)]


def visits(g: Game, policy: np.ndarray) -> np.ndarray:
    """The share of the games against itself that reach each position."""
    share = np.zeros(len(g.boards))
    share[0] = 1.0
    for stones in range(9):
        rows = np.flatnonzero(g.stones == stones)
        goes_on = g.after[rows] >= 0
        np.add.at(share, g.after[rows][goes_on], (share[rows, None] * policy[rows])[goes_on])
    return share


def says(player: Any, g: Game) -> list[np.ndarray]:
    """Policy [N, 9], v̂ [N], r̂ and v̂ after each move [N, 9]."""
    parts, acting, count = player.parts, player.acting("prior"), len(g.boards)
    planes = np.stack([g.boards == 1, g.boards == -1], -1).reshape(count, 3, 3, 2)
    kinds = np.where(g.stones == 0, StepType.FIRST, StepType.MID)
    nothing, one = jnp.zeros(count), jnp.ones(count)
    seen = TimeStep(planes, nothing, one, jnp.asarray(kinds), jnp.asarray(g.legal))
    of_rewards, of_values = supports(parts.config)

    def look(acting: Any) -> Any:
        actor = parts.agent.initial_actor(count)
        root, _ = root_of(parts.network, parts.config, acting, seen, actor)
        moves = jnp.broadcast_to(jnp.arange(9), (count, 9))
        rewards, values = parts.network.look_ahead(acting.params, root.embedding, moves)
        value = decode(root.value_logits, of_values)
        return root.policy.probs(), value, decode(rewards, of_rewards), decode(values, of_values)

    return [np.asarray(x, np.float64) for x in jax.jit(look)(acting)]


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.corrcoef(x, y)[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir")
    player = muesli.load(parser.parse_args().run_dir)
    g, gamma = game(), player.config.agent.discount
    policy, value, reward_model, value_model = says(player, g)
    q_hat, q_real = reward_model + gamma * value_model, g.rewards + gamma * g.follows(value)
    chance = g.legal / g.legal.sum(1, keepdims=True)

    best = g.solve(lambda rows, q: np.where(g.legal[rows], q, -np.inf).max(1))
    own = g.solve(lambda rows, q: (policy[rows] * q).sum(1))
    perfect, exact = g.rewards - g.follows(best), g.rewards - g.follows(own)

    def strength(preference: np.ndarray) -> dict[str, float]:
        chosen = greedy(g, preference)
        return {
            "return against chance": mean_return(g, chosen, chance),
            "regret": float((best - (chosen * perfect).sum(1)).mean()),
            "beaten by": -mean_return(g, chosen, None),
        }

    def advantages(q: np.ndarray) -> np.ndarray:
        return (q - (chance * q).sum(1, keepdims=True))[g.legal]

    reached = visits(g, policy)
    share = reached / reached.sum()
    # The noise of a game's result around the exact value of each of its moves.
    squares = np.zeros(len(g.boards))
    for stones in range(8, -1, -1):
        rows = g.stones == stones
        squares[rows] = (policy * (g.rewards**2 + g.follows(squares))).sum(1)[rows]
    weight = reached[:, None] * policy
    noise = (weight * (g.rewards**2 + g.follows(squares) - exact**2)).sum()
    level = (policy * q_hat).sum(1, keepdims=True)

    def ratio(q: np.ndarray, without: np.ndarray) -> float:
        errors = [(weight * (exact - x) ** 2).sum() for x in (q, without)]
        return float((noise + errors[0]) / (noise + errors[1]))

    entropy = -(policy * np.log(np.maximum(policy, 1e-30))).sum(1)
    legal_and_over = g.legal & (g.after < 0)
    result = {
        "greedy": strength(policy),
        "by q̂ alone": strength(q_hat),
        "by one real move and v̂": strength(q_real),
        "sampled": {
            "return against chance": mean_return(g, policy, chance),
            "beaten by": -mean_return(g, policy, None),
        },
        "self-play": {
            "entropy": float((share * entropy).sum()),
            "positions": float(np.exp(-(share * np.log(np.maximum(share, 1e-30))).sum())),
            "ratio": ratio(q_hat, level),
            "ratio if exact": ratio(exact, own[:, None]),
        },
        "correlations with the policy's own values": {
            "v̂": correlation(value, own),
            "q̂": correlation(advantages(q_hat), advantages(exact)),
            "one real move, then v̂": correlation(advantages(q_real), advantages(exact)),
            "v̂ after a model step with v̂ there": correlation(
                value_model[g.after >= 0], g.follows(value)[g.after >= 0]
            ),
        },
        "r̂ of winning moves": float(reward_model[g.rewards > 0].mean()),
        "r̂ of other last moves": float(reward_model[legal_and_over & (g.rewards == 0)].mean()),
    }
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
