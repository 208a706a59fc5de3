"""Attention of padded batches: packs the tokens and calls `attention_varlen`. The keys of a cache
stay where they are, and while torch.compile traces all tokens do, and their places on the device.

A mask is (batch, seqlen_k), or that expanded in more dimensions; 0 or False is padding. int32 and
int64 number the sequences of a row; tokens attend their own sequence only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from pyflash.op.arguments import arguments_of
from pyflash.op.ops import attend_used_rows, attention, attention_varlen
from pyflash.op.options import (
    OPTIONS,
    AttentionOptions,
    Scope,
    given,
    of_scope,
    windows_asked,
)
from pyflash.op.used_lengths import Ranges, Used, ranges_of_keys

if TYPE_CHECKING:
    from typing_extensions import Unpack

Places = tuple[Tensor, Tensor]  # of tokens: (row of the batch, column)


@dataclass(frozen=True)
class Packing:
    """The tokens of a padded batch, and the lengths of the packed sequences."""

    tokens: Tensor  # (batch, seqlen_k), whether there is one
    is_query: Tensor | None  # (batch, seqlen_q), the same of the queries; None: every row is one
    of_rows: Tensor  # (batch), how many tokens there are
    lengths_q: Tensor  # of the sequences
    lengths_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    holes: bool  # some row has padding between its tokens
    in_place: dict[tuple[int, int], Ranges] = field(default_factory=dict)  # by sequences and rows

    # NOTE: finding places waits for the GPU. A step of decoding needs none of these.
    @cached_property
    def queries(self) -> Places | None:  # None: every row
        return None if self.is_query is None else self.is_query.nonzero(as_tuple=True)

    @cached_property
    def keys(self) -> Places:
        return self.tokens.nonzero(as_tuple=True)

    @cached_property
    def cu_seqlens(self) -> tuple[Tensor, Tensor]:
        """(sequences + 1), int32, of queries and of keys."""
        return _starts(self.lengths_q), _starts(self.lengths_k)

    @cached_property
    def used_keys(self) -> Used:
        """Those of each row; they hold where no row has holes."""
        return Used(self.tokens.to(torch.uint8).argmax(1), self.of_rows)


def padded_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    **options: Unpack[AttentionOptions],
) -> Tensor:
    """`pyflash.attention` without the keys that are padding in `mask`, (batch, n), n <= seqlen_k;
    keys past column n are padding.

    With causal or a window, the queries are the last columns of the mask, and those that are
    padding give 0. Otherwise every query attends every token of its row.

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
    if torch.compiler.is_compiling() and not _is_numbered(mask, q.shape[1]):
        if options.get("dropout_p"):
            raise ValueError(
                f"pyflash: dropout_p = {options['dropout_p']} came with padding in a graph of "
                "torch.compile: expected 0, or packed sequences"
            )
        return _attention_in_place(q, k, v, mask, in_order, options)
    return _packed_attention(q, k, v, mask, in_order, options)


def _attention_in_place(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, in_order: bool, options: AttentionOptions
) -> Tensor:
    """Nothing is read on the host: no padding may be between tokens."""
    tokens = _without_pattern(mask) != 0
    torch._assert_async(
        (_starts_of_runs(tokens).sum(1) <= 1).all(),
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
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, in_order: bool, options: AttentionOptions
) -> Tensor:
    packing = packing_of(mask, q.shape[1], in_order)
    if packing is not None and _may_stay(packing, q, k, v, options):
        return _attention_over_cache(q, k, v, packing, options)
    k, v = k[:, : mask.shape[1]], v[:, : mask.shape[1]]
    if packing is None:
        return attention(q, k, v, **options)
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


def _may_stay(packing: Packing, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> bool:
    """Whether keys need not be packed: where a row has one query, the keys of a head lie one after
    the other, as in a cache, and nothing has a gradient or a number for each head."""
    return (
        q.shape[1] == 1
        and packing.is_query is None
        and not packing.holes
        and k.transpose(1, 2).is_contiguous()
        and v.transpose(1, 2).is_contiguous()
        and not any(isinstance(x, Tensor) for x in options.values())
        and not options.get("dropout_p")
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)))
    )


