"""A trained agent to play with: what ``muesli.load`` returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from muesli.agent import Acting, look_ahead, make_act, supports
from muesli.config import Config
from muesli.distributions import Categorical, Policy
from muesli.envs.base import JaxEnv
from muesli.networks.network import UnrollInputs
from muesli.ops.values import decode
from muesli.runners.evaluate import Evaluation, make_evaluate, random_act
from muesli.runners.rundir import read_config
from muesli.runners.train import Parts, build, load_agent_state
from muesli.types import ActorState, Array, PRNGKey, TimeStep, is_first

# Keeps an evaluation's keys apart from those of a training run with the same seed.
_EVAL_STREAM = 2**31 - 5


class Thought(NamedTuple):
    """What the agent thinks of one state. policy: [A]; value: []; q: [A]."""

    policy: np.ndarray
    value: float
    q: np.ndarray


class Player:
    """A run's agent at its newest good checkpoint."""

    def __init__(self, parts: Parts, state: Any):
        """Use ``load``."""
        self.parts, self.state = parts, state
        self._acting = {
            "online": Acting(state.online, parts.agent.acting(state).sigma),
            "prior": Acting(state.prior, parts.agent.acting(state).sigma),
        }
        self._act = jax.jit(make_act(self.env.spec, parts.network, self.config, "prior"))

    @property
    def config(self) -> Config:
        """The run's configuration."""
        return self.parts.config

    @property
    def env(self) -> JaxEnv:
        """The run's environment."""
        return self.parts.env

    def initial_state(self, batch: int) -> ActorState:
        """What the agent remembers before its first step in each of ``batch`` environments."""
        return self.parts.agent.initial_actor(batch)

    def act(
        self, timestep: TimeStep, state: ActorState, key: PRNGKey
    ) -> tuple[Array, Policy, ActorState]:
        """Actions for a batch of time steps [B], the policy they came from, and the next state.

        Set ``last_reward`` of the returned state to the reward the action earns.
        """
        keys = jax.random.split(key, timestep.step_type.shape[0])
        return self._act(self._acting["prior"], timestep, state, keys)

    def evaluate(
        self, episodes: int, act_with: str = "prior", greedy: bool = False, seed: int = 0
    ) -> Evaluation:
        """Plays fresh episodes."""
        if act_with == "random":
            act: Callable[..., Any] = random_act(self.env)
        else:
            act = make_act(self.env.spec, self.parts.network, self.config, act_with, greedy)
        run = make_evaluate(
            self.env,
            act,
            self.parts.agent.initial_actor,
            episodes,
            reward_scale=self.config.env.reward_scale,
        )
        acting = self._acting["online" if act_with == "online" else "prior"]
        return jax.device_get(
            jax.jit(run)(acting, jax.random.fold_in(jax.random.key(seed), _EVAL_STREAM))
        )

    def think(self, timestep: TimeStep, state: ActorState) -> Thought:
        """Policy, value and q̂ of one state (batch of one)."""
        policy, value, q = self._think(self._acting["prior"], timestep, state)
        return Thought(np.asarray(policy[0]), float(value[0]), np.asarray(q[0]))

    @property
    def _think(self) -> Callable[..., Any]:
        if not hasattr(self, "_think_compiled"):
            network, config, spec = self.parts.network, self.config, self.env.spec

            def think(acting: Acting, timestep: TimeStep, state: ActorState) -> tuple[Array, ...]:
                inputs = UnrollInputs(
                    timestep.observation,
                    timestep.legal_actions,
                    state.last_action,
                    state.last_reward,
                    is_first(timestep.step_type),
                )
                one_step = jax.tree.map(lambda x: x[None], inputs)
                root, _ = network.unroll(acting.params, one_step, state.recurrent)
                root = jax.tree.map(lambda x: x[0], root)
                assert isinstance(root.policy, Categorical)
                actions = jnp.arange(spec.num_actions)[None]
                q = look_ahead(network, config, acting.params, root.embedding, actions)
                value = decode(root.value_logits, supports(config)[1])
                return root.policy.probs(), value, q

            self._think_compiled = jax.jit(think)
        return self._think_compiled


def load(run_dir: str | Path, best: bool = False) -> Player:
    """The agent of a run: at its newest good checkpoint, or at its best evaluation."""
    path = Path(run_dir)
    parts = build(read_config(path))
    return Player(parts, load_agent_state(path, parts, best))
