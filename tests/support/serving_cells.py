"""Calls of attention in serving, timed on a GPU beside others: for serving_speed.py."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from support import graphs, paged_speed
from support.paged_speed import DTYPE, FIXED, PAGE, TERABYTES, Bar, Calls, Pool
from torch import Tensor

import pyflash

HEADS, D_HEAD = (32, 8), 128
SCALE = 1  # lengths are divided by it
WEIGHT = (4096, 14336)  # of a layer: 117 MB
CALLS = 12  # of a graph; 4 where one takes long
INVARIANT = 1.15
DECODE = [(1, 1024), (8, 1024), (64, 1024), (8, 8192), (64, 8192)]
PREFILL = [(4, 4096), (1, 16384)]
APPENDED, OVER_COPY = (64, 2048, 16384), 1 / 0.8
SHARERS, PREFIX, OWN = 64, 8192, 512
MIXED = 1.05

Cells = Iterator[tuple[str, Callable[[], Any]]]


def keys(n: int) -> int:
    return max(n // SCALE, 1)


def int32(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


def rows_of(pool: Pool, n: int) -> Tensor:
    return torch.randn(n, pool.heads, pool.d_head, device="cuda", dtype=DTYPE)


@functools.cache
def weights() -> list[Tensor]:
    return [torch.randn(WEIGHT, device="cuda", dtype=DTYPE) * 0.01 for _ in range(4)]


def stepped(contenders: dict[str, Calls], rounds: int, rows: int, n: int) -> dict[str, float]:
    """Microseconds a call, of n calls in a graph, each behind a product of `rows` rows and weights
    that come from memory."""
    x = torch.randn(min(max(rows, 8), 256), WEIGHT[0], device="cuda", dtype=DTYPE)

    of_layers = weights()

    def run(calls: Calls) -> None:
        for i in range(n):
            torch.mm(x, of_layers[i % 4])
            if calls:
                calls[i % len(calls)]()

    made = {
        name: graphs.captured(partial(run, calls))[0]
        for name, calls in {"": [], **contenders}.items()
    }
    times = graphs.microseconds({name: graph.replay for name, graph in made.items()}, rounds)
    base = times.pop("")
    return {
        name: statistics.median(a - b for a, b in zip(of, base, strict=True)) / n
        for name, of in times.items()
    }


def on_pages(
    pool: Pool, q: Tensor, lengths: Sequence[int], tables: Sequence[Tensor], **options: Any
) -> Calls:
    k, v = pool.pages(PAGE)
    used = int32(*lengths)
    return [
        lambda table=table: pyflash.attention_paged(q, k, v, table, used, causal=True, **options)
        for table in tables
    ]


def packed(n_queries: Sequence[int]) -> dict[str, Any]:
    starts = int32(0, *itertools.accumulate(n_queries))
    return {"cu_seqlens_q": starts, "max_seqlen_q": max(n_queries)}


def close(found: Tensor, expected: Tensor) -> None:
    error = ((found - expected).float().norm() / expected.float().norm()).item()
    assert error < 1e-2, f"relative L2 {error:.1e}"


def invariant(rounds: int) -> Cells:
    cells = [(batch, n, 1) for batch, n in DECODE] + [(batch, n, n) for batch, n in PREFILL]
    for d_head in (128, 64):
        pool = Pool(*HEADS, d_head)
        for (batch, n, n_queries), where in itertools.product(
            cells, (f"pages of {PAGE}", "contiguous")
        ):
            kind = "decode" if n_queries == 1 else "prefill"
            sizes = (batch, keys(n), 1 if n_queries == 1 else keys(n_queries))
            run = partial(over_default, pool, where, *sizes, rounds)
            yield f"d {d_head} {kind} {batch} x {n}, {where}", run


def over_default(
    pool: Pool, where: str, batch: int, n: int, n_queries: int, rounds: int
) -> Iterator[Bar]:
    copies, q = pool.n_copies(batch * n), pool.queries(batch, n_queries)
    tables = list(pool.tables([n] * batch, PAGE, copies))
    inputs = [pool.contiguous(batch, n, i) for i in range(copies)]
    contenders: dict[str, Calls] = {}
    for name in ("default", "invariant"):
        options = {"batch_invariant": name == "invariant"}
        if where == "contiguous":
            contenders[name] = [
                lambda kv=kv, options=options: pyflash.attention(q, *kv, causal=True, **options)
                for kv in inputs
            ]
        else:
            contenders[name] = on_pages(pool, q, [n] * batch, tables, **options)
    close(contenders["invariant"][0](), contenders["default"][0]())
    n_calls = 4 if n_queries > 1 or batch * n > 1 << 18 else CALLS
    us = stepped(contenders, rounds, batch * n_queries, n_calls)
    yield Bar("", "invariant, step", us["invariant"], "default", us["default"], INVARIANT)
    us = paged_speed.times_of(contenders, rounds)
    yield Bar("", "in a row", us["invariant"], "default", us["default"], INVARIANT)


def append(rounds: int) -> Cells:
    pool = Pool(*HEADS, D_HEAD)
    for n in APPENDED:
        yield f"{n} tokens", partial(over_copy, pool, keys(n), rounds)


def over_copy(pool: Pool, n: int, rounds: int) -> Iterator[Bar]:
    """Speed beside two copies of the same bytes to rows one behind the other."""
    shape = (pool.n_copies(n), n, pool.heads_kv, pool.d_head)
    k, v = (torch.randn(shape, device="cuda", dtype=DTYPE) for _ in "kv")
    slots = torch.randperm(pool.k.shape[0], device="cuda")[: len(k) * n].view(len(k), n)
    to = [slice(i * n, i * n + n) for i in range(len(k))]
    copies = [
        lambda i=i: (pool.k[to[i]].copy_(k[i]), pool.v[to[i]].copy_(v[i])) for i in range(len(k))
    ]
    contenders = {"copy": copies}
    for size in (1, 16, PAGE):
        caches = pool.pages(size)
        contenders[f"pages of {size}"] = [
            lambda i=i, caches=caches: pyflash.append_kv(k[i], v[i], *caches, slots[i])
            for i in range(len(k))
        ]
        contenders[f"pages of {size}"][0]()
        assert torch.equal(pool.k[slots[0]], k[0])
        assert torch.equal(pool.v[slots[0]], v[0])
    us = paged_speed.times_of(contenders, rounds)
    for name in list(contenders)[1:]:
        yield Bar("", name, us[name], "copy", us["copy"], OVER_COPY)


def cascade(rounds: int) -> Cells:
    pool = Pool(*HEADS, D_HEAD)
    cell = f"{SHARERS} sequences, {keys(OWN)} keys behind {keys(PREFIX)}"
    yield cell, partial(of_a_prefix, pool, rounds)


def of_a_prefix(pool: Pool, rounds: int) -> Iterator[Bar | str]:
    """A prefix that all sequences share, beside calls in which each reads it."""
    prefix, own = keys(PREFIX), keys(OWN)
    copies = pool.n_copies(prefix + SHARERS * own)
    q, (k, v) = rows_of(pool, SHARERS), pool.pages(PAGE)
    tables = list(pool.tables([prefix, *[own] * SHARERS], PAGE, copies))
    of_prefix = [table[:1, : -(-prefix // PAGE)].contiguous() for table in tables]
    of_own = [table[1:, : -(-own // PAGE)].contiguous() for table in tables]
    whole = [
        torch.cat([first.expand(SHARERS, -1), last], 1)
        for first, last in zip(of_prefix, of_own, strict=True)
    ]
    groups, used = packed([SHARERS])["cu_seqlens_q"], int32(prefix)
    each, used_own = packed([1] * SHARERS), int32(*[own] * SHARERS)
    levels = [
        [(first, used, groups, SHARERS), (last, used_own, each["cu_seqlens_q"], 1)]
        for first, last in zip(of_prefix, of_own, strict=True)
    ]
    contenders = {
        "attention_cascade": [
            lambda of=of: pyflash.attention_cascade(q, k, v, of, causal=True) for of in levels
        ],
        "attention_paged": on_pages(pool, q, [prefix + own] * SHARERS, whole, **each),
    }
    close(contenders["attention_cascade"][0](), contenders["attention_paged"][0]())
    us = stepped(contenders, rounds, SHARERS, CALLS)
    once = pool.bytes([prefix + SHARERS * own, *[0] * (SHARERS - 1)]) / TERABYTES * 1e-6 + FIXED
    found = us["attention_cascade"]
    yield Bar("", "attention_cascade", found, "attention_paged", us["attention_paged"], 1.0)
    yield f"bytes read once / {TERABYTES} TB/s + {FIXED} us: {once:.1f}, {found / once:.2f}"


def mixed(rounds: int) -> Cells:
    pool = Pool(*HEADS, D_HEAD)
    for place, cell in ((63, "decodes first"), (0, "chunk first")):
        yield cell, partial(over_its_parts, pool, place, rounds)


def over_its_parts(pool: Pool, place: int, rounds: int) -> Iterator[Bar]:
    """A chunk of 2048 queries on 8k keys at a place among 63 decodes on 4k, over both alone."""
    lengths, n_queries = [keys(4096)] * 63, [1] * 63
    lengths.insert(place, keys(8192))
    n_queries.insert(place, keys(2048))
    tables = list(pool.tables(lengths, PAGE, 2))
    q = rows_of(pool, sum(n_queries))
    of_chunk = slice(place, place + 1)
    of_decodes = slice(1, 64) if place == 0 else slice(0, 63)
    contenders = {"mixed": on_pages(pool, q, lengths, tables, **packed(n_queries))}
    out = contenders["mixed"][0]()
    for name, of in (("chunk", of_chunk), ("decodes", of_decodes)):
        first = sum(n_queries[: of.start])
        rows = slice(first, first + sum(n_queries[of]))
        own = [table[of].contiguous() for table in tables]
        contenders[name] = on_pages(pool, q[rows], lengths[of], own, **packed(n_queries[of]))
        close(contenders[name][0](), out[rows])
    us = stepped(contenders, rounds, len(q), CALLS)
    beside = f"chunk {us['chunk']:.1f} and decodes {us['decodes']:.1f}, together"
    yield Bar("", "mixed", us["mixed"], beside, us["chunk"] + us["decodes"], MIXED)


def long(rounds: int) -> Cells:
    pool = Pool(*HEADS, D_HEAD)
    yield "128k among 63 of 512", partial(over_equal_lengths, pool, rounds)


def over_equal_lengths(pool: Pool, rounds: int) -> Iterator[Bar]:
    lengths = [keys(512)] * 63
    lengths.insert(20, keys(131072))
    uniform = [-(-sum(lengths) // 64)] * 64
    q, copies = pool.queries(64, 1), pool.n_copies(sum(uniform))
    contenders = {
        name: on_pages(pool, q, of, list(pool.tables(of, PAGE, copies)))
        for name, of in (("ragged", lengths), ("uniform", uniform))
    }
    of_bytes = pool.bytes(lengths) / pool.bytes(uniform)
    us = paged_speed.times_of(contenders, rounds)
    equal = us["uniform"] * of_bytes
    yield Bar("", "in a row", us["ragged"], "equal lengths", equal, paged_speed.OVER_UNIFORM)
    us = stepped(contenders, rounds, 64, CALLS)
    equal = us["uniform"] * of_bytes
    yield Bar("", "step", us["ragged"], "equal lengths", equal, paged_speed.OVER_UNIFORM)
