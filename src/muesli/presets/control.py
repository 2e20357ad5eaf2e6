"""MuJoCo, and any other Gymnasium environment."""

from __future__ import annotations

from dataclasses import replace

from muesli.config import (
    ActorConfig,
    AgentConfig,
    BatchConfig,
    Config,
    EnvConfig,
    LogConfig,
    NetworkConfig,
    OptimiserConfig,
    UpdateConfig,
)
from muesli.presets.small import small


def mujoco() -> Config:
    """The paper's table for MuJoCo, 95.8% replay and 2M frames; for one GPU and 16 processors."""
    return Config(
        total_env_steps=2_000_000,
        # Few copies, so that what is fresh was made by parameters of a few updates ago.
        env=EnvConfig(name="gym:HalfCheetah-v5", num_envs=32, processes=8),
        actors=ActorConfig(groups=2, device="cpu"),
        network=NetworkConfig(
            torso="mlp",
            torso_channels=(512,),
            normalise_observations=True,
            normalise_features=True,
            normalise_core=True,
            compute_dtype="bfloat16",
        ),
        agent=AgentConfig(baseline="expected_q", centre_advantages=True),
        update=UpdateConfig(entropy_weight=0.01, beta_loo=False),
        # The ring holds the whole run, as the paper's 6M would.
        batch=BatchConfig(online_sequences=4, replay_capacity_steps=2_100_000),
        log=LogConfig(
            log_every_steps=20_000,
            eval_every_steps=500_000,
            eval_episodes=16,
            checkpoint_every_steps=1_000_000,
            save_replay=False,
        ),
    )


def mujoco_h200() -> Config:
    """As ``mujoco``, without memory and with four times as many updates, each of a quarter of the
    batch (so still 95.8% replay): docs/notebook.md shows what each of these does.
    """
    base = mujoco()
    return replace(
        base,
        env=replace(base.env, num_envs=8, processes=4),
        # What is fresh was made by parameters of some six updates ago.
        actors=replace(base.actors, queue_chunks=0),
        network=replace(base.network, core="none", normalise_core=False),
        agent=replace(base.agent, trace_lambda=0.95),
        optimiser=OptimiserConfig(learning_rate=1e-3),
        batch=replace(base.batch, batch_sequences=24, online_sequences=1),
    )


def gym(name: str, image: bool = False, discrete: bool = True) -> Config:
    """Any Gymnasium environment: a small network for vectors, IMPALA's for images.

    Continuous policies are trained more slowly, on standardised observations.
    """
    base = small()
    network = replace(
        base.network,
        torso_channels=(128,),
        value_bins=121,
        value_max=60.0,
        reward_bins=121,
        reward_max=60.0,
    )
    if image:
        network = replace(network, torso="impala", torso_channels=(16, 32, 32), torso_units=256)
    config = replace(
        base,
        total_env_steps=100_000,
        env=EnvConfig(name=name, num_envs=8),
        actors=ActorConfig(groups=1),
        network=network,
        agent=replace(base.agent, baseline="expected_q"),
        model=replace(base.model, value_weight=1.0),
        optimiser=OptimiserConfig(learning_rate=4e-3),
        batch=BatchConfig(
            batch_sequences=16,
            online_sequences=1,
            sequence_length=16,
            replay_capacity_steps=50_000,
        ),
        log=replace(base.log, eval_every_steps=20_000, eval_episodes=20),
    )
    return config if discrete else _continuous(config)


def _continuous(base: Config) -> Config:
    """The same run for continuous actions: samples, a slower rate, centred advantages."""
    return replace(
        base,
        network=replace(base.network, normalise_observations=True),
        agent=replace(base.agent, retrace_samples=16, centre_advantages=True),
        update=replace(base.update, kl_samples=16),
        optimiser=OptimiserConfig(learning_rate=1e-3),
    )


def pendulum() -> Config:
    """Pendulum-v1, swung up and held: half a minute on two cores."""
    base = gym("gym:Pendulum-v1", discrete=False)
    return replace(
        base,
        total_env_steps=20_000,
        network=replace(
            base.network,
            torso_channels=(64,),
            torso_units=64,
            model_units=64,
            value_bins=61,
            value_max=30.0,
            reward_bins=61,
            reward_max=30.0,
            value_head_scale=1.0,
        ),
        # With 0.95 some starts are never swung up; with 0.99 learning takes longer.
        agent=replace(base.agent, discount=0.97),
        # Without it, one seed of three ended at −219 ± 70: policies narrow early.
        update=replace(base.update, entropy_weight=0.01),
        # Returns are around -130 at first: values have a long way to go from 0, and until they are
        # there, what one action does is lost in their error.
        optimiser=OptimiserConfig(learning_rate=6e-3),
        log=replace(base.log, log_every_steps=2_000, eval_every_steps=5_000),
    )


def lunar_lander() -> Config:
    """LunarLander-v3, discrete: some minutes on two cores."""
    base = gym("gym:LunarLander-v3")
    return replace(
        base,
        total_env_steps=500_000,
        # No slower on two cores, and the outcome no longer depends on how busy they are.
        actors=replace(base.actors, lockstep=True),
        # With 0.99 it hovers until its time is up; with 0.999 it often does.
        agent=replace(base.agent, discount=0.997, trace_lambda=0.95),
        update=replace(base.update, beta_loo=False),
        optimiser=OptimiserConfig(learning_rate=2e-3),
        batch=replace(
            base.batch, batch_sequences=32, online_sequences=4, replay_capacity_steps=200_000
        ),
        log=replace(base.log, log_every_steps=10_000, eval_every_steps=50_000),
    )
