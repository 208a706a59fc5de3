"""What FlashAttention's functions compute, by keyword arguments that are all given.

flash_attn.py, flash_attn_interface.py and vllm_flash_attn.py say in which order callers pass them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyflash.compat.arguments import options_of, returned
from pyflash.op.append import append_kv, slots_of
from pyflash.op.errors import require
from pyflash.op.fitted import fitted
from pyflash.op.ops import attention, attention_varlen
from pyflash.op.own_rows import own_rows
from pyflash.op.paged import attention_paged


def padded(q: Tensor, k: Tensor, v: Tensor, triple: bool = False, **shared: Any) -> Any:
    """Attention of q, (batch, seqlen_q, heads, d_head), over k and v, (batch, seqlen_k, heads_kv,
    d_head): `pyflash.attention` under other names. Any d_head up to 256."""
    options = options_of(shared)
    *tensors, options["softmax_scale"] = fitted(q, k, v, options["softmax_scale"])
    out, lse = attention(*tensors, return_lse=True, **options)
    return returned(shared, out[..., : v.shape[-1]], lse, triple)


def packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    cu_seqlens_k: Tensor | None,
    seqused_k: Tensor | None,
    block_table: Tensor | None,
    page_table: Tensor | None,
    scheduler_metadata: Tensor | None,
    triple: bool = False,
    **shared: Any,
) -> Any:
    """Attention of packed sequences: q is (total_q, heads, d_head), k and v are (total_k,
    heads_kv, d_head), or with block_table pages, (num_pages, page_size, heads_kv, d_head).

    seqused_k, (batch,), int32: the keys of each sequence that count, without those past them; over
    pages cu_seqlens_k tells the lengths where it is missing. max_seqlen_k bounds the lengths.
    """
    options = options_of(shared)
    _check_metadata(scheduler_metadata)
    table = _one_table(block_table, page_table)
    require(
        cu_seqlens_k is not None or (table is not None and seqused_k is not None),
        "cu_seqlens_k is None: expected it, or seqused_k with block_table",
    )
    if table is None and seqused_k is None:
        *tensors, options["softmax_scale"] = fitted(q, k, v, options["softmax_scale"])
        lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        out, lse = attention_varlen(*tensors, *lengths, return_lse=True, **options)
        return returned(shared, out[..., : v.shape[-1]], lse, triple)
    if table is None:  # each key is a page
        keys = torch.arange(max_seqlen_k, dtype=torch.int32, device=q.device)
        table = cu_seqlens_k[:-1, None] + keys
        k, v = k[:, None], v[:, None]
    lengths_k = cu_seqlens_k.diff() if seqused_k is None else seqused_k
    out, lse = attention_paged(
        q,
        k,
        v,
        table,
        lengths_k,
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q,
        return_lse=True,
        **options,
    )
    return returned(shared, out, lse, triple)


def cached(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache_seqlens: Tensor | int | None,
    cache_batch_idx: Tensor | None,
    block_table: Tensor | None,
    page_table: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k_new: Tensor | None,
    max_seqlen_q: int | None,
    scheduler_metadata: Tensor | None,
    triple: bool = False,
    **shared: Any,
) -> Any:
    """Attention over a cache: (rows, capacity, heads_kv, d_head), row cache_batch_idx[b], or b, for
    sequence b; or with block_table pages, (num_pages, page_size, heads_kv, d_head).

    With k and v, (batch, seqlen_new, heads_kv, d_head), or packed with cu_seqlens_k_new, these are
    written behind the keys of each sequence first, in place.

    NOTE: cache_seqlens are the lengths before that; in `pyflash.attention_paged` they are those
    after it.

    Raises ValueError on the CPU, before anything is written, where a sequence has no room for its
    new keys. On a GPU, where looking would synchronize, rows without room are not written.
    """
    options = options_of(shared)
    _check_metadata(scheduler_metadata)
    batch = len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    table = _one_table(block_table, page_table)
    require(
        table is None or cache_batch_idx is None,
        "cache_batch_idx and block_table are given: expected one of them",
    )
    if table is None:  # each row of the cache is a page
        table = own_rows(batch, q) if cache_batch_idx is None else cache_batch_idx[:, None]
    lengths = _lengths(cache_seqlens, batch, table.shape[1] * k_cache.shape[1], k, q.device)
    if k is not None or v is not None:
        require(k is not None and v is not None, "only one of k and v is given: expected both")
        lengths = _append(k, v, k_cache, v_cache, table, lengths, cu_seqlens_k_new)
    sizes = {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen_q}
    if cu_seqlens_q is None:
        sizes = {}
    out, lse = attention_paged(
        q, k_cache, v_cache, table, lengths, return_lse=True, **sizes, **options
    )
    return returned(shared, out, lse, triple)


def metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: torch.dtype,
    headdim_v: int | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k_new: Tensor | None,
    page_size: int | None,
    max_seqlen_k_new: int,
    has_softcap: bool,
    **shared: Any,
) -> Tensor:
    """The plan of a step: an empty tensor, int32, on the device of cache_seqlens.

    pyflash plans in each call, from shapes alone, so that a captured graph serves lengths that it
    was not captured for; what is passed as scheduler_metadata has to come from here.
    """
    require(
        headdim_v in (None, headdim),
        f"headdim_v = {headdim_v}: expected {headdim}, as headdim",
    )
    require(
        cache_seqlens.shape == (batch_size,),
        f"cache_seqlens has shape {tuple(cache_seqlens.shape)}: expected ({batch_size},)",
    )
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)


def _check_metadata(scheduler_metadata: Tensor | None) -> None:
    require(
        scheduler_metadata is None or scheduler_metadata.numel() == 0,
        "scheduler_metadata is another library's: expected what get_scheduler_metadata of "
        "pyflash.compat returned, or None",
    )


def _one_table(block_table: Tensor | None, page_table: Tensor | None) -> Tensor | None:
    require(
        block_table is None or page_table is None,
        "block_table and page_table are given: expected one of them, they are the same",
    )
    return page_table if block_table is None else block_table


def _lengths(
    cache_seqlens: Tensor | int | None,
    batch: int,
    capacity: int,
    k: Tensor | None,
    device: torch.device,
) -> Tensor:
    if isinstance(cache_seqlens, Tensor):
        return cache_seqlens
    require(
        cache_seqlens is not None or k is None,
        "cache_seqlens is None and k is given: expected the lengths, behind which k is written",
    )
    length = capacity if cache_seqlens is None else cache_seqlens
    return torch.full((batch,), length, dtype=torch.int32, device=device)


def _append(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    table: Tensor,
    lengths: Tensor,
    cu_seqlens_new: Tensor | None,
) -> Tensor:
    """The lengths after k and v are written."""
    if cu_seqlens_new is None:
        batch, seqlen_new = k.shape[:2]
        cu_seqlens_new = torch.arange(batch + 1, dtype=torch.int32, device=k.device) * seqlen_new
        k, v = k.flatten(0, 1), v.flatten(0, 1)
    after = lengths + cu_seqlens_new.diff()
    slots = slots_of(table, after, cu_seqlens_new, k_cache.shape[1], len(k))
    if slots.device.type == "cpu" and (slots < 0).any():
        row = int((slots < 0).int().argmax())
        b = int((cu_seqlens_new <= row).sum()) - 1
        require(
            row >= int(cu_seqlens_new[-1]),
            f"sequence {b} has {int(lengths[min(b, len(lengths) - 1)])} keys and no room for "
            f"{int(after[min(b, len(after) - 1)])} in {table.shape[1]} pages of "
            f"{k_cache.shape[1]} rows: expected a page for each new key",
        )
    append_kv(k, v, k_cache, v_cache, slots)
    return after
