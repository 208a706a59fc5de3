"""`flex_attention`, with the signature of PyTorch's FlexAttention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from pyflash.config.words import shown
from pyflash.op.flex_call import Blocks, flex_call, listed
from pyflash.variant import Bound, Node, trace
from pyflash.variant.walk import postorder

_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
_OPTIONS = ("config", "num_splits", "compile", "backward", "deterministic")


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
    and results. `score_mod` and the mask of `block_mask` are traced into a variant
    (`pyflash.variant.trace`), once for a function; inside `torch.compile`, with the model.

    query is (batch, heads, seqlen_q, d_head), key and value are (batch, heads_kv, seqlen_k,
    d_head), float16 or bfloat16; d_head is a multiple of 8 up to 256, that of value too. A pair is
    shown if its block is listed in `block_mask`, and is listed as full or its `mask_mod` shows it.
    Queries and keys are counted from the first: key 0 is at query 0. What `mask_mod` captures must
    stay as it is while `block_mask` is used, but for writes that PyTorch counts
    (docs/guides/kept-masks.md).

    kernel_options: "config", "num_splits" and "deterministic" as `pyflash.attention` takes them;
    "compile", True by default: on a GPU, the kernel is compiled if it is not built; "backward",
    "reference": gradients on a GPU by the formula in PyTorch.

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
    if scale is not None:
        options["softmax_scale"] = scale
    mask_mod = None if block_mask is None else block_mask.mask_mod
    if score_mod is None and block_mask is None:
        options.pop("backward", None)  # the kernels have gradients
        out, lse = flex_call(query, key, value, None, options)
    elif torch.compiler.is_dynamo_compiling():
        blocks = None if block_mask is None else _blocks_of(block_mask, query, key)
        out, lse = _in_graph(query, key, value, score_mod, mask_mod, blocks, options)
    else:
        variant = trace(score_mod, mask_mod)
        if block_mask is not None:
            variant = _listed_by(block_mask, variant, query, key)
        out, lse = flex_call(query, key, value, variant, options)
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


def _in_graph(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    blocks: Blocks | None,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """What torch.compile traces in place of a function's trace: the functions with the model."""
    from pyflash.op.flex_graph import flex_in_graph

    score_mod = _same if score_mod is None else score_mod
    lists: tuple[Any, ...] = (None, None, None) if blocks is None else blocks
    return flex_in_graph(query, key, value, score_mod, (*lists, mask_mod), 0.0, options)


def _same(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score


@dataclass(frozen=True)
class _Listed:
    """A variant with the lists of a block mask, and what both were made of."""

    lists: tuple[Tensor | None, ...]  # of the block mask
    state: tuple[Any, ...]
    blocks: Blocks
    traced: Bound
    variant: Bound


_LISTED: MutableMapping[Any, _Listed] = WeakIdKeyDictionary()


def _listed_by(block_mask: Any, traced: Bound, query: Tensor, key: Tensor) -> Bound:
    """`listed` with the blocks of a mask, made once for each mask as long as its lists stay."""
    lists = tuple(getattr(block_mask, name) for name in _LISTS)
    # NOTE: in a graph that a stream captures they are made again, when it runs.
    if any(type(x) is not Tensor or x.is_inference() for x in lists if x is not None) or (
        query.is_cuda and torch.cuda.is_current_stream_capturing()
    ):
        return listed(traced, _blocks_of(block_mask, query, key))
    state = (
        [None if x is None else x._version for x in lists],
        query.shape[:3],
        key.shape[2],
        block_mask.BLOCK_SIZE,
        block_mask.seq_lengths,
        torch.cuda.current_stream(query.device).cuda_stream if query.is_cuda else None,
    )
    found = _LISTED.get(block_mask)
    is_same = found is not None and all(a is b for a, b in zip(found.lists, lists, strict=True))
    if found is None or not is_same or found.state != state:
        blocks = _blocks_of(block_mask, query, key)
    elif found.traced is traced:
        return found.variant
    else:
        blocks = found.blocks
    variant = listed(traced, blocks)
    if not _reads_tensors(traced.variant.score):
        variant = variant.frozen()
    _LISTED[block_mask] = _Listed(lists, state, blocks, traced, variant)
    return variant


def _reads_tensors(score: Node) -> bool:
    """NOTE: who makes a block mask promises nothing of what a score function captures."""
    return any(node.op == "load" and node.data.rank is not None for node in postorder(score))


def _blocks_of(block_mask: Any, query: Tensor, key: Tensor) -> Blocks:
    lengths, sizes = (query.shape[2], key.shape[2]), block_mask.BLOCK_SIZE
    for axis, name in ((0, "query"), (1, "key")):
        reach = block_mask.seq_lengths[axis]
        blocks = (reach + sizes[axis] - 1) // sizes[axis]
        if blocks != (lengths[axis] + sizes[axis] - 1) // sizes[axis]:
            raise ValueError(
                f"pyflash: block_mask is for {reach} rows of {name}, {name} has {lengths[axis]}: "
                "expected a mask that was made for these lengths"
            )
    n_blocks = (lengths[1] + sizes[1] - 1) // sizes[1]
    partial = _dense(block_mask.kv_num_blocks, block_mask.kv_indices, n_blocks)
    full = torch.zeros_like(partial)
    if block_mask.full_kv_num_blocks is not None:
        full = _dense(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, n_blocks)
    extents = (query.shape[0], query.shape[1])
    for axis, name in ((0, "batches"), (1, "heads")):
        if partial.shape[axis] not in (1, extents[axis]):
            raise ValueError(
                f"pyflash: block_mask has {partial.shape[axis]} {name}: expected 1 or "
                f"{extents[axis]}, as query"
            )
    return partial | full, full, sizes


def _dense(counts: Tensor, indices: Tensor, n_blocks: int) -> Tensor:
    """Lists of blocks as bools. Row i has the first counts[i] of its indices."""
    places = torch.arange(indices.shape[-1], device=indices.device)
    listed = (places < counts[..., None]) & (indices < n_blocks)
    found = torch.zeros(*counts.shape, n_blocks + 1, dtype=torch.bool, device=indices.device)
    # What is not listed goes behind the last.
    found = found.scatter(-1, torch.where(listed, indices, n_blocks).long(), True)
    return found[..., :n_blocks]
