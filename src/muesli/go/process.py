"""Another Go program as a child process that speaks GTP.

It is started without a shell, in a process group of its own. Every command has a deadline, and an
answer a limit; whatever goes wrong is an ``EngineFailure`` and the end of that process.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time

from muesli.config import ConfigError
from muesli.go.gtp import clean

MAX_ANSWER_BYTES = 65_536

READY_MADE = {
    "gnugo": "gnugo --mode gtp --level {level} --chinese-rules --positional-superko "
    "--capture-all-dead",
    "pachi": "pachi -t =10000 threads=16,pondering=0,rules=chinese",
}
"""Commands of the paper's opponents. GNU Go would otherwise leave dead stones on the board for both
sides to agree on, and Tromp-Taylor counts them as alive."""

GNUGO_LEVELS = [str(level) for level in range(1, 11)]


class EngineFailure(Exception):
    """The other program crashed, hung, flooded us, or refused a command. ``kind`` says which."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


def opponent_command(text: str) -> list[str]:
    """The words of a command line, or of a ready-made name: ``gnugo`` (level 10), ``gnugo:1``,
    ``pachi``. Raises a ConfigError where there is no such program.
    """
    name, colon, level = text.partition(":")
    if name in READY_MADE and " " not in text:
        if colon and name != "gnugo":
            raise ConfigError(f"opponent: {name} has no levels, got '{text}'")
        if colon and level not in GNUGO_LEVELS:
            raise ConfigError(f"opponent: gnugo:LEVEL takes a number from 1 to 10, got '{text}'")
        text = READY_MADE[name].format(level=level or "10")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"opponent: '{text}' cannot be read ({error})") from error
    if not words:
        raise ConfigError("opponent: is empty")
    # Debian installs games outside of the usual path.
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/games", "/usr/local/games"])
    found = shutil.which(words[0], path=path)
    if found is None:
        raise ConfigError(f"opponent: there is no program '{words[0]}' here")
    return [found, *words[1:]]


# By way of this an engine ends with whoever started it, even with one that was killed. A preexec_fn
# may hang in a process of many threads, as JAX's are. What Python ignores, an engine does not.
_ENDING_WITH_US = """
import ctypes, os, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):  # or it was too late to ask for that
    os.execv(sys.argv[2], sys.argv[2:])
"""


def _ending_with_us(command: list[str]) -> list[str]:
    """The command by way of which a program is started that ends with us, on Linux."""
    if sys.platform != "linux" or not sys.executable:
        return command
    return [sys.executable, "-I", "-S", "-c", _ENDING_WITH_US, str(os.getpid()), *command]


class GtpProcess:
    """One running engine."""

    def __init__(self, command: list[str], timeout_seconds: float = 60.0):
        self.timeout_seconds = timeout_seconds
        self._received, self._errors = b"", b""
        found = shutil.which(command[0])
        if found is None:
            raise EngineFailure("crash", f"cannot start {command[0]}: there is no such program")
        try:
            self._process = subprocess.Popen(
                _ending_with_us([found, *command[1:]]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineFailure("crash", f"cannot start {command[0]}: {error}") from error
        assert self._process.stdout is not None and self._process.stderr is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ, "answers")
        self._selector.register(self._process.stderr, selectors.EVENT_READ, "errors")

    def ask(self, command: str, timeout_seconds: float | None = None) -> str:
        """The answer to a command, without its sign; an answer of failure raises."""
        assert self._process.stdin is not None
        self._refuse_surplus(command)
        try:
            self._process.stdin.write(f"{command}\n".encode())
        except OSError as error:
            raise self._failed("crash", f"ended before '{command}'") from error
        answer = self._read(command, timeout_seconds or self.timeout_seconds)
        if answer.startswith("="):
            return answer[1:].strip()
        if answer.startswith("?"):
            raise EngineFailure("refused", f"answered '{command}' by '{answer[1:].strip()}'")
        raise self._failed("protocol", f"answered '{command}' by '{answer[:80]}'")

    def _read(self, command: str, timeout_seconds: float) -> str:
        """The next answer: everything up to an empty line."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            text = self._received.replace(b"\r", b"").lstrip()
            answer, separator, rest = text.partition(b"\n\n")
            if separator:
                self._received = rest
                return "\n".join(
                    clean(line) for line in answer.decode(errors="replace").split("\n")
                )
            if len(self._received) > MAX_ANSWER_BYTES:
                raise self._failed("flood", f"answered '{command}' without an end")
            left = deadline - time.monotonic()
            if left <= 0.0:
                raise self._failed(
                    "timeout", f"gave '{command}' no answer in {timeout_seconds:g} s"
                )
            self._hear(command, left)

    def _refuse_surplus(self, command: str) -> None:
        """What it said without being asked would pass for its next answer."""
        while self._hear(command, 0.0) and len(self._received) <= MAX_ANSWER_BYTES:
            pass
        said = clean(self._received.decode(errors="replace").strip().partition("\n")[0])
        if said or len(self._received) > MAX_ANSWER_BYTES:
            raise self._failed("protocol", f"said '{said[:80]}' before '{command}' was asked")
        self._received = b""

    def _hear(self, command: str, timeout_seconds: float) -> bool:
        """Takes what it says, waiting for it at most so long; whether there was an answer in it."""
        answers = False
        for key, _ in self._selector.select(timeout_seconds):
            piece = os.read(key.fd, 8192)
            if key.data == "errors":
                self._errors = (self._errors + piece)[-2000:]
            elif piece:
                self._received += piece
                answers = True
            if not piece:
                self._selector.unregister(key.fileobj)
                if key.data == "answers":
                    raise self._failed("crash", f"ended at '{command}'")
        return answers

    def _failed(self, kind: str, message: str) -> EngineFailure:
        self.kill()
        self._hear_last_words()
        said = self._errors.decode(errors="replace").strip().splitlines()
        return EngineFailure(
            kind, message + (f" (it said: {clean(said[-1])[:200]})" if said else "")
        )

    def _hear_last_words(self) -> None:
        """What it said before it ended and nobody has read yet."""
        assert self._process.stderr is not None
        with contextlib.suppress(OSError):
            os.set_blocking(self._process.stderr.fileno(), False)
            while piece := os.read(self._process.stderr.fileno(), 8192):
                self._errors = (self._errors + piece)[-2000:]

    @property
    def pid(self) -> int:
        """Its process, which leads its own group."""
        return self._process.pid

    def kill(self) -> None:
        """Ends the whole group at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Asks it to quit, and ends it if it does not."""
        try:
            if self._process.poll() is None:
                with contextlib.suppress(EngineFailure):
                    self.ask("quit", timeout_seconds=2.0)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(2.0)
        finally:  # a second Ctrl-C does not want to wait, nor does it leave the engine behind
            self.kill()
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
