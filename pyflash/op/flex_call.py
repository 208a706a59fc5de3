"""`flex_attention` with a variant: heads first, by `pyflash.attention`."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from pyflash.op.ops import attention
from pyflash.variant import Bound, Node, Param, Scalar, Variant, bind
from pyflash.variant.expr import constant, index, load, operation

# Which blocks are listed, and which as full: (batch, heads, blocks of q, blocks of k), bool, with
# one batch or one head where all share them; and the sizes of a block.
Blocks = tuple[Tensor, Tensor, tuple[int, int]]


def flex_call(
    query: Tensor, key: Tensor, value: Tensor, variant: Bound | None, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """out in the order of query's strides, and lse."""
    inputs = (x.transpose(1, 2) for x in (query, key, value))
    arguments = {"compile": True, "variant": variant} | options
    out, lse = attention(*inputs, return_lse=True, **arguments)
    out = out.transpose(1, 2)
    like = torch.empty_like(query)
    return (out if like.stride() == out.stride() else like.copy_(out)), lse


def listed(traced: Bound, blocks: Blocks | None) -> Bound:
    """The variant that shows a pair if its block is present, and full or shown by the mask."""
    if blocks is None:
        return traced
    present, full, sizes = blocks
    tables = [present, full]
    variant = traced.variant
    # NOTE: kernels make for all batches and heads at once what does not read them.
    has_own = tuple(extent > 1 for extent in present.shape[:2])
    made, names = _with_lists(
        variant.name, variant.params, variant.score, variant.mask, tuple(sizes), has_own
    )
    for axis in (1, 0):
        if not has_own[axis]:
            tables = [table.select(axis, 0) for table in tables]
    return bind(made, **traced.values, **dict(zip(names, tables, strict=True)))


@functools.lru_cache(maxsize=256)
def _with_lists(
    name: str,
    given: tuple[Param, ...],
    score: Node,
    mask: Node,
    sizes: tuple[int, int],
    has_own: tuple[bool, ...],
) -> tuple[Variant, list[str]]:
    """The variant, and the names of its two tables of blocks. has_own: whether each batch has, and
    each head."""
    taken = {param.name for param in given}
    names = [_free(name, taken) for name in ("present", "full")]
    block = [index(axis) for axis, is_own in zip("bh", has_own, strict=True) if is_own]
    block += [
        operation("//", index(axis), constant(size)) for axis, size in zip("qk", sizes, strict=True)
    ]
    params = [Param(name, Scalar.BOOL, len(block)) for name in names]
    shown, whole = (load(param, *block) for param in params)
    mask = operation("&", shown, operation("|", whole, mask))
    return Variant(name, (*given, *params), score, mask), names


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
