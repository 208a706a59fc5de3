"""What is linked into a kernel library besides objects with a variant: the machine code of its
configs, its config map, and what is the same in every library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyflash.codegen import config_map, toolchain
from pyflash.codegen.cache_dir import cache_dir
from pyflash.codegen.compilation import ROOT, Compilation
from pyflash.codegen.config_map import Row
from pyflash.config import KernelConfig
from pyflash.config.arch import Arch, targets


def machine_code(
    symbols_of: Mapping[KernelConfig, tuple[Compilation, Iterable[str]]],
) -> Compilation:
    """The object with the machine code of these configs: their compilations, and the names of their
    kernels in the order of dispatch."""
    folder = cache_dir()
    code_of = {
        config: config_map.Code(str(c.object.relative_to(folder)), list(symbols))
        for config, (c, symbols) in symbols_of.items()
    }
    text = config_map.emit_machine_code(code_of)
    return Compilation("machine code", "machine_code", text, toolchain.embedding_compiler(folder))


def compiled_code(
    kernels: Mapping[KernelConfig, Compilation], row_of: Mapping[KernelConfig, Row]
) -> Compilation:
    """`machine_code` of configs that are compiled, in the order of their rows' features."""
    symbols_of = {}
    for config, compilation in kernels.items():
        found = kernels_by_features(config, compilation)
        symbols_of[config] = compilation, [found[str(f)] for f in row_of[config].features]
    return machine_code(symbols_of)


def kernels_by_features(config: KernelConfig, compilation: Compilation) -> dict[str, str]:
    """By combination of features the mangled name of the kernel in a config's compiled object."""
    symbols = sorted({kernel["function"] for kernel in compilation.record["kernels"]})
    return {str(config.family.op.features.of_kernel(symbol)): symbol for symbol in symbols}


def support(row_of: Mapping[KernelConfig, Row]) -> list[Compilation]:
    """The config map with these rows, and what is the same in every library for their archs."""
    text = config_map.emit_config_map(row_of)
    archs = {arch for row in row_of.values() for arch in row.archs}
    return [Compilation("config map", "config_map", text, toolchain.cpp_compiler()), *shared(archs)]


def shared(archs: Iterable[Arch]) -> list[Compilation]:
    """What is the same in every library for these archs."""
    ascending: Sequence[Arch] = sorted(archs, key=lambda arch: arch.sm)
    compiler = toolchain.kernel_compiler(targets(ascending), toolchain.cutlass_identity())
    sources = sorted((ROOT / "cute_kernels").glob("*.cu"))
    return [Compilation.of_file(path, compiler) for path in sources]
