"""Measures in a worker process that may crash or hang: it is ended, and another one started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import Any

from pyflash.tuner.backend import Candidate, Samples


class CandidateError(RuntimeError):
    """A candidate was not measured; the message is the reason."""


class WorkerDied(CandidateError):
    """The candidate ended its process, or exceeded the time limit."""


class WorkerError(RuntimeError):
    """No candidate's fault: the worker process does not start."""


class Measurer:
    """The long-lived worker, which starts at the first request and after each failure.

    `backend` is "module:name" of a `pyflash.tuner.backend.Backend`, `options` its keyword
    arguments. Seconds are limits of the wall clock; the first request of a process may take
    `start_seconds` longer.
    """

    def __init__(
        self,
        backend: str,
        options: dict[str, Any],
        check_seconds: float = 60,
        sample_seconds: float = 60,
        start_seconds: float = 180,
    ) -> None:
        self._command = [sys.executable, "-m", "pyflash.tuner.worker", backend, json.dumps(options)]
        self._check_seconds, self._sample_seconds = check_seconds, sample_seconds
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self.seconds = 0.0  # of all requests, without starting the process

    def check(self, problem: dict[str, Any], candidate: Candidate) -> tuple[float, float]:
        """(error, bound). Raises CandidateError."""
        error, bound = self._request(
            self._check_seconds, do="check", problem=problem, candidate=candidate
        )
        return error, bound

    def sample(
        self, problem: dict[str, Any], candidates: list[Candidate], n_samples: int
    ) -> Samples:
        """Seconds per call of each, in turns. Raises CandidateError, which does not say which
        candidate failed."""
        return self._request(
            self._sample_seconds,
            do="sample",
            problem=problem,
            candidates=candidates,
            n_samples=n_samples,
        )

    def close(self) -> None:
        """Ends the worker."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it
                self._process.wait(timeout=30)
            self._process.stdin.close()
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> Measurer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        self._stderr.close()

    def _request(self, seconds: float, **request: Any) -> Any:
        if self._process is None:
            self._start()
        start = time.monotonic()
        try:
            return self._exchange(request, seconds)
        finally:
            self.seconds += time.monotonic() - start

    def _start(self) -> None:
        self._stderr.seek(0)
        self._stderr.truncate()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
        )
        self._unread = b""
        try:
            self._exchange(None, self._start_seconds)
        except CandidateError as error:
            raise WorkerError(f"the worker process does not start: {error}") from error

    def _exchange(self, request: dict[str, Any] | None, seconds: float) -> Any:
        try:
            if request is not None:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
            reply = json.loads(self._read_line(time.monotonic() + seconds))
        except TimeoutError:
            self.close()
            raise WorkerDied(f"did not end within {seconds:g} s") from None
        except (OSError, ValueError):
            raise WorkerDied(self._why_it_died()) from None
        if "error" in reply:
            if not reply["usable"]:
                self.close()
            raise CandidateError(reply["error"])
        return reply["result"]

    def _read_line(self, until: float) -> bytes:
        fd = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            received = os.read(fd, 1 << 16)
            if not received:
                raise OSError
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _why_it_died(self) -> str:
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            status = None
        self.close()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        last = f": {lines[-1].strip()}" if lines else ""
        if status is not None and status < 0:
            return f"ended its process by {signal.Signals(-status).name}{last}"
        return f"ended its process with status {status}{last}"
