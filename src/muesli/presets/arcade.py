"""Atari: the paper's tables, and what fits other machines."""

from __future__ import annotations

from dataclasses import replace

from muesli.config import (
    ActorConfig,
    AgentConfig,
    AtariConfig,
    BatchConfig,
    Config,
    EnvConfig,
    LogConfig,
    NetworkConfig,
    OptimiserConfig,
)
from muesli.presets.pictures import for_pictures


def atari() -> Config:
    """The paper's shared table with the IMPALA network: 200M frames; its ring takes 155 GiB."""
    return Config(
        total_env_steps=50_000_000,
        env=EnvConfig(name="atari:ms_pacman", num_envs=720, processes=32),
        actors=ActorConfig(groups=2),
        network=for_pictures(NetworkConfig(compute_dtype="bfloat16")),
        # Until the first reward, G − v̂ is mere rounding, and advantages would be made of that.
        agent=AgentConfig(moment_epsilon=1e-4),
        log=LogConfig(
            log_every_steps=100_000,
            eval_every_steps=0,
            eval_episodes=0,
            checkpoint_every_steps=2_500_000,
            save_replay=False,
        ),
    )


def atari_h200() -> Config:
    """As ``atari``, with a ring that fits one H200."""
    base = atari()
    return replace(base, batch=replace(base.batch, replay_capacity_steps=3_600_000))


def atari_feedforward() -> Config:
    """As ``atari_h200``, without memory, on four stacked frames, and with λ 0.95."""
    base = atari_h200()
    return replace(
        base,
        env=replace(base.env, frame_stack=4),
        network=replace(base.network, core="none"),
        agent=replace(base.agent, trace_lambda=0.95),
    )


def atari_stacked() -> Config:
    """As ``atari``, with four stacked frames (the paper's 562% row)."""
    base = atari()
    return replace(base, env=replace(base.env, frame_stack=4))


def atari_large() -> Config:
    """The paper's large-scale table: the MuZero network and 95% replay."""
    base = atari()
    return replace(
        base,
        env=replace(base.env, frame_stack=16, stack_actions=True, num_envs=76),
        network=replace(base.network, torso="muzero", model="muzero", core="none", blocks=16),
        agent=replace(base.agent, discount=0.997, trace_lambda=0.95),
        update=replace(base.update, kl_samples=None),
        optimiser=replace(base.optimiser, weight_decay=1e-4),
        batch=replace(
            base.batch,
            batch_sequences=768,
            micro_batches=16,
            online_sequences=38,
            replay_capacity_steps=28_800_000,
        ),
    )


def atari_small() -> Config:
    """Atari with IMPALA's own network and a small ring, for small GPUs."""
    base = atari()
    return replace(
        base,
        env=replace(base.env, num_envs=240),
        network=replace(
            base.network,
            torso_channels=(16, 32, 32),
            torso_units=256,
            core_units=256,
            model_units=512,
        ),
        batch=replace(base.batch, replay_capacity_steps=200_000),
    )


def atari_laptop() -> Config:
    """Atari without a GPU: DQN's torso on small grey pictures, many small updates."""
    base = atari()
    return replace(
        base,
        total_env_steps=1_500_000,
        env=EnvConfig(
            name="atari:breakout",
            num_envs=16,
            threads=1,
            frame_stack=4,
            atari=AtariConfig(size_pixels=64, grey=True),
        ),
        actors=ActorConfig(groups=1),
        network=for_pictures(
            NetworkConfig(
                torso="dqn",
                torso_channels=(16, 32, 32),
                torso_units=256,
                core="none",
                core_units=256,
                model_units=256,
                value_bins=201,
                value_max=100.0,
                reward_bins=201,
                reward_max=100.0,
            )
        ),
        agent=replace(base.agent, trace_lambda=0.95),
        optimiser=OptimiserConfig(learning_rate=5e-4),
        batch=BatchConfig(
            batch_sequences=32,
            online_sequences=8,
            sequence_length=16,
            replay_capacity_steps=100_000,
        ),
        log=replace(base.log, log_every_steps=10_000, checkpoint_every_steps=200_000),
    )
