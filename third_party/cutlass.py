"""The CUTLASS headers: inside the nvidia-cutlass wheel, or below CUTLASS_PATH if that is set.
And `pycute`, CuTe's layout algebra in Python, which the wheel installs."""

from __future__ import annotations

import functools
import importlib
import os
import re
from pathlib import Path
from types import ModuleType

from pyflash.third_party.packages import package_dirs

VERSION = (4, 2, 0)
WHEEL = "nvidia-cutlass==4.2.0.0"


class CutlassError(RuntimeError):
    """The pinned CUTLASS is not there."""


def include_dir() -> Path:
    """The folder to give a compiler as include path: it holds cute/ and cutlass/.

    Raises CutlassError where there is none, or where it is of another version than `VERSION`.
    """
    override = os.environ.get("CUTLASS_PATH")
    candidates = (
        [Path(override)]
        if override
        else [path / "source" for path in package_dirs("cutlass_library")]
    )
    for root in candidates:
        include = root / "include"
        if (include / "cute" / "tensor.hpp").is_file():
            _check_version(include)
            return include
    if override:
        raise CutlassError(
            f"CUTLASS_PATH is {override}, but {override}/include/cute/tensor.hpp is not there: "
            f"set it to the root of a CUTLASS {_dotted(VERSION)} checkout, or unset it to use the "
            "headers of the nvidia-cutlass wheel"
        )
    raise CutlassError(
        f"CUTLASS {_dotted(VERSION)} not found: install its headers with `pip install {WHEEL}`, or "
        "set CUTLASS_PATH to the root of a checkout"
    )


@functools.cache
def pycute() -> ModuleType:
    """Raises CutlassError where it is not installed."""
    try:
        return importlib.import_module("pycute")
    except ModuleNotFoundError:
        raise CutlassError(
            f"layouts need pycute, which is not installed: install it with `pip install {WHEEL}`"
        ) from None


def version(include: Path) -> tuple[int, ...]:
    """Major, minor and patch as include/cutlass/version.h states them."""
    text = (include / "cutlass" / "version.h").read_text()
    return tuple(
        int(re.search(rf"#define CUTLASS_{part}\s+(\d+)", text)[1])
        for part in ("MAJOR", "MINOR", "PATCH")
    )


def _check_version(include: Path) -> None:
    found = version(include)
    if found != VERSION:
        raise CutlassError(
            f"CUTLASS {_dotted(found)} found in {include}, expected {_dotted(VERSION)}: "
            f"`pip install {WHEEL}`, or point CUTLASS_PATH to that version"
        )


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
