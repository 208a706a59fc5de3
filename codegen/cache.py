"""Lists and prunes the per-user cache of compiled code.

    entries()                      # kinds, sizes, ages, and which are bad
    prune(older_than=30 * 86400)   # removes, and returns what it removed

Every entry is a folder, most of them named by a hash of what they were made from:

    objects/STEM/KEY/            an object, its source, log and record
    emulated|native|gemms/KEY/   a library for the CPU, a Python module, a GEMM of CUTLASS
    jit/KEY/                     a kernel library that a call with compile=True built
    kernels/VERSION/NAME/        a kernel library of `pyflash build`, which every process loads
    generated/KEY/               an emitted header

Nothing in it is needed: what is missing or bad is built again, but for kernels/, whose libraries
are skipped with the command that builds them. Imports neither torch nor a compiler.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pyflash.codegen import seal
from pyflash.codegen.cache_dir import (
    PARTIAL,
    CacheError,
    cache_dir,
    discard,
    opened,
    partials,
    remove,
)
from pyflash.codegen.cache_locks import locked, locks
from pyflash.codegen.compile_object import content_digest

__all__ = ["KINDS", "CacheError", "Entry", "cache_dir", "entries", "prune", "used"]

# Folders of entries, and how deep the entries lie in them.
_DEPTHS = {
    "objects": 2,
    "emulated": 1,
    "native": 1,
    "gemms": 1,
    "jit": 1,
    "kernels": 2,
    "generated": 1,
}
KINDS = (*_DEPTHS, "partial")
_NO_OBJECT = "there is no object: it did not compile, or was stopped"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in the cache, removed as a whole."""

    kind: str  # one of KINDS; "partial": left half-written by a builder that was killed
    name: str  # of the object or library
    path: Path  # a folder; of a partial one also a file
    bytes: int  # of its files
    used: float  # when it was last written or reused, in seconds since the epoch
    problem: str | None  # why it is of no use; None: nothing is known to be wrong


def entries(verify: bool = True) -> list[Entry]:
    """What is in the cache, by kind and name; [] where there is none. `verify` reads every file to
    tell which are bad.

    Raises CacheError where `cache_dir` does.
    """
    folder = cache_dir()
    found = []
    for kind, depth in _DEPTHS.items():
        for path in sorted((folder / kind).glob("*/" * depth)):
            if path.is_dir() and not path.name.startswith(PARTIAL):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    found.append(_entry(kind, path, verify))
    for path in partials(folder):
        with contextlib.suppress(FileNotFoundError):
            found.append(Entry("partial", path.name, path, *_size(path), "half-written"))
    return found


def prune(
    *,
    older_than: float | None = None,
    kinds: Collection[str] | None = None,
    keep_bytes: int | None = None,
    bad: bool = False,
    everything: bool = False,
    dry_run: bool = False,
) -> list[Entry]:
    """Removes entries of `kinds` (default: all) and returns them: with `everything` all; those last
    used more than `older_than` seconds ago; with `bad` those that have a problem; the least
    recently used until at most `keep_bytes` are left; half-written ones always. `dry_run` removes
    nothing. Waits for a build that is running.

    Processes that have loaded a library from the cache keep it. Raises ValueError for an unknown
    kind, CacheError where `cache_dir` does.
    """
    if unknown := set(kinds or ()) - set(KINDS):
        raise ValueError(
            f"unknown kinds {', '.join(sorted(unknown))}: expected some of {', '.join(KINDS)}"
        )
    if not cache_dir().is_dir():
        return []
    with contextlib.nullcontext() if dry_run else locked():
        left, doomed = keep_bytes, []
        for entry in sorted(entries(verify=bad), key=lambda entry: entry.used, reverse=True):
            if entry.kind not in (kinds or KINDS):
                continue
            too_old = older_than is not None and time.time() - entry.used > older_than
            useless = entry.kind == "partial" or (bad and entry.problem is not None)
            too_much = left is not None and entry.bytes > left
            if everything or too_old or useless or too_much:
                doomed.append(entry)
            elif left is not None:
                left -= entry.bytes
        if not dry_run:
            remove(locks())
            for entry in doomed:
                discard(entry.path)
                if _DEPTHS.get(entry.kind) == 2:
                    with contextlib.suppress(OSError):  # others are in it
                        entry.path.parent.rmdir()
    return doomed


def used(path: Path) -> None:
    """Updates the time of last use of the entry in the folder `path`."""
    with contextlib.suppress(OSError):
        os.utime(path)


def object_problem(path: Path) -> str | None:
    """Why the object file `path`, or its record beside it, is of no use; None: it is as written."""
    if not path.exists():
        return _NO_OBJECT
    try:
        with opened(path.with_suffix(".json")) as file:
            record = json.load(file)
        with opened(path) as file:
            same = content_digest(file, record) == record["sha256"]
            same &= os.fstat(file.fileno()).st_size == record["bytes"]
    except FileNotFoundError:
        return "it has no record"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except CacheError as error:
        return str(error)
    except (ValueError, LookupError, TypeError):
        return "its record is damaged"
    return None if same else "it is damaged"


def library_problem(path: Path) -> str | None:
    """Why the library `path` is of no use; None: it is as written."""
    try:
        seal.check(path)
    except seal.BadFileError as error:
        return f"it {error}"
    except CacheError as error:
        return str(error)
    return None


def _entry(kind: str, path: Path, verify: bool) -> Entry:
    pattern = {"objects": "*.[og]*", "generated": "cute_kernels/generated/*.h"}.get(kind, "*.so")
    files = sorted(path.glob(pattern))
    name = path.parent.name if kind == "objects" else None
    problem = None
    if verify:
        check = {"objects": object_problem, "generated": _header_problem}.get(kind, library_problem)
        missing = _NO_OBJECT if kind == "objects" else "it is empty"
        problem = next(filter(None, map(check, files)), None) if files else missing
    if kind == "generated" and files:
        name = files[0].name
    name = name or (files[0].stem.removeprefix("libpyflash_kernels-") if files else path.name)
    return Entry(kind, name, path, *_size(path), problem)


def _header_problem(path: Path) -> str | None:
    from pyflash.codegen.config_header import is_whole

    return None if is_whole(path) else "it is damaged"


def _size(path: Path) -> tuple[int, float]:
    """Bytes of the files, and when it was last used."""
    paths = [path, *path.rglob("*")] if path.is_dir() else [path]
    sizes = [p.lstat() for p in paths]
    return sum(s.st_size for s in sizes if stat.S_ISREG(s.st_mode)), path.stat().st_mtime
