"""Locks of the cache: builders go on side by side, and wait where they make the same.

    with locked_for([library]):   # this thread makes `library`
    with locked():                # nobody else makes anything, as while the cache is pruned

Who makes something holds the cache's lock with others, and that of each thing alone: a file of its
own in `locks/`, named by a hash of the thing's path. The kernel takes a lock back from processes
that are gone, however they ended. Objects are locked where they are compiled (compile_object).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyflash.codegen import trust
from pyflash.codegen.cache_dir import CacheError, cache_dir, create, in_cache, make_folder, sweep

Waiting = Callable[[Path], None]

_held = threading.local()  # this thread's locks: descriptors by file, and those held alone


@contextmanager
def locked(waiting: Waiting | None = None) -> Iterator[tuple[int, ...]]:
    """Waits, having called `waiting` with the lock's path, until nobody makes anything in the
    cache, and lets nobody begin. A thread that holds it so may enter again, and one that makes
    something may not: another that did the same would wait for it, and it for the other.

    Yields the descriptors of the thread's locks: a child that inherits them holds them, too.
    """
    path = create() / "lock"
    if path in _descriptors():
        if path not in _alone():
            raise RuntimeError("this thread makes something in the cache: expected no lock")
        yield _all()
        return
    with _open(path) as descriptor:
        _flock(descriptor, fcntl.LOCK_EX, path, waiting)
        _alone().add(path)
        try:
            with _holding(path, descriptor):
                yield _all()
        finally:
            _alone().discard(path)


@contextmanager
def locked_for(
    things: Iterable[Path] = (), waiting: Waiting | None = None
) -> Iterator[tuple[int, ...]]:
    """As `locked`, for who makes these files or folders, in the cache or elsewhere, and waits for
    who makes the same alone, or prunes. A thread may enter again, for others too: no thread waits
    for an object while it compiles one, so that none waits in a circle.

    Where no builder is at work, what those that were killed left half-written is removed.
    """
    path = create() / "lock"
    with ExitStack() as stack:
        if path not in _descriptors():
            descriptor = stack.enter_context(_open(path))
            _share(descriptor, path, waiting)
            stack.enter_context(_holding(path, descriptor))
        for thing in sorted(map(lock_file, things)):  # in one order: no two wait for each other
            if thing not in _descriptors():
                descriptor = stack.enter_context(_open(thing))
                _flock(descriptor, fcntl.LOCK_EX, thing, waiting)
                stack.enter_context(_holding(thing, descriptor))
        yield _all()


def lock_file(thing: Path) -> Path:
    """Whose lock is that of a file or folder; the file is there where a lock was taken."""
    cached = in_cache(thing)
    name = thing.absolute() if cached is None else cached.relative_to(cache_dir())
    return locks() / hashlib.sha256(str(name).encode()).hexdigest()[:16]


def locks() -> Path:
    """The folder of all locks but the cache's own. Only who holds that alone may remove it."""
    folder = cache_dir() / "locks"
    make_folder(folder)
    return folder


def _descriptors() -> dict[Path, int]:
    return vars(_held).setdefault("descriptors", {})


def _alone() -> set[Path]:
    return vars(_held).setdefault("alone", set())


def _all() -> tuple[int, ...]:
    return tuple(_descriptors().values())


@contextmanager
def _holding(path: Path, descriptor: int) -> Iterator[None]:
    _descriptors()[path] = descriptor
    try:
        yield
    finally:
        del _descriptors()[path]


@contextmanager
def _open(path: Path) -> Iterator[int]:
    try:
        file = open(path, "w", opener=trust.private)  # noqa: SIM115
    except OSError as error:
        raise CacheError(
            f"the cache folder {cache_dir()} cannot be written ({error.strerror}): make it "
            "writable, or set PYFLASH_CACHE_DIR to another"
        ) from error
    with file:
        yield file.fileno()


def _share(descriptor: int, path: Path, waiting: Waiting | None) -> None:
    """Takes the cache's lock with others; the first of them sweeps before."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sweep(path.parent)
    _flock(descriptor, fcntl.LOCK_SH, path, waiting)


def _flock(descriptor: int, operation: int, path: Path, waiting: Waiting | None) -> None:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        if waiting:
            waiting(path)
        fcntl.flock(descriptor, operation)
