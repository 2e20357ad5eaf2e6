"""``muesli list`` and ``muesli doctor``."""

from __future__ import annotations

import importlib.util
import inspect
import json
import platform
import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import muesli
from muesli.cli.options import Parser

WHAT = ("presets", "envs", "updates", "networks", "suites")


def list_command(argv: Sequence[str]) -> int:
    """``muesli list presets|envs|updates|networks|suites [--json]``."""
    parser = Parser(prog="muesli list")
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--json", action="store_true", help="one JSON array on the last line")
    args = parser.parse_args(list(argv))
    entries = [{"name": name, "summary": _summary(entry)} for name, entry in _family(args.what)]
    if args.json:
        print(json.dumps(entries))
        return 0
    width = max(len(e["name"]) for e in entries)
    for entry in entries:
        print(f"{entry['name']:<{width}}  {entry['summary']}")
    return 0


def _family(what: str) -> list[tuple[str, Any]]:
    if what == "presets":
        from muesli.presets import PRESETS

        return list(PRESETS.items())
    if what == "envs":
        from muesli.envs import ENVS
        from muesli.envs.atari import GAMES, atari
        from muesli.envs.gymnasium import gym_env

        games = [(f"atari:{game}", atari) for game in GAMES]
        return [*ENVS.items(), *games, ("gym:ENV_ID", gym_env), ("MODULE:ENV_ID", gym_env)]
    if what == "updates":
        from muesli.policy_updates import UPDATES

        return list(UPDATES.items())
    if what == "suites":
        from muesli.suites import SUITES

        return list(SUITES.items())
    from muesli.networks import NETWORKS

    return list(NETWORKS.items())


def _summary(entry: Any) -> str:
    if hasattr(entry, "figure"):  # a suite
        return f"{entry.figure}: {entry.title}"
    function = entry.func if isinstance(entry, partial) else entry
    paragraph = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    # A full stop behind fewer letters is that of an abbreviation.
    return re.split(r"(?<=\w\w\w\.) ", paragraph)[0].replace("`", "")


def doctor_command(argv: Sequence[str]) -> int:
    """``muesli doctor``: what this machine can do."""
    Parser(prog="muesli doctor").parse_args(list(argv))
    import jax

    print(f"muesli {muesli.__version__}, Python {platform.python_version()}, jax {jax.__version__}")
    for device in jax.devices():
        print(f"device {device.id}: {device.device_kind} ({device.platform})")
    extras = {"atari": "ale_py", "gym": "gymnasium", "mujoco": "mujoco", "box2d": "Box2D",
              "cluster": "ray", "track": "wandb"}  # fmt: skip
    for extra, module in extras.items():
        if importlib.util.find_spec(module):
            print(f"extra {extra}: installed")
        else:
            print(f"extra {extra}: missing (pip install 'muesli-rl[{extra}]')")
    total = jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((256, 256)))
    healthy = float(total) == 256.0**3
    print("a jitted product is right" if healthy else "a jitted product is WRONG")
    sys.stdout.flush()
    return 0 if healthy else 1
