"""The masks of transformers: what a model's mask function asks for, as a tensor that it can carry.

A mask is one for `padding.py`, (batch, n), expanded to (batch, n, w + 2, c + 1) in int8, or int32
where it numbers sequences; n = 0 without padding. w is the sliding window, 0 for none, and c is 1
if it is causal: what a layer passes on may say less, or something else. They are sizes because
these can be read without waiting for a GPU and in a compiled graph; a mask of 4 dimensions is one
that transformers does not make another one of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_OTHER_MASK = (
    "pyflash: this model adds a mask of its own to the causal one: expected causal or "
    "bidirectional attention, sliding windows, padding and packed sequences only; "
    "attn_implementation='sdpa' takes other masks"
)


class Pattern(NamedTuple):
    """A mask of positions, apart from padding. A window counts the query itself, and is two-sided
    unless causal."""

    causal: bool
    sliding_window: int | None


def pattern_of(mask: Tensor) -> Pattern | None:
    """The pattern in what `make_mask` returned; None for other masks."""
    if mask.dim() != 4 or mask.dtype not in (torch.int8, torch.int32):
        return None
    return Pattern(causal=mask.shape[3] == 2, sliding_window=mask.shape[2] - 2 or None)


def _with_pattern(
    mask: Tensor | None, pattern: Pattern, batch_size: int, device: torch.device | str | None
) -> Tensor:
    if mask is None:
        mask = torch.empty(batch_size, 0, dtype=torch.bool, device=device)
    if mask.dtype == torch.bool:
        mask = mask.view(torch.int8)
    if not torch.compiler.is_compiling() and mask.is_inference():
        # An own one, whose version tells layers whether it was written to: packing.py.
        with torch.inference_mode(False):
            mask = mask.clone()
    sizes = ((pattern.sliding_window or 0) + 2, 2 if pattern.causal else 1)
    return mask[:, :, None, None].expand(-1, -1, *sizes)


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor] | None = None,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    use_vmap: bool = False,
    device: torch.device | str | None = None,
    local_size: int | None = None,
    **kwargs: Any,
) -> Tensor:
    """The mask for the layers of a forward pass, as the head of this file says. For causal
    attention its last column is the last query's; keys past it are slots of a static cache that are
    not filled yet.

    Query i is at position q_offset + i, key j at kv_offset + j. `attention_mask`, 2-D, covers the
    positions so far. mask_function(batch, head, query, key) says which positions attend which;
    local_size is its window.
    """
    if use_vmap:
        raise ValueError(_OTHER_MASK)
    bidirectional = "allow_is_bidirectional_skip" in kwargs
    if bidirectional:
        mask = None if attention_mask is None else attention_mask[:, -kv_length:]
        # NOTE: this window, alone, does not count the query.
        window = None if local_size is None else local_size + 1
    else:
        mask = _causal_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            mask_function,
            attention_mask,
            allow_is_causal_skip,
            device,
        )
        window = local_size
    if window is not None and kv_length <= window:
        window = None
    return _with_pattern(mask, Pattern(not bidirectional, window), batch_size, device)


def _causal_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor,
    kv_offset: int,
    mask_function: Callable[..., Tensor] | None,
    attention_mask: Tensor | None,
    allow_is_causal_skip: bool,
    device: torch.device | str | None,
) -> Tensor | None:
    if not allow_is_causal_skip and q_length > 1:
        numbers = _sequence_numbers(batch_size, q_length, q_offset, mask_function, device)
        if numbers is not None:
            if q_length != kv_length:
                raise ValueError(_OTHER_MASK)
            return numbers if attention_mask is None else numbers * attention_mask[:, -kv_length:]
    aligned = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    if attention_mask is None and aligned:
        return None
    so_far = _positions_so_far if isinstance(q_offset, int) else _positions_on_the_host
    return so_far(batch_size, q_length, kv_length, q_offset, kv_offset, attention_mask, device)


def _positions_so_far(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor,
    kv_offset: int,
    attention_mask: Tensor | None,
    device: torch.device | str | None,
) -> Tensor | None:
    end = int(q_offset) + q_length
    filled = end - kv_offset
    if filled > kv_length:
        raise ValueError(
            f"pyflash: the last query is at position {end - 1} and the last key at "
            f"{kv_offset + kv_length - 1}: expected a key for each query"
        )
    if attention_mask is None:
        if filled == kv_length:
            return None
        return torch.ones(batch_size, filled, dtype=torch.bool, device=device)
    if attention_mask.shape[1] < end:
        raise ValueError(
            f"pyflash: attention_mask has {attention_mask.shape[1]} columns: expected {end}, one "
            "for each token so far, those in the cache too"
        )
    return attention_mask[:, kv_offset:end]


# Where q_offset is a static cache's length, a tensor.
_positions_on_the_host = torch.compiler.disable(_positions_so_far)


@torch.compiler.disable  # reads the result of mask_function on the host
def _sequence_numbers(
    batch_size: int,
    q_length: int,
    q_offset: int | Tensor,
    mask_function: Callable[..., Tensor],
    device: torch.device | str | None,
) -> Tensor | None:
    """The number of each query's sequence, (batch, q_length), int32, from 1; None if there is one
    only. A sequence starts where a query does not attend the key before its own."""
    batch = torch.arange(batch_size, device=device)[:, None]
    head = torch.zeros((), dtype=torch.int64, device=device)
    place = int(q_offset) + torch.arange(1, q_length, device=device)[None]
    if mask_function(batch, head, place - 1, place).any():
        raise ValueError(_OTHER_MASK)
    starts = ~mask_function(batch, head, place, place - 1).expand(batch_size, -1)
    if not starts.any():
        return None
    return nn.functional.pad(starts, (1, 0)).cumsum(1, dtype=torch.int32) + 1
