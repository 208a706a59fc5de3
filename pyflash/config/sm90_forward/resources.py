"""The resource model of the SM90 forward family: what a config takes, before any compiler runs.

A CTA starts with the same number of registers in every thread, the most that its size allows, and
`setmaxnreg` moves registers from the producer to the consumers. CTAs with a single consumer are two
to an SM. Only the consumers' budget is tight: it holds accumulators and the softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyflash.config.arch import Arch
from pyflash.config.resources import Resources, occupancy, register_limit
from pyflash.config.sm90_forward.config import WARPGROUP, FlashForwardSm90Config

MIN_REGISTERS = 24  # that setmaxnreg can leave a warp, and what the producer needs
MAX_REGISTERS = 240  # more would be 248, and 255 is the most that an instruction can name
UNIT = 8  # of setmaxnreg

# Registers per consumer thread beside the fragments: softmax state, descriptors, the tile's
# coordinates, loop counters. Without spills compiled: 32, where 128 of 160 are fragments.
BASE = 32


@dataclass(frozen=True, slots=True)
class Budgets:
    """Registers per thread, at most."""

    entry: int  # of every warpgroup when the kernel starts
    producer: int  # after setmaxnreg
    consumer: int


@dataclass(frozen=True, slots=True)
class RegisterDemand:
    """Registers per consumer thread by what they hold."""

    S: int  # fp32 accumulator of Q K^T of the next block
    P: int  # 16-bit A operand of P V of this block
    O: int  # fp32 accumulator of P V  # noqa: E741
    base: int = BASE

    @property
    def phases(self) -> dict[str, int]:
        """What is alive in each phase of an iteration: P is made of S in place, and the next S is
        computed beside P where the config overlaps them, for which all are budgeted."""
        return {
            "Q K^T of the next block beside P V": self.base + self.O + self.S + self.P,
            "softmax": self.base + self.O + self.S,
        }

    @property
    def peak(self) -> int:
        return max(self.phases.values())


def budgets(n_consumers: int, arch: Arch) -> Budgets:
    """How the registers of a CTA are shared out: as many as fit to the consumers, the rest to the
    producer. The same as in cute_kernels/sm90/forward/traits.h."""
    n_warpgroups = 1 + n_consumers
    entry = register_limit(WARPGROUP * n_warpgroups, 2 if n_consumers == 1 else 1, arch)
    pool = entry * n_warpgroups
    consumer = min((pool - MIN_REGISTERS) // n_consumers // UNIT * UNIT, MAX_REGISTERS)
    return Budgets(entry, min(pool - n_consumers * consumer, entry), consumer)


def register_demand(config: FlashForwardSm90Config) -> RegisterDemand:
    """Elements of a warpgroup's tile over its threads; two elements of P to a register."""
    rows = config.B_r // config.n_consumers
    S = rows * config.B_c // WARPGROUP
    return RegisterDemand(S=S, P=S // 2, O=rows * config.d_head // WARPGROUP)


def resources(config: FlashForwardSm90Config, arch: Arch) -> Resources:
    """`registers` is ptxas's figure, with which a CTA starts, and which gives the occupancy;
    `register_demand` and `register_limit` are those of a consumer thread."""
    budget = budgets(config.n_consumers, arch)
    demand = register_demand(config).peak
    at_entry = occupancy(
        budget.entry,
        config.smem_bytes,
        config.n_threads // 32,
        arch,
    )
    return Resources(
        registers=at_entry.registers,
        register_demand=demand,
        register_limit=budget.consumer,
        smem_bytes=config.smem_bytes,
        n_threads=config.n_threads,
        num_ctas_per_sm=at_entry.num_ctas_per_sm,
        limiter=at_entry.limiter,
        spill_predicted=demand > budget.consumer,
    )
