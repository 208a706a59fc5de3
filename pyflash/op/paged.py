"""Attention over keys and values in pages, or in rows of a cache.

A cache is (num_pages, page_size, heads_kv, d_head). Row b of a block table has the numbers of the
pages of sequence b, in order: key j is row j % page_size of page block_table[b, j // page_size].
append.py writes pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from pyflash.op.arguments import arguments_of
from pyflash.op.autograd import call_op
from pyflash.op.errors import check_type, check_types, require
from pyflash.op.fp8 import check_scales, is_fp8
from pyflash.op.invariant import invariant_arguments
from pyflash.op.options import AttentionOptions, shows_options
from pyflash.op.own_rows import own_rows
from pyflash.op.schedule import Schedule, scheduled_arguments
from pyflash.op.variants.call import paged_with_variant, refuse_values
from pyflash.variant import Bound, Variant

if TYPE_CHECKING:
    from typing_extensions import Unpack


class PagedOptions(AttentionOptions, total=False):
    """The keyword arguments of `attention_paged` and `attention_cached`, but for return_lse."""

    cu_seqlens_q: Tensor | None
    max_seqlen_q: int | None
    schedule: Schedule | None
    out: Tensor | None
    batch_invariant: bool
    k_scale: Tensor | None
    v_scale: Tensor | None
    variant: Variant | Bound | str | None
    tensors: Mapping[str, Any] | None
    compile: bool


# The types of the devices that it runs on.
DEVICES = ("cpu", "cuda")


@overload
def attention_paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seqlens_k: Tensor,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[PagedOptions],
) -> Tensor: ...
@overload
def attention_paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seqlens_k: Tensor,
    *,
    return_lse: Literal[True],
    **options: Unpack[PagedOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention_paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seqlens_k: Tensor,
    *,
    return_lse: bool,
    **options: Unpack[PagedOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
@shows_options
def attention_paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seqlens_k: Tensor,
    *,
    cu_seqlens_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    schedule: Schedule | None = None,
    out: Tensor | None = None,
    batch_invariant: bool = False,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    variant: Variant | Bound | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    compile: bool = False,
    return_lse: bool = False,
    **options: Unpack[AttentionOptions],
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention` over keys and values in pages.

    q is (batch, seqlen_q, heads, d_head); or (total_q, heads, d_head), packed, with cu_seqlens_q,
    (batch + 1), int32, and max_seqlen_q, an upper bound of the lengths, as in `attention_varlen`.
    k_cache and v_cache are (num_pages, page_size, heads_kv, d_head), with any page_size from 1 on.
    The last dimension must be contiguous; other strides are multiples of 16 bytes, so that parts of
    one cache and transposed ones need no copy. block_table is (batch, max_pages), int32, with
    contiguous rows. seqlens_k is (batch,), int32: the keys of each sequence, those of this step
    included; the last query is aligned with the last of them. A length may be 0.

    Rows of pages past seqlens_k, and keys that a mask hides from all queries of a sequence, may
    hold anything, NaN too, as may the entries of block_table for pages of these alone: they have no
    effect.

    On a GPU, lengths and tables are read there alone: a CUDA graph serves any lengths that the
    table has room for. On a Hopper TMA loads pages of a power of two of rows from 4 on, and rows of
    others are gathered.

    {options}

    Returns out, as q, contiguous; with `return_lse` also lse, (batch, heads, seqlen_q) or, packed,
    (heads, total_q), float32. There are no gradients. out: a contiguous tensor of q's shape and
    dtype, which is written and returned. batch_invariant: as for `attention`.

    schedule: what `pyflash.schedule` made of these lengths, once for all calls that share them; not
    with batch_invariant. The CPU has no use for it.

    The caches may be float8_e4m3fn, with k_scale and v_scale, float32, () or (heads_kv,), by which
    their elements count; d_head is a multiple of 16 then. batch_invariant takes them on the CPU
    alone.

    variant, tensors: those of `attention`; query i of a sequence is number i, and the key that it
    is aligned with is q + k_len - q_len. compile: on a GPU the variant's kernel is compiled if it
    is not built, as in `attention`. Keys that the variant hides from some queries, but not from all
    of a tile, are read and must be finite. Not with out, schedule, num_splits = -1,
    batch_invariant, or caches in float8_e4m3fn.

    Raises what `attention` raises, and on the CPU ValueError for a length that max_pages pages do
    not hold and for the number of a page that is read and does not exist. On a GPU, where looking
    would synchronize, lengths are clamped, and keys and values of such a page are zeros.
    """
    arguments = arguments_of("attention_paged", options)
    of_caches = type(k_cache) is type(v_cache) is type(block_table) is Tensor
    if not (of_caches and type(q) is type(seqlens_k) is Tensor):
        tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "block_table": block_table}
        check_types({**tensors, "seqlens_k": seqlens_k}, {})
    if cu_seqlens_q is not None:
        check_type("cu_seqlens_q", cu_seqlens_q, "tensor or None")
    if out is not None:
        check_type("out", out, "tensor or None")
    if max_seqlen_q is not None:
        check_type("max_seqlen_q", max_seqlen_q, "int")
    require(
        schedule is None or batch_invariant is False,
        "schedule came with batch_invariant: expected one of them, because shares of the keys "
        "follow from the lengths of a batch",
    )
    if variant is not None:
        _refuse_beside_variant(schedule=schedule, out=out, k_scale=k_scale, v_scale=v_scale)
        invariant_arguments(batch_invariant, arguments, q, k_cache, variant=variant)
        out, lse = paged_with_variant(
            (q, k_cache, v_cache),
            (block_table, seqlens_k),
            (cu_seqlens_q, max_seqlen_q),
            variant,
            tensors,
            arguments,
            compile,
        )
        return (out, lse) if return_lse else out
    if tensors is not None or compile is not False:
        refuse_values(tensors, "")
        raise ValueError(
            "pyflash: compile came without variant: expected both, since `pyflash build` builds "
            "the kernels over pages"
        )
    arguments = invariant_arguments(batch_invariant, arguments, q, k_cache, max_seqlen_q)
    work, arguments = scheduled_arguments(schedule, arguments, q)
    others = (block_table, seqlens_k, cu_seqlens_q, max_seqlen_q, k_scale, v_scale, work)
    if k_scale is not None or v_scale is not None or is_fp8(k_cache):
        check_type("k_scale", k_scale, "tensor or None")
        check_type("v_scale", v_scale, "tensor or None")
        require(
            k_cache.dim() == 4, f"k_cache has shape {tuple(k_cache.shape)}: expected 4 dimensions"
        )
        check_scales(k_cache, k_scale, v_scale)
        require(
            not batch_invariant or q.device.type != "cuda",
            "batch_invariant came with caches of float8_e4m3fn: expected float16 or bfloat16 on a "
            "GPU, where the warps of a tile share keys by how many rows it has",
        )
    if out is None:
        out, lse = call_op(
            torch.ops.pyflash.fwd_paged.default, q, k_cache, v_cache, others, arguments
        )
    else:
        *batch, seqlen_q, heads, _ = q.shape
        lse = q.new_empty((*batch, heads, seqlen_q), dtype=torch.float32)
        arguments = {**arguments, "out": out, "lse": lse}
        call_op(torch.ops.pyflash.fwd_paged.out, q, k_cache, v_cache, others, arguments)
        if not torch.compiler.is_compiling():
            torch.autograd.graph.increment_version(out)
    return (out, lse) if return_lse else out


