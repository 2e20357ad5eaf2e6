"""What scores are measured against: a random player is 0, a reference is 1."""

from __future__ import annotations

from typing import NamedTuple


class Reference(NamedTuple):
    """A random player's score, the reference's, and who that is."""

    random: float
    score: float
    who: str


_PPO = "pgx's PPO at 20M steps"
# Random players: means of 512 episodes, measured with ``runners.evaluate.random_act``.
REFERENCES: dict[str, Reference] = {
    "catch": Reference(-0.6, 1.0, "every ball caught"),
    "minatar_breakout": Reference(0.4, 50.0, _PPO),
    "minatar_asterix": Reference(0.5, 23.0, _PPO),
    "minatar_freeway": Reference(0.4, 63.0, _PPO),
    "minatar_space_invaders": Reference(4.2, 149.0, _PPO),
    "minatar_seaquest": Reference(0.1, 54.0, _PPO),
    "tic_tac_toe": Reference(0.0, 1.0, "every game won against a random player"),
    "connect_four": Reference(0.0, 1.0, "every game won against a random player"),
    "go_9x9": Reference(0.0, 1.0, "every game won against a random player"),
}
"""By environment. Atari's are the paper's random and human scores."""


def reference_of(env: str) -> Reference | None:
    """The reference of an environment, or None where none is known: its scores stay as they are."""
    if env.startswith("atari:"):
        from muesli.envs.atari import SCORES

        scores = SCORES.get(env.removeprefix("atari:"))
        return None if scores is None else Reference(scores.random, scores.human, "a human")
    return REFERENCES.get(env)
