"""Any environment outside JAX in worker processes, which start at once and can be killed."""

from __future__ import annotations

import atexit
import importlib.util
import io
import mmap
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from muesli.config import ConfigError, EnvConfig
from muesli.envs.base import EnvError, HostEnv, HostEnvs, HostState
from muesli.types import EnvSpec, TimeStep

_CLOSE_SECONDS = 2.0  # what workers have for closing their copies
_DEATH_SECONDS = 1.0  # what they have for dying when told to
_LOOK_SECONDS = 1.0  # how often those that do not answer are looked at

# All that a worker is started with; the rest is sent.
_PROGRAM = """
import sys
sys.path[:] = {path!r}
from muesli.envs.workers import serve
serve({pipe}, {memory})
"""


def in_processes(name: str, config: EnvConfig, envs: HostEnvs) -> HostEnvs:
    """The same environment, whose copies run in ``env.processes`` worker processes.

    They play what they would play in this process. A worker makes its copies itself, by their name:
    what ``ENVS`` holds of that name must be a function that can be imported, or stand in a plug-in,
    which the worker runs too. It imports nothing of the main module, sees no GPU through JAX, and
    ends when this process ends. ``make`` does not wait for the workers, ``reset`` does. Any thread
    may call ``close``, also while another is in ``reset`` or ``step``, which then raises an
    EnvError.
    """
    from muesli.envs import ENVS

    if envs.spec.legal_actions:
        raise ConfigError(f"env.processes: must be 0 for {name}, which tells legal actions")
    maker = ENVS.get(name)
    try:
        files = _files(pickle.dumps(maker))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"env.processes: must be 0 for {name}: {error}") from error
    if "__main__" in files:
        raise ConfigError(
            f"env.processes: must be 0 for {name}: what makes it is in the main module, which "
            "workers do not import; put it in a module of its own"
        )

    def make(slots: range, seed: int) -> HostEnv:
        tasks = [
            _Task(name, maker, _share(config, len(part), len(slots)), envs.spec, slots, part, seed)
            for part in _parts(slots, _workers(config, len(slots)))
        ]
        workers = _Workers(tasks, files)
        return HostEnv(workers.reset, workers.step, workers.close, workers.save, workers.load)

    return envs._replace(make=make)


class _Names(pickle.Unpickler):
    """Notes the modules that something pickled is from."""

    def __init__(self, pickled: bytes):
        super().__init__(io.BytesIO(pickled))
        self.modules: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.modules.add(module)
        return super().find_class(module, name)


def _files(pickled: bytes) -> dict[str, str]:
    """The files of the modules that something pickled is from and nobody can import by name: the
    main module, and plug-ins.
    """
    names = _Names(pickled)
    names.load()
    tops = {module: module.partition(".")[0] for module in names.modules}
    return {
        module: str(getattr(sys.modules[module], "__file__", ""))
        for module, top in tops.items()
        if top == "__main__" or not any(finder.find_spec(top, None) for finder in sys.meta_path)
    }


