"""Acting in environments outside JAX: what actors remember between steps, and evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from muesli import keys
from muesli.agent import Acting
from muesli.distributions import Policy
from muesli.envs import make as make_env
from muesli.envs.adapter import on_host
from muesli.envs.base import HostEnv, HostEnvs, JaxEnv, refuse_not_finite
from muesli.frames import begin, mark, push
from muesli.runners.evaluate import MAX_STEPS, Evaluation
from muesli.runners.parts import Parts
from muesli.runners.patience import STARTING_TIMEOUTS, Asker, Stopped
from muesli.types import ActorState, Array, PRNGKey, PyTree, StepType, TimeStep, is_first

Act = Callable[[Acting, TimeStep, ActorState, Array], tuple[Array, Policy, ActorState]]


class Memory(NamedTuple):
    """What is remembered between steps. actors: ActorState [E]; frames: [E, H, W, n·C], the newest
    n frames, or None where the environment stacks its frames itself or there is one.
    """

    actors: ActorState
    frames: PyTree


def host_envs(env: JaxEnv | HostEnvs) -> HostEnvs:
    """Any environment as one outside JAX."""
    return on_host(env) if isinstance(env, JaxEnv) else env


def initial_memory(parts: Parts, batch: int) -> Memory:
    """Before the first step: [E]."""
    frames = None
    if _stacked_here(parts):
        shape = (batch, *parts.spec.observation_shape)
        frames = jnp.zeros(shape, parts.spec.observation_dtype)
    return Memory(parts.agent.initial_actor(batch), frames)


def _stacked_here(parts: Parts) -> bool:
    return isinstance(parts.env, HostEnvs) and not parts.stack.plain


def remember(parts: Parts, memory: Memory, timestep: TimeStep) -> tuple[Memory, TimeStep]:
    """Takes in a time step as an environment gave it: what the network sees, rewards as trained."""
    reward = parts.config.env.reward_scale * timestep.reward
    actors = memory.actors._replace(last_reward=jnp.asarray(reward, jnp.float32))
    frames = None
    if memory.frames is not None:
        first = is_first(timestep.step_type)
        frame = mark(timestep.observation, actors.last_action, first, parts.stack)
        fresh = first.reshape((-1,) + (1,) * (frame.ndim - 1))
        frames = jnp.where(fresh, begin(frame, parts.stack), push(memory.frames, frame))
        timestep = timestep._replace(observation=frames)
    return Memory(actors, frames), timestep._replace(reward=actors.last_reward)


def make_evaluate_on_host(
    parts: Parts, act: Act, episodes: int
) -> Callable[[Acting, int, Callable[[], bool]], Evaluation | None]:
    """A function that plays ``episodes`` copies of the environment for one episode each; all of
    them count. What chooses their actions is compiled at its first call.

    (acting, seed, stop) -> Evaluation, or None if ``stop`` says so in the middle of it.
    """

    @jax.jit
    def choose(
        acting: Acting, memory: Memory, timestep: TimeStep, key: PRNGKey, now: Array
    ) -> tuple[Array, Memory]:
        memory, seen = remember(parts, memory, timestep)
        act_keys = keys.act_keys(key, jnp.arange(episodes), now)
        action, _, actors = act(acting, seen, memory.actors, act_keys)
        return action, memory._replace(actors=actors)

    env_config = dataclasses.replace(parts.config.env, num_envs=episodes)
    # What a group of actors may take over its copies, for as many times as there are more here.
    group = max(1, parts.config.env.num_envs // parts.config.actors.groups)
    patience = parts.config.actors.step_timeout_seconds * max(1.0, episodes / group)

    def make(seed: int) -> HostEnv:
        envs = make_env(env_config.name, env_config)
        return host_envs(parts.env if isinstance(envs, JaxEnv) else envs).make(
            range(episodes), seed
        )

    def evaluate(acting: Acting, seed: int, stop: Callable[[], bool]) -> Evaluation | None:
        asker = Asker(env_config.name, stop)
        env: HostEnv | None = None

        def ask(call: Callable[[], TimeStep], seconds: float) -> TimeStep:
            return asker.ask(lambda: _checked(call(), env_config.name), seconds)

        try:
            # Made where it is stepped: some environments belong to one thread.
            env = asker.ask(partial(make, seed), STARTING_TIMEOUTS * patience)
            key, memory = keys.eval_key(jax.random.key(seed), 0), initial_memory(parts, episodes)
            returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
            done = np.zeros(episodes, bool)
            timestep = ask(env.reset, STARTING_TIMEOUTS * patience)
            for now in range(MAX_STEPS):
                if stop():
                    return None
                action, memory = choose(acting, memory, timestep, key, np.int32(now))
                timestep = ask(partial(env.step, np.asarray(action)), patience)
                returns += np.where(done, 0.0, timestep.reward)
                lengths += ~done
                done |= timestep.step_type == StepType.LAST
                if done.all():
                    break
            return Evaluation(returns, lengths, done)
        except Stopped:
            return None
        finally:
            asker.close(lambda: None if env is None else env.close())

    return evaluate


def _checked(timestep: TimeStep, name: str) -> TimeStep:
    refuse_not_finite(name, range(len(timestep.reward)), timestep)
    return timestep
