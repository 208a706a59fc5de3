"""Serves the page on the loopback: to this machine alone, without a script or a network."""

from __future__ import annotations

import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pyflash.explore.measured import Measured
from pyflash.explore.parts import PARTS
from pyflash.explore.state import State
from pyflash.explore.view import View
from pyflash.ui.app import one_line
from pyflash.ui.markup import element
from pyflash.ui.page import page

HOST = "127.0.0.1"
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-src 'self'; "
    "form-action 'self'; frame-ancestors 'self'; base-uri 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_ERRORS = (ValueError, TypeError, RuntimeError, OSError)


class Explorer(ThreadingHTTPServer):
    """Serves the pages of every state. `start` is the one that is shown first; `measured` stands
    beside each."""

    daemon_threads = True

    def __init__(self, start: State, port: int, measured: Measured | None = None) -> None:
        """Raises OSError where the port, 0 for any, is taken."""
        super().__init__((HOST, port), _Handler)
        self.start = start
        self.measured = measured
        # One compilation at a time: others would wait for the lock of the cache.
        self.compiling = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has left is no fault."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """The first state's."""
        return f"http://{HOST}:{self.server_port}{self.start.url}"


class _Handler(BaseHTTPRequestHandler):
    server: Explorer
    server_version = "pyflash"
    sys_version = ""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if not self._is_asked_from_here():
            self._send(HTTPStatus.FORBIDDEN, self._message("only this machine's pages may ask"))
        elif parts.path == "/":
            self._page(query)
        elif parts.path in PARTS:
            self._part(parts.path, query)
        else:
            self._send(HTTPStatus.NOT_FOUND, self._message(f"no page {parts.path}"))

    def _is_asked_from_here(self) -> bool:
        """By the name of this machine, and by no page of another site: a name that leads here and
        a link elsewhere would make the compiler run."""
        port = self.server.server_port
        known = {f"{host}:{port}" for host in (HOST, "localhost")}
        site = self.headers.get("Sec-Fetch-Site", "none")
        return self.headers.get("Host") in known and site in ("none", "same-origin")

    def _page(self, query: dict[str, str]) -> None:
        if not query:
            self._redirect(self.server.start.url)
            return
        try:
            state = State.of(query)
        except _ERRORS as error:
            shown = View(self.server.start, one_line(error), self.server.measured)
            self._send(HTTPStatus.BAD_REQUEST, page(shown))
            return
        if query != state.query:
            self._redirect(state.url)
        else:
            self._send(HTTPStatus.OK, page(View(state, measured=self.server.measured)))

    def _part(self, path: str, query: dict[str, str]) -> None:
        try:
            state = State.of(query)
            with self.server.compiling:
                found = PARTS[path](state)
            self._send(HTTPStatus.OK, page(found))
        except _ERRORS as error:
            self._send(HTTPStatus.BAD_REQUEST, self._message(one_line(error)))

    def _redirect(self, url: str) -> None:
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", url)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, status: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _message(self, text: str) -> str:
        return f"<!doctype html>\n{element('p', text)}\n"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: stderr is for what goes wrong."""
