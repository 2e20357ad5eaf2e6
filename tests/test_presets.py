"""The paper's tables, transcribed a second time, against the presets."""

import re
from dataclasses import replace

import jax
import pytest

from muesli import presets
from muesli.cli.main import main
from muesli.config import ConfigError, validate
from muesli.presets import PRESETS, with_update
from muesli.runners.parts import build
from muesli.suites import Scale, base_config

# Hyperparameters shared by all experiments.
SHARED = {
    "batch.batch_sequences": 96,
    "batch.sequence_length": 30,
    "model.unroll_steps": 5,
    "batch.online_sequences": 24,  # 75% replay
    "batch.replay_capacity_steps": 6_000_000,
    "optimiser.learning_rate": 3e-4,
    "optimiser.final_learning_rate": 0.0,
    "optimiser.weight_decay": 0.0,
    "agent.discount": 0.995,
    "agent.target_rate": 0.1,
    "model.value_weight": 0.25,
    "model.reward_weight": 1.0,
    "agent.retrace_samples": 16,
    "update.kl_samples": 16,
    "agent.moment_decay": 0.99,
    "agent.moment_epsilon": 1e-12,
    # The policy loss.
    "update.name": "muesli",
    "update.total_weight": 3.0,
    "update.cmpo_weight": 1.0,
    "update.clip_threshold": 1.0,
    "update.uniform_prior_weight": 0.003,
    "update.behaviour_prior_weight": 0.03,
    "update.z_init": 1.0,
    "optimiser.update_clip": 1.0,
    # The IMPALA network, four times as wide.
    "network.torso": "impala",
    "network.torso_channels": (64, 128, 128, 64),
    "network.torso_units": 512,
    "network.core": "lstm",
    "network.core_units": 512,
    "network.model": "lstm",
    "network.model_units": 1024,
}
# Named in docs/deviations.md: until the first reward there is nothing to normalise, what a picture
# shows must be heard, and an LSTM alone is learnt from late.
ATARI = SHARED | {
    "agent.moment_epsilon": 1e-4,
    "network.normalise_observations": True,
    "network.value_head_scale": 1.0,
    "network.value_head_prior_rate": 0.5,
    "network.core_skip": True,
    "network.normalise_core": True,
}
TABLES = {
    "atari": ATARI | {"total_env_steps": 50_000_000, "env.frame_stack": 1},
    "atari_h200": ATARI | {"env.frame_stack": 1, "batch.replay_capacity_steps": 3_600_000},
    "atari_feedforward": ATARI
    | {
        "network.core": "none",
        "env.frame_stack": 4,
        "agent.trace_lambda": 0.95,
        "batch.replay_capacity_steps": 3_600_000,
    },
    "atari_stacked": ATARI | {"env.frame_stack": 4},
    "atari_large": ATARI
    | {
        "network.torso": "muzero",
        "network.model": "muzero",
        "network.core": "none",
        "network.blocks": 16,
        "env.frame_stack": 16,
        "env.stack_actions": True,
        "batch.batch_sequences": 768,
        "batch.online_sequences": 38,  # 95% replay
        "batch.replay_capacity_steps": 28_800_000,
        "optimiser.weight_decay": 1e-4,
        "agent.discount": 0.997,
        "agent.trace_lambda": 0.95,
        "update.kl_samples": None,
    },
    "go": SHARED
    | {
        "network.torso": "muzero",
        "network.model": "muzero",
        "network.core": "none",
        "network.blocks": 6,
        "network.downsample": False,
        "batch.batch_sequences": 192,
        "batch.online_sequences": 192,  # no replay
        "batch.sequence_length": 49,
        "optimiser.learning_rate": 2e-4,
        "agent.target_rate": 0.01,
        "agent.discount": -1.0,
        "agent.return_estimator": "vtrace",
        "agent.trace_lambda": 0.99,
    },
    "mujoco": SHARED
    | {
        "network.torso": "mlp",
        "network.torso_channels": (512,),
        "batch.online_sequences": 4,  # 95.8% replay
        "batch.replay_capacity_steps": 2_100_000,  # all of the run: 6M would never fill
        "total_env_steps": 2_000_000,
    },
}


def look_up(config, field):
    for name in field.split("."):
        config = getattr(config, name)
    return config


@pytest.mark.parametrize("name", TABLES)
def test_a_preset_is_the_papers_table(name):
    config = PRESETS[name]()
    assert {f: look_up(config, f) for f in TABLES[name]} == TABLES[name]


def test_replay_shares_are_the_papers():
    share = lambda c: 1 - c.batch.online_sequences / c.batch.batch_sequences
    assert share(presets.atari()) == 0.75
    assert share(presets.atari_large()) == pytest.approx(0.95, abs=0.001)
    assert share(presets.mujoco()) == pytest.approx(0.958, abs=0.001)
    assert share(presets.go()) == 0.0


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid(name):
    validate(PRESETS[name]())


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("atari")])
def test_the_networks_for_atari_can_be_made(name):
    """With the memory that a preset has, and with the other."""
    pytest.importorskip("ale_py")
    config = PRESETS[name]()
    cores = ("none",) if config.network.torso == "muzero" else ("none", "lstm")
    for core in cores:
        config = replace(config, network=replace(config.network, core=core))
        params = jax.eval_shape(build(config).network.init, jax.random.key(0))
        assert ("core" in params) == (core == "lstm")


def test_another_update_brings_its_own_numbers_and_keeps_the_estimator():
    config = with_update(presets.catch(), "trpo_penalty")
    assert config.update.trpo_weight == 0.01 and config.update.kl_samples is None
    assert with_update(presets.atari(), "pg").update.kl_samples == 16


def test_a_mistake_names_its_field():
    config = presets.catch()
    with pytest.raises(ConfigError, match=r"update\.beta_loo"):
        validate(replace(config, agent=replace(config.agent, return_estimator="vtrace")))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: 3, "preset: what makes 'mine' must return a Config, got int"),
        (lambda: {}["seed"], "preset: 'mine' cannot be made: KeyError: 'seed'"),
        (
            presets.catch(),
            "preset: 'mine' cannot be made: TypeError: 'Config' object is not callable",
        ),
    ],
)
def test_ones_own_preset_that_makes_no_configuration_is_one_line(made, said, monkeypatch, capsys):
    monkeypatch.setitem(PRESETS, "mine", made)
    assert main(["train", "mine"]) == 2
    assert capsys.readouterr().err == f"muesli train: {said}\n"
    scale = Scale("mine", ("catch",), 1)
    with pytest.raises(ConfigError, match=re.escape(said)):
        base_config(scale)
