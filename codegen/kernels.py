"""Single kernels as device code alone: cubins, without the host code of a kernel library.

    path = compile_kernel("(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles", "right_window", "sm_90")
    pyflash.op.library.load_cubin(path)

A cubin takes a fraction of the time that a library of the same config takes: one combination of
features, one architecture, and no host passes. It is kept in the cache like any object. Beside it
lies what the op needs to know to launch it, NAME.row.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pyflash.codegen import emit, toolchain
from pyflash.codegen.build import BuildError
from pyflash.codegen.cache_dir import write_if_changed
from pyflash.codegen.cache_locks import locked_for
from pyflash.codegen.compilation import Compilation, compile_all
from pyflash.codegen.library_objects import kernels_by_features
from pyflash.config import KernelConfig, KernelFeatures, as_config
from pyflash.config.arch import Arch
from pyflash.config.op import PLAIN


class Request(NamedTuple):
    """A config and the combinations of features to compile it with, in one cubin."""

    config: KernelConfig | str
    features: tuple[KernelFeatures | str, ...] = (PLAIN,)


def compile_kernel(
    config: KernelConfig | str,
    features: KernelFeatures | str | Iterable[KernelFeatures | str],
    arch: Arch | str | int,
) -> Path:
    """The cubin of a config's canonical one for `arch`, with a kernel for each of `features`;
    compiled where it is not in the cache.

    Raises ValueError for a config that is not legal on `arch`, with its violations, or for an
    architecture that runs PTX of another; BuildError where it does not compile.
    """
    one = isinstance(features, KernelFeatures | str)
    request = Request(config, (features,) if one else tuple(features))
    (path,) = compile_kernels([request], arch).values()
    if isinstance(path, BuildError):
        raise path
    return path


def compile_kernels(
    requests: Iterable[Request | KernelConfig | str], arch: Arch | str | int
) -> dict[Request, Path | BuildError]:
    """The cubin of each request, or why it did not compile; several compilers at once.

    Raises ValueError before any compiler runs, as `compile_kernel` does.
    """
    arch = Arch.of(arch)
    requests = [r if isinstance(r, Request) else Request(r) for r in requests]
    cutlass = toolchain.cutlass_identity()
    compilations = {request: cubin_compilation(request, arch, cutlass) for request in requests}
    # Configs with the same canonical one are one kernel.
    failures = compile_all(list(dict.fromkeys(compilations.values())), f"kernels for {arch}")
    results: dict[Request, Path | BuildError] = {}
    for request, compilation in compilations.items():
        if compilation in failures:
            results[request] = BuildError([compilation], 1)
        else:
            _describe(compilation, as_config(request.config).canonical(), arch)
            results[request] = compilation.object
    return results


def cubin_compilation(request: Request, arch: Arch, cutlass: str) -> Compilation:
    """What compiles a request, compiled already or not, with the CUTLASS that `cutlass_identity`
    gives `cutlass` for. Raises ValueError as `compile_kernel` does."""
    config = as_config(request.config).canonical()
    if reasons := config.violations(arch):
        raise ValueError("\n".join(f"{config} on {arch}: {sentence}" for _, sentence in reasons))
    if arch.ptx_of:
        raise ValueError(
            f"{arch} runs PTX of sm_{arch.ptx_of}, and a cubin has machine code alone: build a "
            "kernel library"
        )
    features = config.family.op.features.in_dispatch_order(request.features)
    machine_code = config.family.targets([arch])._replace(ptx=0)
    return Compilation(
        label=f"{config}, {', '.join(map(str, features))}",
        stem=f"cubin_{emit.file_stem(config)}",
        text=emit.emit_config(config, features),
        compiler=toolchain.device_compiler(machine_code, cutlass, "-cubin"),
    )


def _describe(compilation: Compilation, config: KernelConfig, arch: Arch) -> None:
    """Writes what `pyflash.op.library.load_cubin` reads."""
    kernels = kernels_by_features(config, compilation)
    row = {"config": config.short_form(), "arch": arch.sm, "kernels": kernels}
    path = compilation.object.with_suffix(".row.json")
    with locked_for():  # else another builder may sweep what is half-written
        write_if_changed(path, json.dumps(row, indent=1) + "\n")