def _attention_over_cache(
    q: Tensor, k: Tensor, v: Tensor, packing: Packing, options: AttentionOptions
) -> Tensor:
    """Each head of keys is a sequence, with the query heads of its group."""
    batch, seqlen_k, heads_kv, d_head = k.shape
    key = (batch * heads_kv, seqlen_k)
    if key not in packing.in_place:
        used = Used(*(x.repeat_interleave(heads_kv) for x in packing.used_keys))
        packing.in_place[key] = ranges_of_keys(*key, used)
    out = attention_varlen(
        q.reshape(batch * heads_kv, -1, d_head),
        k.transpose(1, 2).view(-1, 1, d_head),
        v.transpose(1, 2).view(-1, 1, v.shape[3]),
        *packing.in_place[key].packing,
        **options,
    )
    return out.view(q.shape)


def _counting_tokens(options: AttentionOptions) -> str | None:
    """The options that depend on the distance of tokens, in words."""
    if windows_asked(options) not in ((-1, -1), (-1, 0)):
        return "a sliding window"
    return next(iter(of_scope(options, Scope.POSITION)), None)


def packing_of(mask: Tensor, seqlen_q: int, in_order: bool) -> Packing | None:
    """The packing of a mask; None if every row is one sequence without padding.

    Cached on the mask, because the layers of a model share it and computing it synchronizes with
    the GPU; not on inference tensors, which have no version counter.
    """
    if mask.is_inference():
        return _pack(mask, seqlen_q, in_order)
    key = (mask._version, seqlen_q, in_order)
    known = getattr(mask, "_pyflash_packing", None)
    if known is None or known[0] != key:
        known = mask._pyflash_packing = (key, _pack(mask, seqlen_q, in_order))
    return known[1]


def _pack(mask: Tensor, seqlen_q: int, in_order: bool) -> Packing | None:
    mask = _without_pattern(mask)
    batch, seqlen_k = mask.shape
    tokens = mask != 0
    of_rows = tokens.sum(1)
    is_query = None
    if _is_numbered(mask, seqlen_q):
        is_query = tokens
        lengths_q = lengths_k = _lengths_of_numbered(mask)
    elif in_order:
        is_query = tokens[:, seqlen_k - seqlen_q :]
        lengths_q, lengths_k = is_query.sum(1), of_rows
    else:
        lengths_q, lengths_k = of_rows.new_full((batch,), seqlen_q), of_rows
    # The longest of no sequences has 0 rows.
    longest = [F.pad(lengths, (0, 1)).max() for lengths in (lengths_q, lengths_k)]
    runs = _starts_of_runs(tokens).sum(1).max()
    max_seqlen_q, max_seqlen_k, most_runs, n_queries, n_keys = torch.stack(
        [*longest, runs, lengths_q.sum(), of_rows.sum()]
    ).tolist()
    if n_keys == mask.numel() and len(lengths_k) == batch:
        return None
    if n_queries == batch * seqlen_q:
        is_query = None
    holes = most_runs > 1
    sizes = (max_seqlen_q, max_seqlen_k)
    return Packing(tokens, is_query, of_rows, lengths_q, lengths_k, *sizes, holes)


def _starts(lengths: Tensor) -> Tensor:
    return F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def _without_pattern(mask: Tensor) -> Tensor:
    return mask[(..., *[0] * (mask.dim() - 2))]


def _is_numbered(mask: Tensor, seqlen_q: int) -> bool:
    return mask.dtype in (torch.int32, torch.int64) and seqlen_q == mask.shape[1]


def _starts_of_runs(tokens: Tensor) -> Tensor:
    """The tokens with padding, or nothing, before them."""
    return F.pad(tokens, (1, 0))[:, :-1] < tokens


def _lengths_of_numbered(mask: Tensor) -> Tensor:
    """The length of each sequence, in the order of the tokens."""
    row, column = mask.nonzero(as_tuple=True)
    numbers = torch.stack([row, mask[row, column].to(torch.int64)])
    return torch.unique_consecutive(numbers, dim=1, return_counts=True)[1]
