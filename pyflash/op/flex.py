"""`flex_attention`, with the signature of PyTorch's FlexAttention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyflash.config.words import shown
from pyflash.op.ops import attention
from pyflash.variant import Bound, Param, Scalar, Variant, bind, trace
from pyflash.variant.expr import constant, index, load, operation

_OPTIONS = ("config", "num_splits", "compile", "backward")


@torch.compiler.disable
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: Any = None,
) -> Any:
    """`torch.nn.attention.flex_attention.flex_attention` by pyflash's kernels: the same arguments
    and results, in eager mode. `score_mod` and the mask of `block_mask` are traced into a variant
    (`pyflash.variant.trace`), once for a function.

    query is (batch, heads, seqlen_q, d_head), key and value are (batch, heads_kv, seqlen_k,
    d_head), float16 or bfloat16; d_head is a multiple of 8 up to 256, that of value too. A pair is
    shown if its block is listed in `block_mask`, and is listed as full or its `mask_mod` shows it.
    Queries and keys are counted from the first: key 0 is at query 0.

    kernel_options: "config" and "num_splits" as `pyflash.attention` takes them; "compile", True by
    default: on a GPU, the kernel is compiled if it is not built; "backward", "reference": gradients
    on a GPU by the formula in PyTorch.

    Returns out, in the order of query's strides; with return_lse (out, lse); with return_aux (out,
    AuxOutput). lse is (batch, heads, seqlen_q), the natural logarithm, without a gradient.

    Raises ValueError and RuntimeError as `pyflash.attention` does, ValueError for a block_mask of
    other extents and for max_scores, which pyflash does not return.
    """
    options = dict(kernel_options or {})
    for name in options:
        if name not in _OPTIONS:
            raise ValueError(
                f"pyflash: kernel_options has {shown(name)}: expected {', '.join(_OPTIONS)}"
            )
    _check(query, key, enable_gqa, return_aux)
    variant = _variant_of(score_mod, block_mask, query, key)
    if scale is not None:
        options["softmax_scale"] = scale
    if variant is not None:
        options["variant"] = variant
    else:
        options.pop("backward", None)  # the kernels have gradients
    inputs = (x.transpose(1, 2) for x in (query, key, value))
    arguments = {"compile": True} | options
    out, lse = attention(*inputs, return_lse=True, **arguments)
    out = _as_strided(out.transpose(1, 2), query)
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        return out, AuxOutput(lse=lse if return_aux.lse else None, max_scores=None)
    return (out, lse) if return_lse else out


def _check(query: Tensor, key: Tensor, enable_gqa: bool, return_aux: Any) -> None:
    for name, x in (("query", query), ("key", key)):
        if x.dim() != 4:
            raise ValueError(
                f"pyflash: {name} has shape {tuple(x.shape)}: expected 4 dimensions, (batch, heads,"
                " seqlen, d_head)"
            )
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(
            f"pyflash: query has {query.shape[1]} heads and key {key.shape[1]}: expected as many, "
            "or enable_gqa=True"
        )
    if return_aux is not None and getattr(return_aux, "max_scores", False):
        raise ValueError("pyflash: return_aux asks for max_scores: expected lse alone")


def _variant_of(
    score_mod: Callable[..., Any] | None, block_mask: Any, query: Tensor, key: Tensor
) -> Bound | None:
    """None: every pair counts, by its score."""
    if score_mod is None and block_mask is None:
        return None
    if block_mask is None:
        return trace(score_mod, None)
    traced = trace(score_mod, block_mask.mask_mod)
    present, full = _blocks_of(block_mask, query, key)
    return _listed(traced, present, full, block_mask.BLOCK_SIZE)


def _blocks_of(block_mask: Any, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Which blocks are listed, and which as full: (batch, heads, blocks of q, blocks of k), bool,
    strides of 0 where all share them."""
    lengths, blocks = (query.shape[2], key.shape[2]), block_mask.BLOCK_SIZE
    partial = _dense(block_mask.kv_num_blocks, block_mask.kv_indices)
    full = torch.zeros_like(partial)
    if block_mask.full_kv_num_blocks is not None:
        full = _dense(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    for axis, name in ((0, "query"), (1, "key")):
        reach = partial.shape[2 + axis] * blocks[axis]
        if reach < lengths[axis] or reach >= lengths[axis] + blocks[axis]:
            raise ValueError(
                f"pyflash: block_mask is for {reach} rows of {name}, {name} has {lengths[axis]}: "
                "expected a mask that was made for these lengths"
            )
    extents = (query.shape[0], query.shape[1])
    for axis, name in ((0, "batches"), (1, "heads")):
        if partial.shape[axis] not in (1, extents[axis]):
            raise ValueError(
                f"pyflash: block_mask has {partial.shape[axis]} {name}: expected 1 or "
                f"{extents[axis]}, as query"
            )
    present = partial | full
    return tuple(x.expand(*extents, -1, -1) for x in (present, full))  # type: ignore[return-value]


def _dense(counts: Tensor, indices: Tensor) -> Tensor:
    """Lists of blocks as bools. Row i has the first counts[i] of its indices."""
    places = torch.arange(indices.shape[-1], device=indices.device)
    listed = places < counts[..., None]
    n_blocks = indices.shape[-1]
    if listed.any():
        n_blocks = max(n_blocks, int(indices[listed].max()) + 1)
    found = torch.zeros(*counts.shape, n_blocks + 1, dtype=torch.bool, device=indices.device)
    # What is not listed goes behind the last.
    found.scatter_(-1, indices.long().masked_fill(~listed, n_blocks), True)
    return found[..., :n_blocks]


def _listed(traced: Bound, present: Tensor, full: Tensor, blocks: tuple[int, int]) -> Bound:
    """The variant that shows a pair if its block is present, and full or shown by the mask."""
    variant = traced.variant
    taken = {param.name for param in variant.params}
    names = [_free(name, taken) for name in ("present", "full")]
    b, h = index("b"), index("h")
    block = [
        operation("//", index(axis), constant(size))
        for axis, size in zip("qk", blocks, strict=True)
    ]
    params = [Param(name, Scalar.BOOL, 4) for name in names]
    listed, whole = (load(param, b, h, *block) for param in params)
    mask = operation("&", listed, operation("|", whole, variant.mask))
    made = Variant(variant.name, (*variant.params, *params), variant.score, mask)
    return bind(made, **traced.values, **dict(zip(names, (present, full), strict=True)))


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _as_strided(out: Tensor, query: Tensor) -> Tensor:
    """`out` in memory as query is, where that is dense."""
    like = torch.empty_like(query)
    return out if like.stride() == out.stride() else like.copy_(out)
