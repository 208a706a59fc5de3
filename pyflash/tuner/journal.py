"""The journal of a tuning run: JSON lines that are only ever appended, each on the disk before the
run goes on, so that a run that is killed at any moment loses nothing that it had finished."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

Record = dict[str, Any]


class JournalError(ValueError):
    """A file that is no journal, or that another run writes."""


class Journal:
    """Opens a journal to append to it; `records` are those that it held.

    A last line without its end was being written when the run was killed: it is cut off. Raises
    JournalError where another process has the journal open, or where a line is not JSON.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise JournalError(
                f"{path} is being written by another run: wait for it, or name another journal"
            ) from None
        try:
            self.records = read_journal(path)
        except JournalError:
            self._file.close()
            raise
        self._cut_torn_line()

    def append(self, kind: str, **values: Any) -> Record:
        """Adds a record; when this returns it is on the disk."""
        record = {"kind": kind} | values
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records.append(record)
        return record

    def of_kind(self, kind: str) -> Iterator[Record]:
        return (record for record in self.records if record["kind"] == kind)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _cut_torn_line(self) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            self._file.truncate(whole)


def read_journal(path: Path) -> list[Record]:
    """The records of a journal, in order, without a last line that was not finished.

    Raises JournalError naming the line that is not a record, OSError for a file that cannot be
    read.
    """
    *lines, _ = path.read_bytes().split(b"\n")
    return [_record(path, number, line) for number, line in enumerate(lines, 1)]


def _record(path: Path, number: int, line: bytes) -> Record:
    try:
        record = json.loads(line)
        record["kind"]
    except (ValueError, TypeError, KeyError):
        raise JournalError(
            f"{path}: line {number} is not a record of a journal: expected a JSON object with a "
            "kind; name another file"
        ) from None
    return record
