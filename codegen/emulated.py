"""Builds kernels that run on the CPU: the templates of the GPU's, compiled for the host.

    libraries = build_emulated([config])
    libraries[config.canonical()]    # a shared library, for pyflash.emulator

Each config becomes a library of its own, kept in the cache beside the objects. It needs a C++
compiler, CUTLASS and the headers of CUDA; no nvcc and no GPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyflash.codegen import emit, toolchain
from pyflash.codegen.build import BuildError
from pyflash.codegen.cache_dir import cache_dir, locked
from pyflash.codegen.compilation import ROOT, Compilation, compile_all, waiting
from pyflash.codegen.linking import link, reusable
from pyflash.config import ARCHS, KernelConfig, KernelFeatures, as_config
from pyflash.variant import Variant

# The objects that the emulator shares with the op library: from the arguments of a call to a
# kernel's params.
_HOST = ("call", "checks", "gradients", "names", "options", "problem", "tensor_view")


def build_emulated(
    configs: Iterable[KernelConfig | str],
    variant: Variant | None = None,
    features: Sequence[KernelFeatures] | None = None,
) -> dict[KernelConfig, Path]:
    """The libraries of the canonical configs that stand for `configs`; what is not in the cache is
    compiled. With a variant, and with `features` in place of those that the emulator runs of the
    op.

    Raises ValueError before any compiler runs: configs that are legal on no architecture, each with
    its violations, or of a family that the emulator does not run. Raises BuildError with each
    source that did not compile.
    """
    configs = emit.canonical_configs(map(as_config, configs))
    _check_legal(configs)
    kernels = [
        Compilation(
            label=f"{config} for the CPU{f' with {variant.name}' if variant else ''}",
            stem=f"emulated_{emit.file_stem(config)}{f'_{variant.key}' if variant else ''}",
            text=emit.emit_emulated(config, features, variant),
            compiler=toolchain.emulator_compiler(config.family.emulation_watches_registers),
        )
        for config in configs
    ]
    return dict(zip(configs, link_with_machine(kernels), strict=True))


def link_with_machine(kernels: Sequence[Compilation]) -> list[Path]:
    """A library of each translation unit that defines pyflash_emulated_kernel(), with the machine
    that runs it; what is not in the cache is compiled.

    Raises BuildError with each source that did not compile.
    """
    rooms = ROOT / "cute_kernels"
    compiler, shared = toolchain.emulator_compiler(), toolchain.cpp_compiler()
    machine = [
        *(Compilation.of_file(p, compiler) for p in sorted((rooms / "emulator").glob("*.cpp"))),
        *(Compilation.of_file(rooms / "host" / f"{name}.cpp", shared) for name in _HOST),
    ]
    libraries = {_library([kernel, *machine]): kernel for kernel in kernels}
    missing = [library for library in libraries if not reusable(library)]
    if missing:
        with locked(waiting):  # another may have built them meanwhile
            missing = [library for library in missing if not reusable(library)]
            objects = [*(libraries[library] for library in missing), *machine]
            if missing and (failures := compile_all(objects, "kernels for the CPU")):
                raise BuildError(failures, len(objects))
            for library in missing:
                link(library, [libraries[library], *machine], ["-Wl,--no-undefined"])
    return list(libraries)


def _check_legal(configs: Iterable[KernelConfig]) -> None:
    """A config that no GPU runs is of no use on the CPU either."""
    reasons = []
    for config in configs:
        if config.family.emulation_header is None:
            reasons.append(f"{config}: the emulator does not run the family {config.family}")
        elif not any(config.is_legal(arch) for arch in ARCHS):
            fewest = min((config.violations(arch) for arch in ARCHS), key=len)
            reasons += [f"{config}: {sentence}" for _, sentence in fewest]
    if reasons:
        raise ValueError("\n".join(["configs that cannot be built:", *reasons]))


def _library(objects: list[Compilation]) -> Path:
    key = hashlib.sha256("".join(c.key for c in objects).encode()).hexdigest()[:16]
    return cache_dir() / "emulated" / key / f"{objects[0].stem}.so"
