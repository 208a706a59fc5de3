"""The features that a kernel with a variant is compiled with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyflash.config import Features, KernelConfig
from pyflash.op.options import given, windows_asked


def features_asked(options: Mapping[str, Any], d_head: int, config: KernelConfig) -> Features:
    """What the options of a call may need of a kernel, whatever its lengths are. Raises ValueError
    for an option that no kernel has beside a variant."""
    asked, (left, right) = given(options), windows_asked(options)
    if "alibi_slopes" in asked:
        raise ValueError(
            "pyflash: alibi_slopes came with a variant: expected one of the two, the variant can "
            "add the bias"
        )
    chunks = "attention_chunk" in asked
    return Features(
        right_window=right >= 0 or chunks,
        left_window=left >= 0 or chunks,
        predicated_head_dim=d_head < config.d_head,
        softcap="softcap" in asked,
        sinks="sinks" in asked,
    )
