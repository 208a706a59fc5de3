"""The translation units of a kernel library besides those of configs: its config map, and the
machine code of its kernels. Pure, as codegen.emit is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyflash.codegen import emit
from pyflash.config import OPS, Arch, KernelConfig, KernelFeatures, Op

_MAP = """\
#include "cute_kernels/kernel_library.h"
#include "cute_kernels/row.h"

namespace pyflash {{

{of_configs}
}}  // namespace pyflash

extern "C" pyflash::KernelLibrary const* pyflash_kernel_library() {{
  using namespace pyflash;
{rows}
  static KernelLibrary const library = make_library({{{spans}}});
  return &library;
}}
"""
_OF_CONFIG = """\
// {short_form}
namespace of_{stem} {{
constexpr auto kConfig = {struct};
constexpr ArchCtas kCtasPerSm[] = {{{ctas_per_sm}}};
constexpr {op}Features kBuilt[] = {{
    {features}}};
}}  // namespace of_{stem}
extern void const* const kernels_of_{stem}[];
"""
_ROWS = """\
  static ConfigMapRow<{op}> const {name}_rows[] = {{
{rows}
  }};"""
_ROW = """\
      make_row({{.short_form = "{short_form}",
                .dtype = of_{stem}::kConfig.dtype,
                .d_head = of_{stem}::kConfig.d_head,
                .n_threads = {n_threads},
                .smem_bytes = {smem_bytes},
                .kernels = {{kernels_of_{stem}, {n_features}}},
                .ctas_per_sm = {{of_{stem}::kCtasPerSm, {n_archs}}},
                .sm_archs = "{sm_archs}",
                .ptx_arch = {ptx_arch},
                .rank = {rank}}},
               of_{stem}::kConfig, {{of_{stem}::kBuilt, {n_features}}}),"""

_MACHINE_CODE = """\
#include "cute_kernels/machine_code.h"
#include "cute_kernels/variant/makers.h"

namespace pyflash {{

{of_configs}
}}  // namespace pyflash
"""
_CODE = """\
// {label}
asm(R"(.section .nv_fatbin, "a"
.balign 8
.globl pyflash_code_of_{stem}
.hidden pyflash_code_of_{stem}
pyflash_code_of_{stem}:
.incbin "{path}"
.previous)");
extern "C" char const pyflash_code_of_{stem}[];
namespace of_{stem} {{
[[gnu::section(".nvFatBinSegment")]] MachineCode code{{.bytes = pyflash_code_of_{stem}}};
char const kernels[{n_kernels}]{{}};
RegisteredKernels const registered(code, kernels, {{
    {symbols}}});
}}  // namespace of_{stem}
extern void const* const kernels_of_{stem}[] = {{{kernels}}};
"""
# Members of `variant::Makers` in their order, each of which begins the names of its kernels.
MAKERS = ("prepare", "judge", "list", "sort")


class Row(NamedTuple):
    """What a row has: architectures that a config was compiled for, and its
    combinations of features, in the order of dispatch."""

    archs: Sequence[Arch]
    features: Sequence[KernelFeatures]


def emit_config_map(row_of: Mapping[KernelConfig, Row]) -> str:
    """The translation unit of a kernel library's config map. `emit_machine_code` defines the
    kernels that it names."""
    of_configs: list[str] = []
    rows: dict[Op, list[str]] = {op: [] for op in OPS}
    for config, row in sorted(row_of.items()):
        of_config, text = texts_of(config, row, emit.file_stem(config))
        of_configs.append(of_config)
        rows[config.family.op].append(text)
    return _MAP.format(
        of_configs="\n".join(of_configs),
        rows="\n".join(_rows(op, of_op) for op, of_op in rows.items() if of_op),
        spans=", ".join(_span(op, len(of_op)) for op, of_op in rows.items()),
    )


def texts_of(config: KernelConfig, row: Row, stem: str) -> tuple[str, str]:
    """What a row names, and the row."""
    known = emit.facts(config, emit.checked(config, row.features))
    known |= emit.built_for(config, row.archs) | {"stem": stem}
    return _OF_CONFIG.format(**known), _ROW.format(**known)


class Code(NamedTuple):
    """The machine code of a config, or of one with a variant: the file, as the assembler finds it,
    the mangled names of its kernels in the order of dispatch, and with a variant of those that make
    what they take, by members of `Makers`."""

    label: str
    stem: str
    path: str
    symbols: Sequence[str]
    makers: Mapping[str, str] | None = None


def emit_machine_code(codes: Iterable[Code]) -> str:
    """The translation unit with the machine code of a kernel library."""
    return _MACHINE_CODE.format(of_configs="\n".join(map(_text_of_code, codes)))


def _text_of_code(code: Code) -> str:
    makers = code.makers or {}
    symbols = [*code.symbols, *makers.values()]
    places = [f"of_{code.stem}::kernels + {i}" for i in range(len(symbols))]
    n = len(code.symbols)
    text = _CODE.format(
        label=code.label,
        stem=code.stem,
        path=code.path,
        n_kernels=len(symbols),
        symbols=emit.lines(f'"{symbol}"' for symbol in symbols),
        kernels=", ".join(places[:n]),
    )
    if code.makers is not None:
        place_of = dict(zip(makers, places[n:], strict=True))
        members = ", ".join(f".{name} = {place_of.get(name, 'nullptr')}" for name in MAKERS)
        text += f"extern variant::Makers const makers_of_{code.stem}{{{members}}};\n"
    return text


def _rows(op: Op, rows: Sequence[str]) -> str:
    return _ROWS.format(op=op.struct, name=op.name, rows="\n".join(rows))


def _span(op: Op, n_rows: int) -> str:
    """The span of an op's rows, empty where a library has none."""
    rows = f"{op.name}_rows, {n_rows}" if n_rows else ""
    return f"RowsOf<{op.struct}>{{{rows}}}"
