"""Headless Chromium through its debugging pipe: no driver, no websocket, nothing to install but the browser."""

import base64
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--window-size=1400,1000",
         "--disable-background-networking", "--remote-debugging-pipe")  # fmt: skip
SECONDS = 60.0


class Browser:
    """One page. ``events`` holds every protocol event so far; use as a context manager."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        self.events: list[dict[str, Any]] = []
        self._buffer, self._id, self._session = b"", 0, ""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [CHROMIUM, *FLAGS, *root, f"--user-data-dir={profile}", "about:blank"]
        # the protocol is spoken on descriptors 3 (in) and 4 (out)
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self) -> "Browser":
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        target = pages[0]["targetId"] if pages else self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        self._process.kill()
        self._process.wait()
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a protocol command; events that come first are kept. RuntimeError where it fails."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") != self._id:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return dict(answer["result"])

    def open(self, url: str) -> None:
        """Go to ``url`` and wait until it has loaded."""
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression in the page, promises awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def of(self, method: str) -> list[dict[str, Any]]:
        """Parameters of the events of one kind so far."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], SECONDS)[0]:
                raise TimeoutError("the browser says nothing")
            self._buffer += os.read(self._in, 1 << 20)
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))
