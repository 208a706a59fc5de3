"""The functions of FlashAttention 3's module `flash_attn_interface`, computed by pyflash: those of
`pyflash.compat.flash_attn`, with positional arguments in the order of FlashAttention 3."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyflash.compat.flash_attn import get_scheduler_metadata
from pyflash.compat.functions import cached, packed, padded
from pyflash.compat.spelling import spelled
from pyflash.op.errors import require
from pyflash.op.merge import merge_states

_DESCALES = "q_descale k_descale v_descale"
_OPTIONS = (
    f"softmax_scale causal qv {_DESCALES} window_size attention_chunk softcap num_splits pack_gqa "
    "deterministic sm_margin return_attn_probs"
)

flash_attn_func = spelled(padded, "flash_attn_func", f"q k v | {_OPTIONS}")
flash_attn_varlen_func = spelled(
    packed,
    "flash_attn_varlen_func",
    "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k | seqused_q seqused_k " + _OPTIONS,
)
flash_attn_with_kvcache = spelled(
    cached,
    "flash_attn_with_kvcache",
    "q k_cache v_cache | k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad "
    f"page_table cu_seqlens_q cu_seqlens_k_new max_seqlen_q rotary_seqlens {_DESCALES} "
    "softmax_scale causal window_size attention_chunk softcap rotary_interleaved "
    "scheduler_metadata num_splits pack_gqa sm_margin return_softmax_lse",
)
_of_parts = spelled(
    padded,
    "flash_attn_qkvpacked_func",
    f"q k v | softmax_scale causal {_DESCALES} window_size attention_chunk softcap deterministic",
)


def flash_attn_qkvpacked_func(
    qkv: Tensor, *options: Any, num_heads_q: int | None = None, **others: Any
) -> Any:
    """`flash_attn_func` of qkv, (batch, seqlen, 3, heads, d_head); or, with num_heads_q, (batch,
    seqlen, num_heads_q + 2 * heads_kv, d_head)."""
    if num_heads_q is None:
        return _of_parts(*qkv.unbind(2), *options, **others)
    heads = qkv.shape[2] - num_heads_q
    require(
        qkv.dim() == 4 and heads >= 0 and heads % 2 == 0,
        f"qkv has shape {tuple(qkv.shape)} and num_heads_q is {num_heads_q}: expected (batch, "
        "seqlen, num_heads_q + 2 * heads_kv, d_head)",
    )
    parts = qkv.split([num_heads_q, heads // 2, heads // 2], 2)
    return _of_parts(*parts, *options, **others)


def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Tensor | None = None, out_dtype: Any = None
) -> tuple[Tensor, Tensor]:
    """Attention over all keys, from parts: out_partial is (parts, batch, seqlen, heads, d_head),
    lse_partial (parts, batch, seqlen, heads); both may lack the batch."""
    merged, lse = merge_states(list(zip(out_partial, lse_partial.transpose(-1, -2), strict=True)))
    merged = merged.to(out_dtype) if out is None else out.copy_(merged)
    return merged, lse.transpose(-1, -2)


__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]
