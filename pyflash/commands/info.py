"""`pyflash info`: what a bug report needs."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from pyflash.ui.app import ERRORS, JsonOption, examples, new_app, one_line, print_json, show

app = new_app()

PACKAGES = (
    "torch", "nvidia-cutlass", "ninja", "rich", "typer", "pybind11", "matplotlib", "transformers",
    "triton", "flash-attn", "flash-attn-3", "xformers", "flashinfer-python",
)  # fmt: skip
VARIABLES = ("CUDA_HOME", "CUDA_PATH", "CUTLASS_PATH", "CXX", "KERNELS", "CUDA_VISIBLE_DEVICES")


@app.command(
    "info",
    epilog=examples(
        "pyflash info",
        "pyflash info --json",
    ),
)
def info_command(json: JsonOption = False) -> None:
    """Versions, GPUs, what is built and loaded, what is missing."""
    found = facts()
    if json:
        print_json(found)
        return
    from pyflash.ui.tables import Table

    sections = [(name, values) for name, values in found.items() if isinstance(values, dict)]
    show(*(Table.of_pairs(name, values or {"": "none"}) for name, values in sections))


def facts() -> dict[str, dict[str, Any]]:
    """By section. What is not here is under "missing", with the reason."""
    missing: dict[str, str] = {}

    def attempt(name: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except ERRORS as error:
            missing[name] = one_line(error)
            return None

    found: dict[str, dict[str, Any]] = {"versions": _versions()}
    gpus = attempt("GPU", _gpus) or {}
    found["GPUs"] = gpus
    found["compilers"] = {
        name: text
        for name, ask in (("nvcc", _nvcc), ("C++", _cxx), ("CUTLASS", _cutlass))
        if (text := attempt(name, ask))
    }
    found["tools"] = {
        name: path
        for name in ("cuobjdump", "nvdisasm", "ncu", "cutlass_profiler")
        if (path := attempt(name, lambda name=name: _tool(name)))
    }
    libraries = attempt("ops", _load) or {}
    found["libraries"] = libraries
    built = attempt("kernels", _built) if libraries else None
    found["built kernels"] = built or {}
    found["cache"] = attempt("cache", _cache) or {}
    found["environment"] = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("PYFLASH_") or name in VARIABLES
    }
    found["missing"] = missing
    return found


def _versions() -> dict[str, str]:
    from importlib import metadata

    from pyflash.bench.environment import commit
    from pyflash.installation import FOLDER, VERSION

    found = {"pyflash": f"{VERSION} in {FOLDER}"}
    if known := commit():
        found["commit"] = known
    found["python"] = f"{platform.python_version()} {sys.executable}"
    found["platform"] = platform.platform()
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _gpus() -> dict[str, str]:
    """Those that torch can use. Raises RuntimeError that tells why there are none."""
    import torch

    if torch.version.cuda is None:
        raise RuntimeError(f"torch {torch.__version__} is a CPU build")
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA GPU")
    from pyflash.bench.environment import environment

    driver = environment(torch.device("cuda")).get("driver")
    found = {"CUDA of torch": torch.version.cuda, "driver": driver or "unknown"}
    for index in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(index)
        found[f"cuda:{index}"] = (
            f"{p.name}, sm_{p.major}{p.minor}, {p.multi_processor_count} SMs, "
            f"{p.total_memory / 2**30:.0f} GiB"
        )
    return found


def _nvcc() -> str:
    from pyflash.third_party.cuda import find_nvcc

    nvcc = find_nvcc()
    return f"{'.'.join(map(str, nvcc.version))} {nvcc.path}"


def _cxx() -> str:
    from pyflash.codegen.toolchain import cxx

    command = [*cxx(), "--version"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"`{shlex.join(command)}` failed ({error}): set CXX") from None
    return f"{result.stdout.splitlines()[0]} {shutil.which(command[0])}"


def _cutlass() -> str:
    from pyflash.third_party.cutlass import VERSION, include_dir

    return f"{'.'.join(map(str, VERSION))} {include_dir()}"


def _tool(name: str) -> str:
    from pyflash.third_party.cuda import TOOL_WHEELS, find_tool

    if name in TOOL_WHEELS:
        return str(find_tool(name))
    path = shutil.which(name)
    if path is None:
        raise RuntimeError("not on PATH")
    return path


def _load() -> dict[str, str]:
    """The libraries of this installation and its user, and how loading them went. Raises
    ImportError where the op library is none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        importlib.import_module("pyflash.op.library")
    import torch

    from pyflash.codegen import kernel_libraries
    from pyflash.codegen.cache_dir import CacheError

    skipped = [str(warning.message) for warning in caught]
    paths = [kernel_libraries.LIB_DIR / "libpyflash_ops.so"]
    paths += kernel_libraries.installed(kernel_libraries.LIB_DIR)
    with contextlib.suppress(CacheError):
        paths += kernel_libraries.of_user(torch.ops.pyflash.kernel_library_abi())
    return {
        str(path): next((text for text in skipped if path.name in text), "loaded") for path in paths
    }


def _built() -> dict[str, Any]:
    """How many configs of each family are in the config map, for which architectures."""
    from pyflash.op.library import built_configs

    rows = built_configs(None).values()
    if not rows:
        raise RuntimeError("no kernels are built: `pyflash build` on a machine with a GPU")
    counts = Counter(f"{row.config.family} for sm_{', sm_'.join(row.sm_archs)}" for row in rows)
    return {name: f"{count} configs" for name, count in counts.items()}


def _cache() -> dict[str, Any]:
    """Sizes alone: reading all of it to tell what is damaged is for `pyflash cache`."""
    from pyflash.codegen import cache
    from pyflash.commands.cache import size

    found = cache.entries(verify=False)
    return {
        "folder": str(cache.cache_dir()),
        "entries": len(found),
        "size": size(sum(entry.bytes for entry in found)),
    }
