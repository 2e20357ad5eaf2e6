"""The agent as pure functions of its state: Algorithm 1 in ``algorithm.py``, and what it calls."""

from muesli.agent.acting import Acting, initial_actor, make_act, root_of
from muesli.agent.algorithm import Agent, Dual, make_agent, unless_not_finite
from muesli.agent.contract import check_network, check_update, is_own
from muesli.agent.objective import Findings, loss_weights, total_loss
from muesli.agent.predictions import (
    baseline,
    look_ahead,
    scale_gradient,
    supports,
    unroll,
    unroll_model,
)
from muesli.agent.targets import advantage_moment, centre, make_targets, normalise, raw_targets

__all__ = [
    "Acting",
    "Agent",
    "Dual",
    "Findings",
    "advantage_moment",
    "baseline",
    "centre",
    "check_network",
    "check_update",
    "initial_actor",
    "is_own",
    "look_ahead",
    "loss_weights",
    "make_act",
    "make_agent",
    "make_targets",
    "normalise",
    "raw_targets",
    "root_of",
    "scale_gradient",
    "supports",
    "total_loss",
    "unless_not_finite",
    "unroll",
    "unroll_model",
]
