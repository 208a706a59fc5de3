"""python -m pyflash.tuner.worker MODULE:NAME OPTIONS: measures in a process of its own.

A request is a line of JSON on stdin, {"do": method, ...arguments}; the reply a line on stdout,
{"result": ...} or {"error": reason, "usable": ...}. The process ends with the one that started it.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    end_with_parent()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a backend prints is no reply
    module, _, name = argv[0].partition(":")
    backend = getattr(importlib.import_module(module), name)(**json.loads(argv[1]))
    _write(replies, {"result": "ready"})
    for line in sys.stdin:
        reply = _answer(backend, json.loads(line))
        _write(replies, reply)
        if not reply.get("usable", True):
            return 1
    return 0


def end_with_parent() -> None:
    """The kernel ends this process when the one that started it ends, however that does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        sys.exit("the process that started this one is gone")


def _answer(backend: Any, request: dict[str, Any]) -> dict[str, Any]:
    method = getattr(backend, request.pop("do"))
    try:
        return {"result": method(**request)}
    except (AssertionError, RuntimeError, ValueError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return {"error": reason, "usable": backend.is_usable()}


def _write(file: Any, reply: dict[str, Any]) -> None:
    file.write(json.dumps(reply) + "\n")
    file.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
