"""The processes of one run: how they meet, agree, and notice that one of them is gone.

What is computed travels through JAX. What travels here is small: who is there and with which
configuration, whether to stop, which episodes ended, and a sign of life. Process 0 has a connection
to each other process. JAX alone would do for the rest, but when a peer dies it aborts, or waits,
without saying for whom.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from muesli.config import ConfigError

PEER_LOST = 4
"""Exit code of a process that leaves because another one is gone."""

_MOST_BYTES = 2**28
_HELLO_SECONDS = 5.0

Card = Mapping[str, Any]
"""What a process shows when it comes: anything that JSON can hold."""


class Cluster(NamedTuple):
    """Who this process is. coordinator: host:port of process 0; start_seconds: how long to wait
    until all have come; timeout_seconds: how long one may be silent afterwards.
    """

    coordinator: str
    processes: int
    process: int
    start_seconds: float = 300.0
    timeout_seconds: float = 60.0


class PeerFailedError(Exception):
    """Another process of the run is gone or has failed."""


class Peers:
    """A run of one process, which agrees with itself."""

    rank, size = 0, 1

    def gather(self, value: Any) -> list[Any]:
        """What every process passed, by rank. All must call it, in the same order."""
        return [value]

    def first(self, value: Any) -> Any:
        """What process 0 passed."""
        return self.gather(value if self.rank == 0 else None)[0]

    def any(self, value: Any) -> Any:
        """What the first process passed that did not pass None; or None."""
        return next((x for x in self.gather(value) if x is not None), None)

    def fail(self, why: str) -> None:
        """Tells the others that this process cannot go on."""

    def leave(self) -> None:
        """Parts in peace: from now on nobody is missed."""


ALONE = Peers()


def end_process(message: str) -> NoReturn:
    """Says why and ends at once: the main thread may wait for a peer that never comes."""
    print(f"muesli: {message}", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(PEER_LOST)


class Connected(Peers):
    """One process of several. ``end`` is called, in a thread, when another one is gone."""

    def __init__(
        self,
        rank: int,
        names: list[str],
        links: dict[int, socket.socket],
        timeout_seconds: float,
        end: Callable[[str], Any] = end_process,
    ):
        self.rank, self.size, self.names = rank, len(names), names
        self._links, self._timeout, self._end = links, timeout_seconds, end
        self._send_locks = {peer: threading.Lock() for peer in links}
        self._news = threading.Condition()
        self._round = 0
        self._brought: dict[int, dict[int, Any]] = {}
        self._answers: dict[int, list[Any]] = {}
        self._gone: str | None = None
        self._left: set[int] = set()
        self._leaving = threading.Event()
        for peer, link in links.items():
            link.settimeout(timeout_seconds)
            thread = threading.Thread(target=self._listen, args=(peer,), name=f"peer-{peer}")
            thread.daemon = True
            thread.start()
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def describe(self, peer: int) -> str:
        """A process in words."""
        return f"process {peer} ({self.names[peer]}{', the coordinator' if peer == 0 else ''})"

    # --- agreeing ---

    def gather(self, value: Any) -> list[Any]:
        number, self._round = self._round, self._round + 1
        if self.rank != 0:
            self._send(0, {"kind": "bring", "round": number, "value": value})
            with self._news:
                self._wait(lambda: number in self._answers)
                return self._answers.pop(number)
        with self._news:
            brought = self._brought.setdefault(number, {})
            self._wait(lambda: len(brought) == self.size - 1)
            values = [value, *(brought[peer] for peer in range(1, self.size))]
            del self._brought[number]
        for peer in self._links:
            self._send(peer, {"kind": "all", "round": number, "values": values})
        return values

    def _wait(self, ready: Callable[[], bool]) -> None:
        self._news.wait_for(lambda: ready() or self._gone is not None)
        if not ready():
            raise PeerFailedError(self._gone)

    def fail(self, why: str) -> None:
        self._part({"kind": "failed", "who": self.rank, "why": why})

    def leave(self) -> None:
        self._part({"kind": "bye"})

    def _part(self, message: Mapping[str, Any]) -> None:
        self._leaving.set()
        for peer, link in self._links.items():
            self._send(peer, message, care=False)
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_WR)

    # --- the connections ---

    def _send(self, peer: int, message: Mapping[str, Any], care: bool = True) -> None:
        try:
            with self._send_locks[peer]:
                send(self._links[peer], message)
        except OSError as error:
            if care and peer not in self._left:
                self._lose(peer, _silence(error, self._timeout))

    def _beat(self) -> None:
        while not self._leaving.wait(min(2.0, self._timeout / 4)):
            for peer in self._links:
                self._send(peer, {"kind": "beat"})

    def _listen(self, peer: int) -> None:
        with self._links[peer]:
            self._hear_all(peer)

    def _hear_all(self, peer: int) -> None:
        while True:
            try:
                message = receive(self._links[peer])
            except (OSError, ValueError) as error:
                if peer not in self._left:
                    self._lose(peer, _silence(error, self._timeout))
                return
            kind = message.get("kind")
            if kind == "bye":
                self._left.add(peer)
            elif kind == "failed":
                who, why = int(message["who"]), str(message["why"])
                self._give_up(who, f"{self.describe(who)} {why}")
            elif kind in ("bring", "all"):
                with self._news:
                    number = int(message["round"])
                    if kind == "bring":
                        self._brought.setdefault(number, {})[peer] = message["value"]
                    else:
                        self._answers[number] = message["values"]
                    self._news.notify_all()

    def _lose(self, peer: int, how: str) -> None:
        self._give_up(peer, f"{self.describe(peer)} {how}")

    def _give_up(self, who: int, what: str) -> None:
        with self._news:
            if self._gone is not None or self._leaving.is_set():
                return
            self._gone = what
            self._news.notify_all()
        why = what.removeprefix(self.describe(who)).strip()
        for peer in self._links:
            if peer != who:
                self._send(peer, {"kind": "failed", "who": who, "why": why}, care=False)
        self._end(f"process {self.rank} of {self.size} leaves: {what}")


def _silence(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"has not been heard of for {seconds:g} s"
    return "is gone"


# --- messages -------------------------------------------------------------------------------


def send(link: socket.socket, message: Mapping[str, Any]) -> None:
    """One message: its length, and it."""
    text = json.dumps(message).encode()
    link.sendall(len(text).to_bytes(4, "little") + text)


def receive(link: socket.socket) -> dict[str, Any]:
    """The next message; an OSError where the connection ended, a ValueError where it is none."""
    length = int.from_bytes(_exactly(link, 4), "little")
    if length > _MOST_BYTES:
        raise ValueError("a message is too long")
    message = json.loads(_exactly(link, length))
    if not isinstance(message, dict):
        raise ValueError("a message is an object")
    return message


def _exactly(link: socket.socket, size: int) -> bytes:
    parts, left = [], size
    while left:
        part = link.recv(min(left, 2**20))
        if not part:
            raise ConnectionError("the connection was closed")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


# --- meeting --------------------------------------------------------------------------------


def address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 2**16):
        raise ConfigError(f"distributed.coordinator: must be HOST:PORT, got '{text}'")
    return host.strip("[]"), int(port)


def meet(
    cluster: Cluster,
    card: Card,
    compare: Callable[[Card, Card], str | None],
    end: Callable[[str], Any] = end_process,
) -> Connected:
    """Waits until all processes have come and have the same to do.

    compare(process 0's card, another's) says in words what differs, or None. Raises a ConfigError
    that says who did not come, or what is wrong.
    """
    if cluster.processes < 2:
        raise ConfigError(f"distributed.processes: must be at least 2, got {cluster.processes}")
    if not 0 <= cluster.process < cluster.processes:
        raise ConfigError(
            f"distributed.process_id: must be from 0 to {cluster.processes - 1}, "
            f"got {cluster.process}"
        )
    host, port = address(cluster.coordinator)
    hello = {
        "muesli": json.loads(json.dumps(dict(card))),  # as it arrives elsewhere
        "process": cluster.process,
        "processes": cluster.processes,
        "host": socket.gethostname(),
    }
    if cluster.process == 0:
        names, links = _host(cluster, port, hello, compare)
    else:
        names, link = _visit(cluster, host, port, hello)
        links = {0: link}
    return Connected(cluster.process, names, links, cluster.timeout_seconds, end)


def _server(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise ConfigError(
            f"distributed.coordinator: port {port} of this machine cannot be had "
            f"({error.strerror}); is another process 0 running?"
        ) from error


def _host(
    cluster: Cluster, port: int, own: Card, compare: Callable[[Card, Card], str | None]
) -> tuple[list[str], dict[int, socket.socket]]:
    deadline = time.monotonic() + cluster.start_seconds
    links: dict[int, socket.socket] = {}
    names = {0: own["host"]}
    failure: str | None = None
    # Closed when all are there: JAX's own service then listens at this port.
    with _server(port) as server, contextlib.ExitStack() as guests:
        while len(links) < cluster.processes - 1:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                link = guests.enter_context(server.accept()[0])
            except TimeoutError:
                missing = [str(i) for i in range(1, cluster.processes) if i not in links]
                failure = failure or (
                    f"distributed: process{'es' if len(missing) > 1 else ''} {', '.join(missing)} "
                    f"of {cluster.processes} did not come within {cluster.start_seconds:g} s"
                )
                break
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.settimeout(_HELLO_SECONDS)
            try:
                hello = receive(link)
                guest, name = int(hello["process"]), str(hello["host"])
                if guest in links and _is_closed(links[guest]):
                    links.pop(guest).close()  # it has been started again
                    del names[guest]
                wrong = _what_is_wrong(hello, guest, own, names)
                differs = wrong or compare(own["muesli"], hello["muesli"])
            except (OSError, ValueError, KeyError, TypeError):
                link.close()  # somebody else's
                continue
            if wrong:
                _refuse(link, f"distributed: {wrong}")
                link.close()  # the right one may still come
                continue
            with contextlib.suppress(OSError):  # gone again: it may still be replaced
                send(link, {"wait": cluster.start_seconds})
            links[guest], names[guest] = link, name
            if differs and failure is None:
                failure = f"distributed: process {guest} ({name}) was sent away: {differs}"
                # Those who are on their way are told as well.
                deadline = min(deadline, time.monotonic() + _HELLO_SECONDS)
        if failure is not None:
            for link in links.values():
                _refuse(link, failure)
            raise ConfigError(failure)
        guests.pop_all()
    everyone = [names[i] for i in range(cluster.processes)]
    for guest, link in links.items():
        try:
            send(link, {"welcome": everyone})
        except OSError:
            for other in links.values():
                other.close()
            raise ConfigError(
                f"distributed: process {guest} ({names[guest]}) left before all had come"
            ) from None
    return everyone, links


def _is_closed(link: socket.socket) -> bool:
    try:
        link.setblocking(False)
        return link.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        link.settimeout(_HELLO_SECONDS)


def _refuse(link: socket.socket, why: str) -> None:
    with contextlib.suppress(OSError):
        send(link, {"refused": why})


def _what_is_wrong(hello: Card, guest: int, own: Card, names: Mapping[int, str]) -> str | None:
    if int(hello["processes"]) != own["processes"]:
        return (
            f"distributed.processes is {own['processes']} at process 0, "
            f"{hello['processes']} at process {guest}"
        )
    if guest in names:
        return f"distributed.process_id: {guest} is already here (from {names[guest]})"
    return None


def _visit(cluster: Cluster, host: str, port: int, hello: Card) -> tuple[list[str], socket.socket]:
    where = f"distributed.coordinator: {cluster.coordinator}"
    deadline = time.monotonic() + cluster.start_seconds
    while True:
        left = deadline - time.monotonic()
        try:
            link = socket.create_connection((host, port), timeout=max(0.01, min(5.0, left)))
            break
        except OSError as error:
            if time.monotonic() + 0.2 >= deadline:
                raise ConfigError(
                    f"{where} did not answer within {cluster.start_seconds:g} s "
                    f"({error.strerror or error})"
                ) from error
            time.sleep(0.2)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.ExitStack() as unwelcome:
        unwelcome.enter_context(link)
        link.settimeout(4 * _HELLO_SECONDS)
        answer: dict[str, Any] = {}
        try:
            send(link, hello)
            answer = receive(link)
            if "wait" in answer:
                # Process 0 speaks when all have come, or says who has not.
                link.settimeout(float(answer["wait"]) + 2 * _HELLO_SECONDS)
                answer = receive(link)
        except (OSError, ValueError):
            raise ConfigError(
                f"{where} broke off before all processes had come"
                if "wait" in answer
                else f"{where} does not answer as a process 0 that waits for others (is its run "
                "under way already?)"
            ) from None
        if "refused" in answer:
            raise ConfigError(str(answer["refused"]))
        unwelcome.pop_all()
    return [str(name) for name in answer["welcome"]], link
