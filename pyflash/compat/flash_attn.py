"""The functions of FlashAttention 2's package `flash_attn`, computed by pyflash.

    from pyflash.compat import flash_attn
    out = flash_attn.flash_attn_func(q, k, v, causal=True)

Arguments may be positional in the order of FlashAttention 2; those of FlashAttention 3 and vLLM
are keyword arguments beside them. Whoever passes more than tensors by position imports
`pyflash.compat.flash_attn_interface`, in the order of FlashAttention 3, or
`pyflash.compat.vllm_flash_attn`. An argument that asks for what pyflash has not raises ValueError.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyflash.compat.functions import cached, metadata, packed, padded
from pyflash.compat.spelling import spelled

_OPTIONS = (
    "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic "
    "return_attn_probs"
)
_LENGTHS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"

flash_attn_func = spelled(padded, "flash_attn_func", f"q k v | {_OPTIONS}", triple=True)
flash_attn_varlen_func = spelled(
    packed, "flash_attn_varlen_func", f"q k v {_LENGTHS} | {_OPTIONS} block_table", triple=True
)
flash_attn_with_kvcache = spelled(
    cached,
    "flash_attn_with_kvcache",
    "q k_cache v_cache | k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad "
    "block_table softmax_scale causal window_size softcap rotary_interleaved alibi_slopes "
    "num_splits return_softmax_lse",
)
get_scheduler_metadata = spelled(
    metadata,
    "get_scheduler_metadata",
    "batch_size max_seqlen_q max_seqlen_k num_heads_q num_heads_kv headdim cache_seqlens | "
    "qkv_dtype headdim_v cu_seqlens_q cu_seqlens_k_new cache_leftpad page_size max_seqlen_k_new "
    "causal window_size has_softcap num_splits pack_gqa sm_margin",
)


def flash_attn_qkvpacked_func(qkv: Tensor, *options: Any, **others: Any) -> Any:
    """`flash_attn_func` of qkv, (batch, seqlen, 3, heads, d_head)."""
    return flash_attn_func(*qkv.unbind(2), *options, **others)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *options: Any, **others: Any) -> Any:
    """`flash_attn_func` of q and kv, (batch, seqlen_k, 2, heads_kv, d_head)."""
    return flash_attn_func(q, *kv.unbind(2), *options, **others)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *options: Any, **others: Any
) -> Any:
    """`flash_attn_varlen_func` of qkv, (total, 3, heads, d_head)."""
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(*qkv.unbind(1), *lengths, *options, **others)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *options: Any,
    **others: Any,
) -> Any:
    """`flash_attn_varlen_func` of q and kv, (total_k, 2, heads_kv, d_head)."""
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return flash_attn_varlen_func(q, *kv.unbind(1), *lengths, *options, **others)


__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]
