"""Seals: how a library is known to be whole before it is mapped.

    seal(path, {"abi": ...})    # appends what is needed to tell
    check(path)                 # the record, or BadFileError

Mapping a file that was cut off ends the process with SIGBUS at the first use of a missing page, and
a changed one does anything. So a sealed file ends in a JSON record with the size and the SHA-256 of
what stands before, its length in 8 bytes, and MAGIC; loaders ignore what follows a library's
sections. The seal is in the file itself because two files cannot be replaced at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, BinaryIO

from pyflash.codegen.cache_dir import CacheError, cache_dir, write_if_changed
from pyflash.codegen.compile_object import content_digest

MAGIC = b"pyflash seal v1\n"
# Hashed at each check: 2 ms. Of larger files the cache remembers which were found whole.
_QUICK_BYTES = 1 << 20
# Of two changes of a file within a tick of the clock only the first shows in its times.
_CLOCK_SECONDS = 2.0


class BadFileError(RuntimeError):
    """A file is not what was written there. The message is a phrase to follow its name."""


def seal(path: Path, record: dict[str, Any] | None = None) -> None:
    """Appends a seal with `record`, whose keys are other than "bytes" and "sha256"."""
    values = {**(record or {}), "bytes": path.stat().st_size}
    with path.open("rb") as file:
        values["sha256"] = content_digest(file, values)
    text = json.dumps(values).encode()
    with path.open("ab") as file:
        file.write(text + len(text).to_bytes(8, "little") + MAGIC)


def check(path: Path) -> dict[str, Any]:
    """The record of a file that is whole. Raises BadFileError, also where it cannot be read."""
    try:
        with path.open("rb") as file:
            return _check(path, file)
    except OSError as error:
        raise BadFileError(f"cannot be read: {error.strerror}") from error


def _check(path: Path, file: BinaryIO) -> dict[str, Any]:
    status = os.fstat(file.fileno())
    record, n_sealed = _read(file, status.st_size)
    if record.get("bytes") != n_sealed:
        raise BadFileError(f"is damaged: {n_sealed} bytes, expected {record.get('bytes')}")
    mark = _Mark(path, status)
    if not mark.is_set():
        if content_digest(file, record) != record.get("sha256"):
            raise BadFileError("is damaged: its contents are not those that were written")
        mark.set()
    return record


def _read(file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """The record, and how many bytes it speaks of."""
    n_tail = 8 + len(MAGIC)
    file.seek(max(0, size - n_tail))
    tail = file.read(n_tail)
    if not tail.endswith(MAGIC) or len(tail) < n_tail:
        raise BadFileError("is cut off, or was not built by this version of pyflash: no seal")
    start = size - n_tail - int.from_bytes(tail[:8], "little")
    if start < 0:
        raise BadFileError("is damaged: its seal is longer than the file")
    file.seek(start)
    try:
        record = json.loads(file.read(size - n_tail - start))
    except ValueError as error:
        raise BadFileError("is damaged: its seal cannot be read") from error
    if not isinstance(record, dict):
        raise BadFileError("is damaged: its seal is no record")
    return record, start


class _Mark:
    """That a large file, as it is now by its inode, size and times, was found whole."""

    def __init__(self, path: Path, status: os.stat_result) -> None:
        name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
        self._text = (
            f"{status.st_dev} {status.st_ino} {status.st_size} "
            f"{status.st_mtime_ns} {status.st_ctime_ns}\n"
        )
        self._is_old = time.time() - max(status.st_mtime, status.st_ctime) > _CLOCK_SECONDS
        self._file: Path | None = None
        if status.st_size > _QUICK_BYTES:
            with contextlib.suppress(CacheError):
                self._file = cache_dir() / "verified" / name

    def is_set(self) -> bool:
        if self._file is None:
            return False
        try:
            return self._file.read_text() == self._text
        except (OSError, ValueError):
            return False

    def set(self) -> None:
        """Only in a cache that is there: reading a library creates none."""
        if self._file and self._is_old and self._file.parents[1].is_dir():
            with contextlib.suppress(OSError):
                write_if_changed(self._file, self._text)
