"""Configs to C++ text. Pure: the same configs give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pyflash.config import FlashForwardKernelConfig
from pyflash.config.arch import ARCHS, Arch
from pyflash.config.sets import rank

_UNIT = """\
// {short_form}
#include "cute_kernels/sm80/launch.h"

namespace pyflash {{

constexpr auto kConfig = {struct};

// CTAs per SM by the resource model, for __launch_bounds__; 0: not legal there.
template <>
inline constexpr CtasPerSm kCtasPerSm<kConfig>{{{ctas_per_sm}}};

template ConfigMapRow forward_row<kConfig>(char const*, char const*, int, int);

}}  // namespace pyflash
"""

_EMULATED_UNIT = """\
// {short_form}
#include "cute_kernels/emulator/kernel.h"

pyflash::emulator::EmulatedKernel const* pyflash_emulated_kernel() {{
  return pyflash::emulator::forward_kernel<{struct}>();
}}
"""

_MAP = """\
#include <iterator>

#include "cute_kernels/kernel_library.h"

extern "C" pyflash::KernelLibrary const* pyflash_kernel_library() {{
  using namespace pyflash;
  static ConfigMapRow const rows[] = {{
{rows}
  }};
  static KernelLibrary const library{{.abi = kKernelLibraryAbi,
                                     .n_rows = std::size(rows),
                                     .rows = rows,
                                     .device_properties = device_properties,
                                     .error_string = error_string,
                                     .merge_splits = merge_splits}};
  return &library;
}}
"""

_ROW = """\
      forward_row<{struct}>(
          "{short_form}", "{sm_archs}", {ptx_arch}, {rank}),"""


def canonical_configs(
    configs: Iterable[FlashForwardKernelConfig],
) -> list[FlashForwardKernelConfig]:
    """The canonical configs that stand for `configs`, each once, in order."""
    return sorted({config.canonical() for config in configs})


def file_stem(config: FlashForwardKernelConfig) -> str:
    """The config's short form as a file name, such as fp16_128_64_64_4_async_load_0_0_0_tiles."""
    return re.sub(r"\W+", "_", config.short_form()).strip("_").lower()


def emit_config(config: FlashForwardKernelConfig) -> str:
    """The translation unit of one config: an instantiation of all its variants, for any of the
    known architectures.

    Raises ValueError for a config that is not canonical.
    """
    _require_canonical(config)
    ctas_per_sm = ", ".join(f".sm{arch.sm} = {_ctas_per_sm(config, arch)}" for arch in ARCHS)
    return _UNIT.format(
        short_form=config.short_form(), struct=_struct_lines(config), ctas_per_sm=ctas_per_sm
    )


def emit_emulated(config: FlashForwardKernelConfig) -> str:
    """The translation unit of one config for the emulator: the same template, for the host.

    Raises ValueError for a config that is not canonical.
    """
    _require_canonical(config)
    return _EMULATED_UNIT.format(
        short_form=config.short_form(), struct=_struct_lines(config).replace("\n", "\n  ")
    )


def emit_config_map(archs_of: Mapping[FlashForwardKernelConfig, Sequence[Arch]]) -> str:
    """The translation unit of a kernel library's config map.

    `archs_of` gives for each config the architectures that its object holds machine code for,
    ascending; PTX is that of the last.
    """
    rows = [
        _ROW.format(
            struct=config.to_cpp_struct(),
            short_form=config.short_form(),
            sm_archs=",".join(str(arch.sm) for arch in archs),
            ptx_arch=archs[-1].sm,
            rank=rank(config),
        )
        for config, archs in sorted(archs_of.items())
    ]
    return _MAP.format(rows="\n".join(rows))


def _ctas_per_sm(config: FlashForwardKernelConfig, arch: Arch) -> int:
    return 0 if config.violations(arch) else config.num_ctas_per_sm(arch)


def _require_canonical(config: FlashForwardKernelConfig) -> None:
    if config != config.canonical():
        raise ValueError(f"{config} is not built: {config.canonical()} is the same kernel")


def _struct_lines(config: FlashForwardKernelConfig) -> str:
    """The struct with a field a line."""
    return config.to_cpp_struct().replace("{", "{\n    ").replace(", ", ",\n    ")