def _refuse_beside_variant(**others: Any) -> None:
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"pyflash: {name} came with a variant: expected one of them")


@overload
def attention_cached(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seqlens_k: Tensor,
    cache_rows: Tensor | None = None,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[PagedOptions],
) -> Tensor: ...
@overload
def attention_cached(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seqlens_k: Tensor,
    cache_rows: Tensor | None = None,
    *,
    return_lse: Literal[True],
    **options: Unpack[PagedOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention_cached(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seqlens_k: Tensor,
    cache_rows: Tensor | None = None,
    *,
    return_lse: bool,
    **options: Unpack[PagedOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
def attention_cached(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seqlens_k: Tensor,
    cache_rows: Tensor | None = None,
    **others: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention_paged` over a contiguous cache: each of its rows is a page, and each sequence has
    one.

    k_cache and v_cache are (rows, capacity, heads_kv, d_head). Sequence b has the first
    seqlens_k[b] keys of row cache_rows[b], or of row b; cache_rows is (batch,), int32. What lies
    past them may hold anything. The other arguments, results and errors are those of
    `attention_paged`.
    """
    if type(seqlens_k) is not Tensor:
        check_type("seqlens_k", seqlens_k, "tensor")
    n = seqlens_k.numel()
    if cache_rows is not None:
        check_type("cache_rows", cache_rows, "tensor or None")
        shape = tuple(cache_rows.shape)
        require(shape == (n,), f"cache_rows has shape {shape}: expected ({n},), as seqlens_k")
        table = cache_rows.unsqueeze(-1)
    else:
        table = own_rows(n, seqlens_k)
    return attention_paged(q, k_cache, v_cache, table, seqlens_k, **others)
