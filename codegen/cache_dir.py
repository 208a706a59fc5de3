"""The folder of the per-user cache: where it is, who may use it, how files get into it.

Imports neither torch nor a compiler.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Whatever is written appears under its name at once; until then it has a name of this kind.
PARTIAL = ".partial-"
# nvcc passes its arguments to a shell without quoting them, and splits lists at commas.
_SAFE_PATH = re.compile(r"[\w/.+=@%:~ -]*")

_held = threading.local()  # the locks of this thread: descriptors by folder


class CacheError(RuntimeError):
    """The cache cannot be used."""


def location() -> Path:
    """Where the cache is, trusted or not. Raises CacheError where there is no such place."""
    override = os.environ.get("PYFLASH_CACHE_DIR")
    try:
        return Path(override or "~/.cache/pyflash").expanduser().resolve()
    except (RuntimeError, OSError, ValueError) as error:
        raise CacheError(f"no cache folder ({error}): set PYFLASH_CACHE_DIR to one") from error


def cache_dir() -> Path:
    """PYFLASH_CACHE_DIR, or ~/.cache/pyflash; it need not be there.

    Raises CacheError for a folder that someone else could write code to, or whose name a shell
    would not take literally.
    """
    folder = location()
    if not is_safe(folder):
        raise CacheError(
            f"the cache folder is {str(folder)!r}: expected a path of letters, digits, spaces and "
            "/.+-_=@%:~, since nvcc passes it to a shell; set PYFLASH_CACHE_DIR to another"
        )
    _check_private(folder)
    return folder


def is_safe(path: str | Path) -> bool:
    """Whether a shell, and nvcc, would take the path literally."""
    return _SAFE_PATH.fullmatch(str(path)) is not None


def _check_private(folder: Path) -> None:
    """What is in the cache is executed: nobody else may write to it."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise CacheError(
            f"the cache folder {folder} cannot be read ({error.strerror}): make it readable, or "
            "set PYFLASH_CACHE_DIR to another"
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise CacheError(
            f"the cache folder {folder} is a file: remove it, or set PYFLASH_CACHE_DIR to another"
        )
    if status.st_uid != os.geteuid():
        raise CacheError(
            f"the cache folder {folder} belongs to user {status.st_uid}, who could change what "
            f"user {os.geteuid()} loads: set PYFLASH_CACHE_DIR to a folder of your own"
        )
    if status.st_mode & 0o022:
        raise CacheError(
            f"the cache folder {folder} can be written by others (mode "
            f"{stat.S_IMODE(status.st_mode):o}), who could change what is loaded from it: if you "
            f"trust what is there, `chmod -R go-w {folder}`, else remove it"
        )


def create() -> Path:
    """`cache_dir()`, which is there from now on, for its user alone."""
    folder = cache_dir()
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise CacheError(
                f"the cache folder {folder} cannot be created ({error.strerror}): set "
                "PYFLASH_CACHE_DIR to one that can"
            ) from error
        _check_private(folder)  # somebody else may have been quicker
    return folder


@contextmanager
def locked(waiting: Callable[[Path], None] | None = None, sweeps: bool = True) -> Iterator[int]:
    """Of two builders with one cache the second waits, having called `waiting` with the lock's
    path, and then reuses what the first made. A thread that holds the lock may enter again.

    Yields the descriptor that holds the lock: a child that inherits it holds the lock, too.
    """
    folder = create()
    held: dict[Path, int] = vars(_held).setdefault("descriptors", {})
    if folder in held:
        yield held[folder]
        return
    try:
        file = (folder / "lock").open("w")
    except OSError as error:
        raise CacheError(
            f"the cache folder {folder} cannot be written ({error.strerror}): make it writable, or "
            "set PYFLASH_CACHE_DIR to another"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                waiting(folder / "lock")
            fcntl.flock(file, fcntl.LOCK_EX)
        held[folder] = file.fileno()
        try:
            if sweeps:
                sweep(folder)
            yield file.fileno()
        finally:
            del held[folder]


def sweep(folder: Path) -> None:
    """Removes what builders that were killed left half-written below `folder`; with the lock held,
    which all others hold to write what takes time."""
    for path in partials(folder):
        remove(path)


def partials(folder: Path) -> list[Path]:
    return [
        Path(top, name)
        for top, folders, files in os.walk(folder)
        for name in (*folders, *files)
        if name.startswith(PARTIAL)
    ]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to, which takes the place of `path` when all went well. The name is of this
    writer alone: several threads may replace one file, and the last wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{PARTIAL}{secrets.token_hex(4)}-{path.name}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_if_changed(path: Path, text: str) -> bool:
    """Whether it was written. The file appears at once, never half-written."""
    with contextlib.suppress(OSError, ValueError):
        if path.read_text() == text:
            return False
    with replacing(path) as partial:
        partial.write_text(text)
    return True


def discard(path: Path) -> None:
    """Removes a file or folder: at once by its name, so that nobody finds half of it."""
    grave = path.with_name(f"{PARTIAL}{secrets.token_hex(4)}-{path.name}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(grave)
        remove(grave)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
