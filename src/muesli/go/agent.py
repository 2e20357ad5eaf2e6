"""A trained agent at the board: it is shown a game and says where it would play."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from muesli.agent import make_act
from muesli.config import ConfigError
from muesli.distributions import Categorical
from muesli.envs.base import HostEnvs, JaxEnv
from muesli.envs.go import go, go_size
from muesli.go.rules import BLACK, WHITE, Game, Move
from muesli.runners.player import Player, load
from muesli.types import StepType, TimeStep, is_last

if TYPE_CHECKING:
    from muesli.runners.player import Thought


class GoAgent:
    """The agent of a Go run.

    It samples its first ``sample_moves`` moves from its policy, so that games differ, and plays the
    most probable one from then on. It passes only where that is the most probable move, and never
    repeats a whole board.
    """

    def __init__(self, player: Player, act_with: str, sample_moves: int, seed: int):
        """Use ``load_agent``."""
        size = go_size(player.config.env.name)
        if size is None:
            raise ConfigError(f"env.name: this run plays {player.config.env.name}, not Go")
        if player.config.network.core != "none":
            raise ConfigError("network.core: at the board the agent must be without memory (none)")
        self.player, self.size = player, size
        self.act_with, self.sample_moves = act_with, sample_moves
        self.komi = player.config.env.go.komi
        self._key = jax.random.key(seed)
        self._game_key, self._asked = jax.random.fold_in(self._key, 0), 0
        self._ready_for: float | None = None
        self._acting = player.acting(act_with)
        self._by_rules = act_with == "mcts" and player.config.search.model == "rules"
        self._shadow: Shadow | None = None
        self._set_rules(player.env, self.komi)
        self._choose_over = self._chooser("prior", None)

    @property
    def settings(self) -> dict[str, Any]:
        """How it finds its moves; of a search, how it searches."""
        how = {"act_with": self.act_with, "sample_moves": self.sample_moves}
        if self.act_with != "mcts":
            return how
        search = self.player.config.search
        names = ("algorithm", "simulations", "max_depth", "model")
        return how | {name: getattr(search, name) for name in names}

    def _set_rules(self, env: JaxEnv | HostEnvs, komi: float) -> None:
        """From now on moves are found by a search of ``env``, if it is rules that are searched."""
        assert isinstance(env, JaxEnv)
        self._rules_komi = komi
        self._shadow = Shadow(env, self.size) if self._by_rules else None
        self._choose = self._chooser(self.act_with, env.step)

    def _chooser(
        self, act_with: str, rules: Callable[..., Any] | None
    ) -> Callable[..., tuple[Any, ...]]:
        parts, config = self.player.parts, self.player.config
        act = make_act(parts.spec, parts.network, config, act_with, rules=rules)

        def choose(
            acting: Any, observation: Any, legal: Any, key: Any, sample: Any, state: Any
        ) -> tuple[Any, ...]:
            states = jax.tree.map(lambda x: x[None], state)
            seen, actor = timestep(observation, legal), parts.agent.initial_actor(1)
            action, policy, _ = act(acting, seen, actor, key[None], states)
            assert isinstance(policy, Categorical)
            # A pass drawn by chance would hand over the game rather than vary it.
            drawn = sample & (action != self.size**2)
            return jnp.where(drawn, action, policy.mode())[0], policy.probs()[0]

        return jax.jit(choose)

    def begin(self, number: int, komi: float) -> None:
        """Before game ``number``: its moves draw from that number and from no game before it, and
        nothing is left to be compiled while they are timed.
        """
        self._game_key, self._asked = jax.random.fold_in(self._key, number), 0
        if self._ready_for != komi:
            game = Game(self.size, komi)
            game.play(Move(BLACK, self.size**2))
            self._find(game, WHITE, self._game_key)
            if self._by_rules:
                self._find(game, WHITE, self._game_key, by_rules=False)
            self._ready_for = komi

    def choose(self, game: Game, colour: int) -> int:
        """Where the agent plays: a point, or size² for a pass."""
        return self.policy(game, colour)[0]

    def policy(self, game: Game, colour: int) -> tuple[int, np.ndarray]:
        """A move, and the policy it came from: [size² + 1]."""
        self._asked += 1
        return self._find(game, colour, jax.random.fold_in(self._game_key, self._asked))

    def _find(
        self, game: Game, colour: int, key: Any, by_rules: bool = True
    ) -> tuple[int, np.ndarray]:
        if self._by_rules and game.komi != self._rules_komi:
            config = replace(self.player.config.env.go, komi=game.komi)
            self._set_rules(go(self.size, config), game.komi)
        sample = len(game.moves) < 2 * self.sample_moves
        legal = game.legal(colour, superko=True)
        state = None
        if self._shadow is not None and by_rules:
            state = self._shadow.state(game, colour)
        # A search of a game that is over for pgx finds nothing: then the network plays on.
        over = self._shadow is not None and state is None
        action, probs = (self._choose_over if over else self._choose)(
            self._acting, game.observation(colour)[None], legal[None], key, sample, state
        )
        return int(action), np.asarray(probs)

    def think(self, game: Game, colour: int) -> Thought:
        """Policy, value and q̂ of a position, from the network alone: for ``colour``."""
        seen = timestep(game.observation(colour)[None], game.legal(colour, superko=True)[None])
        return self.player.think(seen, self.player.initial_state(1))


class Shadow:
    """The environment's own state of a game that is played elsewhere."""

    def __init__(self, env: JaxEnv, size: int):
        self._start, self._step, self._pass = jax.jit(env.reset), jax.jit(env.step), size**2
        self._played: list[int] = []
        self._state: Any = None
        self._over = False

    def state(self, game: Game, colour: int) -> Any | None:
        """The state of a game with ``colour`` to move; None if it is over there: by two passes,
        its length or a repetition that only the environment counts as an end.
        """
        stones = [Move(BLACK, point) for point in game.handicap] + game.moves
        actions, turn = [], BLACK
        for move in [*stones, Move(colour, self._pass)]:
            if move.colour != turn:  # Whoever is passed over has passed.
                actions.append(self._pass)
            actions.append(move.point)
            turn = -move.colour
        self._follow(actions[:-1])
        return None if self._over else self._state

    def _follow(self, actions: list[int]) -> None:
        known = len(self._played)
        if self._state is None or self._over or actions[:known] != self._played:
            self._state, known = self._start(jax.random.key(0))[0], 0
            self._over = False
        for action in actions[known:]:
            self._state, after = self._step(self._state, jnp.int32(action), jax.random.key(0))
            self._over = bool(is_last(after.step_type))
            if self._over:
                break
        self._played = actions


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
