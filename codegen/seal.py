"""Seals: how a library is known to be whole before it is mapped.

    seal(path, {"abi": ...})    # appends what is needed to tell
    check(path)                 # the record, or BadFileError

Mapping a file that was cut off ends the process with SIGBUS at the first use of a missing page, and
a changed one does anything. So a sealed file ends in a JSON record with the size and the SHA-256 of
what stands before, its length in 8 bytes, and MAGIC; loaders ignore what follows a library's
sections. The seal is in the file itself because two files cannot be replaced at once. It tells of
damage alone: whoever can write a file can seal it, and who that is `cache_dir.opened` checks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pyflash.codegen.cache_dir import opened
from pyflash.codegen.compile_object import content_digest
from pyflash.codegen.trust import path_of

MAGIC = b"pyflash seal v1\n"


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
    """The record of a file that is whole. Raises BadFileError, also where it cannot be read, and
    CacheError where others can have written it."""
    with checked(path) as (_, record):
        return record


@contextmanager
def checked(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A path to map a library by, which leads to the very file that was checked, and the record of
    its seal. Raises as `check` does."""
    try:
        file = opened(path)
    except OSError as error:
        raise BadFileError(f"cannot be read: {error.strerror}") from error
    with file:
        yield path_of(file), _check(file)


def _check(file: BinaryIO) -> dict[str, Any]:
    record, n_sealed = _read(file, os.fstat(file.fileno()).st_size)
    if record.get("bytes") != n_sealed:
        raise BadFileError(f"is damaged: {n_sealed} bytes, expected {record.get('bytes')}")
    if content_digest(file, record) != record.get("sha256"):
        raise BadFileError("is damaged: its contents are not those that were written")
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
