"""What a run is made of, built from its configuration, and how it is cut into calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from muesli.agent import Agent, check_network, check_update, is_own, make_agent
from muesli.checks import place_of, told
from muesli.config import YOUR_OWN, Config, ConfigError, validate
from muesli.envs import make as make_env
from muesli.envs.base import HostEnvs, JaxEnv, stack_frames
from muesli.envs.openings import deal_openings
from muesli.frames import Stack
from muesli.networks import NETWORKS, Network
from muesli.policy_updates import UPDATES
from muesli.runners.mesh import Topology, act_on_processor, check_divisible, make_topology
from muesli.symmetry import check_board
from muesli.types import EnvSpec


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How a run is cut into calls, which end where it logs. Everything is counted in iterations:
    one chunk of T records from every environment, and one update for each of its batches.
    """

    warm_up: int
    """Iterations that only collect, before the first update."""
    per_call: int
    """Iterations of one call."""
    calls: int
    """Calls of the whole run."""
    steps_per_iteration: int
    updates_per_iteration: int
    eval_every: int
    """Calls between two evaluations."""
    checkpoint_every: int
    """Calls between two checkpoints."""

    @property
    def total_updates(self) -> int:
        """Updates of the whole run: what the learning rate falls over."""
        return self.calls * self.per_call * self.updates_per_iteration

    def env_steps(self, calls_done: int) -> int:
        """Environment steps after so many calls."""
        return (self.warm_up + calls_done * self.per_call) * self.steps_per_iteration


class Parts(NamedTuple):
    """Everything a run is made of. spec: of what the network sees; stack: how that is made of
    frames; sebulba: which runner it is for; topology: the devices it runs on.
    """

    config: Config
    env: JaxEnv | HostEnvs
    spec: EnvSpec
    stack: Stack
    network: Network
    agent: Agent
    schedule: Schedule
    sebulba: bool
    topology: Topology

    @property
    def frames_per_step(self) -> int:
        """Frames, skipped ones included, in one step of the environment."""
        return self.env.frames_per_step if isinstance(self.env, HostEnvs) else 1

    @property
    def trained_env(self) -> JaxEnv | HostEnvs:
        """The environment as it is played while training."""
        moves = self.config.env.opening_moves
        if moves == 0 or not isinstance(self.env, JaxEnv):
            return self.env
        return deal_openings(self.env, moves)

    @property
    def rules(self) -> Callable[..., Any] | None:
        """The step of one copy of the environment, where it is inside JAX."""
        return self.env.step if isinstance(self.env, JaxEnv) else None


