"""Occupancy: the resources of a CTA, and how many CTAs share a multiprocessor.

The arithmetic is that of the CUDA Occupancy Calculator; how many registers and bytes a CTA takes is
what each family models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pyflash.config.arch import Arch


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one CTA, and how many CTAs share an SM, by the model."""

    registers: int  # per thread, at most 255
    register_demand: int  # per thread, without that limit
    register_limit: int  # per thread, for num_ctas_per_sm CTAs to fit
    smem_bytes: int
    n_threads: int
    num_ctas_per_sm: int  # 0: not even one fits
    limiter: str  # of num_ctas_per_sm: "smem", "registers", "warps" or "ctas"
    spill_predicted: bool

    @property
    def sentence(self) -> str:
        """What limits the CTAs of an SM, and whether a spill is predicted."""
        ctas = f"{self.num_ctas_per_sm} CTA{'s' * (self.num_ctas_per_sm != 1)} per SM"
        spills = ", and the compiler will spill registers" if self.spill_predicted else ""
        return f"{_LIMITERS[self.limiter]} limit it to {ctas}{spills}, by the model."


_LIMITERS = {
    "smem": "The bytes of shared memory",
    "registers": "Registers",
    "warps": "Warps",
    "ctas": "The CTAs that the scheduler holds",
}


class RegisterDemand(Protocol):
    """Registers per thread by what they hold: a dataclass of each family's own."""

    @property
    def phases(self) -> dict[str, int]:
        """What is alive in each phase of an iteration."""

    @property
    def peak(self) -> int:
        """The largest of the phases."""


def refuse_over_register_file(
    config: Any, resources: Callable[[Any, Arch], Resources], arch: Arch
) -> Iterator[str]:
    """The violations of a kernel whose registers follow from the model."""
    most = allocated_registers(arch.max_registers_per_thread, arch)
    if most * config.n_threads <= arch.registers_per_sm:
        return
    registers = allocated_registers(resources(config, arch).registers, arch)
    if registers * config.n_threads > arch.registers_per_sm:
        yield (
            f"{config.n_threads} threads of about {registers} registers need "
            f"{registers * config.n_threads}, more than the {arch.registers_per_sm} of an SM: "
            f"use fewer warps, or a smaller B_r or B_c"
        )


def tell_spills(r: Resources, advice: str) -> Iterator[str]:
    if r.spill_predicted:
        yield (
            f"about {r.register_demand} registers a thread are wanted, and {r.register_limit} can "
            f"be had with {r.num_ctas_per_sm} CTAs per SM, so some will spill: {advice}"
        )


def occupancy(
    register_demand: int, smem_bytes: int, n_warps: int, arch: Arch, spill_margin: int = 0
) -> Resources:
    """The resources of a CTA of `n_warps` warps whose threads want `register_demand` registers.

    A spill is predicted where fewer than `spill_margin` registers are left below the limit.
    """
    registers = min(register_demand, arch.max_registers_per_thread)
    granularity = arch.warp_allocation_granularity
    warps_in_register_file = arch.registers_per_sm // (32 * allocated_registers(registers, arch))
    ctas = {
        "smem": arch.smem_per_sm // (smem_bytes + arch.smem_reserved_per_cta),
        "registers": warps_in_register_file // granularity * granularity // n_warps,
        "warps": arch.max_warps_per_sm // n_warps,
        "ctas": arch.max_ctas_per_sm,
    }
    limiter = min(ctas, key=ctas.__getitem__)
    n_threads = 32 * n_warps
    limit = register_limit(n_threads, ctas[limiter], arch)
    return Resources(
        registers=registers,
        register_demand=register_demand,
        register_limit=limit,
        smem_bytes=smem_bytes,
        n_threads=n_threads,
        num_ctas_per_sm=ctas[limiter],
        limiter=limiter,
        spill_predicted=register_demand + spill_margin > limit,
    )


def allocated_registers(registers: int, arch: Arch) -> int:
    """Registers per thread as the hardware allocates them: in whole units to a warp of 32."""
    unit = arch.register_allocation_unit // 32
    return -(-registers // unit) * unit


def register_limit(n_threads: int, num_ctas_per_sm: int, arch: Arch) -> int:
    """The most registers a thread may take for that many CTAs (at least one) to share an SM."""
    unit = arch.register_allocation_unit // 32
    share = arch.registers_per_sm // (n_threads * max(num_ctas_per_sm, 1)) // unit * unit
    return min(share, arch.max_registers_per_thread)
