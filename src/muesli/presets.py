"""Configurations by name. Each function lists only what it changes, as the paper's tables do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from muesli.config import (
    UPDATE_DEFAULTS,
    ActorConfig,
    AgentConfig,
    AtariConfig,
    BatchConfig,
    Config,
    EnvConfig,
    GoConfig,
    LogConfig,
    NetworkConfig,
    OptimiserConfig,
    UpdateConfig,
)

# --- the paper's tables ----------------------------------------------------------------------


def _for_pictures(network: NetworkConfig) -> NetworkConfig:
    """What lets a picture's few moving pixels be heard (docs/notebook.md)."""
    return replace(
        network,
        normalise_observations=True,
        observation_clip=5.0,
        value_head_scale=1.0,
        # Values climb for hundreds of updates: heads that are told late let the features do it.
        value_head_prior_rate=0.5,
        # Through an LSTM alone, what is to be rewarded is seen ten times as late.
        core_skip=True,
        normalise_core=True,
    )


def atari() -> Config:
    """The paper's shared table with the IMPALA network: 200M frames; its ring takes 155 GiB."""
    return Config(
        total_env_steps=50_000_000,
        env=EnvConfig(name="atari:ms_pacman", num_envs=720, processes=32),
        actors=ActorConfig(groups=2),
        network=_for_pictures(NetworkConfig(compute_dtype="bfloat16")),
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
        network=_for_pictures(
            NetworkConfig(
                torso="dqn",
                torso_channels=(16, 32, 32),
                torso_units=256,
                core="none",
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


# --- laptops --------------------------------------------------------------------------------


def _small() -> Config:
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
    base = _small()
    # So that rewards of any size are learnt from as soon.
    return replace(base, network=replace(base.network, value_head_prior_rate=0.05))


def catch_pixels() -> Config:
    """Catch as a picture with a small copy of the Atari network: a rehearsal for Atari."""
    base = _small()
    return replace(
        base,
        env=replace(base.env, name="catch_pixels"),
        network=_for_pictures(
            NetworkConfig(
                torso_channels=(16, 32, 32), torso_units=128, core_units=128, model_units=256
            )
        ),
        optimiser=OptimiserConfig(),
    )


def illustrative_mdp() -> Config:
    """The paper's four-state MDP without distinguishable states; the best policy is stochastic."""
    base = _small()
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
    base = _small()
    return replace(
        base,
        total_env_steps=60_000,
        env=EnvConfig(name="recall", num_envs=8),
        network=replace(base.network, core="lstm", torso_units=32, core_units=32, model_units=32),
        log=replace(base.log, log_every_steps=2_000),
    )


def tic_tac_toe() -> Config:
    """Tic-tac-toe by self-play: the discount of −1 turns every return into negamax."""
    base = _small()
    return replace(
        base,
        total_env_steps=150_000,
        env=EnvConfig(name="tic_tac_toe", num_envs=16),
        agent=AgentConfig(discount=-1.0, retrace_samples=None),
        batch=BatchConfig(
            batch_sequences=64,
            online_sequences=16,
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


def go_5x5() -> Config:
    """Go on 5×5 by self-play with a small convolutional network: a minute or two on two cores."""
    base = _small()
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


def minatar() -> Config:
    """MinAtar Breakout on a laptop: the default run."""
    base = _small()
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


def gym(name: str, image: bool = False, discrete: bool = True) -> Config:
    """Any Gymnasium environment: a small network for vectors, IMPALA's for images.

    Continuous policies are trained more slowly, on standardised observations.
    """
    base = _small()
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


PRESETS: dict[str, Callable[[], Config]] = {
    "atari": atari,
    "atari_h200": atari_h200,
    "atari_feedforward": atari_feedforward,
    "atari_stacked": atari_stacked,
    "atari_large": atari_large,
    "atari_small": atari_small,
    "atari_laptop": atari_laptop,
    "go": go,
    "mujoco": mujoco,
    "mujoco_h200": mujoco_h200,
    "pendulum": pendulum,
    "lunar_lander": lunar_lander,
    "catch": catch,
    "catch_pixels": catch_pixels,
    "illustrative_mdp": illustrative_mdp,
    "recall": recall,
    "tic_tac_toe": tic_tac_toe,
    "connect_four": connect_four,
    "go_h200": go_h200,
    "go_5x5": go_5x5,
    "go_7x7": go_7x7,
    "minatar": minatar,
    "minatar_gpu": minatar_gpu,
}
"""Every preset by name."""

TUNED: dict[str, Callable[[], Config]] = {
    "gym:Pendulum-v1": pendulum,
    "gym:LunarLander-v3": lunar_lander,
}
"""Environments for which ``muesli train NAME`` knows better than ``gym``."""

DEFAULT_PRESET = "minatar"


def with_update(config: Config, name: str) -> Config:
    """The same run with another policy update and that update's own hyperparameters."""
    defaults = UPDATE_DEFAULTS.get(name, UpdateConfig(name=name))
    mine = config.update
    update = replace(
        defaults,
        kl_samples=mine.kl_samples,
        beta_loo=mine.beta_loo,
    )
    return replace(config, update=update)
