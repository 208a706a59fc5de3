"""The compiled kernels of a config: resources, instructions and loops.

    for kernel in compiled_kernels(config, "sm_90", features=["plain", "right_window"]):
        kernel.registers, kernel.loop.mix, kernel.floors

Objects come from the cache of builds, or are compiled. That needs nvcc, and cuobjdump; no GPU.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyflash.codegen import emit, toolchain
from pyflash.codegen.build import BuildError, legal_archs
from pyflash.codegen.compilation import Compilation, compile_all
from pyflash.config import ARCHS, OPS, KernelConfig, KernelFeatures, as_config
from pyflash.config.arch import Arch
from pyflash.config.resources import occupancy
from pyflash.inspect import pipes, sass
from pyflash.inspect.pipes import Floor
from pyflash.inspect.register_shares import RegisterShare, register_shares
from pyflash.inspect.sass import Instruction, Kernel
from pyflash.variant import Variant


@dataclass(frozen=True, slots=True)
class Section:
    """Some of a kernel's instructions, counted."""

    n_instructions: int
    n_predicated: int  # with a guard, branches left out
    mix: dict[str, int]  # by the classes of `sass.CLASSES`

    @classmethod
    def of(cls, instructions: list[Instruction]) -> Section:
        return cls(len(instructions), sass.n_predicated(instructions), sass.mix(instructions))


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel of a config's object, for one architecture. Sizes in bytes."""

    features: str  # what it does beside plain attention; "plain" where nothing
    function: str  # mangled
    sm: int
    registers: int  # per thread
    spill_store_bytes: int  # per thread
    spill_load_bytes: int
    stack_bytes: int
    smem_bytes: int  # per CTA, static and dynamic
    # By known architecture, with these registers; 0: not legal there, or none fits.
    ctas_per_sm: dict[str, int]
    loop: Section  # the main loop, one iteration
    outside: Section
    floors: list[Floor]  # of an iteration, largest first; [] where the rates are not known
    shares: list[RegisterShare]  # registers of threads before and behind setmaxnreg
    kernel: Kernel = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, without the instructions."""
        sections = {
            name: {
                "n_instructions": section.n_instructions,
                "n_predicated": section.n_predicated,
                "mix": section.mix,
            }
            for name, section in (("loop", self.loop), ("outside", self.outside))
        }
        plain = ("features", "function", "sm", "registers", "spill_store_bytes", "spill_load_bytes",
                 "stack_bytes", "smem_bytes", "ctas_per_sm")  # fmt: skip
        by_name = {
            "floors": {floor.pipe: floor.cycles for floor in self.floors},
            "shares": {str(share.budget): share.used for share in self.shares},
        }
        return {name: getattr(self, name) for name in plain} | sections | by_name


def compiled_kernels(
    config: KernelConfig | str,
    arch: Arch | str | int,
    degrees: Mapping[str, float] | None = None,
    features: Sequence[KernelFeatures | str] = ("plain",),
    variant: Variant | None = None,
) -> list[CompiledKernel]:
    """The kernels of a config on `arch` with each of these features, by themselves: what a library
    has of all combinations is the same machine code. All with a variant, where there is one.

    `degrees` are those of bank conflicts, for the floor of shared memory (`pipes.floors`).

    Raises ValueError for a config that is not legal on `arch` or an architecture without machine
    code of its own, BuildError where it does not compile, CudaError without nvcc or cuobjdump.
    """
    config, arch = as_config(config).canonical(), Arch.of(arch)
    of = config.family.op.features.of
    units = [compilation(config, arch, of(wanted), variant) for wanted in features]
    if failures := compile_all(units, f"{config} for {arch}"):
        raise BuildError(failures, len(units))
    found = [kernel for unit in units for kernel in kernels_of(config, arch, unit, degrees)]
    if variant:  # beside whose kernel an object has the one that lists blocks
        found = [k for k in found if config.family.op.features.struct in k.kernel.name]
    return found


def compilation(
    config: KernelConfig, arch: Arch, features: KernelFeatures, variant: Variant | None = None
) -> Compilation:
    """The object of one kernel of a canonical config: device code alone, which is much quicker to
    compile than all its combinations of features for a library."""
    legal_archs([config], [arch])
    targets = config.family.targets([arch])._replace(ptx=0)
    if targets.machine_code != (arch.sm,):
        raise ValueError(f"no machine code is compiled for {arch}: it runs PTX")
    compiler = toolchain.kernel_compiler(targets, toolchain.cutlass_identity())
    stem = emit.variant_stem(config, variant) if variant else emit.file_stem(config)
    return Compilation(
        label=f"{config}, {features}{f', {variant.name}' if variant else ''}",
        stem=f"{stem}_{str(features).replace('+', '_')}",
        text=emit.emit_with_variant(config, variant, [features])
        if variant
        else emit.emit_config(config, [features]),
        compiler=dataclasses.replace(compiler, flags=(*compiler.flags, "-cubin")),
    )


def kernels_of(
    config: KernelConfig,
    arch: Arch,
    compilation: Compilation,
    degrees: Mapping[str, float] | None = None,
) -> list[CompiledKernel]:
    """As `compiled_kernels`, of an object that was compiled, whatever kernels are in it, the plain
    one first."""
    figures = {
        record["function"]: record
        for record in compilation.record["kernels"]
        if record["arch"] == arch.sm
    }
    kernels = [
        compiled_kernel(config, kernel, figures[kernel.function], degrees)
        for kernel in sass.disassemble(compilation.object, arch.sm)
        if kernel.function in figures
    ]
    return sorted(kernels, key=lambda kernel: _feature_values(kernel.kernel.name))


def compiled_kernel(
    config: KernelConfig,
    kernel: Kernel,
    figures: Mapping[str, Any],
    degrees: Mapping[str, float] | None = None,
) -> CompiledKernel:
    """One kernel with ptxas's figures of it, a record of `codegen.compile_object.parse_ptxas`."""
    loop = kernel.main_loop
    n_warps = config.n_threads // 32
    mma_warps = config.family.mma_warps(config)
    smem_bytes = config.smem_bytes + figures["static_smem_bytes"]
    return CompiledKernel(
        features=feature_name(kernel.name),
        function=kernel.function,
        sm=kernel.sm,
        **{
            name: figures[name]
            for name in ("registers", "spill_store_bytes", "spill_load_bytes", "stack_bytes")
        },
        smem_bytes=smem_bytes,
        ctas_per_sm={
            str(arch): occupancy(figures["registers"], smem_bytes, n_warps, arch).num_ctas_per_sm
            if config.is_legal(arch) and smem_bytes <= arch.smem_per_cta
            else 0
            for arch in ARCHS
        },
        loop=Section.of(kernel.inside(loop)),
        outside=Section.of(kernel.outside(loop)),
        floors=pipes.floors(kernel.inside(loop), Arch.of(kernel.sm), mma_warps, degrees),
        shares=register_shares(kernel, figures["registers"]),
        kernel=kernel,
    )


def feature_name(symbol: str) -> str:
    """What a kernel with this demangled name does beside plain attention: the value of its last
    template argument, the features of an op, or the number of what is there instead."""
    values = _feature_values(symbol)
    for op in OPS:
        if op.features.struct in symbol:
            return str(op.features(*map(bool, values)))
    return "plain" if not any(values) else f"variant {values[0]}"


def _feature_values(symbol: str) -> tuple[int, ...]:
    """Numbers of the last template argument, such as (1, 0) of `{true, false}`."""
    arguments = symbol[: symbol.rfind(">(")].rpartition("}, ")[2]
    words = re.findall(r"\b(true|false|\d+)\b", arguments)
    return tuple(int(word) if word.isdigit() else int(word == "true") for word in words)
