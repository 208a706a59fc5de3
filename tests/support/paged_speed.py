"""Attention over pages beside its bars: contiguous tensors, batches of equal lengths, and memory.

    PYTHONPATH=.:tests python -m support.paged_speed [--heads 32,8] [--d-head 128]

Calls follow each other over other sequences each time, so that K and V come from memory; tables are
shuffled over all pages. Contenders take turns behind a kernel that spins; medians count. A line has
what others stand beside, its microseconds, and of each other the ratio to it, in brackets the most
that it may be. Ends with status 1 where one is more.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from support.graphs import captured, medians
from torch import Tensor

import pyflash

DTYPE, BYTES = torch.bfloat16, 2
DECODE = [(1, 1024), (8, 1024), (64, 1024), (1, 8192), (4, 8192), (8, 8192), (64, 8192), (1, 65536)]
RAGGED = (4, 8, 64, 256)  # drawn lengths
ONE_LONG = [32768, 1024, 1024, 1024]
PREFILL = [(4, 4096), (1, 16384)]
OVER_CONTIGUOUS = {1: 1.15, 16: 1.03, 64: 1.03, 256: 1.03}  # by page size
PREFILL_OVER_CONTIGUOUS = {1: 1.15, 16: 1.05, 64: 1.03, 256: 1.03}
OVER_UNIFORM = 1.05
PAGE = 64  # where no other is said
TERABYTES, FIXED = 4.5, 6.5  # a second, us: a decode may take both
POOL_TOKENS = 1 << 21
BEYOND_L2 = 200e6  # bytes
MOST_CALLS, IN_A_ROW = 48, 8  # IN_A_ROW: the host is ahead of so many

Calls = list[Callable[[], Any]]


@dataclass(frozen=True)
class Bar:
    cell: str
    what: str
    us: float
    beside: str
    us_beside: float
    most: float

    @property
    def ratio(self) -> float:
        return self.us / self.us_beside

    @property
    def is_met(self) -> bool:
        return self.ratio <= self.most

    @property
    def line(self) -> tuple[str, str, float]:
        """What it has in common with the others of its line."""
        return self.cell, self.beside, self.us_beside

    def __str__(self) -> str:
        return f"{self.what} {self.ratio:.3f} ({self.most:g}){'' if self.is_met else ' missed'}"


class Pool:
    """Keys and values of many tokens, (tokens, heads_kv, d_head), and views of them."""

    def __init__(self, heads: int, heads_kv: int, d_head: int):
        self.heads, self.heads_kv, self.d_head = heads, heads_kv, d_head
        shape = (POOL_TOKENS, heads_kv, d_head)
        self.k, self.v = (torch.randn(shape, device="cuda", dtype=DTYPE) for _ in "kv")

    def n_copies(self, tokens: int) -> int:
        """Calls that share no keys, as many as are more than L2 holds."""
        of_one = 2 * BYTES * tokens * self.heads_kv * self.d_head
        return max(2, min(MOST_CALLS, math.ceil(BEYOND_L2 / of_one)))

    def queries(self, batch: int, seqlen_q: int) -> Tensor:
        return torch.randn(batch, seqlen_q, self.heads, self.d_head, device="cuda", dtype=DTYPE)

    def contiguous(self, batch: int, seqlen: int, copy: int) -> tuple[Tensor, Tensor]:
        n = batch * seqlen
        rows = slice(copy * n, copy * n + n)
        return tuple(x[rows].view(batch, seqlen, *x.shape[1:]) for x in (self.k, self.v))

    def pages(self, size: int) -> tuple[Tensor, Tensor]:
        return tuple(x.view(-1, size, *x.shape[1:]) for x in (self.k, self.v))

    def tables(self, lengths: Sequence[int], size: int, copies: int) -> Iterator[Tensor]:
        """A table for each copy, of pages that no other has."""
        numbers = torch.randperm(POOL_TOKENS // size).int()
        n_pages = [math.ceil(n / size) for n in lengths]
        first = 0
        for _ in range(copies):
            table = torch.zeros(len(lengths), max(n_pages), dtype=torch.int32)
            for row, n in zip(table, n_pages, strict=True):
                row[:n] = numbers[first : first + n]
                first += n
            assert first <= len(numbers), "the pool is too small"
            yield table.cuda()

    def bytes(self, lengths: Sequence[int]) -> int:
        """What decoding reads and writes."""
        of_keys = 2 * sum(lengths) * self.heads_kv
        return BYTES * self.d_head * (of_keys + 2 * len(lengths) * self.heads)

    def on_pages(
        self, q: Tensor, lengths: Sequence[int], size: int, copies: int, packed: bool = False
    ) -> Calls:
        """Causal calls, the first of which is right."""
        k, v = self.pages(size)
        lengths_k = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        options: dict[str, Any] = {"causal": True}
        batch, seqlen_q = q.shape[:2]
        if packed:
            starts = seqlen_q * torch.arange(batch + 1, dtype=torch.int32, device="cuda")
            options |= {"cu_seqlens_q": starts, "max_seqlen_q": seqlen_q}
            q = q.flatten(0, 1)
        tables = list(self.tables(lengths, size, copies))
        calls = [
            lambda table=table: pyflash.attention_paged(q, k, v, table, lengths_k, **options)
            for table in tables
        ]
        out = calls[0]().view(batch, seqlen_q, self.heads, self.d_head)
        for b in {0, batch - 1}:
            keys, values = (x[tables[0][b].long()].flatten(0, 1)[: lengths[b]] for x in (k, v))
            one = q.view(batch, seqlen_q, *q.shape[-2:])[b : b + 1]
            expected = pyflash.attention(one, keys[None], values[None], causal=True)
            torch.testing.assert_close(out[b : b + 1], expected, atol=2e-2, rtol=2e-2)
        return calls

    def on_contiguous(self, q: Tensor, seqlen: int, copies: int) -> Calls:
        inputs = [self.contiguous(len(q), seqlen, i) for i in range(copies)]
        return [lambda kv=kv: pyflash.attention(q, *kv, causal=True) for kv in inputs]


def times_of(contenders: dict[str, Calls], rounds: int, eager: str = "") -> dict[str, float]:
    """Microseconds a call, of calls in a graph; as "in a row", those of one contender without."""
    run = lambda calls: [call() for call in calls]  # noqa: E731
    graphs = {
        name: captured(lambda calls=calls: run(calls))[0] for name, calls in contenders.items()
    }
    timed = {name: graph.replay for name, graph in graphs.items()}
    n_calls = {name: len(calls) for name, calls in contenders.items()}
    if eager:
        few = contenders[eager][:IN_A_ROW]
        timed["in a row"], n_calls["in a row"] = lambda: run(few), len(few)
    return {name: us / n_calls[name] for name, us in medians(timed, rounds).items()}


def decode(pool: Pool, rounds: int) -> Iterator[Bar]:
    for batch, seqlen in DECODE:
        lengths, copies, q = [seqlen] * batch, pool.n_copies(batch * seqlen), pool.queries(batch, 1)
        contenders = {"contiguous": pool.on_contiguous(q, seqlen, copies)}
        contenders |= {
            f"pages of {size}": pool.on_pages(q, lengths, size, copies) for size in OVER_CONTIGUOUS
        }
        packed = f"{PAGE} with packed q"
        contenders[packed] = pool.on_pages(q, lengths, PAGE, copies, packed=True)
        us = times_of(contenders, rounds, eager=f"pages of {PAGE}")
        cell = f"decode {batch} x {seqlen}"
        for size, most in OVER_CONTIGUOUS.items():
            of_size = us[f"pages of {size}"]
            yield Bar(cell, f"pages of {size}", of_size, "contiguous", us["contiguous"], most)
        yield Bar(cell, packed, us[packed], "contiguous", us["contiguous"], OVER_CONTIGUOUS[PAGE])
        allowed = pool.bytes(lengths) / TERABYTES * 1e-6 + FIXED
        for name, what in ((f"pages of {PAGE}", "in a graph"), ("in a row", "in a row")):
            bar = f"{TERABYTES} TB/s + {FIXED} us"
            yield Bar(cell, f"pages of {PAGE} {what}", us[name], bar, allowed, 1.0)


def ragged(pool: Pool, rounds: int) -> Iterator[Bar]:
    generator = torch.Generator().manual_seed(1234)
    drawn = torch.exp(math.log(1500) + 1.2 * torch.randn(max(RAGGED), generator=generator))
    drawn = drawn.round().long().clamp(1, 32768).tolist()
    batches = {f"decode {batch} ragged": drawn[:batch] for batch in RAGGED}
    for cell, lengths in {**batches, "decode 4, one long": ONE_LONG}.items():
        batch, q = len(lengths), pool.queries(len(lengths), 1)
        uniform = [round(sum(lengths) / batch)] * batch
        copies = pool.n_copies(max(sum(lengths), sum(uniform)) + PAGE * batch)
        contenders = {
            "ragged": pool.on_pages(q, lengths, PAGE, copies),
            "uniform": pool.on_pages(q, uniform, PAGE, copies),
        }
        us = times_of(contenders, rounds)
        of_equal_bytes = us["uniform"] * pool.bytes(lengths) / pool.bytes(uniform)
        yield Bar(cell, "ragged", us["ragged"], "equal lengths", of_equal_bytes, OVER_UNIFORM)


def prefill(pool: Pool, rounds: int) -> Iterator[Bar]:
    for batch, seqlen in PREFILL:
        lengths, q = [seqlen] * batch, pool.queries(batch, seqlen)
        contenders = {"contiguous": pool.on_contiguous(q, seqlen, 2)}
        contenders |= {
            f"pages of {size}": pool.on_pages(q, lengths, size, 2)
            for size in PREFILL_OVER_CONTIGUOUS
        }
        us = times_of(contenders, rounds)
        for size, most in PREFILL_OVER_CONTIGUOUS.items():
            name = f"pages of {size}"
            cell = f"prefill {batch} x {seqlen}"
            yield Bar(cell, name, us[name], "contiguous", us["contiguous"], most)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", default="32,8", help="of q, and of k and v")
    parser.add_argument("--d-head", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    sections = {"decode": decode, "ragged": ragged, "prefill": prefill}
    parser.add_argument("--only", choices=list(sections), action="append")
    asked = parser.parse_args()
    torch.manual_seed(0)
    pool = Pool(*map(int, asked.heads.split(",")), asked.d_head)
    print(torch.cuda.get_device_name(), f"heads {asked.heads}, d_head {asked.d_head}, us a call")
    bars = itertools.chain(*(sections[name](pool, asked.rounds) for name in asked.only or sections))
    found: list[Bar] = []
    for (cell, beside, us), line in itertools.groupby(bars, lambda bar: bar.line):
        found += (of_line := list(line))
        print(f"{cell:18s} {beside} {us:.1f}: {', '.join(map(str, of_line))}", flush=True)
    n_met = sum(bar.is_met for bar in found)
    print(f"{n_met} of {len(found)} bars are met")
    sys.exit(n_met < len(found))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