def _workers(config: EnvConfig, copies: int) -> int:
    """The share of ``copies`` in the workers of all copies of the run."""
    share = max(1, config.processes * copies // config.num_envs)
    return min(share, config.processes, copies)


def _parts(slots: range, workers: int) -> list[range]:
    """The slots of each worker."""
    edges = [len(slots) * index // workers for index in range(workers + 1)]
    return [slots[start:stop] for start, stop in pairwise(edges)]


def _share(config: EnvConfig, copies: int, of: int) -> EnvConfig:
    """The configuration of a worker that has ``copies`` ``of`` those that were made together.

    As if every worker of the run had as many: so each gets the same share of the run's threads.
    """
    workers = _workers(config, of) * max(config.num_envs, of) // of
    return replace(config, processes=0, num_envs=copies * workers)


class _Task(NamedTuple):
    """What a worker is to run. maker: what ``ENVS`` holds of that name, if anything; slots: all
    that were made together; part: those of this worker.
    """

    name: str
    maker: Any
    config: EnvConfig
    spec: EnvSpec
    slots: range
    part: range
    seed: int


class _Worker(NamedTuple):
    """A worker that runs. title: how errors call it; pipe: takes commands, and brings answers."""

    title: str
    process: subprocess.Popen[bytes]
    pipe: Connection


# --- shared memory --------------------------------------------------------------------------


def _record(spec: EnvSpec) -> np.dtype[Any]:
    """What is written for one copy: the action by us, and the time step after it by its worker."""
    continuous = spec.num_actions is None
    return np.dtype(
        [
            ("observation", spec.observation_dtype, spec.observation_shape),
            ("reward", np.float32),
            ("discount", np.float32),
            ("step_type", np.int32),
            ("action", np.float32, (spec.action_size,)) if continuous else ("action", np.int32),
        ],
        align=True,
    )


def _memory(size: int) -> int:
    """A file descriptor of so many bytes without a name: they are gone when nobody has it open."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("muesli-workers")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _records(descriptor: int, spec: EnvSpec) -> np.ndarray:
    """The records of all copies: [E]."""
    return np.frombuffer(mmap.mmap(descriptor, 0), _record(spec))


# --- here -----------------------------------------------------------------------------------


class _Workers:
    """The workers of some slots."""

    def __init__(self, tasks: list[_Task], files: dict[str, str]):
        self._name, spec, slots = tasks[0].name, tasks[0].spec, tasks[0].slots
        self._turn = threading.Lock()  # held by whoever talks to the workers
        self._closed = False
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        memory = _memory(len(slots) * _record(spec).itemsize)
        atexit.register(self._end)
        try:
            self._records = _records(memory, spec)
            for index, task in enumerate(tasks):
                which = f"worker {index + 1} of {len(tasks)}"
                where = f"slots {task.part[0]} to {task.part[-1]}"
                worker = _start(f"{self._name}, {which} ({where})", task, files, memory)
                self._workers.append(worker)
                self._selector.register(worker.pipe, selectors.EVENT_READ, worker)
        except BaseException:
            self._end()
            raise
        finally:
            os.close(memory)

    def reset(self) -> TimeStep:
        return self._tell("reset")

    def step(self, actions: np.ndarray) -> TimeStep:
        return self._tell("step", actions)

    def save(self) -> HostState | None:
        """The states of all workers, or None where one of them cannot be saved."""
        answers = self._ask([("save", None)] * len(self._workers))
        if any(state is None for state in answers):
            return None
        return {f"{k}/{name}": x for k, state in enumerate(answers) for name, x in state.items()}

    def load(self, state: HostState) -> None:
        """Brings every worker back to its part of a state that as many workers saved."""
        each: list[HostState] = [{} for _ in self._workers]
        for name, array in state.items():
            worker, _, rest = name.partition("/")
            if not worker.isdigit() or int(worker) >= len(each):
                raise EnvError(f"{self._name}: was saved by another number of workers")
            each[int(worker)][rest] = array
        self._ask([("load", part) for part in each])

    def close(self) -> None:
        """Asks the workers to end, and ends them if they do not."""
        self._closed = True
        deadline = time.monotonic() + _CLOSE_SECONDS
        if self._turn.acquire(timeout=_CLOSE_SECONDS):
            self._send([("close", None)] * len(self._workers))
            self._turn.release()
            self._wait(deadline)
        self._end()
        # Whoever was at work hears of the end, and leaves.
        if self._turn.acquire(timeout=_DEATH_SECONDS):
            self._selector.close()
            for worker in self._workers:
                worker.pipe.close()
            self._turn.release()

    def _tell(self, command: str, actions: np.ndarray | None = None) -> TimeStep:
        """Has all workers do something, and takes a copy of what they answer."""
        with self._turn:
            self._exchange([(command, None)] * len(self._workers), actions)
            answer: Any = [self._records[field].copy() for field in TimeStep._fields[:4]]
            return TimeStep(*answer)

    def _ask(self, commands: list[Any]) -> list[Any]:
        """Tells each worker something of its own, and takes what each answers."""
        with self._turn:
            return self._exchange(commands)

    def _exchange(self, commands: list[Any], actions: np.ndarray | None = None) -> list[Any]:
        if self._closed:
            raise EnvError(f"{self._name}: its workers have ended")
        try:
            if actions is not None:
                self._records["action"][:] = actions
            self._send(commands)
            return self._receive()
        except BaseException:
            # Some have answered and others have not: they cannot go on together.
            self._end()
            raise

    def _send(self, commands: list[Any]) -> None:
        for worker, command in zip(self._workers, commands, strict=True):
            # What became of one that has ended is read afterwards.
            with suppress(OSError):
                worker.pipe.send(command)

    def _receive(self) -> list[Any]:
        """Waits for every answer; raises at the first worker that fails."""
        answers: dict[str, Any] = {}
        while len(answers) < len(self._workers):
            ready = self._selector.select(_LOOK_SECONDS)
            for key, _ in ready:
                answers[key.data.title] = self._take(key.data)
            if not ready:
                # The pipe of a dead worker stays open where a process it forked lives on.
                for worker in self._workers:
                    if worker.process.poll() is not None:
                        raise self._death(worker)
        return [answers[worker.title] for worker in self._workers]

    def _take(self, worker: _Worker) -> Any:
        try:
            failure, answer = worker.pipe.recv()
        except (EOFError, OSError):
            raise self._death(worker) from None
        if failure is not None:
            message, where = failure
            error = EnvError(f"{worker.title}: {message}")
            error.add_note(f"In the worker: {where}")
            raise error
        return answer

    def _death(self, worker: _Worker) -> EnvError:
        if self._closed:
            return EnvError(f"{self._name}: closed while its workers were at work")
        try:
            code = worker.process.wait(_DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            return EnvError(f"{worker.title}: has closed its pipe")
        if code >= 0:
            return EnvError(f"{worker.title}: has ended with exit code {code}")
        names = {int(number): number.name for number in signal.Signals}
        return EnvError(f"{worker.title}: was killed by {names.get(-code, f'signal {-code}')}")

    def _wait(self, deadline: float) -> None:
        """Until all processes have ended, or the time has come."""
        for worker in self._workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))

    def _end(self) -> None:
        """Ends the processes that are left."""
        self._closed = True
        for end in (subprocess.Popen.terminate, subprocess.Popen.kill):
            for worker in self._workers:
                end(worker.process)
            self._wait(time.monotonic() + _DEATH_SECONDS)
        for worker in self._workers:
            assert worker.process.stdin is not None
            worker.process.stdin.close()
        atexit.unregister(self._end)


def _start(title: str, task: _Task, files: dict[str, str], memory: int) -> _Worker:
    ours, theirs = Pipe()
    with theirs:
        program = _PROGRAM.format(path=[*map(str, sys.path)], pipe=theirs.fileno(), memory=memory)
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            # Nothing is written to it: the end of it is the end of this process.
            stdin=subprocess.PIPE,
            pass_fds=(theirs.fileno(), memory),
            # Whatever an environment computes with JAX, the GPU belongs to the learner.
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            # Ctrl-C is for this process, which then decides.
            process_group=0,
        )
    with suppress(OSError):
        ours.send(files)
        ours.send(task)
    return _Worker(title, process, ours)


# --- in a worker ----------------------------------------------------------------------------


def serve(pipe_descriptor: int, memory: int) -> None:
    """The whole life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe = Connection(pipe_descriptor)
    try:
        for module, file in pipe.recv().items():
            _run(module, file)
        task: _Task = pipe.recv()
        records = _records(memory, task.spec)
        begin = task.slots.index(task.part[0])
        _play(task, records[begin : begin + len(task.part)], pipe)
    except (Exception, SystemExit) as error:
        known = isinstance(error, EnvError | ConfigError)
        message = str(error) if known else f"{type(error).__name__}: {error}"
        # Nobody listens any more if this process is to end.
        with suppress(OSError):
            pipe.send(((message, traceback.format_exc()), None))


def _run(module: str, file: str) -> None:
    """Imports a file as the module by whose name others ask for what is in it."""
    spec = importlib.util.spec_from_file_location(module, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[module] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[module])


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def _play(task: _Task, records: np.ndarray, pipe: Connection) -> None:
    """Does what it is told until it is told to close. records: [E], those of its own copies."""
    from muesli.envs import ENVS, make

    if task.maker is not None:
        ENVS[task.name] = task.maker
    envs = make(task.name, task.config)
    if not isinstance(envs, HostEnvs):
        raise EnvError("a worker finds another environment of that name")
    env = envs.make(task.part, task.seed)
    while (told := pipe.recv())[0] != "close":
        command, state = told
        if command == "save":
            pipe.send((None, None if env.save is None else env.save()))
            continue
        if command == "load":
            if env.load is None:
                raise EnvError("its environment cannot be brought back")
            env.load(state)
            pipe.send((None, None))
            continue
        timestep = env.reset() if command == "reset" else env.step(records["action"].copy())
        for field in TimeStep._fields[:4]:
            given, room = np.asarray(getattr(timestep, field)), records[field]
            if given.shape != room.shape or given.dtype != room.dtype:
                raise EnvError(
                    f"{field} is {given.dtype}{list(given.shape)}, "
                    f"the spec says {room.dtype}{list(room.shape)}"
                )
            room[...] = given
        pipe.send((None, None))
    env.close()
