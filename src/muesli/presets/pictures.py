"""What presets that look at pictures have in common."""

from __future__ import annotations

from dataclasses import replace

from muesli.config import NetworkConfig


def for_pictures(network: NetworkConfig) -> NetworkConfig:
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
