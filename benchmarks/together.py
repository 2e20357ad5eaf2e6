"""Several trainings at once on one GPU, each on its own share of the cores.

    python benchmarks/together.py start DIR JOBS
    python benchmarks/together.py watch DIR --seconds 500 --every 60 [--pack OUT] [--stop]

A line of the file JOBS is a name and arguments of ``muesli train``: ``ant mujoco_h200 --env.name
gym:Ant-v5``. ``start`` leaves the trainings running in sessions of their own, under NVIDIA's MPS
where it is installed, so that their kernels share the GPU; one that has a checkpoint goes on from
it. ``watch`` shows how far they are. A run directory is DIR/NAME, its output DIR/NAME.log.
``--pack`` writes OUT/runs.tgz with configurations, metrics and outputs, and the checkpoints that
runs kept as OUT/kept-*.tgz; ``--stop`` has them save and end first.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

SHOWN = (
    "env_steps", "updates", "frames_per_second", "episode_return_mean", "episode_length_mean",
    "eval_return_mean", "policy_entropy", "policy_lag_updates", "advantage_sigma", "q_error_ratio",
    "value_explained", "reward_explained", "feature_variation", "gradient_norm",
)  # fmt: skip


def start(folder: Path, jobs: Path) -> None:
    """Starts every job of a file."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, PYTHONUNBUFFERED="1", XLA_PYTHON_CLIENT_PREALLOCATE="false")
    if shutil.which("nvidia-cuda-mps-control"):
        pipe = folder.resolve() / "mps"
        pipe.mkdir(exist_ok=True)
        environment |= {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=False)
    lines = [line.split(maxsplit=1) for line in jobs.read_text().splitlines() if line.strip()]
    cores = sorted(os.sched_getaffinity(0))
    for number, (name, arguments) in enumerate(lines):
        share = cores[number * len(cores) // len(lines) : (number + 1) * len(cores) // len(lines)]
        run = str(folder / name)
        if any((folder / name / "checkpoints").glob("step-*")):
            command = ["resume", run]
        else:
            command = ["train", *shlex.split(arguments), "--run-dir", run]
        with (folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "muesli.cli.main", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        os.sched_setaffinity(child.pid, share or cores)
        (folder / f"{name}.pid").write_text(str(child.pid))
        print(f"{name}: process {child.pid} on cores {share or cores}", flush=True)


def show(folder: Path) -> None:
    """One line for each run: the newest of its numbers."""
    print(f"-- {time.strftime('%T')}  load {os.getloadavg()[0]:.1f}", flush=True)
    for pid in sorted(folder.glob("*.pid")):
        metrics = folder / pid.stem / "metrics.jsonl"
        newest: dict[str, float] = {}
        for line in metrics.read_text().splitlines() if metrics.exists() else ():
            newest |= json.loads(line)
        numbers = " ".join(f"{k} {newest[k]:.4g}" for k in SHOWN if newest.get(k) is not None)
        state = "" if alive(int(pid.read_text())) else " (ended)"
        print(f"{pid.stem}{state}: {numbers or 'no row yet'}", flush=True)
        if not numbers or state:
            log = (folder / f"{pid.stem}.log").read_text().strip().splitlines()
            print(f"    {log[-1][:200] if log else ''}", flush=True)


def alive(pid: int) -> bool:
    """Whether a process runs: one that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def stop(folder: Path, seconds: float = 60.0) -> None:
    """Asks every job to save and end, and waits for it."""
    pids = [int(file.read_text()) for file in folder.glob("*.pid")]
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.5)


def pack(folder: Path, out: Path, archives: int = 6) -> None:
    """Configurations, metrics and outputs; and what runs kept, shared out among some archives."""
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out / "runs.tgz", "w:gz") as archive:
        for pattern in ("*.log", "*/config.json", "*/run.json", "*/metrics.jsonl"):
            for file in sorted(folder.glob(pattern)):
                archive.add(file, file.relative_to(folder))
    kept = sorted(
        folder.glob("*/checkpoints/kept-*"),
        key=lambda path: (path.parts[-3], int(path.name.removeprefix("kept-"))),
    )
    for number in range(min(archives, len(kept))):
        with tarfile.open(out / f"kept-{number}.tgz", "w:gz") as archive:
            for path in kept[number::archives]:
                archive.add(path, path.relative_to(folder))


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("start")
    starting.add_argument("folder", type=Path)
    starting.add_argument("jobs", type=Path)
    watching = commands.add_parser("watch")
    watching.add_argument("folder", type=Path)
    watching.add_argument("--seconds", type=float, default=60.0)
    watching.add_argument("--every", type=float, default=30.0)
    watching.add_argument("--pack", type=Path)
    watching.add_argument("--stop", action="store_true")
    args = parser.parse_args()
    if args.command == "start":
        start(args.folder, args.jobs)
        return
    end = time.monotonic() + args.seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(args.every, left))
        show(args.folder)
    if args.stop:
        stop(args.folder)
        show(args.folder)
    if args.pack:
        pack(args.folder, args.pack)


if __name__ == "__main__":
    main()
