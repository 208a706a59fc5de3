"""The traffic of a kernel at one access site."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SharedTraffic:
    """Loads or stores of shared memory at one site, over all CTAs."""

    instructions: int  # of warps
    bytes: int  # of threads
    wavefronts: int  # passes over the 32 banks
    ideal_wavefronts: int  # the same without bank conflicts
    # An instruction's wavefronts over those it would take without conflicts; 1: no conflict.
    min_degree: float
    mean_degree: float
    max_degree: float

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts that conflicts add."""
        return self.wavefronts - self.ideal_wavefronts


@dataclass(frozen=True, slots=True)
class GlobalTraffic:
    """Loads or stores of global memory at one site, over all CTAs."""

    instructions: int  # of warps
    bytes: int  # of threads
    sectors: int  # of 32 bytes, each counted once an instruction
    ideal_sectors: int  # that the bytes would fill


Traffic = SharedTraffic | GlobalTraffic