def make_schedule(config: Config) -> Schedule:
    """Cuts a run into calls that end where it logs, evaluates and saves."""
    per_iteration = config.env.num_envs * config.batch.sequence_length
    replays = config.batch.online_sequences < config.batch.batch_sequences
    warm_up = max(int(replays), -(-config.batch.replay_min_steps // per_iteration))
    iterations = max(1, -(-config.total_env_steps // per_iteration) - warm_up)
    wanted = max(1, round(config.log.log_every_steps / per_iteration))
    per_call = -(-iterations // max(1, round(iterations / wanted)))
    calls = -(-iterations // per_call)

    def every(steps: int) -> int:
        return max(1, round(steps / (per_call * per_iteration))) if steps else calls

    return Schedule(
        warm_up=warm_up,
        per_call=per_call,
        calls=calls,
        steps_per_iteration=per_iteration,
        updates_per_iteration=config.env.num_envs // config.batch.online_sequences,
        eval_every=every(config.log.eval_every_steps),
        checkpoint_every=every(config.log.checkpoint_every_steps),
    )


def build(config: Config, topology: Topology | None = None) -> Parts:
    """Builds a run; raises a ConfigError naming the field that does not fit the environment.

    topology: the devices it runs on; by default one.
    """
    validate(config)
    topology = topology or make_topology()
    check_divisible(config, topology)
    # Threads and worker processes are shared out among the environments of this process.
    own = len(topology.own_share(config.env.num_envs))
    env = make_env(config.env.name, dataclasses.replace(config.env, num_envs=own))
    spec, stack = seen_spec(config, env.spec)
    if isinstance(env, JaxEnv) and not stack.plain:
        env = stack_frames(env, stack)
    sebulba = isinstance(env, HostEnvs) or config.actors.runner == "sebulba"
    if not sebulba and topology.actors != tuple(topology.own):
        raise ConfigError(
            f"devices.actors: {config.env.name} runs inside JAX and acts where it learns"
        )
    if sebulba and config.actors.device == "cpu":
        topology = act_on_processor(topology)
    _fit(config, env, spec)
    schedule = make_schedule(config)
    network = _network(config, spec)
    if is_own(UPDATES[config.update.name]):
        check_update(spec, config)
    agent = make_agent(spec, network, config, schedule.total_updates)
    return Parts(config, env, spec, stack, network, agent, schedule, sebulba, topology)


def _network(config: Config, spec: EnvSpec) -> Network:
    """The configured network; a ConfigError where a user's own cannot be made or does not fit."""
    name = config.network.maker
    maker = NETWORKS[name]
    if not is_own(maker):
        return maker(spec, config.network)
    try:
        network = maker(spec, config.network)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"network.maker: '{name}' cannot be made: {told(error)}{place_of(error)}"
        ) from error
    if not isinstance(network, Network):
        got = type(network).__name__
        raise ConfigError(f"network.maker: what makes '{name}' must return a Network, got {got}")
    check_network(network, spec, config)
    return network


def for_actors(parts: Parts) -> Parts:
    """The same, as actors compute: on a processor in its own arithmetic."""
    config = for_processor(parts.config)
    if config == parts.config or any(d.platform != "cpu" for d in parts.topology.actors):
        return parts
    network = _network(config, parts.spec)
    agent = make_agent(parts.spec, network, config, parts.schedule.total_updates)
    return parts._replace(config=config, network=network, agent=agent)


def for_processor(config: Config) -> Config:
    """The same run in the arithmetic of a processor, which only emulates bfloat16."""
    return dataclasses.replace(
        config, network=dataclasses.replace(config.network, compute_dtype="float32")
    )


def seen_spec(config: Config, spec: EnvSpec) -> tuple[EnvSpec, Stack]:
    """What the network sees of an environment of ``spec``, and how that is made of its frames."""
    stack = _stack(config, spec)
    if stack.plain:
        return spec, stack
    *shape, channels = spec.observation_shape
    return spec._replace(observation_shape=(*shape, stack.channels(channels))), stack


def _stack(config: Config, spec: EnvSpec) -> Stack:
    if not config.env.stack_actions:
        return Stack(config.env.frame_stack)
    pictures = len(spec.observation_shape) == 3 and spec.observation_dtype != np.bool_
    if spec.num_actions is None or not pictures:
        raise ConfigError(
            "env.stack_actions: needs images of bytes or floats, and discrete actions; "
            f"{config.env.name} has not both"
        )
    return Stack(config.env.frame_stack, spec.num_actions)


def _fit(config: Config, env: JaxEnv | HostEnvs, spec: EnvSpec) -> None:
    """Checks what only the environment can decide."""
    net = config.network
    for field, name, known in (
        ("update.name", config.update.name, UPDATES),
        ("network.maker", net.maker, NETWORKS),
    ):
        if name not in known:
            there = ", ".join(known)
            raise ConfigError(f"{field}: there is no '{name}'; there are {there} {YOUR_OWN}")
    if spec.action_names and len(spec.action_names) != spec.num_actions:
        raise ConfigError(
            f"env.name: {config.env.name} has {len(spec.action_names)} names for "
            f"{spec.num_actions or 'no'} actions (spec.action_names)"
        )
    if net.torso != "mlp" and len(spec.observation_shape) != 3:
        raise ConfigError(
            f"network.torso: {net.torso} needs images; the observations of {config.env.name} have "
            f"shape {list(spec.observation_shape)}: use mlp"
        )
    if spec.players == 2 and config.agent.discount >= 0.0:
        raise ConfigError(
            f"agent.discount: {config.env.name} is played against oneself and needs -1 (or -0.997: "
            f"sooner is better), got {config.agent.discount:g}"
        )
    if spec.players == 1 and config.agent.discount < 0.0:
        raise ConfigError(
            f"agent.discount: {config.env.name} has one player and needs a discount in [0, 1], "
            f"got {config.agent.discount:g}"
        )
    dealt = isinstance(env, JaxEnv) and spec.players == 2 and spec.legal_actions
    if config.env.opening_moves > 0 and not dealt:
        raise ConfigError(
            "env.opening_moves: are for games of two inside JAX that say which moves are legal; "
            f"{config.env.name} is none"
        )
    if spec.num_actions is None:
        for field, samples in (
            ("update.kl_samples", config.update.kl_samples),
            ("agent.retrace_samples", config.agent.retrace_samples),
        ):
            if samples is None:
                raise ConfigError(f"{field}: continuous actions need a number of samples, got None")
        if config.agent.act_with in ("cmpo", "q_softmax", "mcts"):
            raise ConfigError(
                f"agent.act_with: {config.agent.act_with} needs a finite set of actions; "
                "use prior or online"
            )
    if config.batch.symmetries:
        check_board(spec)
    if isinstance(env, HostEnvs) and spec.players == 2:
        raise ConfigError(
            f"env.name: {config.env.name} has two players, which only environments inside JAX may"
        )
    if isinstance(env, HostEnvs) and config.actors.runner == "anakin":
        raise ConfigError(
            f"actors.runner: {config.env.name} does not run inside JAX; use sebulba (or auto)"
        )
    if isinstance(env, HostEnvs) or config.actors.runner == "sebulba":
        groups, online = config.actors.groups, config.batch.online_sequences
        if config.env.num_envs % (groups * online):
            raise ConfigError(
                f"env.num_envs: must be a multiple of actors.groups x batch.online_sequences "
                f"({groups} x {online}), got {config.env.num_envs}"
            )
