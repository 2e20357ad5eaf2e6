"""What saving costs: a ring of a million steps, saved as training goes on.

    python benchmarks/checkpoint_cost.py [--ring-steps 1000000] [--saves 4] [--every-steps 50000]

Fills the ring of an agent inside JAX, saves it once in whole, and then trains with a checkpoint
every so many environment steps. Prints the seconds spent training and saving, and their ratio.
"""

import argparse
import dataclasses
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

import jax

from muesli import presets
from muesli.runners.engines import make_engine
from muesli.runners.parts import build
from muesli.runners.saving import Saver


def folder_bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="minatar")
    parser.add_argument("--ring-steps", type=int, default=1_000_000)
    parser.add_argument("--every-steps", type=int, default=50_000)
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--num-envs", type=int, help="more of them fill the ring sooner")
    parser.add_argument("--folder", type=Path, help="where to save; a temporary one by default")
    args = parser.parse_args()

    config = presets.PRESETS[args.preset]()
    replace = dataclasses.replace
    config = replace(
        config,
        total_env_steps=10**9,
        env=replace(config.env, num_envs=args.num_envs or config.env.num_envs),
        batch=replace(
            config.batch, replay_capacity_steps=args.ring_steps, replay_min_steps=args.ring_steps
        ),
        log=replace(config.log, log_every_steps=args.every_steps, eval_episodes=0),
    )
    parts = build(config)
    engine = make_engine(parts, [0])
    began = time.monotonic()
    engine.start(None)
    filled = time.monotonic() - began
    folder = args.folder or Path(tempfile.mkdtemp())
    saver = Saver(folder, config)
    try:
        began = time.monotonic()
        saver.save(engine.snapshot(0), {})
        whole = time.monotonic() - began
        size = folder_bytes(folder)
        # The first call compiles: it is not counted.
        engine.advance()
        engine.end_call()
        saver.save(engine.snapshot(0), {})
        training = saving = 0.0
        for _ in range(args.saves):
            began = time.monotonic()
            engine.advance()
            engine.end_call()
            trained = time.monotonic()
            saver.save(engine.snapshot(0), {})
            training, saving = training + trained - began, saving + time.monotonic() - trained
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    schedule = parts.schedule
    steps = schedule.per_call * schedule.steps_per_iteration
    result = {
        "preset": args.preset,
        "num_envs": config.env.num_envs,
        "ring_steps": args.ring_steps,
        "checkpoint_bytes": size,
        "steps_between_saves": steps,
        "saves": args.saves,
        "fill_seconds": round(filled, 1),
        "first_save_seconds": round(whole, 2),
        "training_seconds_per_save": round(training / args.saves, 2),
        "saving_seconds_per_save": round(saving / args.saves, 3),
        "saving_share": round(saving / (training + saving), 4),
        "device": jax.devices()[0].device_kind,
        "processors": os.cpu_count(),
        "platform": platform.platform(),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
