"""The translation unit of a kernel library's rows with variants: how kernels are launched that are
compiled by themselves. Pure, as codegen.emit is."""

from __future__ import annotations

from collections.abc import Mapping

from pyflash.codegen import config_map, emit
from pyflash.config import BACKWARD, FORWARD, KernelConfig, Op
from pyflash.variant import Variant
from pyflash.variant.summed import Summed

_UNIT = """\
{includes}

{structs}
namespace pyflash {{

{of_configs}
}}  // namespace pyflash

{functions}"""
_MAKERS = "extern variant::Makers const makers_of_{stem};\n"
_ROW = """\
      variant::make_variant_row<of_{stem}::kConfig, variant::{variant_type}, makers_of_{stem}>(
      "{key}",
{row}),"""
_FUNCTION = """\
extern "C" pyflash::Span<pyflash::VariantRowOf<pyflash::{op}>> const* {function}() {{
  using namespace pyflash;
  static VariantRowOf<{op}> const rows[] = {{
{rows}
  }};
  static Span<VariantRowOf<{op}>> const all{{rows, {n_rows}}};
  return &all;
}}
"""
# What a library exports, by the op of its rows.
_FUNCTIONS = {FORWARD: "pyflash_variant_rows", BACKWARD: "pyflash_gradient_rows"}

Pair = tuple[KernelConfig, Variant | Summed]


def emit_variant_rows(row_of: Mapping[Pair, config_map.Row]) -> str:
    """The rows of configs with variants. `config_map.emit_machine_code` defines the kernels that
    they name."""
    launchers: dict[str, None] = {}
    structs: dict[str, str] = {}
    of_configs: list[str] = []
    rows: dict[Op, list[str]] = {op: [] for op in _FUNCTIONS}
    for (config, variant), row in row_of.items():
        op, stem = config.family.op, emit.variant_stem(config, variant)
        of_config, text = config_map.texts_of(config, row, stem)
        known = {"stem": stem, "variant_type": emit.struct_name(variant, op), "key": variant.key}
        launchers[f'#include "{config.family.variant_launcher}"'] = None
        structs[known["variant_type"]] = emit.variant_struct(variant, op)
        of_configs += [of_config, _MAKERS.format(**known)]
        rows[op].append(_ROW.format(row=text.removesuffix(","), **known))
    return _UNIT.format(
        includes="\n".join(launchers),
        structs="\n".join(structs.values()),
        of_configs="".join(of_configs),
        functions="\n".join(_function(op, of_op) for op, of_op in rows.items() if of_op),
    )


def _function(op: Op, rows: list[str]) -> str:
    return _FUNCTION.format(
        op=op.struct, function=_FUNCTIONS[op], rows="\n".join(rows), n_rows=len(rows)
    )
