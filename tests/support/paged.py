"""Caches in pages, as tests of attention over them make them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyflash.op.reference import Expected, attended_with, attention_ref, expect

MASKS = ("causal", "window_left", "window_right", "attention_chunk")
NO_PAGES = (-1, -(2**31), 2**31 - 1)  # what entries that nobody reads hold


class Cache:
    """Keys of several sequences in shuffled pages, with NaN in each row that holds none, and what
    is no page in each entry of the table past the last one."""

    def __init__(
        self,
        lengths,
        page_size,
        heads_kv=2,
        d_head=64,
        dtype=torch.float16,
        spare=3,
        device="cpu",
        width=None,
    ):
        self.lengths, self.page_size = tuple(lengths), page_size
        n_pages = [math.ceil(n / page_size) for n in lengths]
        self.num_pages = sum(n_pages) + spare
        numbers = torch.randperm(self.num_pages).int()
        shape = (self.num_pages, page_size, heads_kv, d_head)
        self.k, self.v = (torch.full(shape, math.nan, dtype=dtype, device=device) for _ in "kv")
        width = max(n_pages) + 1 if width is None else width
        no_pages = torch.tensor(NO_PAGES, dtype=torch.int32).repeat(width)[:width]
        table = no_pages.repeat(len(lengths), 1)
        first = 0
        for b, n in enumerate(n_pages):
            table[b, :n] = numbers[first : first + n]
            first += n
        self.table = table.to(device)
        self.seqlens = torch.tensor(lengths, dtype=torch.int32, device=device)
        self.keys, self.values = [], []
        for b, n in enumerate(lengths):
            self.keys.append(torch.randn(n, heads_kv, d_head, device=device).to(dtype))
            self.values.append(torch.randn(n, heads_kv, d_head, device=device).to(dtype))
            self.k[self.place(b)] = self.keys[b]
            self.v[self.place(b)] = self.values[b]

    def place(self, b: int, begin: int = 0, end: int | None = None) -> tuple[Tensor, Tensor]:
        """Pages, and rows of these, of keys of a sequence."""
        end = self.lengths[b] if end is None else end
        key = torch.arange(begin, end, device=self.table.device)
        return self.table[b].long()[key // self.page_size], key % self.page_size

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.k, self.v, self.table, self.seqlens

    def expire(self, lengths_q, **options) -> None:
        """Puts NaN into the keys before the first that a query attends, and what is no page into
        the entries of pages of these alone."""
        masks = {name: options[name] for name in MASKS if name in options}
        for b, (n_queries, n) in enumerate(zip(lengths_q, self.lengths, strict=True)):
            rows = torch.arange(n_queries)
            of_some = attended_with(masks, rows, n_queries, n).any(0)
            first = int(of_some.int().argmax()) if of_some.any() else n
            self.k[self.place(b, 0, first)] = math.nan
            self.v[self.place(b, 0, first)] = math.nan
            expired = first // self.page_size
            no_pages = torch.tensor(NO_PAGES, dtype=torch.int32).repeat(expired)[:expired]
            self.table[b, :expired] = no_pages.to(self.table.device)

    def check(self, b: int, q: Tensor, out: Tensor, lse: Tensor, **options) -> None:
        """q, out: (rows, heads, d_head); lse: (heads, rows)."""
        if (slopes := options.get("alibi_slopes")) is not None and slopes.dim() == 2:
            options["alibi_slopes"] = slopes[b]
        options = {name: x for name, x in options.items() if name not in ("config", "num_splits")}
        inputs = [x[None] for x in (q, self.keys[b], self.values[b])]
        expected = expect(*inputs, **options)
        expected.check(out[None], lse[None])
        check_elements(expected, *inputs, out[None], **options)

    def check_padded(self, q: Tensor, out: Tensor, lse: Tensor, **options) -> None:
        """q, out: (batch, seqlen_q, heads, d_head); lse: (batch, heads, seqlen_q)."""
        for b in range(len(self.lengths)):
            self.check(b, q[b], out[b], lse[b], **options)

    def check_packed(self, starts, q: Tensor, out: Tensor, lse: Tensor, **options) -> None:
        """starts: cu_seqlens_q. q, out: (total_q, heads, d_head); lse: (heads, total_q)."""
        for b in range(len(self.lengths)):
            rows = slice(starts[b], starts[b + 1])
            self.check(b, q[rows], out[rows], lse[:, rows], **options)


def check_elements(expected: Expected, q: Tensor, k: Tensor, v: Tensor, out: Tensor, **options):
    """Holds each element of out to a bound of its own. P and out are rounded to 16 bits, by at most
    u of what they are: so out is off by u (|out| + P |v|), and as much again for sums in fp32 and
    exponentials. Where P is below the normal numbers of fp16, the last term is what it is off by.
    """
    u = torch.finfo(out.dtype).eps / 2
    exact = expected.out.double()
    size, _ = attention_ref(q, k, v.abs(), dtype=torch.float64, **options)
    bound = 2 * u * (exact.abs() + size) + k.shape[1] * 2.0**-24
    wrong = ~((out.double() - exact).abs() <= bound)
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"{int(wrong.sum())} elements of out are wrong, first {place}: {out[place].item()}, "
            f"expected {exact[place].item()}; bound {bound[place].item():.3e}"
        )


def laid_out(layout: str, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The same caches as views of others."""
    if layout == "heads first":
        return tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    if layout == "of one tensor":
        return torch.stack([k, v], 1).unbind(1)
    if layout == "columns of one tensor":
        return torch.cat([k, v], -1).split(k.shape[-1], -1)
    return k, v


LAYOUTS = ("", "heads first", "of one tensor", "columns of one tensor")
