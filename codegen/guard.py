"""Runs a command that ends when its builder does, however the builder ends; run as a script.

    python guard.py BUILDER REMOVE COMMAND...

In a session of its own, so that all that the command starts can be found: ninja gives each of its
commands a process group. When COMMAND ends, when the process BUILDER is gone, as after SIGKILL, or
at SIGTERM, the rest of the session is killed; then, if COMMAND did not succeed, the file or folder
REMOVE is removed ("": none). Inherited file descriptors, such as those of the cache's locks, stay
open until then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_POLL_SECONDS = 0.05


@contextmanager
def guarded(
    command: Sequence[str],
    locks: Sequence[int],
    remove: Path | None = None,
    is_private: bool = True,
    **options: Any,
) -> Iterator[subprocess.Popen[str]]:
    """Starts `command` with the builder's `locks`, `options` being those of Popen; on leaving, also
    by an exception, it has ended, and everything that it started. `is_private`: what it writes is
    for its user alone."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(remove or ""), *command],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=locks,
        text=True,
        errors="replace",
        umask=0o077 if is_private else -1,
        **options,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def main(argv: Sequence[str]) -> int:
    builder, remove, *command = argv
    status = 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        if os.getppid() == int(builder):
            process = _start(command)
            while os.getppid() == int(builder):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(_POLL_SECONDS)
                    break
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_session()
        if status != 0 and remove:
            _remove(Path(remove))
    return status


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command)
    except OSError as error:
        sys.exit(f"error: {command[0]} cannot be run: {error.strerror}")


def _remove(path: Path) -> None:
    if path.is_dir():
        import shutil  # takes a third of this script's start

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def end_session() -> None:
    """Kills every other process of this session, until there is none: a process that starts others
    meanwhile does not get away."""
    while others := _others():
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _others() -> list[int]:
    session, others = os.getsid(0), []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                # pid (name) state ppid pgrp session; the name may hold anything.
                status = Path("/proc", name, "stat").read_text(errors="replace")
                state, _, _, of = status.rpartition(") ")[2].split()[:4]
                if int(of) == session and state not in "ZX":
                    others.append(int(name))
    return others


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
