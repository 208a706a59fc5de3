"""What the families of SM90 have in common: warpgroups with roles, and the registers that they
share out.

A CTA starts with the same number of registers in every thread, the most that its size allows, and
`setmaxnreg` moves registers from the producer to the consumers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyflash.config.arch import Arch
from pyflash.config.resources import Resources, occupancy, register_limit

WARPGROUP = 128  # threads
MMA_ROWS = 64  # of a WGMMA, one per warpgroup
SMEM_ALIGNMENT = 1024  # of a tile under the 128-byte swizzle, and of the whole
PIPELINE_STAGE = 2 * 8  # bytes: an mbarrier for full and one for empty
MOST_SMEM = 227 * 1024  # of a CTA
RUNS_ON = 90  # WGMMA and TMA are in sm_90a alone

MIN_REGISTERS = 24  # that setmaxnreg can leave a warp, and what the producer needs
MAX_REGISTERS = 240  # more would be 248, and 255 is the most that an instruction can name
UNIT = 8  # of setmaxnreg


@dataclass(frozen=True, slots=True)
class Budgets:
    """Registers per thread, at most."""

    entry: int  # of every warpgroup when the kernel starts
    producer: int  # after setmaxnreg
    consumer: int


def budgets(n_consumers: int, arch: Arch, ctas_per_sm: int = 1) -> Budgets:
    """How the registers of a CTA are shared out: as many as fit to the consumers, the rest to the
    producer. The same as in the traits.h of the families, but for kernels that gather rows of K and
    V, whose producer has 8 or 16 more."""
    n_warpgroups = 1 + n_consumers
    entry = register_limit(WARPGROUP * n_warpgroups, ctas_per_sm, arch)
    pool = entry * n_warpgroups
    consumer = min((pool - MIN_REGISTERS) // n_consumers // UNIT * UNIT, MAX_REGISTERS)
    return Budgets(entry, min(pool - n_consumers * consumer, entry), consumer)


def resources_of(
    n_consumers: int, smem_bytes: int, demand: int, arch: Arch, ctas_per_sm: int = 1
) -> Resources:
    """`registers` is ptxas's figure, with which a CTA starts, and which gives the occupancy;
    `register_demand`, which is `demand`, and `register_limit` are those of a consumer thread."""
    budget = budgets(n_consumers, arch, ctas_per_sm)
    n_threads = WARPGROUP * (1 + n_consumers)
    at_entry = occupancy(budget.entry, smem_bytes, n_threads // 32, arch)
    return Resources(
        registers=at_entry.registers,
        register_demand=demand,
        register_limit=budget.consumer,
        smem_bytes=smem_bytes,
        n_threads=n_threads,
        num_ctas_per_sm=at_entry.num_ctas_per_sm,
        limiter=at_entry.limiter,
        spill_predicted=demand > budget.consumer,
    )


def tell_spills(
    n_consumers: int, demand: int, arch: Arch, advice: str, ctas_per_sm: int = 1
) -> Iterator[str]:
    """demand: registers of a consumer thread."""
    budget = budgets(n_consumers, arch, ctas_per_sm).consumer
    if demand > budget:
        yield (
            f"about {demand} registers of a consumer thread are wanted, and {budget} can be had "
            f"with n_consumers = {n_consumers}, so some will spill: {advice}"
        )


def whole_smem(n_bytes: int) -> int:
    """Bytes of shared memory, rounded up to what a CTA takes."""
    return -(-n_bytes // SMEM_ALIGNMENT) * SMEM_ALIGNMENT


def refuse_other_architectures(arch: Arch, instead: str) -> Iterator[str]:
    if arch.sm != RUNS_ON:
        yield (
            f"warpgroup MMAs are instructions of sm_90a, which {arch} does not run: use {instead}"
        )
