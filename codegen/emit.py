"""Configs to C++ text. Pure: the same configs give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pyflash.config import FlashForwardKernelConfig
from pyflash.config.arch import ARCHS, Arch
from pyflash.config.features import BUILT, EMULATED, Features
from pyflash.config.space import rank

_UNIT = """\
// {short_form}
#include "cute_kernels/sm80/launch.h"

namespace pyflash {{

constexpr auto kConfig = {struct};

// By architecture, by the resource model, for __launch_bounds__; 0: not legal there.
constexpr ArchCtas kTable[] = {{{ctas_per_sm}}};
template <>
inline constexpr Span<ArchCtas> kCtasPerSm<kConfig>{{kTable, std::size(kTable)}};

ConfigMapRow row_of_{stem}(BuiltFor const& built_for) {{
  return forward_row<
      kConfig,
      {features}>(
      "{short_form}", built_for);
}}

}}  // namespace pyflash
"""

_EMULATED_UNIT = """\
// {short_form}
#include "cute_kernels/emulator/kernel.h"

pyflash::emulator::EmulatedKernel const* pyflash_emulated_kernel() {{
  return pyflash::emulator::forward_kernel<
      {struct},
      {features}>();
}}
"""

_MAP = """\
#include <iterator>

#include "cute_kernels/kernel_library.h"
#include "cute_kernels/row.h"

namespace pyflash {{

{declarations}

}}  // namespace pyflash

extern "C" pyflash::KernelLibrary const* pyflash_kernel_library() {{
  using namespace pyflash;
  static ConfigMapRow const rows[] = {{
{rows}
  }};
  static KernelLibrary const library{{.abi = kKernelLibraryAbi,
                                     .configs_digest = kConfigsDigest,
                                     .rows = {{rows, std::size(rows)}},
                                     .device_properties = device_properties,
                                     .error_string = error_string,
                                     .merge_splits = merge_splits}};
  return &library;
}}
"""

_DECLARATION = "ConfigMapRow row_of_{stem}(BuiltFor const& built_for);"
_ROW = '      row_of_{stem}({{.sm_archs = "{sm_archs}", .ptx_arch = {ptx_arch}, .rank = {rank}}}),'


def canonical_configs(
    configs: Iterable[FlashForwardKernelConfig],
) -> list[FlashForwardKernelConfig]:
    """The canonical configs that stand for `configs`, each once, in order."""
    return sorted({config.canonical() for config in configs})


def file_stem(config: FlashForwardKernelConfig) -> str:
    """The config's short form as a file name, such as fp16_128_64_64_4_async_load_0_0_0_tiles."""
    return re.sub(r"\W+", "_", config.short_form()).strip("_").lower()


def emit_config(config: FlashForwardKernelConfig, features: Sequence[Features] = BUILT) -> str:
    """The translation unit of one config: an instantiation for each of `features`, in the order of
    dispatch, for any of the known architectures.

    Raises ValueError for a config that is not canonical.
    """
    _require_canonical(config)
    ctas_per_sm = ", ".join(f"{{{arch.sm}, {_ctas_per_sm(config, arch)}}}" for arch in ARCHS)
    return _UNIT.format(
        short_form=config.short_form(),
        stem=file_stem(config),
        struct=_struct_lines(config),
        ctas_per_sm=ctas_per_sm,
        features=_features(features, indent=6),
    )


def emit_emulated(
    config: FlashForwardKernelConfig, features: Sequence[Features] = EMULATED
) -> str:
    """The translation unit of one config for the emulator: the same template, for the host.

    Raises ValueError for a config that is not canonical.
    """
    _require_canonical(config)
    return _EMULATED_UNIT.format(
        short_form=config.short_form(),
        struct=_struct_lines(config).replace("\n", "\n      "),
        features=_features(features, indent=6),
    )


def emit_config_map(archs_of: Mapping[FlashForwardKernelConfig, Sequence[Arch]]) -> str:
    """The translation unit of a kernel library's config map.

    `archs_of` gives for each config the architectures that its object holds machine code for,
    ascending; PTX is that of the last.
    """
    declarations, rows = [], []
    for config, archs in sorted(archs_of.items()):
        stem = file_stem(config)
        declarations.append(_DECLARATION.format(stem=stem))
        sm_archs = ",".join(str(arch.sm) for arch in archs)
        rows.append(
            _ROW.format(stem=stem, sm_archs=sm_archs, ptx_arch=archs[-1].sm, rank=rank(config))
        )
    return _MAP.format(declarations="\n".join(declarations), rows="\n".join(rows))


def _ctas_per_sm(config: FlashForwardKernelConfig, arch: Arch) -> int:
    return 0 if config.violations(arch) else config.num_ctas_per_sm(arch)


def _features(features: Sequence[Features], indent: int) -> str:
    """As template arguments, one a line."""
    return (",\n" + " " * indent).join(f.to_cpp() for f in features)


def _require_canonical(config: FlashForwardKernelConfig) -> None:
    if config != config.canonical():
        raise ValueError(f"{config} is not built: {config.canonical()} is the same kernel")


def _struct_lines(config: FlashForwardKernelConfig) -> str:
    """The struct with a field a line."""
    return config.to_cpp_struct().replace("{", "{\n    ").replace(", ", ",\n    ")
