"""Games of two by self-play: Go, tic-tac-toe, connect four."""

from __future__ import annotations

from dataclasses import replace

from muesli.config import (
    AgentConfig,
    BatchConfig,
    Config,
    EnvConfig,
    GoConfig,
    LogConfig,
    NetworkConfig,
    OptimiserConfig,
    UpdateConfig,
)
from muesli.presets.small import small


def go() -> Config:
    """The paper's table for 9×9 Go by self-play."""
    return Config(
        total_env_steps=5_000_000_000,
        env=EnvConfig(name="go_9x9", num_envs=192),
        network=NetworkConfig(
            torso="muzero",
            model="muzero",
            core="none",
            blocks=6,
            downsample=False,
            normalise_features=True,
            point_policy=True,
            last_action_and_reward=False,
            compute_dtype="bfloat16",
        ),
        agent=AgentConfig(
            discount=-1.0, return_estimator="vtrace", trace_lambda=0.99, target_rate=0.01
        ),
        update=UpdateConfig(beta_loo=False),
        optimiser=OptimiserConfig(learning_rate=2e-4),
        batch=BatchConfig(batch_sequences=192, online_sequences=192, sequence_length=49),
        log=LogConfig(
            log_every_steps=1_000_000,
            eval_every_steps=50_000_000,
            eval_episodes=192,
            checkpoint_every_steps=50_000_000,
            keep_every=1,
        ),
    )


def go_h200() -> Config:
    """9×9 Go for half an hour of one H200: the paper's method, a quarter of its planes, and
    batches of 4,096 moves. docs/go.md works out its numbers.
    """
    base = go()
    return replace(
        base,
        total_env_steps=60_000_000,
        env=EnvConfig(name="go_9x9", num_envs=1024),
        network=replace(
            base.network,
            model_planes=64,
            model_blocks=2,
            model_units=256,
            value_bins=21,
            value_max=1.0,
            reward_bins=21,
            reward_max=1.0,
            # From a uniform start the heads flatten what tells states apart (docs/go.md).
            value_head_prior_rate=0.05,
        ),
        # Until the first games end, G − v̂ is mere noise, which ε_var keeps from being blown up.
        agent=replace(base.agent, target_rate=0.05, moment_epsilon=1e-4),
        optimiser=OptimiserConfig(learning_rate=1e-3, final_learning_rate=1e-4),
        batch=BatchConfig(
            batch_sequences=128, online_sequences=128, sequence_length=32, symmetries=True
        ),
        log=LogConfig(
            log_every_steps=500_000,
            eval_every_steps=5_000_000,
            eval_episodes=128,
            checkpoint_every_steps=5_000_000,
            keep_every=1,
        ),
    )


def go_5x5() -> Config:
    """Go on 5×5 by self-play with a small convolutional network: a minute or two on two cores."""
    base = small()
    return replace(
        base,
        total_env_steps=300_000,
        env=EnvConfig(name="go_5x5", num_envs=16),
        network=replace(
            base.network,
            torso="conv_small",
            torso_channels=(32,),
            value_bins=21,
            value_max=1.0,
            reward_bins=21,
            reward_max=1.0,
        ),
        # As for the paper's Go: V-trace on fresh games alone.
        agent=AgentConfig(discount=-1.0, return_estimator="vtrace", trace_lambda=0.99),
        update=UpdateConfig(beta_loo=False, kl_samples=8),
        model=replace(base.model, unroll_steps=3),
        optimiser=OptimiserConfig(learning_rate=3e-3),
        batch=BatchConfig(batch_sequences=16, online_sequences=16, sequence_length=16),
        log=LogConfig(
            log_every_steps=10_000,
            eval_every_steps=50_000,
            eval_episodes=200,
            checkpoint_every_steps=50_000,
            keep_every=1,
        ),
    )


def go_7x7() -> Config:
    """Go on 7×7, a little wider and longer: some minutes on two cores."""
    base = go_5x5()
    return replace(
        base,
        total_env_steps=1_500_000,
        # With perfect play Black is known to win 9 points: this leaves a game of half a point.
        env=EnvConfig(name="go_7x7", num_envs=32, go=GoConfig(komi=8.5)),
        network=replace(base.network, torso_channels=(32, 32), torso_units=256, model_units=256),
        optimiser=OptimiserConfig(learning_rate=2e-3),
        batch=BatchConfig(batch_sequences=32, online_sequences=32, sequence_length=24),
        log=replace(
            base.log,
            log_every_steps=50_000,
            eval_every_steps=250_000,
            checkpoint_every_steps=250_000,
        ),
    )


def tic_tac_toe() -> Config:
    """Tic-tac-toe by self-play: the discount of −1 turns every return into negamax."""
    base = small()
    return replace(
        base,
        total_env_steps=150_000,
        # Games that begin anywhere: left to itself, self-play agrees with itself on twenty of 4,520
        # positions and learns nothing of the others (docs/notebook.md).
        env=EnvConfig(name="tic_tac_toe", num_envs=16, opening_moves=5),
        agent=AgentConfig(discount=-1.0, retrace_samples=None),
        batch=BatchConfig(
            batch_sequences=16,
            online_sequences=4,
            sequence_length=10,
            replay_capacity_steps=30_000,
        ),
    )


def connect_four() -> Config:
    """Connect-four by self-play with a small convolutional network."""
    base = tic_tac_toe()
    return replace(
        base,
        total_env_steps=500_000,
        env=EnvConfig(name="connect_four", num_envs=32),
        network=replace(base.network, torso="conv_small", torso_channels=(16,)),
        optimiser=OptimiserConfig(learning_rate=1e-3),
        batch=BatchConfig(
            batch_sequences=128,
            online_sequences=32,
            sequence_length=16,
            replay_capacity_steps=100_000,
        ),
    )
