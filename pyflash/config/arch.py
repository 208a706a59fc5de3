"""Facts of the GPU architectures that kernels are built for.

Sources: the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (shared
memory per SM and per CTA, registers, resident warps and CTAs); the Ampere, Ada, Hopper and
Blackwell Tuning Guides, "Unified Shared Memory" (the 1 KB that CUDA reserves for each CTA) and
"Occupancy"; the CUDA Occupancy Calculator (allocation units of registers and warps).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pyflash.config.words import shown, type_name

KB = 1024


@dataclass(frozen=True, slots=True)
class Arch:
    """One compute capability. Sizes in bytes, registers of 32 bits."""

    sm: int  # major * 10 + minor
    smem_per_cta: int  # the opt-in limit, cudaDevAttrMaxSharedMemoryPerBlockOptin
    smem_per_sm: int
    max_warps_per_sm: int
    max_ctas_per_sm: int
    # Where not 0, no machine code is built: the driver compiles the PTX of this older architecture.
    ptx_of: int = 0
    # The same on every architecture listed below.
    smem_reserved_per_cta: int = 1 * KB
    registers_per_sm: int = 64 * 1024  # also the limit of one CTA
    max_registers_per_thread: int = 255
    max_threads_per_cta: int = 1024
    register_allocation_unit: int = 256  # per warp
    warp_allocation_granularity: int = 4  # the four schedulers of an SM each take every fourth warp

    @property
    def name(self) -> str:
        return f"sm_{self.sm}"

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, arch: Arch | str | int) -> Arch:
        """The architecture of an `Arch`, "sm_90", "90" or 90.

        Raises ValueError, listing the known ones, for any other; TypeError for another type.
        """
        if isinstance(arch, Arch):
            return arch
        if isinstance(arch, bool) or not isinstance(arch, str | int):
            raise TypeError(
                f"an architecture is {type_name(arch)}: expected an Arch, 'sm_90', '90' or 90"
            )
        number = str(arch).removeprefix("sm_")
        for known in ARCHS:
            if number == str(known.sm):
                return known
        names = ", ".join(known.name for known in ARCHS)
        raise ValueError(f"unknown architecture {shown(arch)}: the known ones are {names}")


ARCHS = (
    Arch(80, 163 * KB, 164 * KB, max_warps_per_sm=64, max_ctas_per_sm=32),  # A100
    Arch(86, 99 * KB, 100 * KB, max_warps_per_sm=48, max_ctas_per_sm=16),  # RTX 30, A10, A40
    Arch(89, 99 * KB, 100 * KB, max_warps_per_sm=48, max_ctas_per_sm=24),  # RTX 40, L4, L40
    Arch(90, 227 * KB, 228 * KB, max_warps_per_sm=64, max_ctas_per_sm=32),  # H100, H200
    # No kernel is written for these: they run the SM80 family from the PTX of sm_90.
    Arch(100, 227 * KB, 228 * KB, max_warps_per_sm=64, max_ctas_per_sm=32, ptx_of=90),  # B200
    Arch(120, 99 * KB, 100 * KB, max_warps_per_sm=48, max_ctas_per_sm=24, ptx_of=90),  # RTX 50
)


def archs_of(archs: Arch | str | int | Iterable[Arch | str | int]) -> list[Arch]:
    """One architecture or several, each as `Arch.of` takes it."""
    if isinstance(archs, Arch | str | int):
        archs = [archs]
    if not isinstance(archs, Iterable):
        raise TypeError(f"archs is {type_name(archs)}: expected architectures, such as 'sm_90'")
    return [Arch.of(arch) for arch in archs]


class Targets(NamedTuple):
    """What nvcc compiles for some architectures: numbers as in sm_90 and compute_90."""

    machine_code: tuple[int, ...]  # ascending
    ptx: int  # 0: none
    suffix: str = ""  # "a": of architecture-specific targets, sm_90a


def targets(archs: Iterable[Arch], suffix: str = "") -> Targets:
    """Machine code for each of `archs` that has its own, and PTX of the newest target.

    With a `suffix` there is no PTX: that of compute_90a runs on sm_90 alone.
    """
    archs = list(archs)
    machine_code = {arch.sm for arch in archs if not arch.ptx_of}
    ptx = 0 if suffix else max(arch.ptx_of or arch.sm for arch in archs)
    return Targets(tuple(sorted(machine_code)), ptx, suffix)
