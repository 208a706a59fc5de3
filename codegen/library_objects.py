"""What is linked into a kernel library: the machine code of its configs, its rows, and what is the
same in every library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pyflash.codegen import config_map, toolchain, variant_rows
from pyflash.codegen.cache_dir import cache_dir
from pyflash.codegen.compilation import ROOT, Compilation
from pyflash.codegen.config_map import Code, Row
from pyflash.codegen.variant_rows import Pair
from pyflash.config import KernelConfig
from pyflash.config.arch import Arch, targets

_MAKER = re.compile(rf"_ZN7pyflash7variant\d+({'|'.join(config_map.MAKERS)})")


def code(
    compilation: Compilation, symbols: Iterable[str], makers: Mapping[str, str] | None = None
) -> Code:
    """`config_map.Code` of a compilation."""
    path = str(compilation.object.relative_to(cache_dir()))
    return Code(compilation.label, compilation.stem, path, list(symbols), makers)


def machine_code(codes: Iterable[Code]) -> Compilation:
    """The object with this machine code."""
    text = config_map.emit_machine_code(codes)
    compiler = toolchain.embedding_compiler(cache_dir())
    return Compilation("machine code", "machine_code", text, compiler)


def compiled_code(
    kernels: Mapping[KernelConfig, Compilation], row_of: Mapping[KernelConfig, Row]
) -> Compilation:
    """`machine_code` of configs that are compiled, in the order of their rows' features."""
    return machine_code(
        code(compilation, _in_order(config, compilation, row_of[config]))
        for config, compilation in kernels.items()
    )


def compiled_variant_code(
    kernels: Mapping[Pair, Compilation], row_of: Mapping[Pair, Row]
) -> Compilation:
    """The same of configs with variants."""
    return machine_code(
        code(compilation, _in_order(pair[0], compilation, row_of[pair]), _makers(compilation))
        for pair, compilation in kernels.items()
    )


def kernels_by_features(config: KernelConfig, compilation: Compilation) -> dict[str, str]:
    """By combination of features the mangled name of the kernel in a config's compiled object."""
    symbols = [symbol for symbol in _symbols(compilation) if not _MAKER.match(symbol)]
    return {str(config.family.op.features.of_kernel(symbol)): symbol for symbol in symbols}


def _in_order(config: KernelConfig, compilation: Compilation, row: Row) -> list[str]:
    found = kernels_by_features(config, compilation)
    return [found[str(f)] for f in row.features]


def _makers(compilation: Compilation) -> dict[str, str]:
    """By members of `Makers` the mangled names of those that there are."""
    found = ((_MAKER.match(symbol), symbol) for symbol in _symbols(compilation))
    return {match[1]: symbol for match, symbol in found if match}


def _symbols(compilation: Compilation) -> list[str]:
    return sorted({kernel["function"] for kernel in compilation.record["kernels"]})


def support(row_of: Mapping[KernelConfig, Row]) -> list[Compilation]:
    """The config map with these rows, and what is the same in every library for their archs."""
    return _support(row_of, row_of.values())


def variant_support(row_of: Mapping[Pair, Row]) -> list[Compilation]:
    """The same where these rows, which come first, are all that there are."""
    text = variant_rows.emit_variant_rows(row_of)
    rows = Compilation("rows with a variant", "variant_rows", text, toolchain.launch_compiler())
    return [rows, *_support({}, row_of.values())]


def _support(row_of: Mapping[KernelConfig, Row], rows: Iterable[Row]) -> list[Compilation]:
    text = config_map.emit_config_map(row_of)
    archs: Sequence[Arch] = sorted({arch for row in rows for arch in row.archs}, key=lambda a: a.sm)
    compiler = toolchain.kernel_compiler(targets(archs), toolchain.cutlass_identity())
    sources = sorted((ROOT / "cute_kernels").glob("*.cu"))
    return [
        Compilation("config map", "config_map", text, toolchain.cpp_compiler()),
        *(Compilation.of_file(path, compiler) for path in sources),
    ]
