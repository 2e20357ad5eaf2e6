"""How the strength of a two-player agent grew over its training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muesli.agent import make_act
from muesli.checkpoint import read_manifest
from muesli.config import ConfigError
from muesli.envs.base import JaxEnv
from muesli.runners.loading import load_agent_state
from muesli.runners.parts import build
from muesli.runners.player import for_playing
from muesli.runners.rundir import read_config
from muesli.runners.saving import kept_checkpoints
from muesli.runners.versus import Contestant, fit_elo, make_versus, round_robin


def rate_run(
    run_dir: Path,
    games: int,
    max_checkpoints: int,
    act_with: str = "prior",
    greedy: bool = False,
    search: dict[str, Any] | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Elo of a random player (0) and of the checkpoints a run kept, oldest first.

    Everyone plays ``games`` games against everyone.
    """
    config = read_config(run_dir)
    config = replace(config, search=replace(config.search, **(search or {})))
    parts = build(for_playing(config))
    if not isinstance(parts.env, JaxEnv) or parts.env.spec.players != 2:
        raise ConfigError(f"env.name: {config.env.name} is no game of two players inside JAX")
    if config.network.core != "none":
        raise ConfigError("network.core: only agents without memory (none) can be rated")
    names = kept_checkpoints(run_dir)
    if not names:
        raise ConfigError(f"log.keep_every: {run_dir} kept no checkpoints; train with at least 1")
    chosen = np.unique(np.linspace(0, len(names) - 1, min(max_checkpoints, len(names))).round())
    names = [names[int(i)] for i in chosen]
    contestants = []
    for name in names:
        acting = parts.agent.acting(load_agent_state(run_dir, parts, name=name))
        contestants.append(Contestant(acting, jnp.asarray(False)))
    contestants.insert(0, Contestant(contestants[0].acting, jnp.asarray(True)))
    act = make_act(parts.spec, parts.network, config, act_with, greedy, rules=parts.rules)
    versus = jax.jit(make_versus(parts.env, act, parts.agent.initial_actor, games))
    points, played = round_robin(versus, contestants, jax.random.key(seed))
    steps = [
        int(read_manifest(run_dir / "checkpoints" / name)["meta"]["env_steps"]) for name in names
    ]
    return [
        {
            "name": name,
            "env_steps": taken,
            "elo": float(elo),
            "points_per_game": float(points[i].sum() / played[i].sum()),
        }
        for i, (name, taken, elo) in enumerate(
            zip(["random", *names], [0, *steps], fit_elo(points, played), strict=True)
        )
    ]
