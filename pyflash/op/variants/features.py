"""The features that a kernel with a variant is compiled with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pyflash.config import Features, KernelConfig
from pyflash.config.backward import BackwardFeatures
from pyflash.op.on_demand import static
from pyflash.op.options import given, windows_asked


def features_asked(options: Mapping[str, Any], d_head: int, config: KernelConfig) -> Features:
    """What the options of a call may need of a kernel, whatever its lengths are. Raises ValueError
    for an option that no kernel has beside a variant."""
    asked, (left, right) = _checked(options), windows_asked(options)
    chunks = "attention_chunk" in asked
    return Features(
        right_window=right >= 0 or chunks,
        left_window=left >= 0 or chunks,
        predicated_head_dim=d_head < config.d_head,
        softcap="softcap" in asked,
        sinks="sinks" in asked,
    )


def on_pages(features: Features, gathered: bool) -> Features:
    """Those of a kernel of which k and v lie in pages; gathered: `are_gathered`."""
    return dataclasses.replace(features, paged_kv=True, gathered_kv=gathered)


def are_gathered(k_cache: Tensor, block_table: Tensor) -> bool:
    """Whether rows of pages are loaded one by one: pages that are no boxes of TMA, as
    Pages::are_boxes in cute_kernels/common/kv_source.h. False for shapes that the op refuses."""
    if k_cache.dim() != 4 or block_table.dim() != 2 or block_table.shape[1] <= 1:
        return False
    page_size = static(k_cache.shape[1])
    return not (page_size >= 4 and page_size & (page_size - 1) == 0)


def backward_features_asked(options: Mapping[str, Any], packed: bool) -> BackwardFeatures:
    """`features_asked` of the gradients of a call."""
    asked, (left, right) = _checked(options), windows_asked(options)
    chunks = "attention_chunk" in asked
    return BackwardFeatures(
        right_window=right >= 0 or chunks,
        left_window=left >= 0 or chunks,
        packed=packed,
        softcap="softcap" in asked,
        deterministic="deterministic" in asked,
    )


def _checked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options that are not at their defaults."""
    asked = given(options)
    if "alibi_slopes" in asked:
        raise ValueError(
            "pyflash: alibi_slopes came with a variant: expected one of the two, the variant can "
            "add the bias"
        )
    if "dropout_p" in asked:
        raise ValueError(
            f"pyflash: dropout_p = {asked['dropout_p']} came with a variant: expected one of the "
            "two"
        )
    return asked
