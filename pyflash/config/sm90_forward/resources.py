"""The resource model of the SM90 forward family: what a config takes, before any compiler runs.

CTAs with a single consumer are two to an SM, or three, and one at d_head 256, whose threads keep
the registers that they begin with. Only the consumers' budget is tight: it holds accumulators and
the softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyflash.config.arch import Arch
from pyflash.config.resources import Resources
from pyflash.config.sm90 import RUNS_ON, WARPGROUP, budgets, resources_of
from pyflash.config.sm90_forward.config import FlashForwardSm90Config
from pyflash.config.variant_needs import VariantNeeds

# Registers per consumer thread beside the fragments: softmax state, descriptors, the tile's
# coordinates, loop counters. Without spills compiled: 32, where 128 of 160 are fragments.
BASE = 32

# Those that a variant takes beside all that: whole blocks and their places, unless a thread of four
# consumers finds out anew where its scores are; and what scores by position, bits and tensors of
# pairs keep. With as many left, the way of whole blocks and that of cut ones have no spills.
OF_VARIANT = 8
OF_NEEDS = 8
OF_HEADS = 8  # where a thread's two rows are of two heads


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


def register_demand(config: FlashForwardSm90Config) -> RegisterDemand:
    """Elements of a warpgroup's tile over its threads; two elements of P to a register."""
    rows = config.B_r // config.n_consumers
    S = rows * config.B_c // WARPGROUP
    return RegisterDemand(S=S, P=S // 2, O=rows * config.d_head // WARPGROUP)


def resources(config: FlashForwardSm90Config, arch: Arch) -> Resources:
    demand = register_demand(config).peak
    return resources_of(config.n_consumers, config.smem_bytes, demand, arch, config.ctas_per_sm)


def variant_demand(config: FlashForwardSm90Config, needs: VariantNeeds) -> int:
    """Registers per consumer thread of a kernel with a variant."""
    of_variant = 0 if config.n_consumers == 4 else OF_VARIANT
    of_heads = OF_HEADS if config.pack_gqa else 0
    return register_demand(config).peak + of_variant + of_heads + (OF_NEEDS if needs.words else 0)


def variant_refusal(config: FlashForwardSm90Config, needs: VariantNeeds) -> str | None:
    """Why a config has no room for a variant of such needs; None: it has."""
    budget = budgets(config.n_consumers, Arch.of(RUNS_ON), config.ctas_per_sm).consumer
    demand = variant_demand(config, needs)
    if demand <= budget:
        return None
    kept = f", with {needs.words}," if needs.words else ""
    return (
        f"the variant{kept} takes about {demand} registers of a consumer thread, which has "
        f"{budget} with n_consumers = {config.n_consumers}: use a smaller B_c, or fewer consumers"
    )
