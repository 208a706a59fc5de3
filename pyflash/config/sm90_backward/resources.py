"""The resource model of the SM90 backward family: what a config takes, before any compiler runs.

Only the consumers' budget of registers is tight: it holds accumulators and operands.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyflash.config.arch import Arch
from pyflash.config.resources import Resources
from pyflash.config.sm90 import MMA_ROWS, WARPGROUP, resources_of
from pyflash.config.sm90_backward.config import FlashBackwardSm90Config

# Registers per consumer thread beside the fragments: descriptors, the tile's coordinates, loop
# counters. What else the loop needs it reads anew. Without spills compiled: 16, where 224 of 240
# are fragments.
BASE = 16


@dataclass(frozen=True, slots=True)
class RegisterDemand:
    """Registers per consumer thread by what they hold."""

    dK: int  # fp32 accumulators
    dV: int
    S: int  # which P takes the place of
    dP: int
    dQ: int
    P: int  # 16-bit A operand of dV
    base: int = BASE

    @property
    def phases(self) -> dict[str, int]:
        """What is alive in each phase of an iteration; dS takes the place of dP, and its operand
        that of P where P has been read."""
        always = self.base + self.dK + self.dV
        return {
            "P of a block beside dQ of the one before": always + self.S + self.dQ,
            "dS beside dV": always + self.S + self.dP + self.P,
        }

    @property
    def peak(self) -> int:
        return max(self.phases.values())


def register_demand(config: FlashBackwardSm90Config) -> RegisterDemand:
    """Elements of a warpgroup's tiles over its threads; two elements of P to a register."""
    of_keys = MMA_ROWS * config.dK_columns // WARPGROUP
    S = MMA_ROWS * config.B_r // WARPGROUP
    dQ = MMA_ROWS * config.dQ_columns // WARPGROUP
    return RegisterDemand(dK=of_keys, dV=of_keys, S=S, dP=S, dQ=dQ, P=S // 2)


def resources(config: FlashBackwardSm90Config, arch: Arch) -> Resources:
    demand = register_demand(config).peak
    return resources_of(config.n_consumers, config.smem_bytes, demand, arch)
