"""The compilers as the build uses them: which, with which flags, and what identifies them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pyflash.codegen import config_header, mma_header, ops_header
from pyflash.codegen.compilation import ROOT, Compiler
from pyflash.config.arch import Targets
from pyflash.third_party.cuda import find_nvcc
from pyflash.third_party.cuda import include_dirs as cuda_include_dirs
from pyflash.third_party.cutlass import include_dir
from pyflash.third_party.packages import package_dirs

# The first with the stable ABI that the op library is written against.
TORCH = "torch>=2.10"

_CPP_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden")
_NVCC_FLAGS = (
    "-std=c++20",
    "-O3",
    "--expt-relaxed-constexpr",
    "-lineinfo",
    "-Xcompiler=-fPIC,-fvisibility=hidden",
)
# NOTE: without NDEBUG: an operation of CuTe that has no host body asserts so. Products are not
# fused into sums, so that every CPU gives the same bits.
_EMULATOR_FLAGS = (
    "-std=c++20",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
)
_MACHINE_FLAGS = (*_EMULATOR_FLAGS, "-O2")
# With -O2 kernels run no faster, and take a third as long again to compile.
_KERNEL_FLAGS = (*_EMULATOR_FLAGS, "-O1")
# A call before each access to a variable whose address is known elsewhere, which the emulator
# answers in place of the sanitizer's library; and no two variables in one place.
_WATCH_FLAGS = ("-fsanitize=thread", "-fstack-reuse=none")


def cxx() -> tuple[str, ...]:
    """The host compiler: CXX, or g++."""
    return tuple(shlex.split(os.environ.get("CXX") or "g++"))


def cpp_compiler() -> Compiler:
    """For host code that knows neither CUDA nor torch."""
    return Compiler(cxx(), _CPP_FLAGS, _own_headers(), _cxx_version(), ".cpp")


def op_compiler() -> Compiler:
    """For the op library: host code with torch's headers. Raises RuntimeError without torch."""
    include = torch_dir() / "include"
    version = (torch_dir() / "version.py").read_text()
    includes = (*_own_headers(), "-isystem", str(include))
    return Compiler(cxx(), _CPP_FLAGS, includes, f"{_cxx_version()}\n{version}", ".cpp")


def kernel_compiler(targets: Targets, cutlass_identity: str, line_info: bool = True) -> Compiler:
    """For CUDA with CuTe, for what `Family.targets` says or, where the code is of no family,
    `pyflash.config.arch.targets`; ptxas reports registers and spills. `line_info`: profilers show
    the lines of instructions, which are half of what a compressed kernel weighs."""
    flags = tuple(flag for flag in _NVCC_FLAGS if line_info or flag != "-lineinfo")
    flags = (*flags, *_compression(), *_ccbin(), *_gencode(targets), "-Xptxas=-v")
    includes = (*_headers_of_kernels(), "-isystem", str(include_dir()))
    return Compiler(_nvcc(), flags, includes, f"{_nvcc_version()}\n{cutlass_identity}", ".cu")


def device_compiler(
    targets: Targets, cutlass_identity: str, output: str, line_info: bool = True
) -> Compiler:
    """`kernel_compiler` for device code alone: no compiler of the host sees CuTe. `output` is
    nvcc's option: "-fatbin", what kernel libraries hold, for several targets and compressed, or
    "-cubin" for one."""
    compiler = kernel_compiler(targets, cutlass_identity, line_info)
    suffix = f".{output.removeprefix('-')}"
    return dataclasses.replace(compiler, flags=(*compiler.flags, output), object_suffix=suffix)


def embedding_compiler(folder: Path) -> Compiler:
    """`cpp_compiler` whose assembler finds files to include below `folder`."""
    compiler = cpp_compiler()
    includes = (*compiler.includes, "-Xassembler", f"-I{folder}")
    return dataclasses.replace(compiler, includes=includes)


def launch_compiler() -> Compiler:
    """For host code that launches kernels with their params. Raises as `emulator_compiler` does."""
    return _with_cute(_CPP_FLAGS)


