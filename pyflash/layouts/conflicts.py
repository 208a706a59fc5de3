"""Bank conflicts of an access: how the 32 banks of shared memory serve the lanes of a warp.

    conflicts(Access.ldmatrix(K, row=0, column=0)).degree     # 8.0 without a swizzle

Shared memory has 32 banks of 4 bytes. Of the lanes of a warp, 32 that access 4 bytes each are
served together, 16 of 8 bytes, 8 of 16; an ldmatrix matrix by matrix, 8 rows of 16 bytes each.
Those served together take a pass, a wavefront, for each different word of the busiest bank. It is
the model of the emulator, which Nsight Compute agrees with:
docs/experiments/2026-11-emulator-and-ncu.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyflash.layouts.algebra import Layout

BANKS = 32
WORD_BYTES = 4
ELEMENT_BYTES = 2
VECTOR_BYTES = 16
MATRIX_ROWS = 8


@dataclass(frozen=True, slots=True)
class Access:
    """Byte addresses of a warp's lanes, in their order, and how many bytes each accesses."""

    addresses: tuple[int, ...]
    width: int  # 4, 8 or 16; less counts as 4

    @classmethod
    def ldmatrix(
        cls,
        layout: Layout,
        row: int = 0,
        column: int = 0,
        n_matrices: int = 4,
        element_bytes: int = ELEMENT_BYTES,
    ) -> Access:
        """The rows of matrices of 8 rows and 16 bytes below each other, from (row, column) on."""
        rows = range(row, row + MATRIX_ROWS * n_matrices)
        return cls(tuple(layout(r, column) * element_bytes for r in rows), VECTOR_BYTES)

    @classmethod
    def of(
        cls,
        partition: Layout,
        value: int = 0,
        width: int = VECTOR_BYTES,
        warp: int = 0,
        element_bytes: int = ELEMENT_BYTES,
    ) -> Access:
        """What the 32 lanes of a warp touch when each accesses `width` bytes from its value number
        `value` on, in a (thread, value) layout of offsets."""
        lanes = range(32 * warp, 32 * warp + 32)
        return cls(tuple(partition(lane, value) * element_bytes for lane in lanes), width)


@dataclass(frozen=True, slots=True)
class Conflicts:
    """The wavefronts of an access, beside those without bank conflicts."""

    wavefronts: int
    ideal: int  # without conflicts

    @property
    def degree(self) -> float:
        """1 without conflicts; how many times as long the access takes."""
        return self.wavefronts / self.ideal

    def __str__(self) -> str:
        kind = "no conflicts" if self.degree == 1 else f"{self.degree:g}-way conflicts"
        return f"{self.wavefronts} wavefronts, {self.ideal} at best: {kind}"


def conflicts(access: Access | Iterable[Access]) -> Conflicts:
    """Counts those of one access, or of several added up. Raises ValueError for an address that is
    not a multiple of the width, which no GPU accesses."""
    accesses = [access] if isinstance(access, Access) else list(access)
    wavefronts = ideal = 0
    for one in accesses:
        for group in _served_together(one):
            wavefronts += _passes(group, max(one.width, WORD_BYTES))
            ideal += 1
    return Conflicts(wavefronts, ideal)


def bank(address: int) -> int:
    """The bank that holds a byte."""
    return address // WORD_BYTES % BANKS


def _served_together(access: Access) -> Iterable[Sequence[int]]:
    if misaligned := [a for a in access.addresses if a % access.width]:
        raise ValueError(f"address {misaligned[0]} is no multiple of {access.width} bytes")
    lanes = BANKS * WORD_BYTES // max(access.width, WORD_BYTES)
    for first in range(0, len(access.addresses), lanes):
        yield access.addresses[first : first + lanes]


def _passes(addresses: Sequence[int], width: int) -> int:
    words = {address // WORD_BYTES + i for address in addresses for i in range(width // WORD_BYTES)}
    per_bank = [0] * BANKS
    for word in words:
        per_bank[word % BANKS] += 1
    return max(per_bank)
