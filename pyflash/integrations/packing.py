"""What is found out about a mask of padding, and stays with it: one layer of a forward pass reads
it for all.

A mask is (batch, seqlen_k), or that expanded in more dimensions; 0 or False is padding. int32 and
int64 number the sequences of a row; tokens attend their own sequence only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyflash.op.fitted import VECTOR
from pyflash.op.used_lengths import Ranges, Used, ranges_of_keys

Places = tuple[Tensor, Tensor]  # of tokens: (row of the batch, column)
# The attention of q, k and v, (batch, heads, seqlen, d_head), is (batch, seqlen_q, heads, d_head).
Repeated = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Packing:
    """The tokens of a padded batch, and the lengths of the packed sequences, on the host but for
    the mask and what is given to the op."""

    mask: Tensor  # (batch, seqlen_k)
    # Of a row, its last columns, some of which are padding; None: no query is padding.
    n_queries: int | None
    begins: Tensor  # (batch), int32, of the first token
    of_rows: Tensor  # (batch), int32, how many tokens there are
    lengths_q: Tensor  # of the sequences
    lengths_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    holes: bool  # some row has padding between its tokens
    in_place: dict[tuple[int, int], Ranges] = field(default_factory=dict)  # by heads and rows

    # NOTE: finding places waits for the GPU. A step of decoding needs none of these.
    @cached_property
    def queries(self) -> Places | None:  # None: every row
        if self.n_queries is None:
            return None
        tokens = self.mask[:, self.mask.shape[1] - self.n_queries :]
        return tokens.nonzero(as_tuple=True)

    @cached_property
    def keys(self) -> Places:
        return self.mask.nonzero(as_tuple=True)

    @cached_property
    def cu_seqlens(self) -> tuple[Tensor, Tensor]:
        """(sequences + 1), int32, of queries and of keys."""
        device = self.mask.device
        return _starts(self.lengths_q).to(device), _starts(self.lengths_k).to(device)

    def ranges(self, heads_kv: int, seqlen_k: int) -> Ranges:
        """Where each head of keys is a sequence, in a cache of seqlen_k rows. No row has holes."""
        key = (heads_kv, seqlen_k)
        if key not in self.in_place:
            used = Used(self.begins, self.of_rows)
            self.in_place[key] = ranges_of_keys(heads_kv, seqlen_k, used).to(self.mask.device)
        return self.in_place[key]


class Known(NamedTuple):
    """About a mask, as long as nobody writes to it."""

    version: int
    packings: dict[tuple[int, bool], Packing | None]  # by seqlen_q, and whether it is in order
    calls: dict[Hashable, Repeated]


def layout_of(q: Tensor, k: Tensor, v: Tensor, *others: Hashable) -> Hashable | None:
    """What decides, beside the mask, how a layer calls the op; None where each has to find out.
    others: options."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    return (
        (q.shape, q.stride(), q.dtype, q.storage_offset() % VECTOR),
        (k.shape, k.stride(), k.dtype, k.storage_offset() % VECTOR),
        (v.shape, v.stride(), v.dtype, v.storage_offset() % VECTOR),
        others,
    )


def known_of(mask: Tensor) -> Known:
    """What is known about a mask, to which it is tied; of inference tensors, which have no version
    counter, nothing that lasts. What `make_mask` returns is none."""
    if mask.is_inference():
        return Known(0, {}, {})
    known = getattr(mask, "_pyflash_known", None)
    if known is None or known.version != mask._version:
        known = mask._pyflash_known = Known(mask._version, {}, {})
    return known


def packing_of(mask: Tensor, seqlen_q: int, in_order: bool) -> Packing | None:
    """The packing of a mask; None if every row is one sequence without padding."""
    packings = known_of(mask).packings
    key = (seqlen_q, in_order)
    if key not in packings:
        packings[key] = _pack(mask, *key)
    return packings[key]


def _pack(mask: Tensor, seqlen_q: int, in_order: bool) -> Packing | None:
    mask = without_pattern(mask)
    batch, seqlen_k = mask.shape
    seen = mask.cpu()  # NOTE: one copy waits for the GPU; its reductions would each be a kernel
    tokens = (seen if mask.dtype == torch.bool else seen != 0).view(torch.int8)
    of_rows = tokens.sum(1, dtype=torch.int32)
    n_keys = int(of_rows.sum())
    if is_numbered(mask, seqlen_q):
        lengths_q = lengths_k = _lengths_of_numbered(seen)
    elif in_order:
        lengths_q, lengths_k = tokens[:, seqlen_k - seqlen_q :].sum(1, dtype=torch.int32), of_rows
    else:
        lengths_q, lengths_k = of_rows.new_full((batch,), seqlen_q), of_rows
    if n_keys == mask.numel() and len(lengths_k) == batch:
        return None
    all_are_queries = int(lengths_q.sum()) == batch * seqlen_q
    # The longest of no sequences has 0 rows.
    longest = [max(lengths.tolist(), default=0) for lengths in (lengths_q, lengths_k)]
    begins, holes = _begins_of(tokens, of_rows)
    n_queries = None if all_are_queries else seqlen_q
    return Packing(mask, n_queries, begins, of_rows, lengths_q, lengths_k, *longest, holes)


def _begins_of(tokens: Tensor, of_rows: Tensor) -> tuple[Tensor, bool]:
    """The first token of each row, and whether a row has padding between its tokens."""
    n = tokens.shape[1]
    begins = n - of_rows
    # Padding before the tokens is the usual: a row changes once, and its last column is a token.
    changes = tokens[:, 1:] != tokens[:, :-1]
    if int(changes.sum()) == int((begins % max(n, 1) != 0).sum()) and bool(tokens[:, -1:].all()):
        return begins, False
    runs = starts_of_runs(tokens != 0).sum(1)
    return tokens.argmax(1).to(torch.int32), bool((runs > 1).any())


def _starts(lengths: Tensor) -> Tensor:
    return F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def without_pattern(mask: Tensor) -> Tensor:
    return mask[(..., *[0] * (mask.dim() - 2))]


def is_numbered(mask: Tensor, seqlen_q: int) -> bool:
    return mask.dtype in (torch.int32, torch.int64) and seqlen_q == mask.shape[1]


def starts_of_runs(tokens: Tensor) -> Tensor:
    """The tokens with padding, or nothing, before them."""
    return F.pad(tokens, (1, 0))[:, :-1] < tokens


def _lengths_of_numbered(mask: Tensor) -> Tensor:
    """The length of each sequence, in the order of the tokens."""
    row, column = mask.nonzero(as_tuple=True)
    numbers = torch.stack([row, mask[row, column].to(torch.int64)])
    return torch.unique_consecutive(numbers, dim=1, return_counts=True)[1]
