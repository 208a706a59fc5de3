"""The build backend that pyproject.toml names: setuptools, which asks for less.

pip builds in an isolated process, where it installs what a backend asks for. Asking for torch would
fetch gigabytes that are there already, or another torch; the libraries need only headers, and these
are found in the environment that pip installs into. So only what is missing there is asked for.
"""

from __future__ import annotations

from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

from pyflash.codegen.build import default_archs
from pyflash.codegen.toolchain import TORCH, torch_dir
from pyflash.third_party import cuda, cutlass

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return build_meta.get_requires_for_build_wheel(config_settings) + missing_packages()


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    return build_meta.get_requires_for_build_editable(config_settings) + missing_packages()


def missing_packages() -> list[str]:
    """What the op library, and kernels if any are to be built, lack in this environment."""
    missing = []
    try:
        torch_dir()
    except RuntimeError:
        missing.append(TORCH)
    if default_archs():
        try:
            cutlass.include_dir()
        except cutlass.CutlassError:
            missing.append(cutlass.WHEEL)
        try:
            cuda.find_nvcc()
        except cuda.CudaError:
            missing.extend(cuda.COMPILER_WHEELS)
    return missing
