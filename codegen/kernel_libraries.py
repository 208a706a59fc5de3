"""Kernel libraries as files: their names, where they are, whether one may be loaded, and the
command that builds it again. Imports neither torch nor a compiler."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyflash.codegen import seal
from pyflash.codegen.cache_dir import (
    CacheError,
    NoCacheError,
    cache_dir,
    location,
    opened,
    write_if_changed,
)
from pyflash.config.sets import SET_NAMES
from pyflash.installation import FOLDER, VERSION

# What comes with the package; in a checkout, also what `python -m codegen` builds.
LIB_DIR = FOLDER / "lib"
_PREFIX = "libpyflash_kernels-"
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,150}", re.ASCII)


class KernelLibraryError(RuntimeError):
    """A kernel library cannot be used; the message says which, why, and what to do."""


def library_file(folder: Path, name: str) -> Path:
    """folder/libpyflash_kernels-NAME.so. Raises ValueError for a name that is no part of one."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the name of a kernel library is {name!r}: expected letters, digits and ._+-, first a "
            "letter or digit, at most 151"
        )
    return folder / f"{_PREFIX}{name}.so"


def user_dir(abi: str, name: str) -> Path:
    """The folder in the cache for the library `name` that a user builds with this version."""
    library_file(Path(), name)
    return cache_dir() / "kernels" / f"{VERSION}-{abi}" / name


def find(name: str, abi: str) -> Path:
    """The library `name`: the user's where there is one, else what comes with the package."""
    mine = library_file(user_dir(abi, name), name)
    return mine if mine.exists() else library_file(LIB_DIR, name)


def installed(folder: Path) -> list[Path]:
    """The kernel libraries in `folder`, which comes with the package."""
    return sorted(folder.glob(f"{_PREFIX}*.so"))


def of_user(abi: str) -> list[Path]:
    """The kernel libraries that `pyflash build` left in the cache for this version.

    Raises CacheError where there are some and the cache cannot be trusted."""
    folder = Path("kernels", f"{VERSION}-{abi}")
    try:
        if not os.path.isdir(location() / folder):  # nor where it cannot be looked into
            return []
    except NoCacheError:
        return []
    return sorted((cache_dir() / folder).glob(f"[!.]*/{_PREFIX}*.so"))


@contextmanager
def checked(path: Path, abi: str) -> Iterator[str]:
    """A path to map the library by, which leads to the very file that was checked. Does not map it:
    that ends the process where a part is missing.

    Raises KernelLibraryError unless it is whole, was built for the op library of `abi`, and nobody
    else can have written it."""
    try:
        with seal.checked(path) as (name, record):
            built_for = record.get("abi")
            if built_for is None:
                raise _error(path, "is whole, but is no kernel library")
            if built_for != abi:
                raise _error(path, f"was built for ABI {built_for}, expected {abi}")
            yield name
    except seal.BadFileError as error:
        raise _error(path, str(error)) from error
    except CacheError as error:
        raise KernelLibraryError(f"pyflash: kernel library '{path}' is refused: {error}") from error


def _error(path: Path, problem: str) -> KernelLibraryError:
    return KernelLibraryError(f"pyflash: kernel library '{path}' {problem}; {advice(path)}")


def advice(path: Path) -> str:
    """What to do about a library that is of no use: the exact command, where it is known."""
    if not path.exists() or not path.name.startswith(_PREFIX):
        return "expected the path of a kernel library, as pyflash build prints it"
    try:
        command = read_record(path)["rebuild"]
    except (OSError, ValueError, LookupError):
        name = path.stem.removeprefix(_PREFIX)
        if name not in SET_NAMES and name != "default":
            return f"no record tells how it was built; to remove it: rm {shlex.quote(str(path))}"
        command = ["pyflash", "build", "--set", "all" if name == "default" else name]
        command += ["--name", name]
    if path.parent.parent.parent.name != "kernels":
        command = [*command, "--out", str(path.parent)]
    return f"to build it again: {shlex.join(command)}"


def record_file(library: Path) -> Path:
    return library.with_suffix(".json")


def write_record(library: Path, record: Mapping[str, Any]) -> None:
    """Writes beside a library what is in it and how it was built, for people and programs."""
    values = {**record, "sha256": _digest(record)}
    write_if_changed(record_file(library), json.dumps(values, indent=1) + "\n")


def read_record(library: Path) -> dict[str, Any]:
    """Raises OSError where there is none, ValueError for a damaged one."""
    path = record_file(library)
    try:
        with opened(path) as file:
            record = json.load(file)
        is_whole = record.pop("sha256") == _digest(record)
    except CacheError as error:
        raise ValueError(str(error)) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: build the library again") from error
    if not is_whole:
        raise ValueError(f"{path} is damaged: build the library again")
    return record


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def rebuild_command(
    name: str,
    configs: Sequence[str],
    archs: Sequence[int],
    features: Sequence[str],
    only: Sequence[str],
) -> list[str]:
    """`pyflash build` with what a library was built from: combinations of features besides those of
    the configs' families, and in place of these."""
    command = ["pyflash", "build", "--name", name, "--arch", ",".join(map(str, archs))]
    command += ["--features", ",".join(features)] if features else []
    command += ["--only", ",".join(only)] if only else []
    return [*command, *configs]
