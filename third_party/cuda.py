"""The CUDA compiler and its binary tools: below CUDA_HOME, on PATH, or in NVIDIA's PyPI wheels."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyflash.third_party.packages import package_dirs

# A complete compiler. All five are pinned: left alone, pip pairs nvcc 13.0 with a newer nvvm, whose
# PTX its ptxas refuses.
COMPILER_WHEELS = (
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
)
# What host code needs of it, which has CUDA's types in it: headers, and no compiler.
HEADER_WHEELS = tuple(
    wheel for wheel in COMPILER_WHEELS if re.match(r"nvidia-cuda-(crt|runtime|cccl)=", wheel)
)
TOOL_WHEELS = {"cuobjdump": "nvidia-cuda-cuobjdump", "nvdisasm": "nvidia-cuda-nvdisasm"}
# A config is a C++20 class-type template argument.
LEAST_VERSION = (12, 0)


class CudaError(RuntimeError):
    """No usable CUDA compiler or tool."""


@dataclass(frozen=True)
class Nvcc:
    path: Path
    root: Path  # of the toolkit: bin, include, lib64 or lib
    version_text: str  # what `nvcc --version` prints

    @property
    def version(self) -> tuple[int, int]:
        major, minor = re.search(r"release (\d+)\.(\d+)", self.version_text).groups()
        return int(major), int(minor)

    @property
    def library_dirs(self) -> list[Path]:
        """Where libcudart_static.a may be: a toolkit has lib64, the wheels have lib."""
        folders = (self.root / "lib64", self.root / "lib", self.root / "targets/x86_64-linux/lib")
        return [folder for folder in folders if folder.is_dir()]


@functools.cache
def find_nvcc() -> Nvcc:
    """The CUDA compiler. Raises CudaError where there is none, where CUDA_HOME names another place
    than its toolkit, or where it is too old for C++20."""
    home = _home()
    if home and not os.access(home / "bin" / "nvcc", os.X_OK):
        raise CudaError(
            f"CUDA_HOME is {home}, but {home}/bin/nvcc is not there: set it to the root of a CUDA "
            "toolkit, or unset it to use nvcc on PATH or NVIDIA's wheels"
        )
    path = _find("nvcc")
    if path is None:
        raise CudaError(
            "no CUDA compiler found: neither CUDA_HOME/bin/nvcc, nor nvcc on PATH, nor NVIDIA's "
            f"wheels in this environment. `pip install {' '.join(COMPILER_WHEELS)}` installs one"
        )
    version_text = _output(path, "--version")
    # nvcc on PATH may be a link or a wrapper script: its own word on where the toolkit is.
    dryrun = _output(path, "--dryrun", "-x", "cu", os.devnull, "-o", os.devnull)
    top = re.search(r"^#\$ TOP=(.+)$", dryrun, re.MULTILINE)
    root = Path(top[1]) if top else path.parent.parent
    nvcc = Nvcc(path, root.resolve(), version_text)
    if nvcc.version < LEAST_VERSION:
        raise CudaError(
            f"{path} is of CUDA {nvcc.version[0]}.{nvcc.version[1]}, expected at least "
            f"{LEAST_VERSION[0]}.{LEAST_VERSION[1]}: set CUDA_HOME to a newer toolkit, or take "
            f"nvcc off PATH and `pip install {' '.join(COMPILER_WHEELS)}`"
        )
    return nvcc


@functools.cache
def find_tool(name: str) -> Path:
    """The binary tool `name`, one of `TOOL_WHEELS`. Raises CudaError where it is not installed."""
    path = _find(name)
    if path is None:
        raise CudaError(
            f"{name} not found below CUDA_HOME, on PATH or among the installed wheels: "
            f"`pip install {TOOL_WHEELS[name]}`"
        )
    return path


def include_dirs() -> list[Path]:
    """The folders of the CUDA headers, for host code that names CUDA's types; nvcc is not needed.

    Raises CudaError where there are none."""
    for root in _roots():
        if found := _include_dirs_below(root):
            return found
    raise CudaError(
        "no CUDA headers found: neither below CUDA_HOME, nor NVIDIA's wheels in this environment, "
        f"nor nvcc on PATH. `pip install {' '.join(HEADER_WHEELS)}` installs them"
    )


def _roots() -> Iterator[Path]:
    """Where a toolkit, or some of one, may be: that of nvcc first."""
    home = _home()
    with contextlib.suppress(CudaError):
        yield find_nvcc().root
    if home:
        yield home
    yield from (folder / "cu13" for folder in package_dirs("nvidia"))


def _include_dirs_below(root: Path) -> list[Path]:
    """cuda_fp16.h and, since CUDA 13, the C++ library in a folder of its own."""
    folders = (root / "include", root / "include" / "cccl")
    has_types = (folders[0] / "cuda_fp16.h").is_file()
    has_library = any((folder / "cuda" / "std" / "utility").is_file() for folder in folders)
    return [folder for folder in folders if folder.is_dir()] if has_types and has_library else []


def machine_archs() -> list[int]:
    """Compute capabilities of this machine's GPUs, as major * 10 + minor, ascending; [] without."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    query = subprocess.run(
        [smi, "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True
    )
    found = re.findall(r"^(\d+)\.(\d)\s*$", query.stdout, re.MULTILINE)
    return sorted({int(major) * 10 + int(minor) for major, minor in found})


def _home() -> Path | None:
    """The toolkit that the environment names. Raises CudaError where there is no such folder."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home and not Path(home).is_dir():
        raise CudaError(
            f"CUDA_HOME is {home}, which is no folder: set it to the root of a CUDA toolkit, or "
            "unset it to use nvcc on PATH or NVIDIA's wheels"
        )
    return Path(home) if home else None


def _find(name: str) -> Path | None:
    home = _home()
    on_path = shutil.which(name)
    candidates = [
        *([home / "bin" / name] if home else []),
        *([Path(on_path)] if on_path else []),
        *(folder / "cu13" / "bin" / name for folder in package_dirs("nvidia")),
    ]
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def _output(path: Path, *arguments: str) -> str:
    result = subprocess.run([path, *arguments], capture_output=True, text=True)
    if result.returncode != 0:
        raise CudaError(f"{path} {' '.join(arguments)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout + result.stderr
