"""What a variant takes of a kernel, as far as the choice of a config depends on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VariantNeeds:
    """What a thread keeps while it makes scores of a variant, beside these. None of it: of masks
    where a pair is, within the instructions that tell whether it is hidden; of scores nothing."""

    positions: bool = False  # scores depend on where a pair is: distances, columns, rows
    bits: bool = False  # the mask is read as bits, and pair by pair where there are none
    pairs: bool = False  # tensors have an element for each pair

    @property
    def words(self) -> str:
        """What registers are for; "" where there is nothing."""
        named = {
            "scores by position": self.positions,
            "a mask as bits": self.bits,
            "tensors of an element for each pair": self.pairs,
        }
        return " and ".join(words for words, is_needed in named.items() if is_needed)


NO_NEEDS = VariantNeeds()

# Up to so many keys a mask shows a tile of queries few blocks, and smaller tiles are faster:
# docs/experiments/2026-11-variant-instructions.md.
FEW_KEYS = 2048

# Up to so many queries of a sequence, those of all heads that share one of K and V, are one tile of
# the smallest, which reads keys once.
FEW_ROWS = 64
