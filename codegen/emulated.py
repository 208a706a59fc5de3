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
from pyflash.codegen.cache import object_problem
from pyflash.codegen.cache_dir import cache_dir
from pyflash.codegen.cache_locks import locked_for
from pyflash.codegen.compilation import ROOT, Compilation, compile_all, waiting
from pyflash.codegen.linking import link, reusable
from pyflash.codegen.precompiled import headers_for, using
from pyflash.config import ARCHS, KernelConfig, KernelFeatures, as_config
from pyflash.variant import Variant
from pyflash.variant.summed import Summed

# The objects that the emulator shares with the op library: from the arguments of a call to a
# kernel's params.
_HOST = ("call", "checks", "dropout", "gradients", "names", "options", "problem", "tensor_view")

# The machine is one unit, because most of what a source takes the compiler is its headers; but for
# those that have a name in common with another, or that tests replace.
_APART = ("fiber", "report", "run", "traffic", "window")


def build_emulated(
    configs: Iterable[KernelConfig | str],
    variant: Variant | Summed | None = None,
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
    kernels = emulated_kernels(configs, variant, features)
    return dict(zip(configs, link_with_machine(kernels), strict=True))


def emulated_kernels(
    configs: Sequence[KernelConfig],
    variant: Variant | Summed | None = None,
    features: Sequence[KernelFeatures] | None = None,
) -> list[Compilation]:
    """The translation units of canonical configs. Raises ValueError as `build_emulated` does."""
    _check_legal(configs)
    return [
        Compilation(
            label=f"{config} for the CPU{f' with {variant.name}' if variant else ''}",
            stem=f"emulated_{emit.file_stem(config)}{f'_{variant.key}' if variant else ''}",
            text=emit.emit_emulated(config, features, variant),
            compiler=toolchain.emulator_compiler(config.family.emulation_watches_registers),
        )
        for config in configs
    ]


def link_with_machine(
    kernels: Sequence[Compilation], instead: Sequence[Compilation] = ()
) -> list[Path]:
    """A library of each translation unit that defines pyflash_emulated_kernel(), with the machine
    that runs it; what is not in the cache is compiled. `instead` take the places of those of the
    machine's objects that are sources by themselves.

    Raises BuildError with each source that did not compile.
    """
    others = {c.stem: c for c in instead}
    machine = [others.pop(c.stem, c) for c in _machine()]
    if others:
        raise ValueError(f"{', '.join(others)}: expected some of {', '.join(_APART)}")
    libraries = {_library([kernel, *machine]): kernel for kernel in kernels}
    missing = [library for library in libraries if not reusable(library)]
    if missing:
        headers = headers_for([libraries[library] for library in missing], _header(), "emulated_")
        _compile_shared([*machine, *(h for h in headers.values() if not h.object.exists())])
        with locked_for(missing, waiting):
            missing = [library for library in missing if not reusable(library)]  # by another
            objects = [using(libraries[library], headers) for library in missing]
            if missing and (failures := compile_all(objects, "kernels for the CPU")):
                raise BuildError(failures, len(objects))
            for library in missing:
                link(library, [libraries[library], *machine], ["-Wl,--no-undefined"])
    return list(libraries)


def _machine() -> list[Compilation]:
    """What runs kernels, and makes a kernel's params of the arguments of a call."""
    room, host = ROOT / "cute_kernels/emulator", ROOT / "cute_kernels/host"
    compiler, shared = toolchain.machine_compiler(), toolchain.cpp_compiler()
    names = sorted({path.stem for path in room.glob("*.cpp")} - {*_APART})
    # NOTE: CUTLASS's headers make warnings errors, so that what includes them comes last.
    names.sort(key=lambda name: name.startswith("device"))
    text = "".join(f'#include "cute_kernels/emulator/{name}.cpp"\n' for name in names)
    return [
        Compilation("the emulated machine", "machine", text, compiler),
        *(Compilation.of_file(room / f"{name}.cpp", compiler) for name in _APART),
        *(Compilation.of_file(host / f"{name}.cpp", shared) for name in _HOST),
    ]


def _header() -> Path:
    """What each kernel for the emulator includes first."""
    return ROOT / "cute_kernels" / "emulator" / "cute.h"


def _compile_shared(objects: Sequence[Compilation]) -> None:
    """What kernels share, in the cache but for the first time."""
    if any(object_problem(c.object) for c in objects):
        failures = compile_all(objects, "what runs kernels on the CPU")
        if failures := [c for c in failures if c.compiler.object_suffix == ".o"]:
            raise BuildError(failures, len(objects))


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
