"""Configs to the C++ text of translation units. Pure: the same configs give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pyflash.config import BACKWARD, Arch, KernelConfig, KernelFeatures, Op, rank
from pyflash.variant import Variant, cpp
from pyflash.variant.summed import Summed

_UNIT = """\
// {label}
#define PYFLASH_DEVICE_CODE
#include "{kernel_header}"
{variant}
namespace pyflash {{

constexpr auto kConfig = {struct};

// By architecture, by the resource model, for __launch_bounds__; 0: not legal there.
constexpr ArchCtas kTable[] = {{{ctas_per_sm}}};
template <>
inline constexpr Span<ArchCtas> kCtasPerSm<kConfig>{{kTable, {n_archs}}};

constexpr {op}Features kBuilt[] = {{
    {features}}};

constexpr KernelResources kModel{{.n_threads = {n_threads}, .smem_bytes = {smem_bytes}}};
static_assert(kernel_resources<kConfig>({{kBuilt, {n_features}}}) == kModel,
              "the resource model in pyflash/config says otherwise");

// To name a kernel is to compile it.
extern void const* const kernels_of_{stem}[] = {{
    {kernels}}};
{makers}
}}  // namespace pyflash
"""
_MAKERS = "extern auto const makers_of_{stem} = variant_makers<variant::{variant_type}>();\n"

_EMULATED_UNIT = """\
// {short_form}
#include "{emulation_header}"
{variant}
pyflash::emulator::EmulatedKernel const* pyflash_emulated_kernel() {{
  return pyflash::emulator::{kernel}<
      {struct},
      {features}>();
}}
"""


def canonical_configs(configs: Iterable[KernelConfig]) -> list[KernelConfig]:
    """The canonical configs that stand for `configs`, each once, in order."""
    return sorted({config.canonical() for config in configs})


def file_stem(config: KernelConfig) -> str:
    """The config's short form as a file name, such as fp16_128_64_64_4_async_load_0_0_0_tiles."""
    return re.sub(r"\W+", "_", config.short_form()).strip("_").lower()


def emit_config(config: KernelConfig, features: Sequence[KernelFeatures] | None = None) -> str:
    """The translation unit of one config, of device code alone: a kernel for each of `features`, by
    default those that its family builds, in the order of dispatch, for any of the known
    architectures.

    Raises ValueError for a config that is not canonical, or for features that its family lacks.
    """
    _require_canonical(config)
    family = config.family
    features = checked(config, features)
    kernels = (f"{family.kernel}<kConfig, kBuilt[{i}]>" for i in range(len(features)))
    return _UNIT.format(
        label=config.short_form(),
        kernel_header=family.kernel_header,
        variant="",
        kernels=lines(f"reinterpret_cast<void const*>({kernel})" for kernel in kernels),
        makers="",
        **facts(config, features),
    )


def facts(config: KernelConfig, features: Sequence[KernelFeatures]) -> dict[str, Any]:
    """What units say of a config that is built with these features. Of its kernels, the one that
    takes most decides on shared memory."""
    return {
        "short_form": config.short_form(),
        "stem": file_stem(config),
        "op": config.family.op.struct,
        "struct": _struct_lines(config, indent=4),
        "ctas_per_sm": _ctas_table(config),
        "n_archs": len(config.ctas_table()),
        "features": lines(f.to_cpp() for f in features),
        "n_features": len(features),
        "n_threads": config.n_threads,
        "smem_bytes": max(map(config.smem_bytes_with, features)),
    }


def emit_with_variant(
    config: KernelConfig, variant: Variant | Summed, features: Sequence[KernelFeatures]
) -> str:
    """The translation unit of one config with a variant, of device code alone: a kernel for each of
    `features`, and those that make what they take.

    Raises ValueError for a config that is not canonical, or of a family whose kernels take no
    variant.
    """
    _require_canonical(config)
    family = config.family
    header = family.variant_header or family.gradient_header
    if header is None:
        raise ValueError(f"{config} takes no variant: expected a config of another family")
    features = checked(config, features)
    variant_type = struct_name(variant, family.op)
    known = facts(config, features) | {"stem": variant_stem(config, variant)}
    return _UNIT.format(
        label=f"{config.short_form()} with {variant}",
        kernel_header=header,
        variant=f"\n{variant_struct(variant, family.op)}",
        kernels=lines(
            f"variant_kernel<kConfig, variant::{variant_type}, kBuilt[{i}]>()"
            for i in range(len(features))
        ),
        makers=_MAKERS.format(variant_type=variant_type, **known),
        **known,
    )


