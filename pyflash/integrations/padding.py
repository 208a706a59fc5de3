"""Attention of padded batches: packs the tokens and calls `attention_varlen`. The keys of a cache
stay where they are, and while torch.compile traces all tokens do, and their places on the device.

A mask is (batch, seqlen_k), or that expanded in more dimensions; 0 or False is padding. int32 and
int64 number the sequences of a row; tokens attend their own sequence only.

Layers of a forward pass behind the first repeat its call of the op, where they may.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyflash.integrations.packing import (
    Packing,
    Repeated,
    is_numbered,
    known_of,
    packing_of,
    starts_of_runs,
    without_pattern,
)
from pyflash.op.arguments import arguments_of
from pyflash.op.autograd import call_op
from pyflash.op.ops import attend_used_rows, attention, attention_varlen
from pyflash.op.options import (
    OPTIONS,
    AttentionOptions,
    Scope,
    given,
    of_scope,
    windows_asked,
)
from pyflash.op.used_lengths import Used

if TYPE_CHECKING:
    from typing_extensions import Unpack


def padded_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    layout: Hashable | None = None,
    **options: Unpack[AttentionOptions],
) -> Tensor:
    """`pyflash.attention` without the keys that are padding in `mask`, (batch, n), n <= seqlen_k;
    keys past column n are padding.

    With causal or a window, the queries are the last columns of the mask, and those that are
    padding give 0. Otherwise every query attends every token of its row.

    layout: names the options and layouts of q, k and v. `known_of(mask).calls` has the call of the
    op under it afterwards, where other layers may repeat it.

    Raises ValueError for a mask that does not fit q and k, and for a window over rows with padding
    between their tokens. In a graph of torch.compile such padding ends the graph's run with a
    RuntimeError, on a GPU with an assertion of the device, whatever the options.
    """
    if mask.shape[0] != k.shape[0] or mask.shape[1] > k.shape[1]:
        raise ValueError(
            f"pyflash: attention_mask has shape {tuple(mask.shape)}: expected batch {k.shape[0]} "
            f"and at most {k.shape[1]} columns, one for each key"
        )
    in_order = any(OPTIONS[name].is_positional for name in given(options))
    if in_order and q.shape[1] > mask.shape[1]:
        raise ValueError(
            f"pyflash: attention_mask has {mask.shape[1]} columns for {q.shape[1]} queries: "
            "expected one for each query at least"
        )
    if torch.compiler.is_compiling() and not is_numbered(mask, q.shape[1]):
        if options.get("dropout_p"):
            raise ValueError(
                f"pyflash: dropout_p = {options['dropout_p']} came with padding in a graph of "
                "torch.compile: expected 0, or packed sequences"
            )
        return _attention_in_place(q, k, v, mask, in_order, options)
    return _packed_attention(q, k, v, mask, in_order, options, layout)


def _attention_in_place(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, in_order: bool, options: AttentionOptions
) -> Tensor:
    """Nothing is read on the host: no padding may be between tokens."""
    tokens = without_pattern(mask) != 0
    torch._assert_async(
        (starts_of_runs(tokens).sum(1) <= 1).all(),
        "pyflash: attention_mask has padding between the tokens of a row: expected it before or "
        "behind them in a compiled graph",
    )
    queries = tokens[:, tokens.shape[1] - q.shape[1] :] if in_order else None
    arguments = arguments_of("attention", options)
    return attend_used_rows((q, k, v), _used(queries), _used(tokens), arguments)[0]


def _used(tokens: Tensor | None) -> Used:
    if tokens is None:
        return Used(None, None)
    return Used((tokens.cumsum(1) == 0).sum(1), tokens.sum(1))


@torch.compiler.disable  # reads the mask on the host
def _packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    in_order: bool,
    options: AttentionOptions,
    layout: Hashable | None,
) -> Tensor:
    packing = packing_of(mask, q.shape[1], in_order)
    if packing is None:
        repeated = attention_to(mask.shape[1], options)
    elif _may_stay(packing, q, k, v, options):
        repeated = _attention_over_cache(packing, q, k, options)
    else:
        return _attention_of_tokens(q, k, v, packing, options)
    if repeated is None:
        return attention(q, k[:, : mask.shape[1]], v[:, : mask.shape[1]], **options)
    if layout is not None:
        known_of(mask).calls[layout] = repeated
    return repeated(*(x.transpose(1, 2) for x in (q, k, v)))


def _attention_of_tokens(
    q: Tensor, k: Tensor, v: Tensor, packing: Packing, options: AttentionOptions
) -> Tensor:
    if packing.holes and (counting := _counting_tokens(options)):
        raise ValueError(
            "pyflash: attention_mask has padding between the tokens of a row: expected it before "
            f"or behind them, because {counting} counts tokens"
        )
    out = attention_varlen(
        q.flatten(0, 1) if packing.queries is None else q[packing.queries],
        k[packing.keys],
        v[packing.keys],
        *packing.cu_seqlens,
        packing.max_seqlen_q,
        packing.max_seqlen_k,
        **options,
    )
    if packing.queries is None:
        return out.unflatten(0, q.shape[:2])
    return out.new_zeros(q.shape).index_put(packing.queries, out)


def _is_of_layer(options: AttentionOptions) -> bool:
    """Whether options hold for one layer alone, as tensors do, or one call, as what is dropped."""
    tensors = any(isinstance(x, Tensor) for x in options.values())
    return tensors or bool(options.get("dropout_p"))


def attention_to(n_keys: int, options: AttentionOptions) -> Repeated | None:
    """That of all queries to the first keys; None where other layers must not repeat it."""
    if _is_of_layer(options):
        return None
    arguments = arguments_of("attention", options)

    def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if k.shape[2] != n_keys:
            k, v = k[:, :, :n_keys], v[:, :, :n_keys]
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return call_op(torch.ops.pyflash.fwd.default, q, k, v, (), arguments)[0]

    return repeated


def _may_stay(packing: Packing, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> bool:
    """Whether keys need not be packed: where a row has one query, the keys of a head lie one after
    the other, as in a cache, and nothing has a gradient or a number for each head."""
    return (
        q.shape[1] == 1
        and packing.n_queries is None
        and not packing.holes
        and k.transpose(1, 2).is_contiguous()
        and v.transpose(1, 2).is_contiguous()
        and not _is_of_layer(options)
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)))
    )


def _attention_over_cache(
    packing: Packing, q: Tensor, k: Tensor, options: AttentionOptions
) -> Repeated:
    """Each head of keys is a sequence, with the query heads of its group."""
    batch, seqlen_k, heads_kv, d_head = k.shape
    heads = q.shape[2]
    shape = (batch * heads_kv, heads // heads_kv, d_head)
    ranges = packing.ranges(heads_kv, seqlen_k).packing
    arguments = arguments_of("attention_varlen", options)

    def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.reshape(shape), k.view(-1, 1, d_head), v.view(-1, 1, d_head)
        out, _ = call_op(torch.ops.pyflash.fwd_varlen.default, q, k, v, ranges, arguments)
        return out.view(batch, 1, heads, d_head)

    return repeated


def _counting_tokens(options: AttentionOptions) -> str | None:
    """The options that depend on the distance of tokens, in words."""
    if windows_asked(options) not in ((-1, -1), (-1, 0)):
        return "a sliding window"
    return next(iter(of_scope(options, Scope.POSITION)), None)
