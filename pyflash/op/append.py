"""What writes keys and values into pages (paged.py), and where they go there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pyflash.op.autograd import is_seen_by_nobody
from pyflash.op.autograd.formulas import VMAP, refusal
from pyflash.op.errors import (
    NO_GRADIENTS_OVER_PAGES,
    check_device,
    check_integers,
    check_type,
    check_types,
    dtype_name,
    unexpected,
)
from pyflash.op.fp8 import check_scales, is_fp8, quantised


def append_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Writes rows of k and v into pages, in place.

    k and v are (n, heads_kv, d_head), the caches (num_pages, page_size, heads_kv, d_head), all of
    one dtype. slots is (n,) or shorter, int32 or int64: row i goes to row slots[i] % page_size of
    page slots[i] // page_size. A row whose slot is negative is skipped, as are the rows of k and v
    past the end of slots. Of rows with the same slot any one stays.

    The caches may be float8_e4m3fn, with k_scale and v_scale, float32, () or (heads_kv,): they get
    k / k_scale and v / v_scale, and what exceeds their range as its largest number.

    Raises ValueError for a shape, dtype or device that does not fit; on the CPU for a slot past the
    last page too. On a GPU, where looking would synchronize, its row is skipped.
    """
    if _runs_at_once(k, v, k_cache, v_cache, slots, k_scale, v_scale):
        _append(k, v, k_cache, v_cache, slots)
        return
    check_types({"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "slots": slots}, {})
    check_type("k_scale", k_scale, "tensor or None")
    check_type("v_scale", v_scale, "tensor or None")
    scales = {} if k_scale is None and v_scale is None else {"k_scale": k_scale, "v_scale": v_scale}
    torch.ops.pyflash.append_kv(k, v, k_cache, v_cache, slots, **scales)


# NOTE: a layer in each step of decoding comes here; through the op it takes 4 us longer.
def _runs_at_once(*given: Tensor | None) -> bool:
    """Whether nobody looks at which ops run, and nothing needs gradients or scales."""
    *tensors, k_scale, v_scale = given
    return (
        k_scale is None
        and v_scale is None
        and all(type(x) is Tensor for x in tensors)
        and is_seen_by_nobody(tensors[0])
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
    )


def slots_of(
    block_table: Tensor,
    seqlens_k: Tensor,
    cu_seqlens_q: Tensor,
    page_size: int,
    total_q: int,
) -> Tensor:
    """Where `append_kv` writes the keys of this step: one for each row of packed queries.

    block_table, (batch, max_pages), seqlens_k, (batch,), and cu_seqlens_q, (batch + 1,), as in
    `attention_paged`. Returns (total_q,), int64, on their device, without synchronizing. The
    queries of a sequence are aligned with its last keys, so the slot of query j of sequence b is
    that of key seqlens_k[b] - seqlen_q + j. It is -1 for a row past the end of cu_seqlens_q, and
    where there is no such page.
    """
    tensors = {"block_table": block_table, "seqlens_k": seqlens_k, "cu_seqlens_q": cu_seqlens_q}
    are_tensors = type(block_table) is type(seqlens_k) is type(cu_seqlens_q) is Tensor
    if not (are_tensors and type(page_size) is type(total_q) is int):
        check_types(tensors, {"page_size": page_size, "total_q": total_q})
    if page_size <= 0:
        raise unexpected(f"page_size = {page_size}: expected at least 1")
    if total_q < 0:
        raise unexpected(f"total_q = {total_q}: expected at least 0")
    check_integers(**tensors)
    if not (block_table.device == seqlens_k.device == cu_seqlens_q.device):
        check_device(block_table, "block_table", **tensors)
    if block_table.dim() != 2:
        raise unexpected(
            f"block_table has shape {tuple(block_table.shape)}: expected (batch, max_pages)"
        )
    batch, max_pages = block_table.shape
    for name, x, n in (("seqlens_k", seqlens_k, batch), ("cu_seqlens_q", cu_seqlens_q, batch + 1)):
        if x.shape != (n,):
            raise unexpected(f"{name} has shape {tuple(x.shape)}: expected ({n},)")
    if not torch.compiler.is_compiling():
        slots = torch.ops.pyflash.find_slots(
            block_table, seqlens_k, cu_seqlens_q, page_size, total_q
        )
        if len(slots) == total_q:  # else none: no kernel is there
            return slots
    rows = torch.arange(total_q, device=block_table.device)
    if batch == 0 or max_pages == 0:
        return torch.full_like(rows, -1)
    ends = cu_seqlens_q[1:].long().contiguous()
    found = torch.searchsorted(ends, rows, right=True)
    sequence = found.clamp(max=batch - 1)
    key = seqlens_k.long()[sequence] - ends[sequence] + rows
    entry = key.div(page_size, rounding_mode="floor")
    page = block_table.long()[sequence, entry.clamp(0, max_pages - 1)]
    exists = (found < batch) & (key >= 0) & (entry < max_pages) & (page >= 0)
    return torch.where(exists, page * page_size + key % page_size, -1)


def _append(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """The op. It neither synchronizes on a GPU nor writes anything but the rows of slots."""
    _check_append(k, v, k_cache, v_cache, slots, k_scale=k_scale, v_scale=v_scale)
    torch.autograd.graph.increment_version((k_cache, v_cache))
    if k_scale is not None and v_scale is not None:  # as bytes, which torch can index everywhere
        k, v = (quantised(x, s).view(torch.uint8) for x, s in ((k, k_scale), (v, v_scale)))
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    n, (num_pages, page_size) = slots.shape[0], k_cache.shape[:2]
    n_slots = num_pages * page_size
    if slots.device.type == "cpu":
        for slot in slots[slots >= n_slots].tolist()[:1]:
            raise unexpected(
                f"slots has {slot}: expected numbers below {n_slots}, {num_pages} pages of "
                f"{page_size} rows, or negative ones"
            )
    if n == 0 or n_slots == 0 or torch.ops.pyflash.append_rows(k, v, k_cache, v_cache, slots):
        return
    slots = slots.long()
    # A row to skip is written as the first one that is not, or, if there is none, as what is at
    # slot 0: neither changes anything.
    is_kept = (slots >= 0) & (slots < n_slots)
    first = is_kept.int().argmax().view(1)
    has_kept = is_kept.any()
    target = torch.where(is_kept, slots, torch.where(has_kept, slots[first], 0))
    place = (target // page_size, target % page_size)
    for new, cache in ((k[:n], k_cache), (v[:n], v_cache)):
        other = torch.where(has_kept, new.index_select(0, first), cache[0, :1])
        cache.index_put_(place, torch.where(is_kept[:, None, None], new, other))


@torch.library.register_fake("pyflash::append_rows")
def _append_rows(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> bool:
    return False  # so that torch's ops stand for it


@torch.library.register_fake("pyflash::find_slots")
def _find_slots(
    table: Tensor, lengths: Tensor, starts: Tensor, page_size: int, total_q: int
) -> Tensor:
    return table.new_empty(0, dtype=torch.int64)  # as above


def _check_append(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """What depends on shapes alone.

    NOTE: sentences are made where they are raised: a layer in each step of decoding comes here.
    """
    if k.dim() != 3:
        raise unexpected(f"k has shape {tuple(k.shape)}: expected (n, heads, d_head)")
    if v.shape != k.shape:
        raise unexpected(f"v has shape {tuple(v.shape)}: expected {tuple(k.shape)} as k")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.dim() != 4 or cache.shape[2:] != k.shape[1:]:
            raise unexpected(
                f"{name} has shape {tuple(cache.shape)}: expected (num_pages, page_size, "
                f"{k.shape[1]}, {k.shape[2]})"
            )
    if v_cache.shape != k_cache.shape:
        raise unexpected(
            f"v_cache has {v_cache.shape[0]} pages of {v_cache.shape[1]} rows: expected "
            f"{k_cache.shape[0]} of {k_cache.shape[1]} as k_cache"
        )
    if slots.dtype not in (torch.int32, torch.int64):
        check_integers(slots=slots)
    if slots.dim() != 1 or slots.shape[0] > k.shape[0]:
        raise unexpected(
            f"slots has shape {tuple(slots.shape)}: expected (n,), at most the {k.shape[0]} rows "
            "of k"
        )
    if v.dtype != k.dtype:
        raise unexpected(f"v is {dtype_name(v.dtype)}: expected {dtype_name(k.dtype)} as k")
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        if x.dtype != k.dtype and not (is_fp8(k_cache) and is_fp8(v_cache)):
            raise unexpected(
                f"{name} is {dtype_name(x.dtype)}: expected {dtype_name(k.dtype)} as k"
            )
    if k_scale is not None or v_scale is not None or is_fp8(k_cache):
        check_scales(k_cache, k_scale, v_scale)
    if not (k.device == v.device == k_cache.device == v_cache.device == slots.device):
        check_device(k, "k", v=v, k_cache=k_cache, v_cache=v_cache, slots=slots)


def _require_gradients(given: Iterable[Any]) -> bool:
    return any(
        _require_gradients(x) if isinstance(x, list) else isinstance(x, Tensor) and x.requires_grad
        for x in given
    )


def _refusing_gradients(op: Any) -> Callable[..., Any]:
    """The op's kernel for Autograd: refuses in forward what would need gradients."""

    def kernel(*inputs: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() and _require_gradients((*inputs, *options.values())):
            raise RuntimeError(NO_GRADIENTS_OVER_PAGES)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*inputs, **options)

    return kernel


def _register(library: torch.library.Library) -> None:
    library.define(
        "append_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots, *, "
        "Tensor? k_scale=None, Tensor? v_scale=None) -> ()",
        tags=torch.Tag.pt2_compliant_tag,
    )
    library.impl("append_kv", _append, "CompositeExplicitAutograd")
    torch.library.register_fake("pyflash::append_kv", _check_append, lib=library)
    ops = torch.ops.pyflash
    for name, op in (
        ("fwd_paged", ops.fwd_paged.default),
        ("fwd_paged.out", ops.fwd_paged.out),
        ("fwd_paged_variant", ops.fwd_paged_variant.default),
        ("append_kv", ops.append_kv.default),
    ):
        library.impl(name, _refusing_gradients(op), "Autograd")
        library.impl(name, refusal(VMAP), "FuncTorchBatched")


_library = torch.library.Library("pyflash", "FRAGMENT")
_register(_library)
