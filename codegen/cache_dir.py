"""The folder of the per-user cache: where it is, how files get into it, and how they are opened.

What is in the cache is executed: it is written for its user alone, whatever the umask, and opened
only where nobody else can have written it (codegen.trust). Imports neither torch nor a compiler.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pyflash.codegen import trust
from pyflash.codegen.trust import UntrustedError

# A file is written under a name of this kind, then renamed.
PARTIAL = ".partial-"
# nvcc passes its arguments to a shell without quoting them, and splits lists at commas.
_SAFE_PATH = re.compile(r"[\w/.+=@%:~ -]*")


class CacheError(RuntimeError):
    """The cache is not usable."""


class NoCacheError(CacheError):
    """No folder for a cache: no home folder, and no PYFLASH_CACHE_DIR."""


def location() -> Path:
    """Where the cache is, trusted or not. Raises CacheError where there is no such place."""
    override = os.environ.get("PYFLASH_CACHE_DIR")
    try:
        return trust.expand(override or "~/.cache/pyflash")
    except ValueError as error:
        kind = CacheError if override else NoCacheError
        raise kind(f"no cache folder: {error}; set PYFLASH_CACHE_DIR to one") from None


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
    if not folder.is_dir():
        raise CacheError(
            f"the cache folder {folder} is a file: remove it, or set PYFLASH_CACHE_DIR to another"
        )
    try:
        trust.check(status, folder)
    except UntrustedError as error:
        raise CacheError(
            f"the cache folder {error}, or set PYFLASH_CACHE_DIR to a folder of your own"
        ) from None


def in_cache(path: Path) -> Path | None:
    """The path of a file or folder in the cache, there or not, that leads from `location()` on;
    None: it is elsewhere. By whichever path the cache's folder is reached."""
    path = Path(os.path.abspath(path))
    try:
        top = location()
    except CacheError:
        return None
    if path.is_relative_to(top):
        return path
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            if os.path.samefile(folder, top):
                return top / path.relative_to(folder)
    return None


def opened(path: Path) -> BinaryIO:
    """A file, for reading. Raises OSError where it cannot be read.

    Of one in the cache, it and each folder on the way belong to this user or to root, nobody else
    can write to them, and none is a symbolic link; else this raises CacheError. A file elsewhere is
    as trusted as who names it: the program, or the package whose modules stand beside it.
    """
    cached = in_cache(path)
    if cached is None:
        return trust.open_file(path)
    try:
        return trust.open_below(location(), cached)
    except UntrustedError as error:
        raise CacheError(str(error)) from None


def make_folder(path: Path) -> None:
    """With those above it: in the cache private to its user, and CacheError for one that is not;
    elsewhere as the umask says."""
    cached = in_cache(path)
    if cached is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    try:
        trust.make_below(create(), cached)
    except UntrustedError as error:
        raise CacheError(str(error)) from None


def create() -> Path:
    """`cache_dir()`, which is there from now on, for its user alone."""
    folder = cache_dir()
    if not folder.is_dir():
        try:
            trust.make_private(folder)
        except OSError as error:
            raise CacheError(
                f"the cache folder {folder} cannot be created ({error.strerror}): set "
                "PYFLASH_CACHE_DIR to one that can"
            ) from error
        _check_private(folder)  # another process may have made it
    return folder


def sweep(folder: Path) -> None:
    """Removes what builders that were killed left half-written below `folder`; with the cache's
    lock held alone, which others hold to write what takes time."""
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
    writer alone: several threads may replace one file, and the last wins. Errors name `path`."""
    make_folder(path.parent)
    partial = path.with_name(f"{PARTIAL}{secrets.token_hex(4)}-{path.name}")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())  # else a crash may leave the name without the contents
        partial.replace(path)
    except OSError as error:
        if error.filename not in (None, str(partial)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def write_if_changed(path: Path, text: str) -> bool:
    """Whether it was written. The file appears at once, never half-written."""
    with contextlib.suppress(OSError, ValueError, CacheError), opened(path) as file:
        if file.read().decode() == text:
            return False
    write_text(path, text, in_cache(path) is not None)
    return True


def write_text(path: Path, text: str, is_private: bool = True) -> None:
    """The file appears at once, never half-written; `is_private`: for its user alone."""
    with replacing(path) as partial:
        opener = trust.private if is_private else None
        with open(partial, "w", encoding="utf-8", opener=opener) as file:
            file.write(text)


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
