"""Sequences of few queries beside one of many on a GPU: two kernels, the second of which does not
wait for the first. Over pages and packed, against fp64; the same bits every time."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from support.paged import Cache
from support.problems import Packed, make_packed

import pyflash
from pyflash.op.reference import expect_varlen
from pyflash.op.selection import Problem, select

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
HEADS, HEADS_KV, D = 8, 2, 128
MASKS = ({"causal": True}, {"causal": True, "window_left": 200}, {})


def lengths_of(seed: int) -> tuple[list[int], list[int]]:
    """Of queries and keys: decodes, speculative rows and chunks, some of them empty."""
    chance = random.Random(seed)
    q = [chance.choice((0, 1, 1, 1, 4, 16)) for _ in range(chance.choice((1, 7, 40)))]
    k = [n + chance.choice((0, 5, 300, 2000)) for n in q]
    for _ in range(chance.choice((1, 1, 2))):
        place = chance.randint(0, len(q))
        q.insert(place, chance.choice((17, 300, 777)))
        k.insert(place, chance.choice((0, 300, 1500)) + chance.choice((0, q[place])))
    return q, k


def starts_of(lengths: list[int]) -> list[int]:
    return [0, *itertools.accumulate(lengths)]


def attend_paged(
    cache: Cache, q: torch.Tensor, cu_seqlens_q: torch.Tensor, longest: int, **options
):
    return pyflash.attention_paged(
        q,
        *cache.tensors,
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=longest,
        return_lse=True,
        **options,
    )


@pytest.fixture(autouse=True)
def _needs_kernels():
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("kernels that share keys are for Hopper")
    problem = Problem(
        batch=9, heads_q=HEADS, heads_kv=HEADS_KV, seqlen_q=640, total_q=648, seqlen_k=3000,
        total_k=27_000, d_head=D, dtype="BF16", packed=True, options={"causal": True},
    )  # fmt: skip
    if "beside it" not in select(problem).reason:
        pytest.skip("no kernels of few queries that share keys are built")


@pytest.mark.parametrize("seed", range(40))
def test_over_pages(seed):
    torch.manual_seed(seed)
    lengths_q, lengths_k = lengths_of(seed)
    options = dict(MASKS[seed % len(MASKS)])
    if seed % 4 == 0:
        options["sinks"] = torch.linspace(-1, 2, HEADS, device="cuda")
    cache = Cache(lengths_k, (8, 16, 64)[seed % 3], HEADS_KV, D, BF16, device="cuda")
    cache.expire(lengths_q, **options)
    starts = starts_of(lengths_q)
    q = torch.randn(starts[-1], HEADS, D, device="cuda").to(BF16)
    cu_seqlens_q = torch.tensor(starts, dtype=torch.int32, device="cuda")
    found = [attend_paged(cache, q, cu_seqlens_q, max(lengths_q), **options) for _ in range(5)]
    cache.check_packed(starts, q, *found[0], **options)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.parametrize("seed", range(40))
def test_packed(seed):
    lengths_q, lengths_k = lengths_of(100 + seed)
    options = MASKS[seed % len(MASKS)]
    packed = Packed(str(seed), tuple(lengths_q), tuple(lengths_k), HEADS, HEADS_KV)
    inputs = make_packed(packed, BF16, D, "cuda", seed)
    found = [pyflash.attention_varlen(*inputs, return_lse=True, **options) for _ in range(5)]
    expect_varlen(*inputs[:5], **options).check(*found[0])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_a_kernel_after_it_sees_all_and_one_before_it_is_waited_for():
    """Queries that the kernel before makes, outputs that the next one reads, many times in a row
    and in a graph, at lengths that were not captured."""
    torch.manual_seed(0)
    batch, longest = 24, 700
    cache = Cache([3000] * batch, 16, HEADS_KV, D, BF16, device="cuda")
    q = torch.randn(longest + batch - 1, HEADS, D, device="cuda").to(BF16)
    cu_seqlens_q = torch.arange(batch + 1, dtype=torch.int32, device="cuda")
    cu_seqlens_q[1:] += longest - 1

    def layers(x):
        for _ in range(6):
            x = attend_paged(cache, x * 2, cu_seqlens_q, longest, causal=True)[0]
        return x

    layers(q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layers(q)
    for seed in range(20):
        chance = random.Random(seed)
        n = [chance.choice((0, 1, 17, 900, 3000)) for _ in range(batch)]
        cache.seqlens.copy_(torch.tensor(n, dtype=torch.int32))
        place = chance.randint(0, batch)  # of the chunk; none: at the end
        lengths_q = [longest if b == place else 1 for b in range(batch)]
        cu_seqlens_q.copy_(torch.tensor(starts_of(lengths_q), dtype=torch.int32))
        rows = sum(lengths_q)
        graph.replay()
        found = out[:rows].clone()
        expected = q
        for _ in range(6):
            parts = []
            for b, part in enumerate((expected * 2)[:rows].split(lengths_q)):
                alone = cache.table[b : b + 1], cache.seqlens[b : b + 1]
                parts += pyflash.attention_paged(part[None], cache.k, cache.v, *alone, causal=True)
            expected = torch.cat(parts)
        assert torch.allclose(found.float(), expected.float(), atol=3e-2, rtol=3e-2), seed
