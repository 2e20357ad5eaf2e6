"""What a configuration may hold, whatever the environment."""

import math

import pytest

from muesli.config import Config, ConfigError, leaves, validate
from muesli.fields import set_field

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
