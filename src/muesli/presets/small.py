"""Small games inside JAX: Catch, the illustrative MDP, memory, MinAtar."""

from __future__ import annotations

from dataclasses import replace

from muesli.config import (
    AgentConfig,
    BatchConfig,
    Config,
    EnvConfig,
    LogConfig,
    NetworkConfig,
    OptimiserConfig,
    UpdateConfig,
)
from muesli.presets.pictures import for_pictures


def small() -> Config:
    """What the presets for laptops have in common: Catch with a small network."""
    return Config(
        total_env_steps=100_000,
        env=EnvConfig(name="catch", num_envs=8),
        network=NetworkConfig(
            torso="mlp",
            torso_channels=(),
            torso_units=128,
            normalise_features=True,
            last_action_and_reward=False,
            core="none",
            core_units=128,
            model_units=128,
            value_bins=81,
            value_max=40.0,
            reward_bins=81,
            reward_max=40.0,
        ),
        agent=AgentConfig(discount=0.99, retrace_samples=None),
        update=UpdateConfig(kl_samples=None),
        optimiser=OptimiserConfig(learning_rate=2e-3),
        batch=BatchConfig(
            batch_sequences=32, online_sequences=8, sequence_length=12, replay_capacity_steps=20_000
        ),
        log=LogConfig(
            log_every_steps=5_000,
            eval_every_steps=25_000,
            eval_episodes=100,
            checkpoint_every_steps=50_000,
        ),
    )


def catch() -> Config:
    """Catch with a small network: seconds on two cores."""
    base = small()
    # So that rewards of any size are learnt from as soon.
    return replace(base, network=replace(base.network, value_head_prior_rate=0.05))


def catch_pixels() -> Config:
    """Catch as a picture with a small copy of the Atari network: a rehearsal for Atari."""
    base = small()
    return replace(
        base,
        env=replace(base.env, name="catch_pixels"),
        network=for_pictures(
            NetworkConfig(
                torso_channels=(16, 32, 32), torso_units=128, core_units=128, model_units=256
            )
        ),
        optimiser=OptimiserConfig(),
    )


def illustrative_mdp() -> Config:
    """The paper's four-state MDP without distinguishable states; the best policy is stochastic."""
    base = small()
    return replace(
        base,
        total_env_steps=60_000,
        env=EnvConfig(name="illustrative_mdp", num_envs=8),
        network=replace(base.network, torso_units=32, model_units=32),
        model=replace(base.model, average_over="all"),
        agent=AgentConfig(discount=1.0, retrace_samples=None),
        log=replace(base.log, log_every_steps=2_000, eval_every_steps=10_000),
    )


def recall() -> Config:
    """A cue to remember over five steps: needs the LSTM core."""
    base = small()
    return replace(
        base,
        total_env_steps=60_000,
        env=EnvConfig(name="recall", num_envs=8),
        network=replace(base.network, core="lstm", torso_units=32, core_units=32, model_units=32),
        log=replace(base.log, log_every_steps=2_000),
    )


def minatar() -> Config:
    """MinAtar Breakout on a laptop: the default run."""
    base = small()
    return replace(
        base,
        total_env_steps=500_000,
        env=EnvConfig(name="minatar_breakout", num_envs=16),
        network=replace(
            base.network,
            torso="conv_small",
            torso_channels=(16,),
        ),
        agent=replace(base.agent, baseline="expected_q"),
        optimiser=OptimiserConfig(learning_rate=1e-3),
        batch=BatchConfig(
            batch_sequences=64,
            online_sequences=16,
            sequence_length=16,
            replay_capacity_steps=200_000,
        ),
        log=LogConfig(
            log_every_steps=10_000,
            eval_every_steps=100_000,
            eval_episodes=64,
            checkpoint_every_steps=200_000,
        ),
    )


def minatar_gpu() -> Config:
    """MinAtar on one GPU: 20M steps with a wider network and batches to fill the chip."""
    base = minatar()
    return replace(
        base,
        total_env_steps=20_000_000,
        env=replace(base.env, num_envs=512),
        network=replace(
            base.network, torso_channels=(32,), torso_units=256, core_units=256, model_units=256
        ),
        batch=BatchConfig(
            batch_sequences=512,
            online_sequences=128,
            sequence_length=16,
            replay_capacity_steps=1_000_000,
        ),
        log=LogConfig(
            log_every_steps=400_000,
            eval_every_steps=5_000_000,
            eval_episodes=128,
            checkpoint_every_steps=0,
        ),
    )