def variant_stem(config: KernelConfig, variant: Variant | Summed) -> str:
    """`file_stem` of a config with a variant."""
    return f"{file_stem(config)}_{variant.key}"


def emit_emulated(
    config: KernelConfig,
    features: Sequence[KernelFeatures] | None = None,
    variant: Variant | Summed | None = None,
) -> str:
    """The translation unit of one config for the emulator: the same template, for the host, with
    `features`, by default those that the emulator runs of its op, and with a variant.

    Raises ValueError for a config that is not canonical, or of a family that is not emulated.
    """
    _require_canonical(config)
    if config.family.emulation_header is None:
        raise ValueError(f"{config} is not emulated: family {config.family} has no emulation")
    features = config.family.op.emulated if features is None else features
    return _EMULATED_UNIT.format(
        short_form=config.short_form(),
        emulation_header=config.family.emulation_header,
        variant=f"\n{variant_struct(variant, config.family.op)}" if variant else "",
        kernel="emulated_kernel_of" if variant else "emulated_kernel",
        struct=_struct_lines(config, indent=10),
        features=",\n      ".join(
            [*_type_of(variant, config.family.op), _arguments(checked(config, features))]
        ),
    )


def variant_struct(variant: Variant | Summed, op: Op) -> str:
    """A variant's struct for kernels of an op, for a translation unit."""
    includes = "\n".join(f'#include "{name}"' for name in cpp.HEADERS)
    if isinstance(variant, Summed) or op is BACKWARD:
        struct = cpp.gradient_struct_of(variant)
    else:
        struct = cpp.struct_of(variant)
    return f"{includes}\n\nnamespace pyflash::variant {{\n\n{struct}\n\n}}\n"


def struct_name(variant: Variant | Summed, op: Op) -> str:
    """The name of `variant_struct`."""
    if isinstance(variant, Summed) or op is BACKWARD:
        return cpp.gradient_struct_name(variant)
    return cpp.struct_name(variant)


def _type_of(variant: Variant | Summed | None, op: Op) -> list[str]:
    return [f"pyflash::variant::{struct_name(variant, op)}"] if variant else []


def built_for(config: KernelConfig, archs: Sequence[Arch]) -> dict[str, Any]:
    """What rows say of the architectures that a config is compiled for."""
    targets = config.family.targets(archs)
    return {
        "sm_archs": ",".join(f"{sm}{targets.suffix}" for sm in targets.machine_code),
        "ptx_arch": targets.ptx,
        "rank": rank(config),
    }


def _ctas_table(config: KernelConfig) -> str:
    return ", ".join(f"{{{sm}, {ctas}}}" for sm, ctas in config.ctas_table())


def checked(
    config: KernelConfig, features: Sequence[KernelFeatures] | None
) -> Sequence[KernelFeatures]:
    """These features, or those that the config's family builds. Raises ValueError for some that its
    kernels lack."""
    if features is None:
        features = config.family.built_features(config)
    for name in sorted(config.family.lacks):
        if any(getattr(combination, name) for combination in features):
            raise ValueError(
                f"{config} is not built with {name}: kernels of {config.family} lack it"
            )
    return features


def _arguments(features: Sequence[KernelFeatures]) -> str:
    """As template arguments."""
    return ",\n      ".join(f.to_cpp() for f in features)


def lines(values: Iterable[str]) -> str:
    return ",\n    ".join(values)


def _require_canonical(config: KernelConfig) -> None:
    if config != config.canonical():
        raise ValueError(f"{config} is not built: {config.canonical()} is the same kernel")


def _struct_lines(config: KernelConfig, indent: int) -> str:
    """The C++ literal with a field a line."""
    line = ",\n" + " " * indent
    return config.to_cpp_struct().replace("{", "{" + line[1:]).replace(", ", line)
