"""The configuration tree and its validation. Nothing in this package imports anything of ours."""

from muesli.config.tree import (
    UPDATE_DEFAULTS,
    YOUR_OWN,
    ActorConfig,
    AgentConfig,
    AtariConfig,
    BatchConfig,
    Config,
    ConfigError,
    EnvConfig,
    GoConfig,
    LogConfig,
    ModelLossConfig,
    NetworkConfig,
    OptimiserConfig,
    SearchConfig,
    UpdateConfig,
    leaves,
)
from muesli.config.validation import LARGEST_SEED, validate

__all__ = [
    "ActorConfig",
    "AgentConfig",
    "AtariConfig",
    "BatchConfig",
    "Config",
    "ConfigError",
    "EnvConfig",
    "GoConfig",
    "LARGEST_SEED",
    "LogConfig",
    "ModelLossConfig",
    "NetworkConfig",
    "OptimiserConfig",
    "SearchConfig",
    "UPDATE_DEFAULTS",
    "UpdateConfig",
    "YOUR_OWN",
    "leaves",
    "validate",
]
