"""Checks who can write a file: only this user or root may write what is executed.

Folders are opened one in another, and each is checked as it was opened, so that nothing is replaced
between the check and the use. Imports nothing of this project.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shlex
import stat
from pathlib import Path
from typing import BinaryIO

# NOTE: opening a pipe without O_NONBLOCK waits for its writer.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_names = itertools.count()


class UntrustedError(RuntimeError):
    """Others can write a file or folder. The message is its path, who can, and what to do."""


def check(status: os.stat_result, path: Path) -> None:
    """Raises UntrustedError unless what has this status, `path`, belongs to this user or to root,
    and nobody else can write to it."""
    user, quoted = os.geteuid(), shlex.quote(str(path))
    if status.st_uid not in (user, 0):
        raise UntrustedError(
            f"{path} belongs to user {status.st_uid}, who could change what user {user} loads: if "
            f"you trust what is there, `chown -R {user} {quoted}`, else remove it"
        )
    if status.st_mode & 0o022:
        raise UntrustedError(
            f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):o}), who could "
            f"change what is loaded from it: if you trust what is there, `chmod -R go-w {quoted}`, "
            "else remove it"
        )


def open_file(path: Path) -> BinaryIO:
    """A regular file, for reading. Raises OSError for one that cannot be read, or is none."""
    return _as_file(os.open(path, _FLAGS), path)


def open_below(top: Path, path: Path) -> BinaryIO:
    """`open_file` of a path below the folder `top`. Raises UntrustedError for a file, or a folder
    from `top` on, that others can write, or that is a symbolic link."""
    return _as_file(_descend(top, path), path)


def make_below(top: Path, path: Path) -> None:
    """Makes the folders from `top`, which is there, to `path`, private to this user, whatever the
    umask; raises UntrustedError as `open_below` does."""
    os.close(_descend(top, path, make=True))


def make_private(folder: Path) -> None:
    """Makes the folders on the way that are missing, private to this user, whatever the umask."""
    for missing in reversed([f for f in (folder, *folder.parents) if not f.is_dir()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def private(path: str | os.PathLike[str], flags: int) -> int:
    """An opener, as of `open`: what it creates is its user's alone."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def path_of(file: BinaryIO) -> str:
    """A path to an open file, whatever has its name by now.

    NOTE: another for each call: dlopen takes a name that it knows for what it loaded by it.
    """
    once = format(next(_names), "b").replace("0", "/").replace("1", "./")
    return f"/proc/self/fd/{once}{file.fileno()}"


def expand(folder: str) -> Path:
    """The absolute path of a folder that may begin with ~. Raises ValueError where there is no such
    home, or no path."""
    try:
        path = Path(folder).expanduser()
        if folder.startswith("~/") and not os.path.isabs(os.environ.get("HOME", "/")):
            raise RuntimeError(f"HOME is {os.environ['HOME']!r}, expected an absolute path")
        return path.resolve()
    except (RuntimeError, OSError) as error:
        raise ValueError(f"{folder!r} leads nowhere ({error})") from None


def _descend(top: Path, path: Path, make: bool = False) -> int:
    """The descriptor of `path`, each step on the way from `top` having been checked."""
    here, descriptor = top, _open_checked(top, None)
    for name in path.relative_to(top).parts:
        here = here / name
        try:
            if make:
                with contextlib.suppress(FileExistsError):  # it is checked as any other
                    os.mkdir(name, 0o700, dir_fd=descriptor)
            below = _open_checked(here, descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _open_checked(path: Path, folder: int | None) -> int:
    name = path if folder is None else path.name
    try:
        descriptor = os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UntrustedError(
                f"{path} is a symbolic link, which may lead to what others can write: remove it"
            ) from None
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        check(os.fstat(descriptor), path)
    except UntrustedError:
        os.close(descriptor)
        raise
    return descriptor


def _as_file(descriptor: int, path: Path) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")
