"""Debian's Chromium: a page as it is after its scripts, and one driven by ChromeDriver.

ChromeDriver speaks JSON over HTTP, so that no package is needed for the few calls of the tests.
"""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np
import pytest
from PIL import Image

_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of the protocol
_PATIENCE = 60.0  # seconds


def find_program(*names: str) -> str:
    """Return the first of these programs; skip the test if there is none."""
    found = next(filter(None, map(shutil.which, names)), None)
    return found or pytest.skip(
        f"no {names[0]} on this machine: the page is not tried in a browser"
    )


def dump_page(file: Path, profile: Path) -> str:
    """Return a page's elements after two seconds of its scripts."""
    chromium = find_program("chromium", "google-chrome")
    flags = [*_FLAGS, "--virtual-time-budget=2000", f"--user-data-dir={profile}", "--dump-dom"]
    argv = [chromium, *flags, file.as_uri()]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_PATIENCE, check=True)
    return done.stdout


class Browser:
    """A window of Chromium."""

    def __init__(self, address: str) -> None:
        self._address = address

    def call(self, method: str, path: str, **body: Any) -> Any:
        """Return the answer to a request of the protocol."""
        data = json.dumps(body).encode() if method == "POST" else None
        request = Request(self._address + path, data, method=method)
        with build_opener(ProxyHandler({})).open(request, timeout=_PATIENCE) as answer:
            return json.load(answer)["value"]

    def run(self, script: str) -> Any:
        """Return what a script in the page returns."""
        return self.call("POST", "/execute/sync", script=script, args=[])

    def wait_for(self, expression: str) -> Any:
        """Return an expression's value as soon as it is true."""
        return self.run(
            "return new Promise(done => { const look = () => { const value = "
            f"({expression}); value ? done(value) : setTimeout(look, 20); }}; look(); }});"
        )

    def type_into(self, path: str, text: str) -> None:
        """Type into the element at an XPath; into one for files, their paths."""
        self.call("POST", f"/element/{self._find(path)}/value", text=text)

    def click(self, path: str) -> None:
        """Click the element at an XPath, as a person does."""
        self.call("POST", f"/element/{self._find(path)}/click")

    def picture(self, path: str) -> np.ndarray:
        """Return what is seen of the element at an XPath, (H, W, 3)."""
        data = self.call("GET", f"/element/{self._find(path)}/screenshot")
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))

    def _find(self, path: str) -> str:
        return str(self.call("POST", "/element", using="xpath", value=path)[_ELEMENT])


@contextmanager
def open_browser(folder: Path, address: str, *flags: str) -> Iterator[Browser]:
    """Yield a browser with the page at `address`; what it downloads goes into `folder`."""
    driver, chromium = find_program("chromedriver"), find_program("chromium", "google-chrome")
    folder.mkdir(exist_ok=True)
    argv = [driver, "--port=0"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        ports = (re.search(r"successfully on port (\d+)", line) for line in process.stdout)
        browser = Browser(f"http://127.0.0.1:{next(filter(None, ports))[1]}")
        options = {
            "binary": chromium,
            "args": [*_FLAGS, f"--user-data-dir={folder / 'profile'}", *flags],
            "prefs": {"download.default_directory": str(folder)},
        }
        wanted = {"alwaysMatch": {"goog:chromeOptions": options}}
        session = browser.call("POST", "/session", capabilities=wanted)["sessionId"]
        browser = Browser(f"{browser._address}/session/{session}")
        try:
            browser.call("POST", "/timeouts", script=_PATIENCE * 500)
            browser.call("POST", "/url", url=address)
            yield browser
        finally:
            browser.call("DELETE", "")
    finally:
        process.kill()
        process.wait()
        process.stdout and process.stdout.close()
