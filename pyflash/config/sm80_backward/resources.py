"""The resource model of the SM80 backward family: what a config takes, before any compiler runs.

Registers are counted as fragments, as in the forward family.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyflash.config.arch import Arch
from pyflash.config.resources import Resources, occupancy
from pyflash.config.sm80_backward.config import QUERIES_DQ, SLAB, FlashBackwardKernelConfig

# Registers per thread beside the fragments: addresses, the tile's coordinates, loop counters.
BASE = 54
NEAR_LIMIT = 4  # with fewer left below the limit, ptxas spills


@dataclass(frozen=True, slots=True)
class RegisterDemand:
    """Registers per thread by what they hold, without the limit of 255."""

    dK: int  # fp32 accumulators
    dV: int
    S: int  # which P takes the place of
    dP: int
    dQ: int
    operands: int  # 16-bit ones of one step
    base: int = BASE

    @property
    def phases(self) -> dict[str, int]:
        """What is alive in each phase of an iteration; P and dS, in 16 bits, take the place of what
        they are made of."""
        always = self.base + self.dK + self.dV
        return {
            "V dO^T": always + self.S + self.dP + self.operands,
            "dS K": always + self.dQ + self.operands,
        }

    @property
    def peak(self) -> int:
        return max(self.phases.values())


def register_demand(config: FlashBackwardKernelConfig) -> RegisterDemand:
    """Elements of a warp's tiles over its lanes."""
    of_keys = config.warp_keys * config.d_head // config.companions // 32
    S = config.warp_keys * config.B_r // config.companions // 32
    slab = SLAB if config.columns_dQ % (2 * SLAB) or config.d_head % (2 * SLAB) else 2 * SLAB
    dQ = QUERIES_DQ * slab // 32
    return RegisterDemand(dK=of_keys, dV=of_keys, S=S, dP=S, dQ=dQ, operands=12)


def resources(config: FlashBackwardKernelConfig, arch: Arch) -> Resources:
    """Occupancy from the modelled registers."""
    return occupancy(
        register_demand(config).peak,
        config.smem_bytes,
        config.n_warps,
        arch,
        spill_margin=NEAR_LIMIT,
    )
