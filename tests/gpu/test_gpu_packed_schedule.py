"""Packed sequences of different lengths on a GPU: their tiles are listed on the device, and those
of few rows beside longer ones run by a kernel of their own."""

from __future__ import annotations

import random

import pytest
import torch
from support.gpu_calls import CONFIGS, attend_packed, check
from support.problems import Packed, make_packed

from pyflash import attention_varlen
from pyflash.op.reference import expect_varlen
from pyflash.op.selection import TORCH_DTYPES

pytestmark = pytest.mark.gpu

MASKS = (
    {},
    {"causal": True},
    {"window_left": 200, "window_right": 0},
    {"window_left": 33, "window_right": 90},
)
HEADS = ((4, 4), (8, 2), (8, 1), (6, 2))
LISTED = [config for config in CONFIGS if config.d_head in (64, 128)]


def random_packed(seed: int) -> Packed:
    """Zero lengths, one long among many short, prime lengths, decodes beside a chunk."""
    chance = random.Random(seed)
    batch = chance.choice((2, 3, 8, 33, 70))
    kinds = {
        "short": lambda: chance.randint(0, 70),
        "decodes": lambda: 1,
        "documents": lambda: int(min(chance.lognormvariate(5, 1.2), 1500)),
        "prime": lambda: chance.choice((0, 1, 61, 127, 131, 257, 509)),
    }
    kind = chance.choice(list(kinds))
    q = [kinds[kind]() for _ in range(batch)]
    q[chance.randrange(batch)] = chance.choice((300, 777, 2048))
    k = q if chance.random() < 0.5 else [n + chance.choice((0, 1, 100, 900)) for n in q]
    if chance.random() < 0.2:
        k = [chance.choice((0, n)) for n in k]
    return Packed(f"{seed}: {batch} {kind}", tuple(q), tuple(k), *chance.choice(HEADS))


@pytest.mark.parametrize("seed", range(60))
def test_random_packed_problems(seed):
    """Between rows of NaN, against fp64; the same bits twice."""
    packed, mask = random_packed(seed), MASKS[seed % len(MASKS)]
    dtype = (torch.float16, torch.bfloat16)[seed // 2 % 2]
    arguments = make_packed(packed, dtype, (64, 128)[seed % 2], "cuda", seed)
    first = attend_packed(arguments, **mask)
    check(expect_varlen(*arguments[:5], **mask), first, packed, mask)
    again = attend_packed(arguments, **mask)
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.view(torch.int8), b.view(torch.int8))


@pytest.mark.parametrize("config", LISTED, ids=str)
def test_each_config(config):
    packed = Packed("one long", (1, 0, 700, 64, 3, 129), (257, 9, 700, 64, 0, 1000), 8, 2)
    arguments = make_packed(packed, TORCH_DTYPES[config.dtype], config.d_head, "cuda")
    for mask in MASKS:
        results = attend_packed(arguments, config=config, **mask)
        check(expect_varlen(*arguments[:5], **mask), results, config, mask)


@pytest.mark.parametrize("seed", range(6))
def test_a_nan_neighbour_is_not_seen(seed):
    """All rows of one sequence are NaN: those of the others are what they were."""
    packed = random_packed(100 + seed)
    arguments = make_packed(packed, torch.bfloat16, 128, "cuda", seed)
    out, lse = attend_packed(arguments, causal=True)
    q, k, v, cu_q, cu_k, *_ = arguments
    victim = seed % len(packed.seqlens_q)
    rows = slice(cu_q[victim].item(), cu_q[victim + 1].item())
    keys = slice(cu_k[victim].item(), cu_k[victim + 1].item())
    for tensor, part in ((q, rows), (k, keys), (v, keys)):
        tensor[part] = torch.nan
    poisoned, poisoned_lse = attend_packed(arguments, causal=True)
    others = torch.ones(len(q), dtype=torch.bool, device="cuda")
    others[rows] = False
    assert torch.equal(poisoned[others], out[others])
    assert torch.equal(poisoned_lse[:, others], lse[:, others])


@pytest.mark.parametrize("mask", MASKS[:3], ids=str)
def test_a_graph_runs_any_lengths(mask):
    """Captured at one set of lengths, with bounds that hold for all, replayed at others, some of
    them zero."""
    heads, heads_kv, d_head, total, batch = 8, 2, 128, 4096, 24
    torch.manual_seed(0)
    q = torch.randn(total, heads, d_head, dtype=torch.bfloat16, device="cuda")
    k, v = (torch.randn(total, heads_kv, d_head, device="cuda").to(q) for _ in "kv")
    cu_seqlens = torch.arange(0, total + 1, total // (batch - 1), device="cuda", dtype=torch.int32)
    cu_seqlens = torch.nn.functional.pad(cu_seqlens, (0, batch + 1 - len(cu_seqlens)), value=total)

    def run():
        return attention_varlen(
            q, k, v, cu_seqlens, cu_seqlens, total, total, return_lse=True, **mask
        )

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    for seed in range(20):
        chance = random.Random(seed)
        cuts = sorted(chance.choices(range(total + 1), k=batch - 1))
        if seed % 3 == 0:  # one long among short
            cuts = sorted(chance.choices(range(100), k=batch - 1))
        cu_seqlens.copy_(torch.tensor([0, *cuts, total], dtype=torch.int32))
        for result in results:
            result.fill_(torch.nan)
        graph.replay()
        check(expect_varlen(q, k, v, cu_seqlens, cu_seqlens, **mask), results, seed, mask)


@pytest.mark.parametrize("n_decodes", [1, 7, 63])
def test_decodes_beside_a_chunk(n_decodes):
    """By two kernels, where both are built."""
    lengths_q = (*[1] * n_decodes, 300)
    lengths_k = (*(17 * i % 700 for i in range(n_decodes)), 900)
    arguments = make_packed(
        Packed("mixed", lengths_q, lengths_k, 32, 8), torch.bfloat16, 128, "cuda"
    )
    expected = expect_varlen(*arguments[:5], causal=True)
    check(expected, attend_packed(arguments, causal=True), n_decodes)


def test_many_sequences():
    """More than one CTA reads at a time."""
    chance = random.Random(0)
    lengths = (*(chance.choice((0, 1, 2, 5, 30)) for _ in range(3000)), 400)
    arguments = make_packed(Packed("many", lengths, lengths, 2, 1), torch.float16, 64, "cuda")
    check(expect_varlen(*arguments[:5], causal=True), attend_packed(arguments, causal=True))


def test_loose_bounds_give_the_same_bits():
    """Bounds say how many tiles a sequence may have; selection may look at them, so the config is
    named."""
    packed = Packed("documents", (700, 3, 129, 0, 350), (700, 3, 129, 0, 350), 4, 2)
    arguments = make_packed(packed, torch.bfloat16, 128, "cuda")
    config = next(c for c in LISTED if c.d_head == 128 and TORCH_DTYPES[c.dtype] is torch.bfloat16)
    total = sum(packed.seqlens_q)
    tight = attend_packed(arguments, causal=True, config=config)
    loose = attend_packed((*arguments[:5], total, total), causal=True, config=config)
    assert all(torch.equal(a, b) for a, b in zip(tight, loose, strict=True))