def emulator_compiler(watch_registers: bool = False) -> Compiler:
    """For kernels that run on the CPU: host code with CuTe and CUDA's types.

    `watch_registers`: the machine learns of each access to a kernel's local variables.

    Raises CutlassError or CudaError where the headers of either are missing.
    """
    return _with_cute((*_KERNEL_FLAGS, *(_WATCH_FLAGS if watch_registers else ())))


def machine_compiler() -> Compiler:
    """For what runs these kernels. Raises as `emulator_compiler` does."""
    return _with_cute(_MACHINE_FLAGS)


def _with_cute(flags: tuple[str, ...]) -> Compiler:
    cuda = cuda_include_dirs()
    header = cuda[0] / "cuda_runtime_api.h"
    version = _cudart_version(header, header.stat().st_mtime_ns)
    includes = [*_headers_of_kernels()]
    for folder in (include_dir(), *cuda):
        includes += ["-isystem", str(folder)]
    identity = f"{_cxx_version()}\n{cutlass_identity()}\nCUDA {version}"
    return Compiler(cxx(), flags, tuple(includes), identity, ".cpp")


def cutlass_identity() -> str:
    """A digest of the CUTLASS headers' names and contents: CUTLASS_PATH may hold edited ones."""
    include = include_dir()
    return _identity(include, frozenset(_statuses(include)))


def _statuses(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Of the files below it: path, time, size."""
    pending = [str(folder)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.is_file():
                    status = entry.stat()
                    yield entry.path, status.st_mtime_ns, status.st_size


@functools.cache
def _identity(include: Path, files: frozenset[tuple[str, int, int]]) -> str:
    """The digest of files by name, time and size: they are read again when one has changed."""
    digest = hashlib.sha256()
    for path in sorted(Path(name) for name, *_ in files):
        digest.update(f"{path.relative_to(include)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _cudart_version(header: Path, modified: int) -> str:
    """CUDART_VERSION of the header, read again when it has changed."""
    (version,) = re.findall(r"^#define CUDART_VERSION +(\d+)", header.read_text(), re.MULTILINE)
    return version


def torch_dir() -> Path:
    """The torch package, found without importing it. Raises RuntimeError if it has no headers."""
    for folder in package_dirs("torch"):
        if (folder / "include" / "torch" / "csrc" / "stable" / "library.h").is_file():
            return folder
    raise RuntimeError(
        f"torch with its headers not found: the op library needs them, `pip install '{TORCH}'`"
    )


def _own_headers() -> tuple[str, ...]:
    """The options for this project's headers: those in the tree, and the emitted ones."""
    emitted = (config_header.include_dir(), *ops_header.include_dirs())
    return ("-I", str(ROOT), *(option for path in emitted for option in ("-I", str(path))))


def _headers_of_kernels() -> tuple[str, ...]:
    """With CUTLASS."""
    return (*_own_headers(), "-I", str(mma_header.include_dir()))


def _gencode(targets: Targets) -> list[str]:
    options = []
    for sm in sorted({*targets.machine_code, targets.ptx} - {0}):
        codes = [f"sm_{sm}{targets.suffix}"] if sm in targets.machine_code else []
        codes += [f"compute_{sm}"] if sm == targets.ptx else []
        code = codes[0] if len(codes) == 1 else f"[{','.join(codes)}]"
        options.append(f"-gencode=arch=compute_{sm}{targets.suffix},code={code}")
    return options


def _nvcc() -> tuple[str, ...]:
    return (str(find_nvcc().path),)


def _compression() -> tuple[str, ...]:
    """The machine code of the default set for sm_90 takes 7 MB with it, 37 MB without."""
    return ("--compress-mode=size",) if find_nvcc().version >= (12, 8) else ()


def _ccbin() -> tuple[str, ...]:
    return ("-ccbin", cxx()[0]) if os.environ.get("CXX") else ()


def _nvcc_version() -> str:
    return f"{find_nvcc().version_text}\n{_cxx_version()}"


def _cxx_version() -> str:
    command = (*cxx(), "--version")
    path = shutil.which(command[0])
    return _said_by(command, path and (path, os.stat(path).st_mtime_ns))


@functools.cache
def _said_by(command: tuple[str, ...], _compiler: tuple[str, int] | None) -> str:
    """What the command prints, asked again when the compiler is another."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(
            f"no C++ compiler: `{shlex.join(command)}` failed ({error}); install g++ or set CXX"
        ) from error
