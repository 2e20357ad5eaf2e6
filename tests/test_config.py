"""What a configuration may hold, whatever the environment."""

import math

import numpy as np
import pytest

from muesli.config import Config, ConfigError, leaves, validate
from muesli.fields import plain, set_field
from muesli.presets import PRESETS

FLOATS = [name for name, value in leaves(Config()) if isinstance(value, float)]


def refuse(field, value, message):
    with pytest.raises(ConfigError, match=f"^{field}: {message}"):
        validate(set_field(Config(), field, value))


@pytest.mark.parametrize("field", FLOATS)
def test_numbers_are_finite(field):
    for value in (math.nan, math.inf, -math.inf):
        refuse(field, value, f"must be a finite number, got {value}")


@pytest.mark.parametrize("value", [-1, 2**32])
def test_a_seed_is_one_that_every_generator_takes(value):
    refuse("seed", value, r"must be in \[0, 4294967295\], got")
    validate(set_field(Config(), "seed", 2**32 - 1))


@pytest.mark.parametrize(
    ("field", "wrong", "message"),
    [
        ("network.torso_units", 0, "must be at least 1, got 0"),
        ("network.torso_units", -3, "must be at least 1, got -3"),
        ("network.core_units", 0, "must be at least 1"),
        ("network.model_units", 0, "must be at least 1"),
        ("network.model_planes", 0, "must be at least 1"),
        ("network.head_planes", 0, "must be at least 1"),
        ("network.torso_channels", (16, 0), "must be at least 1 each"),
        ("network.blocks", -1, "must not be negative"),
        ("network.model_blocks", -1, "must not be negative, or be None"),
        ("network.value_bins", 1, "must be at least 2, got 1"),
        ("network.reward_bins", 0, "must be at least 2"),
        ("network.min_log_scale", 3.0, "must not exceed network.max_log_scale"),
        ("optimiser.adam_b1", 2.0, r"must be in \[0, 1\), got 2"),
        ("optimiser.adam_b2", 1.0, r"must be in \[0, 1\)"),
        ("optimiser.weight_decay", -0.1, "must not be negative"),
        ("update.total_weight", -1.0, "must not be negative"),
    ],
)
def test_sizes_and_rates_have_ranges(field, wrong, message):
    refuse(field, wrong, message)


@pytest.mark.parametrize(
    ("field", "wrong", "message"),
    [
        ("total_env_steps", 3e3, r"must be a whole number, got 3000\.0"),
        ("seed", True, "must be a whole number, got True"),
        ("update.kl_samples", "4", "must be a whole number or None, got '4'"),
        ("update.cmpo_weight", "1", "must be a number, got '1'"),
        ("update.clip_threshold", "c", "must be a number or None, got 'c'"),
        ("update.beta_loo", 1, "must be True or False, got 1"),
        ("update.name", None, "must be a string, got None"),
        ("network.core", "gru", "must be lstm or none, got 'gru'"),
        ("network.torso_channels", [16, 32], r"must be a tuple of whole numbers, got \[16, 32\]"),
        ("env.atari.pool_frames", 3, "must be 2 or 4, got 3"),
        ("update", "ppo", "must be of type UpdateConfig, got 'ppo'"),
    ],
)
def test_fields_are_of_their_types(field, wrong, message):
    refuse(field, wrong, message)


def test_every_preset_is_of_its_types_and_so_are_numpys_numbers():
    for make in PRESETS.values():
        validate(make())
    config = set_field(Config(), "seed", np.int64(3))
    config = set_field(config, "optimiser.learning_rate", np.float32(0.5))
    config = set_field(config, "update.cmpo_weight", 2)
    validate(config)
    numbers = dict(leaves(plain(config)))
    assert numbers["seed"] == 3 and type(numbers["seed"]) is int
    assert type(numbers["optimiser.learning_rate"]) is float


def test_what_goes_around_a_core_is_as_wide_as_it():
    config = set_field(Config(), "network.core_skip", True)
    validate(config)
    narrow = set_field(config, "network.core_units", 8)
    with pytest.raises(ConfigError, match=r"^network\.core_skip: .*torso_units \(512\).*, got 8"):
        validate(narrow)
    validate(set_field(narrow, "network.core", "none"))


def test_the_oracle_is_refused_to_our_updates_without_a_target_only():
    oracle = set_field(Config(), "update.sampled_normaliser", "oracle")
    for name in ("muesli", "cmpo", "mpo", "my_variant"):
        validate(set_field(oracle, "update.name", name))
    with pytest.raises(ConfigError, match="^update.sampled_normaliser: oracle is for updates that"):
        validate(set_field(oracle, "update.name", "ppo"))
