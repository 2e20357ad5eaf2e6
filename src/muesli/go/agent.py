"""A trained agent at the board: it is shown a game and says where it would play."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from muesli.agent import make_act
from muesli.config import ConfigError
from muesli.distributions import Categorical
from muesli.envs.go import go_size
from muesli.go.rules import Game
from muesli.runners.player import Player, load
from muesli.types import StepType, TimeStep

if TYPE_CHECKING:
    from muesli.runners.player import Thought


class GoAgent:
    """The agent of a Go run.

    It samples its first ``sample_moves`` moves from its policy, so that games differ, and plays the
    most probable one from then on. It never repeats a whole board.
    """

    def __init__(self, player: Player, act_with: str, sample_moves: int, seed: int):
        """Use ``load_agent``."""
        size = go_size(player.config.env.name)
        if size is None:
            raise ConfigError(f"env.name: this run plays {player.config.env.name}, not Go")
        if player.config.network.core != "none":
            raise ConfigError("network.core: at the board the agent must be without memory (none)")
        self.player, self.size, self.sample_moves = player, size, sample_moves
        self.komi = player.config.env.go.komi
        self._key, self._asked = jax.random.key(seed), 0
        self._acting = player.acting(act_with)
        parts = player.parts
        act = make_act(parts.spec, parts.network, player.config, act_with)

        def choose(
            acting: Any, observation: Any, legal: Any, key: Any, sample: Any
        ) -> tuple[Any, ...]:
            action, policy, _ = act(
                acting, timestep(observation, legal), parts.agent.initial_actor(1), key[None]
            )
            assert isinstance(policy, Categorical)
            return jnp.where(sample, action, policy.mode())[0], policy.probs()[0]

        self._choose = jax.jit(choose)

    def choose(self, game: Game, colour: int) -> int:
        """Where the agent plays: a point, or size² for a pass."""
        return self.policy(game, colour)[0]

    def policy(self, game: Game, colour: int) -> tuple[int, np.ndarray]:
        """A move, and the policy it came from: [size² + 1]."""
        self._asked += 1
        key = jax.random.fold_in(self._key, self._asked)
        sample = len(game.moves) < 2 * self.sample_moves
        legal = game.legal(colour, superko=True)
        action, probs = self._choose(
            self._acting, game.observation(colour)[None], legal[None], key, sample
        )
        return int(action), np.asarray(probs)

    def think(self, game: Game, colour: int) -> Thought:
        """Policy, value and q̂ of a position, from the network alone: for ``colour``."""
        seen = timestep(game.observation(colour)[None], game.legal(colour, superko=True)[None])
        return self.player.think(seen, self.player.initial_state(1))


def timestep(observation: Any, legal: Any) -> TimeStep:
    """A position in the middle of a game as the agent's time step: [1]."""
    return TimeStep(
        observation,
        jnp.zeros((1,), jnp.float32),
        jnp.ones((1,), jnp.float32),
        jnp.full((1,), StepType.MID, jnp.int32),
        legal,
    )


def load_agent(
    run_dir: Path,
    checkpoint: str | None = None,
    act_with: str = "prior",
    search: dict[str, Any] | None = None,
    sample_moves: int = 6,
    seed: int = 0,
) -> GoAgent:
    """The agent of a run directory."""
    return GoAgent(
        load(run_dir, checkpoint=checkpoint, search=search), act_with, sample_moves, seed
    )
