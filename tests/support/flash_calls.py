"""Calls of FlashAttention's functions with what their seeds draw: lengths, heads, numbers of
queries and of new keys; beside the formula. Rows of caches that are no keys are NaN."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyflash.compat import flash_attn, flash_attn_interface, vllm_flash_attn
from pyflash.op.reference import expect

SPELLINGS = {"2": flash_attn, "3": flash_attn_interface, "vllm": vllm_flash_attn}


@dataclass(frozen=True)
class Sizes:
    """Of what cases are drawn from."""

    device: str = "cpu"
    capacity: int = 40
    page_sizes: tuple[int, ...] = (8,)  # that divide the capacity
    d_heads: tuple[int, ...] = (16, 32, 64)
    queries: tuple[int, ...] = (1, 3, 7)
    new: tuple[int, ...] = (1, 4)
    groups: tuple[int, ...] = (1, 3)


SMALL = Sizes()
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (6, 2)},
    "causal window": {"causal": True, "window_size": (6, 0)},
}


def bottom_right(mask: str) -> dict[str, Any]:
    """A mask as `pyflash.attention` has it."""
    left, right = MASKS[mask].get("window_size", (-1, -1))
    causal = MASKS[mask].get("causal", False)
    return {"causal": causal, "window_left": left, "window_right": -1 if causal else right}


TOLD = ["tensor", "int", "none"]  # how cache_seqlens is told
WHERE = ["rows", "picked rows", "pages"]


@dataclass
class CachedCase:
    """Of flash_attn_with_kvcache."""

    seed: int
    spelling: str
    where: str
    told: str
    mask: str
    appends: bool
    sizes: Sizes = SMALL
    draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        torch.manual_seed(self.seed)
        draw = self.draw
        self.batch = draw.randint(1, 4)
        self.heads_kv = draw.choice([1, 2])
        self.heads = self.heads_kv * draw.choice(self.sizes.groups)
        self.d_head = draw.choice(self.sizes.d_heads)
        self.dtype = draw.choice([torch.float16, torch.bfloat16])
        self.n_new = draw.choice(self.sizes.new) if self.appends else 0
        self.seqlen_q = draw.choice(self.sizes.queries)
        self.num_splits = draw.choice([0, 1, 3])
        self.softcap = draw.choice([0.0, 0.0, 3.0])
        room = self.sizes.capacity - self.n_new
        if self.told == "tensor":
            self.lengths = [draw.choice([0, 1, draw.randint(0, room), room])
                            for _ in range(self.batch)]  # fmt: skip
        else:
            length = draw.randint(0, room) if self.told == "int" else self.sizes.capacity
            self.lengths = [length] * self.batch
        self._make_cache()

    def rows(self, *shape: int) -> Tensor:
        return torch.randn(*shape, self.d_head, device=self.sizes.device).to(self.dtype)

    def _make_cache(self) -> None:
        """NaN but for the keys that there are."""
        capacity, device = self.sizes.capacity, self.sizes.device
        page_size = self.draw.choice(self.sizes.page_sizes) if self.where == "pages" else capacity
        width = capacity // page_size
        n_pages = self.batch * width + (0 if self.where == "rows" else 3)
        numbers = list(range(n_pages))
        if self.where != "rows":
            self.draw.shuffle(numbers)
        numbers = torch.tensor(numbers[: self.batch * width], dtype=torch.int32, device=device)
        self.table = numbers.view(self.batch, width)
        shape = (n_pages, page_size, self.heads_kv, self.d_head)
        self.caches = [
            torch.full(shape, math.nan, dtype=self.dtype, device=device) for _ in range(2)
        ]
        self.keys = [self.rows(2, n, self.heads_kv) for n in self.lengths]
        for b, keys in enumerate(self.keys):
            self.write(self.caches, b, 0, keys)

    def write(self, caches: list[Tensor], b: int, first: int, keys: Tensor) -> None:
        for cache, rows in zip(caches, keys, strict=True):
            at = torch.arange(first, first + len(rows), device=cache.device)
            page_size = cache.shape[1]
            cache[self.table[b, at // page_size].long(), at % page_size] = rows

    def arguments(self) -> dict[str, Any]:
        options: dict[str, Any] = {"num_splits": self.num_splits, "softcap": self.softcap}
        if self.told != "none":
            options["cache_seqlens"] = (
                self.lengths[0] if self.told == "int" else self.int32(self.lengths)
            )
        if self.where == "pages":
            options["block_table" if self.spelling == "2" else "page_table"] = self.table
        elif self.where == "picked rows":
            options["cache_batch_idx"] = self.table[:, 0].contiguous()
        return options | MASKS[self.mask]

    def expected_options(self) -> dict[str, Any]:
        return bottom_right(self.mask) | {"softcap": self.softcap}

    def int32(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.sizes.device)

    def check(self) -> None:
        """The results, and what the caches hold afterwards."""
        q = self.rows(self.batch, self.seqlen_q, self.heads)
        shape = (self.batch, self.n_new, self.heads_kv)
        new = [self.rows(*shape) if self.appends else None for _ in range(2)]
        after = [cache.clone() for cache in self.caches]
        keys = self.keys
        if self.appends:
            together = torch.stack(new)
            for b, first in enumerate(self.lengths):
                self.write(after, b, first, together[:, b])
            keys = [torch.cat([old, together[:, b]], 1) for b, old in enumerate(keys)]
        out, lse, *_ = SPELLINGS[self.spelling].flash_attn_with_kvcache(
            q, *self.caches, *new, return_softmax_lse=True, **self.arguments()
        )
        for cache, expected in zip(self.caches, after, strict=True):
            assert torch.equal(cache.isnan(), expected.isnan())
            assert torch.equal(cache.nan_to_num(), expected.nan_to_num())
        for b, (k, v) in enumerate(keys):
            expected = expect(q[b : b + 1], k[None], v[None], **self.expected_options())
            expected.check(out[b : b + 1], lse[b : b + 1])

    def check_packed(self) -> None:
        """Sequences of other numbers of queries and of new keys."""
        counts = [self.draw.randint(0, 4) for _ in range(self.batch)]
        new_counts = [self.draw.randint(0, self.n_new) for _ in range(self.batch)]
        starts, new_starts = ([0, *itertools.accumulate(n)] for n in (counts, new_counts))
        q = self.rows(starts[-1], self.heads)
        new = self.rows(2, new_starts[-1], self.heads_kv)
        out, lse, *_ = SPELLINGS[self.spelling].flash_attn_with_kvcache(
            q, *self.caches, *new, return_softmax_lse=True,
            cu_seqlens_q=self.int32(starts), max_seqlen_q=4,
            cu_seqlens_k_new=self.int32(new_starts), **self.arguments(),
        )  # fmt: skip
        for b, old in enumerate(self.keys):
            rows = slice(starts[b], starts[b + 1])
            k, v = torch.cat([old, new[:, new_starts[b] : new_starts[b + 1]]], 1)
            if counts[b] > 0:
                expected = expect(q[None, rows], k[None], v[None], **self.expected_options())
                expected.check(out[None, rows], lse[None, :, rows])


# Where the keys of packed sequences are, and which of them count.
KEYS = ["packed", "used", "pages", "pages by cu_seqlens"]


@dataclass
class PackedCase:
    """Of flash_attn_varlen_func: sequences without queries or keys, tables wider than any sequence
    whose entries behind its pages are no pages, rows of q behind the last sequence."""

    seed: int
    spelling: str
    keys: str
    mask: str
    extra: str  # softcap, alibi_slopes, s_aux, or ""
    sizes: Sizes = SMALL

    def check(self) -> None:
        draw, sizes = random.Random(self.seed), self.sizes
        torch.manual_seed(self.seed)
        batch, heads_kv = draw.randint(1, 5), draw.choice([1, 2])
        heads = heads_kv * draw.choice(sizes.groups)
        d_head, dtype = draw.choice(sizes.d_heads), draw.choice([torch.float16, torch.bfloat16])
        lengths_q, lengths_k = (
            [draw.choice([0, 1, draw.randint(0, most)]) for _ in range(batch)]
            for most in (max(sizes.queries), sizes.capacity)
        )
        spare = draw.choice([0, 2]) if self.keys == "used" else 0
        starts, starts_k = (
            [0, *itertools.accumulate(n + more for n in lengths)]
            for lengths, more in ((lengths_q, 0), (lengths_k, spare))
        )

        def rows(*shape: int) -> Tensor:
            return torch.randn(*shape, d_head, device=sizes.device).to(dtype)

        def int32(numbers: list[int]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int32, device=sizes.device)

        q = rows(starts[-1], heads)
        parts = [rows(2, n, heads_kv) for n in lengths_k]
        cu_k: Tensor | None = int32(starts_k)
        options: dict[str, Any] = dict(MASKS[self.mask])
        if self.keys in ("packed", "used"):
            nan = torch.full_like(rows(2, spare, heads_kv), math.nan)
            k, v = torch.cat([torch.cat([part, nan], 1) for part in parts], 1)
            if self.keys == "used":
                options["seqused_k"] = int32(lengths_k)
        else:
            page_size = draw.choice(sizes.page_sizes)
            width = sizes.capacity // page_size + draw.choice([0, 3])
            table = torch.randperm(batch * width, device=sizes.device).int().view(batch, width)
            shape = (2, batch * width, page_size, heads_kv, d_head)
            k, v = torch.full(shape, math.nan, dtype=dtype, device=sizes.device)
            for b, part in enumerate(parts):
                at = torch.arange(lengths_k[b], device=sizes.device)
                pages = table[b, at // page_size].long()
                k[pages, at % page_size], v[pages, at % page_size] = part
                table[b, -(-lengths_k[b] // page_size) :] = draw.choice([-1, 10**6])
            options["block_table"] = table
            if self.keys == "pages":
                cu_k, options["seqused_k"] = None, int32(lengths_k)
        ours: dict[str, Any] = bottom_right(self.mask)
        if self.extra == "softcap":
            options["softcap"] = ours["softcap"] = 3.0
        elif self.extra:
            values = torch.linspace(0.1, 2, heads, device=sizes.device)
            options[self.extra] = values
            ours["sinks" if self.extra == "s_aux" else self.extra] = values
        longest = max(*lengths_q, 1), sizes.capacity
        of_queries, of_keys = (int32(starts), longest[0]), (cu_k, longest[1])
        arguments = (
            (of_queries[1], of_queries[0], of_keys[1], of_keys[0])
            if self.spelling == "vllm"
            else (of_queries[0], of_keys[0], of_queries[1], of_keys[1])
        )
        module = SPELLINGS[self.spelling]
        out, lse, *_ = module.flash_attn_varlen_func(
            q, k, v, *arguments, return_softmax_lse=True, **options
        )
        for b, (key, value) in enumerate(parts):
            at = slice(starts[b], starts[b + 1])
            if lengths_q[b] > 0:
                expected = expect(q[None, at], key[None], value[None], **ours)
                expected.check(out[None, at], lse[None, :, at])


def check_combined(seed: int, dtype: torch.dtype, sizes: Sizes = SMALL) -> None:
    """flash_attn_combine of float32 parts, some without keys, whose lses lie as kernels of FA3 lay
    them, beside the formula in float64."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    n, batch, rows = draw.choice([1, 2, 7, 40]), draw.randint(1, 3), draw.randint(1, 70)
    heads, d_head = draw.choice([1, 3, 8]), draw.choice(sizes.d_heads)
    shape = (n, batch, rows, heads)
    outs = torch.randn(*shape, d_head, device=sizes.device)
    lses = 5 * torch.randn(n, batch, heads, rows, device=sizes.device).transpose(2, 3)
    empty = torch.rand(shape, device=sizes.device) < 0.3
    lses[empty], outs[empty] = -math.inf, math.nan
    out, lse = flash_attn_interface.flash_attn_combine(outs, lses, out_dtype=dtype)
    expected_lse = lses.double().logsumexp(0)
    weights = torch.exp(lses.double() - expected_lse.nan_to_num(neginf=0.0))
    expected = (weights[..., None] * outs.double().nan_to_num(0.0)).sum(0)
    unit = torch.finfo(dtype).eps
    assert out.dtype == dtype
    bound = unit + 1e-5
    torch.testing.assert_close(out.double(), expected, atol=bound, rtol=bound)
    torch.testing.assert_close(lse.double(), expected_lse, atol=1e-5, rtol=1e-5)
