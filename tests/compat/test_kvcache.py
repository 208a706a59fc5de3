"""flash_attn_with_kvcache in all combinations of what FlashAttention 2 and 3 let callers ask of it,
beside the formula: the results, and what the caches hold afterwards."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from pyflash.compat import flash_attn, flash_attn_interface
from pyflash.op.reference import expect

SPELLINGS = {"2": flash_attn, "3": flash_attn_interface}
CAPACITY, PAGE_SIZE = 40, 8
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (6, 2)},
    "causal window": {"causal": True, "window_size": (6, 0)},
}
TOLD = ["tensor", "int", "none"]  # how cache_seqlens is told
WHERE = ["rows", "picked rows", "pages"]


@dataclass
class Case:
    """Drawn by its seed: lengths, heads, numbers of queries and of new keys."""

    seed: int
    spelling: str
    where: str
    told: str
    mask: str
    appends: bool
    draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        torch.manual_seed(self.seed)
        draw = self.draw
        self.batch = draw.randint(1, 4)
        self.heads_kv = draw.choice([1, 2])
        self.heads = self.heads_kv * draw.choice([1, 3])
        self.d_head = draw.choice([16, 32, 64])
        self.dtype = draw.choice([torch.float16, torch.bfloat16])
        self.n_new = draw.choice([1, 4]) if self.appends else 0
        self.seqlen_q = draw.choice([1, 3, 7])
        self.num_splits = draw.choice([0, 1, 3])
        self.softcap = draw.choice([0.0, 0.0, 3.0])
        room = CAPACITY - self.n_new
        if self.told == "tensor":
            self.lengths = [draw.choice([0, 1, draw.randint(0, room), room])
                            for _ in range(self.batch)]  # fmt: skip
        else:
            length = draw.randint(0, room) if self.told == "int" else CAPACITY
            self.lengths = [length] * self.batch
        self._make_cache()

    def rows(self, *shape: int) -> Tensor:
        return torch.randn(*shape, self.d_head).to(self.dtype)

    def _make_cache(self) -> None:
        """NaN but for the keys that there are."""
        page_size = PAGE_SIZE if self.where == "pages" else CAPACITY
        width = CAPACITY // page_size
        n_pages = self.batch * width + (0 if self.where == "rows" else 3)
        numbers = list(range(n_pages))
        if self.where != "rows":
            self.draw.shuffle(numbers)
        self.table = torch.tensor(numbers[: self.batch * width], dtype=torch.int32)
        self.table = self.table.view(self.batch, width)
        shape = (n_pages, page_size, self.heads_kv, self.d_head)
        self.caches = [torch.full(shape, math.nan, dtype=self.dtype) for _ in range(2)]
        self.keys = [self.rows(2, n, self.heads_kv) for n in self.lengths]
        for b, keys in enumerate(self.keys):
            self.write(self.caches, b, 0, keys)

    def write(self, caches: list[Tensor], b: int, first: int, keys: Tensor) -> None:
        for cache, rows in zip(caches, keys, strict=True):
            for i, row in enumerate(rows, first):
                page, at = divmod(i, cache.shape[1])
                cache[int(self.table[b, page]), at] = row

    def arguments(self) -> dict[str, Any]:
        options: dict[str, Any] = {"num_splits": self.num_splits, "softcap": self.softcap}
        if self.told != "none":
            options["cache_seqlens"] = self.lengths[0] if self.told == "int" else torch.tensor(
                self.lengths, dtype=torch.int32
            )  # fmt: skip
        if self.where == "pages":
            options["block_table" if self.spelling == "2" else "page_table"] = self.table
        elif self.where == "picked rows":
            options["cache_batch_idx"] = self.table[:, 0].contiguous()
        return options | MASKS[self.mask]

    def expected_options(self) -> dict[str, Any]:
        mask = MASKS[self.mask]
        left, right = mask.get("window_size", (-1, -1))
        causal = mask.get("causal", False)
        right = -1 if causal else right
        return {
            "causal": causal, "window_left": left, "window_right": right, "softcap": self.softcap
        }  # fmt: skip


CASES = [
    (spelling, where, told, mask, appends)
    for spelling, where, told, mask, appends in itertools.product(
        SPELLINGS, WHERE, TOLD, MASKS, [False, True]
    )
    if not (appends and told == "none")  # there is no room
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("spelling", "where", "told", "mask", "appends"), CASES)
def test_results_and_caches(seed, spelling, where, told, mask, appends):
    case = Case(seed, spelling, where, told, mask, appends)
    q = case.rows(case.batch, case.seqlen_q, case.heads)
    new = [case.rows(case.batch, case.n_new, case.heads_kv) if appends else None for _ in range(2)]
    after = [cache.clone() for cache in case.caches]
    keys = case.keys
    if appends:
        together = torch.stack(new)
        for b, first in enumerate(case.lengths):
            case.write(after, b, first, together[:, b])
        keys = [torch.cat([old, together[:, b]], 1) for b, old in enumerate(keys)]
    out, lse, *_ = SPELLINGS[spelling].flash_attn_with_kvcache(
        q, *case.caches, *new, return_softmax_lse=True, **case.arguments()
    )
    for cache, expected in zip(case.caches, after, strict=True):
        assert torch.equal(cache.isnan(), expected.isnan())
        assert torch.equal(cache.nan_to_num(), expected.nan_to_num())
    for b, (k, v) in enumerate(keys):
        expected = expect(q[b : b + 1], k[None], v[None], **case.expected_options())
        expected.check(out[b : b + 1], lse[b : b + 1])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("seed", range(6))
def test_packed_queries_and_new_keys(seed, mask):
    """Of FlashAttention 3: sequences of other numbers of queries and of new keys."""
    case = Case(seed, "3", "pages", "tensor", mask, True)
    counts = [case.draw.randint(0, 4) for _ in range(case.batch)]
    new_counts = [case.draw.randint(0, case.n_new) for _ in range(case.batch)]
    starts, new_starts = ([0, *itertools.accumulate(n)] for n in (counts, new_counts))
    q = case.rows(starts[-1], case.heads)
    new = case.rows(2, new_starts[-1], case.heads_kv)
    out, lse, *_ = flash_attn_interface.flash_attn_with_kvcache(
        q, *case.caches, *new, return_softmax_lse=True,
        cu_seqlens_q=torch.tensor(starts, dtype=torch.int32), max_seqlen_q=4,
        cu_seqlens_k_new=torch.tensor(new_starts, dtype=torch.int32), **case.arguments(),
    )  # fmt: skip
    for b, old in enumerate(case.keys):
        rows = slice(starts[b], starts[b + 1])
        k, v = torch.cat([old, new[:, new_starts[b] : new_starts[b + 1]]], 1)
        if counts[b] > 0:
            expected = expect(q[None, rows], k[None], v[None], **case.expected_options())
            expected.check(out[None, rows], lse[None, :, rows])


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    "asked", ["rotary_cos", "rotary_sin", "cache_leftpad"], ids=lambda name: name
)
def test_what_is_not_there_is_refused_before_anything_is_written(spelling, asked):
    case = Case(0, spelling, "rows", "tensor", "full", True)
    before = [cache.clone().nan_to_num(7) for cache in case.caches]
    q, k, v = (case.rows(case.batch, case.n_new, n) for n in (case.heads, *[case.heads_kv] * 2))
    told = {asked: torch.zeros(case.batch, 8)}
    with pytest.raises(ValueError, match=asked):
        SPELLINGS[spelling].flash_attn_with_kvcache(
            q, *case.caches, k, v, **case.arguments(), **told
        )
    for cache, same in zip(case.caches, before, strict=True):
        assert torch.equal(cache.nan_to_num(7), same)
