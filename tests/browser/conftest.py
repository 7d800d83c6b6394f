"""A browser driven over the WebDriver protocol: a dozen requests, no library."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_OPTIONS = [
    "--headless=new",
    # Tests in containers run as root, where the sandbox does not start.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
]
# Loopback never goes through a proxy, whatever the environment says.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Browser:
    """One window of a headless Chromium."""

    def __init__(self, address: str, chromium: str) -> None:
        self._address = address
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": chromium, "args": _OPTIONS},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        self._address = f"{address}/session/{session}"

    def open(self, file: Path) -> None:
        self._call("POST", "/url", {"url": file.absolute().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a JavaScript function and return what it returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def log(self, kind: str) -> list[dict[str, Any]]:
        """Return the messages since the last call: of the console ("browser"), or of the engine."""
        messages: list[dict[str, Any]] = self._call("POST", "/se/log", {"type": kind})
        return messages

    def requests(self) -> list[str]:
        """Return the addresses asked for since the last call, those inside the page left out."""
        events = [json.loads(each["message"])["message"] for each in self.log("performance")]
        sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [address for address in sent if not address.startswith("data:")]

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def picture(self, *, whole: bool = False) -> bytes:
        """Return the window, or the whole page, as PNG."""
        found = self.devtools("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        return base64.b64decode(found["data"])

    def pdf(self) -> bytes:
        return base64.b64decode(self.devtools("Page.printToPDF", {"printBackground": False})["data"])

    def close(self) -> None:
        self._call("DELETE", "", None)

    def _call(self, method: str, path: str, body: Any) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._address + path, content, {"Content-Type": "application/json"}, method=method
        )
        try:
            with _OPENER.open(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()) from error


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start Chromium and its driver; end both, and nothing else, when done."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail("Expected chromium and chromedriver, got none; install chromium and chromium-driver.")
    command = [driver, "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        window = None
        try:
            assert process.stdout is not None
            started = next(line for line in process.stdout if "started successfully on port" in line)
            port = started.rstrip().rstrip(".").rsplit(" ", 1)[1]
            window = Browser(f"http://127.0.0.1:{port}", chromium)
            yield window
        finally:
            if window is not None:
                window.close()
            process.terminate()
