"""What a variant needs of a forward kernel."""

from __future__ import annotations

import functools

from pyflash.config.variant_needs import VariantNeeds
from pyflash.variant.cpp import stages_of
from pyflash.variant.value import Variant
from pyflash.variant.walk import postorder


@functools.lru_cache(maxsize=1024)
def needs_of(variant: Variant) -> VariantNeeds:
    """By its normal form, as C++ is emitted of it."""
    of_score = postorder(variant.normal.score)
    stages = stages_of(variant)
    return VariantNeeds(
        positions=any(node.op == "index" and node.data in ("q", "k") for node in of_score),
        bits=stages.mask_is_dear,
        pairs=bool(stages.streams),
    )
