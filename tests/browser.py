"""A headless Chromium driven over a pair of pipes: DevTools without a further package."""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page. Console errors, exceptions and requests are collected as they come."""

    def __init__(self, profile: Path):
        assert EXECUTABLE is not None
        command_read, self._out = os.pipe()
        self._in, answer_write = os.pipe()

        # fmt: off
        chromium = [EXECUTABLE, "--headless=new", "--no-sandbox", "--disable-gpu",
                    "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
                    "--disable-component-update", "--disable-background-networking",
                    f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        # fmt: on
        # The browser reads its number 3 and writes its number 4; a shell puts the pipes there.
        redirect = f'exec "$@" 3<&{command_read} 4>&{answer_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, "bash", *chromium],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(command_read, answer_write),
        )
        os.close(command_read)
        os.close(answer_write)
        self._buffer, self._number = b"", 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events on the way are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._in, 1 << 16)
            assert piece, "the browser closed its end"
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.complaints.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def size(self, width: int, height: int = 900, dark: bool = False) -> None:
        """The window's size, and which colours the system asks for."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Loads a page and waits until it is there; what was noted of the last one is forgotten."""
        self.call("Page.navigate", url="about:blank")
        self.wait("document.readyState === 'complete' && location.href === 'about:blank'")
        self.complaints.clear()
        self.requests.clear()
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 20.0) -> None:
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(expression):
            assert time.monotonic() < end, f"never came true: {expression}"
            time.sleep(0.05)

    def move(self, x: float, y: float) -> None:
        """The mouse to a point of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, file: Path, whole: bool = True) -> None:
        """A screenshot, of the whole page or the window."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png",
                         **({"clip": self._whole()} if whole else {}))  # fmt: skip
        file.write_bytes(base64.b64decode(data["data"]))

    def _whole(self) -> dict[str, float]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def close(self) -> None:
        """Ends the browser."""
        self._session = None
        try:
            self.call("Browser.close")
        finally:
            self._process.wait(20)
            os.close(self._out)
            os.close(self._in)
