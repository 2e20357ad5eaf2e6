"""A suite cut into jobs, and one job done: what is finished stays, what broke off continues."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from muesli.checkpoint import CheckpointError, newest_first, read_manifest
from muesli.config import Config, ConfigError
from muesli.executors.rates import record_rate
from muesli.fields import set_field
from muesli.suites import Run


@dataclasses.dataclass(frozen=True)
class Job:
    """Runs that one process does: as one program where ``together``, else one after another."""

    number: int
    preset: str
    together: bool
    runs: tuple[Run, ...]

    @property
    def env(self) -> str:
        """The environment of all its runs."""
        return self.runs[0].env

    @property
    def name(self) -> str:
        """For people."""
        rows = list(dict.fromkeys(run.row for run in self.runs))
        shown = rows[0] if len(rows) == 1 else f"{rows[0]} … {rows[-1]}"
        return f"{shown} on {self.env}, {len(self.runs)} run{'s' * (len(self.runs) > 1)}"


def state_of(run_dir: Path) -> str:
    """``finished``, ``broken`` (there is something to continue from) or ``fresh``."""
    found = newest_first(run_dir / "checkpoints")
    for path in found:
        try:
            return "finished" if read_manifest(path)["meta"].get("complete") else "broken"
        except CheckpointError:
            continue
    return "broken" if found else "fresh"


def probe(runs: Sequence[Run]) -> tuple[list[Run], Callable[[str], bool]]:
    """The runs with whatever this installation lacks written into them, and whether an
    environment runs inside JAX.

    Every environment is asked for once, and every kind of configuration built once in one of them.
    Only extras can be lacking: whatever else cannot be built raises a ConfigError.
    """
    from muesli.envs import JaxEnv, make
    from muesli.runners.numbers import skeleton
    from muesli.runners.parts import build

    kinds: dict[Config, str] = {}
    envs: dict[str, str] = {}
    inside: dict[str, bool] = {}

    def complaint(attempt: Callable[[], object]) -> str:
        try:
            attempt()
        except (ConfigError, ImportError) as error:
            if not _lacks_extra(error):
                raise
            return str(error)
        return ""

    def make_env(config: Config) -> None:
        jax_env = isinstance(make(config.env.name, config.env), JaxEnv)
        inside[config.env.name] = jax_env and config.actors.runner != "sebulba"

    def lacks(config: Config) -> str:
        name = config.env.name
        if name not in envs:
            envs[name] = complaint(lambda: make_env(config))
        if envs[name]:
            return envs[name]
        kind = skeleton(set_field(config, "env.name", ""))
        if kind not in kinds:
            kinds[kind] = complaint(lambda: build(config))
        return kinds[kind]

    checked = []
    for run in runs:
        missing = run.missing
        if run.config is not None:
            try:
                missing = lacks(run.config)
            except ConfigError as error:
                where, text = f"row {run.row} on {run.env}: ", str(error)
                if text.startswith("env.name: ") and run.config.env.name == run.env:
                    where, text = "envs: ", text.removeprefix("env.name: ")
                raise ConfigError(where + text) from error
        checked.append(run._replace(config=None, missing=missing) if missing else run)
    return checked, lambda env: inside.get(env, False)


def _lacks_extra(error: BaseException | None) -> bool:
    """Whether something that is not installed is behind an error."""
    while error is not None:
        if isinstance(error, ImportError) or "pip install" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def plan(
    runs: Sequence[Run], preset: str, inside_jax: Callable[[str], bool], width: int
) -> list[Job]:
    """Jobs for every run that has a configuration.

    Inside JAX, runs that differ in seeds and numbers only become one program of at most ``width``
    runs; outside, each run is a job of its own.
    """
    from muesli.runners.numbers import families

    able = [run for run in runs if run.config is not None]
    groups: list[tuple[Run, ...]] = []
    for family in families(run.config for run in able if run.config is not None):
        members = [able[index] for index in family]
        size = width if inside_jax(members[0].env) else 1
        groups += [tuple(members[i : i + size]) for i in range(0, len(members), size)]
    return [Job(n, preset, len(g) > 1, g) for n, g in enumerate(groups)]


def steady(rows: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Frames of one run, and the seconds they took, after the first row of metrics: before it the
    program was compiled, which a longer run does no more often. Nothing of a single row.
    """
    if not rows:
        return 0, 0.0
    frames = rows[-1]["env_frames"] - rows[0]["env_frames"]
    return frames, sum(row["elapsed_seconds"] for row in rows[1:])


def frames_of(config: Config) -> int:
    """Environment frames of a run, skipped ones included."""
    skip = config.env.atari.frame_skip if config.env.name.startswith("atari:") else 1
    return config.total_env_steps * skip


# --- files ----------------------------------------------------------------------------------


def write_job(job: Job, out: Path) -> Path:
    """The job as a file that ``muesli job`` does, named by what is in it: two commands at once in
    one directory do not take each other's jobs for their own.
    """
    runs = [
        {"directory": str((out / "runs" / run.path).resolve()), "config": _as_json(run.config)}
        for run in job.runs
    ]
    value = {"preset": job.preset, "env": job.env, "together": job.together, "runs": runs}
    text = json.dumps(value, indent=1)
    name = job.runs[0].path.rpartition("/")[0].replace("/", "-")
    file = out / "jobs" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text)
    return file


def write_whole(file: Path, text: str) -> None:
    """Writes a file that nobody ever sees half of."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def note_failure(file: Path, job: Job, why: str) -> None:
    """Keeps, beside a job's file, that it failed: for whoever looks at the suite later."""
    runs = [f"runs/{run.path}" for run in job.runs]
    log = f"jobs/{file.with_suffix('.log').name}"
    value = {"job": job.name, "why": why, "log": log, "runs": runs}
    write_whole(file.with_suffix(".failed"), json.dumps(value, indent=1) + "\n")


def forget_failure(file: Path) -> None:
    """As the job is tried again."""
    file.with_suffix(".failed").unlink(missing_ok=True)


def _as_json(config: Config | None) -> dict[str, Any]:
    assert config is not None
    return dataclasses.asdict(config)


# --- doing one ------------------------------------------------------------------------------


def execute(job: Mapping[str, Any], say: Callable[[str], None]) -> int:
    """Does a job; returns 0, or the number of the signal that stopped it (what it had is saved)."""
    import jax

    from muesli.runners.rundir import config_from_json
    from muesli.runners.train import resume, train_many

    runs = [(Path(run["directory"]), config_from_json(run["config"])) for run in job["runs"]]
    states = {path: state_of(path) for path, _ in runs}
    fresh = [(path, config) for path, config in runs if states[path] == "fresh"]
    programs = [fresh] if job["together"] else [[run] for run in fresh]
    for program in programs:
        if not program:
            continue
        rows: list[Mapping[str, Any]] = []
        configs, paths = [config for _, config in program], [path for path, _ in program]
        result = train_many(configs, paths, [rows.append])
        if result.stopped_by is not None:
            return int(result.stopped_by)
        frames, seconds = steady(rows)
        device = jax.devices()[0].device_kind
        record_rate(job["preset"], job["env"], device, len(program) * frames, seconds)
    for path, _ in runs:
        if states[path] == "broken":
            say(f"continuing {path}")
            result = resume(path)
            if result.stopped_by is not None:
                return int(result.stopped_by)
    return 0
