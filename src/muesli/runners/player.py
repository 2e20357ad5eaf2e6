"""A trained agent to play with: what ``muesli.load`` returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from muesli import keys
from muesli.agent import Acting, baseline, look_ahead, make_act, root_of, supports
from muesli.checks import check_shape
from muesli.config import Config, ConfigError
from muesli.distributions import Categorical, Policy
from muesli.envs.base import HostEnvs, JaxEnv
from muesli.fields import set_field
from muesli.ops.values import decode
from muesli.runners.evaluate import Evaluation, make_evaluate, random_act
from muesli.runners.export import exported_config
from muesli.runners.host import Memory, initial_memory, make_evaluate_on_host, remember
from muesli.runners.loading import load_agent_state
from muesli.runners.parts import Parts, build, for_processor
from muesli.runners.rundir import read_config
from muesli.types import Array, PRNGKey, TimeStep

# Continuous actions that are thought about: drawn from the policy.
_DRAWN = 16


class Thought(NamedTuple):
    """What the agent thinks of one state.

    Discrete actions: policy: [A], their probabilities; q: [A]. Continuous ones: policy: [D, 3],
    the middle of each dimension and one standard deviation to either side; q: [16], of actions
    drawn from the policy, in increasing order. value: [], v̂; baseline: [], what the agent takes
    advantages over, v̂ or Σ π q̂.
    """

    policy: np.ndarray
    value: float
    q: np.ndarray
    baseline: float


class Player:
    """A run's agent at its newest good checkpoint."""

    def __init__(self, parts: Parts, state: Any):
        """Use ``load``."""
        self.parts, self.state = parts, state
        self._acting = {
            "online": parts.agent.acting(state)._replace(params=state.online),
            "prior": parts.agent.acting(state)._replace(params=state.prior),
        }
        self._act = self.actor("prior")
        # So that a second evaluation compiles nothing.
        self._evaluator = cache(self._make_evaluator)

    @property
    def config(self) -> Config:
        """The run's configuration."""
        return self.parts.config

    @property
    def env(self) -> JaxEnv | HostEnvs:
        """The run's environment."""
        return self.parts.env

    def acting(self, act_with: str) -> Acting:
        """The parameters that act in a mode."""
        return self._acting["online" if act_with == "online" else "prior"]

    def initial_state(self, batch: int) -> Memory:
        """What the agent remembers before its first step in each of ``batch`` environments."""
        return initial_memory(self.parts, batch)

    def act(self, timestep: TimeStep, state: Memory, key: PRNGKey) -> tuple[Array, Policy, Memory]:
        """Actions for a batch of time steps [B], the policy they came from, and the next state.

        Time steps are as the environment gives them: rewards unscaled, frames not stacked. One copy
        of an environment outside JAX, such as Gymnasium's::

            env = player.env.make(range(1), seed=0)
            timestep, memory = env.reset(), player.initial_state(1)
            action, policy, memory = player.act(timestep, memory, jax.random.key(0))
            timestep = env.step(np.asarray(action))
        """
        return self._act(timestep, state, key)

    def actor(
        self, act_with: str, greedy: bool = False
    ) -> Callable[[TimeStep, Memory, PRNGKey], tuple[Array, Policy, Memory]]:
        """What ``act`` is for the prior policy, for any way to act but a search of the rules."""
        parts, acting = self.parts, self.acting(act_with)
        if act_with == "random":
            act: Callable[..., Any] = random_act(parts.spec)
        else:
            act = make_act(parts.spec, parts.network, self.config, act_with, greedy)

        def play(acting: Acting, timestep: TimeStep, memory: Memory, key: PRNGKey) -> Any:
            _check_batch("act", timestep, memory)
            memory, seen = remember(parts, memory, timestep)
            each = jax.random.split(key, timestep.step_type.shape[0])
            action, policy, actors = act(acting, seen, memory.actors, each)
            return action, policy, memory._replace(actors=actors)

        return partial(jax.jit(play), acting)

    def evaluate(
        self, episodes: int, act_with: str = "prior", greedy: bool = False, seed: int = 0
    ) -> Evaluation:
        """Plays fresh episodes. ``act_with`` may also be ``random``."""
        if episodes < 1:
            raise ConfigError(f"episodes: must be at least 1, got {episodes}")
        return self._evaluator(episodes, act_with, greedy)(self.acting(act_with), seed)

    def _make_evaluator(
        self, episodes: int, act_with: str, greedy: bool
    ) -> Callable[[Acting, int], Evaluation]:
        """What ``evaluate`` calls for one way to act."""
        parts = self.parts
        if act_with == "random":
            act: Callable[..., Any] = random_act(parts.spec)
        else:
            act = make_act(
                parts.spec, parts.network, self.config, act_with, greedy, rules=parts.rules
            )
        if isinstance(parts.env, HostEnvs):
            outside = make_evaluate_on_host(parts, act, episodes)

            def play_outside(acting: Acting, seed: int) -> Evaluation:
                played = outside(acting, seed, lambda: False)
                assert played is not None  # nobody stops it
                return played

            return play_outside
        scale = self.config.env.reward_scale
        inside = jax.jit(
            make_evaluate(parts.env, act, parts.agent.initial_actor, episodes, reward_scale=scale)
        )
        return lambda acting, seed: jax.device_get(
            inside(acting, keys.eval_key(jax.random.key(seed), 0))
        )

    def think(self, timestep: TimeStep, state: Memory) -> Thought:
        """Policy, value and q̂ of one state (batch of one)."""
        policy, value, q, level = self._think(self._acting["prior"], timestep, state)
        return Thought(np.asarray(policy[0]), float(value[0]), np.asarray(q[0]), float(level[0]))

    @cached_property
    def _think(self) -> Callable[..., Any]:
        network, config, spec = self.parts.network, self.config, self.parts.spec

        def think(acting: Acting, timestep: TimeStep, memory: Memory) -> tuple[Array, ...]:
            _check_batch("think", timestep, memory)
            memory, timestep = remember(self.parts, memory, timestep)
            state = memory.actors
            root, _ = root_of(network, config, acting, timestep, state)
            value = decode(root.value_logits, supports(config)[1])
            if isinstance(root.policy, Categorical):
                shown, actions = root.policy.probs(), jnp.arange(spec.num_actions)[None]
                weights = shown
            else:
                shown = jnp.stack([root.policy.shifted(k).mode() for k in (-1, 0, 1)], -1)
                drawn = root.policy.sample(jax.random.key(0), (_DRAWN,))
                actions = jnp.swapaxes(drawn, 0, 1)
                weights = jnp.full(actions.shape[:2], 1.0 / _DRAWN)
            q = look_ahead(network, config, acting.params, root.embedding, actions)
            if not isinstance(root.policy, Categorical):
                q = jnp.sort(q, axis=-1)
            return shown, value, q, baseline(config, value, weights, q)

        return jax.jit(think)


def _check_batch(function: str, timestep: TimeStep, memory: Memory) -> None:
    """Time steps are of as many copies as are remembered."""
    if not hasattr(timestep, "step_type"):
        raise TypeError(f"{function}: timestep must be a TimeStep, as player.env gives them")
    batch = memory.actors.last_reward.shape
    for name in ("reward", "step_type"):
        check_shape(function, f"timestep.{name}", getattr(timestep, name), batch)


def for_playing(config: Config) -> Config:
    """The same run in the arithmetic of this machine."""
    return for_processor(config) if jax.default_backend() == "cpu" else config


def load(
    run_dir: str | Path,
    best: bool = False,
    checkpoint: str | None = None,
    search: Mapping[str, Any] | None = None,
) -> Player:
    """The agent of a run: at its newest good checkpoint, at its best evaluation, or at the
    checkpoint of that name; or of a file that ``muesli export`` wrote. search: fields of the
    configuration's ``search`` to change.
    """
    path = Path(run_dir)
    config = exported_config(path) if path.is_file() else read_config(path)
    for name, value in (search or {}).items():
        config = set_field(config, f"search.{name}", value)
    parts = build(for_playing(config))
    return Player(parts, load_agent_state(path, parts, checkpoint or ("best" if best else None)))
