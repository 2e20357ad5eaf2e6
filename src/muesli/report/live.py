"""The page of a running suite, served to this machine only, to whoever has its token."""

from __future__ import annotations

import contextlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from muesli.report.page import as_json, render
from muesli.report.study import read_study


def make_server(directories: Sequence[Path], port: int = 0) -> tuple[ThreadingHTTPServer, str]:
    """A server on 127.0.0.1 and the address, token included, at which it answers."""
    token = secrets.token_urlsafe(24)
    newest: list[dict[str, Any]] = []

    def read() -> dict[str, Any] | None:
        """The study as it stands; the last good one while a file of it is half written."""
        # Whatever half a file makes of the reading, the next answer will do.
        with contextlib.suppress(Exception):
            newest[:] = [{**read_study(directories), "media": []}]
        return newest[0] if newest else None

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            given = parse_qs(address.query).get("token", [""])[0]
            # A page elsewhere that guesses the port must not reach it under another host's name.
            host = (self.headers.get("Host") or "").partition(":")[0]
            if host not in ("127.0.0.1", "localhost") or not hmac.compare_digest(
                given.encode(), token.encode()
            ):
                self._answer(403, "text/plain", "the address needs the token it was printed with\n")
            elif address.path not in ("/", "/study.json"):
                self._answer(404, "text/plain", "there is nothing here\n")
            elif (study := read()) is None:
                self._answer(503, "text/plain", "there is no study to be read here yet\n")
            elif address.path == "/":
                self._answer(200, "text/html", render(study, live=True))
            else:
                self._answer(200, "application/json", as_json(study))

        def _answer(self, status: int, kind: str, text: str) -> None:
            # Who no longer listens needs no answer.
            with contextlib.suppress(ConnectionError):
                self._send(status, kind, text.encode())

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Says nothing: the token is in the address."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    return server, f"http://127.0.0.1:{server.server_address[1]}/?token={token}"


def serve(directories: Sequence[Path], port: int, say: Callable[[str], None]) -> None:
    """Serves until it is interrupted."""
    read_study(directories)  # says what is wrong before anything is served
    server, address = make_server(directories, port)
    say(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("stopped")
    finally:
        server.server_close()
