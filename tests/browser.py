"""A headless Chromium, driven through the DevTools protocol on a pair of pipes: no package, port or driver program of its own."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

QUIET = (
    "gpu",
    "dev-shm-usage",
    "quic",
    "background-networking",
    "component-update",
    "sync",
)  # it asks for no host of its own accord
FLAGS = ("--headless", "--no-sandbox", "--no-first-run", "--remote-debugging-pipe", *(f"--disable-{name}" for name in QUIET))
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " "), "Backspace": (8, ""), "ArrowDown": (40, "")}  # code and text
SHIFT, CONTROL = 8, 2  # bits of the protocol's ``modifiers``
PATIENCE = 20.0  # seconds


class Browser:
    """One page. ``events``: what the page reported so far, each with ``method`` and ``params``."""

    def __init__(self, program: str, folder: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()  # it reads commands from its file descriptor 3, and writes to 4
        read, write = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (ours[0], theirs[1]))  # away from 3 and 4 themselves
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(read, write),
            stderr=subprocess.DEVNULL,
        )
        for fd in (read, write, ours[0], theirs[1]):
            os.close(fd)
        self._in, self._out = ours[1], theirs[0]
        self._buffer = b""
        self._sent = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        (page,) = (t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._in)  # which ends it
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while (got := self._next()).get("id") != self._sent:
            self.events.append(got)
        if "error" in got:
            raise RuntimeError(f"{method}: {got['error']['message']}")
        result: dict[str, Any] = got["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._out], [], [], PATIENCE)[0]:
                raise TimeoutError("the browser says nothing")
            if not (more := os.read(self._out, 1 << 16)):
                raise RuntimeError("the browser has ended")
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        got: dict[str, Any] = json.loads(message)
        return got

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise's, once it is there."""
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in got:
            raise RuntimeError(got["exceptionDetails"]["exception"]["description"])
        return got["result"].get("value")

    def until(self, script: str) -> Any:
        """The first value of the expression that is true in JavaScript's sense."""
        end = time.monotonic() + PATIENCE
        while not (value := self.run(script)):
            if time.monotonic() > end:
                raise TimeoutError(script)
            time.sleep(0.02)
        return value

    def open(self, url: str) -> None:
        self.run("window.before = true")
        self.call("Page.navigate", url=url)
        self.until("!window.before && document.readyState === 'complete'")

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def press(self, key: str, modifiers: int = 0) -> None:
        code, text = KEYS[key]
        which = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **which, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **which)

    def write(self, text: str) -> None:
        """Into what has the focus, as an input method does."""
        self.call("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of the page so far: its own, and the browser's about it."""
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """The addresses that the page asked so far."""
        return [event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
