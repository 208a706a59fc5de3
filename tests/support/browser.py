"""Chromium without a window, driven through its devtools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
KEYS = {"Enter": 13, "Tab": 9, " ": 32}


class Browser:
    """One page.

    with Browser() as browser:
        browser.open("http://127.0.0.1:8900/")
        browser.click("button")
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        # NOTE: Chromium reads commands from 3 and writes answers to 4.
        command = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu",
             "--remote-debugging-pipe", f"--user-data-dir={self._folder.name}", "about:blank"],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._read, self._n, self._session = b"", 0, None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self._call("Page.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)
        os.close(self._from)
        self._process.terminate()
        self._process.wait(30)
        self._folder.cleanup()

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)
        self.loaded()

    def loaded(self) -> None:
        """Waits until a page that was asked for is there."""
        self._until("Page.loadEventFired")

    def loaded_in(self, frame: str) -> None:
        """Waits, at most 30 seconds, until a frame has the page that it asked for."""
        ends = time.monotonic() + 30
        place = f"document.querySelector({json.dumps(frame)}).contentDocument"
        while not self.run(f"{place}.URL != 'about:blank' && {place}.readyState == 'complete'"):
            assert time.monotonic() < ends, f"{frame} is still empty"
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of an expression in the page, which may have scripts switched off itself."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        place = f"document.querySelector({json.dumps(selector)})"
        box = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f" return [b.x + b.width / 2, b.y + b.height / 2]; }})({place})"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                       clickCount=1)  # fmt: skip

    def press(self, key: str) -> None:
        text = "\r" if key == "Enter" else key if len(key) == 1 else None
        more = {"text": text} if text else {}
        code = KEYS.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                       **(more if kind == "keyDown" else {}))  # fmt: skip

    def write(self, text: str) -> None:
        self._call("Input.insertText", text=text)

    def set_window(self, width: int, height: int, dark: bool = False) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                   deviceScaleFactor=1, mobile=False)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def save_picture(self, path: Path) -> None:
        data = self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._n += 1
        message: dict[str, Any] = {"id": self._n, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._n:
            pass
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _until(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            more = os.read(self._from, 1 << 20)
            assert more, "Chromium has ended"
            self._read += more
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)
