"""A real browser for tests: Debian's Chromium without a window, spoken to over a pipe in its own protocol (CDP).

Nothing needs to be installed beside the browser: messages are JSON, ended by a NUL, on descriptors 3 and 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time


def find_browser():
    """The path of a Chromium, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    return None


class Browser:
    """One page in one browser. `with Browser(profile_directory) as browser: ...`"""

    def __init__(self, directory, width=1200, height=500):
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()
        command = [
            find_browser(),
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={directory}",
            f"--window-size={width},{height}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium refuses to be root with it
        # The shell puts our ends in place as 3 and 4, whatever their numbers are here.
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"', "browser", *command],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number = 0
        self._buffer = b""
        self._events: list = []
        self._session = None
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            self.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
            )
            self.call("Page.enable")
            self.call("Runtime.enable")
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._session = None
        try:
            self.call("Browser.close")
        except (OSError, AssertionError):
            pass
        os.close(self._to)
        os.close(self._from)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method, **parameters):
        """One command; its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer}"
                return answer["result"]
            self._events.append(answer)

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._from, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path):
        """Load a file and wait until it is there."""
        self._events.clear()
        self.call("Page.navigate", url="file://" + str(path))
        deadline = time.monotonic() + 60
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._receive(deadline))

    def problems(self):
        """Exceptions and errors that the page has had."""
        self.run("0")
        found = [e["params"] for e in self._events if e.get("method") == "Runtime.exceptionThrown"]
        for event in self._events:
            if event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] == "error":
                found.append(event["params"])
        return found

    def run(self, script):
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def settle(self):
        """Wait until what was asked to be painted is painted."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def click(self, selector):
        """Click the middle of an element, as a person does."""
        box = self.run(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, *box, button="left", clickCount=1)
        self.settle()

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def picture(self, path=None) -> bytes:
        """The page as PNG, written to a file if one is given."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        if path is not None:
            with open(path, "wb") as file:
                file.write(data)
        return data
