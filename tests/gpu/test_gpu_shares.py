"""Equal shares of the keys of sequences of different lengths on a GPU: beside fp64, with a schedule
and without, in CUDA graphs at lengths that were not captured."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from support.graphs import captured
from support.paged import Cache

import pyflash
from pyflash.op.reference import expect_varlen

pytestmark = pytest.mark.gpu

BF16, FP16 = torch.bfloat16, torch.float16
HEADS, HEADS_KV = 8, 2
SHAPES = {BF16: 128, FP16: 64}  # d_head of the configs for few queries
LONGEST, PAGE = 3000, 16
MASKS = ({"causal": True}, {"causal": True, "window_left": 700}, {})


@pytest.fixture(autouse=True)
def _needs_kernels():
    shared = {
        config.config.dtype.name
        for config in pyflash.built_configs().values()
        if any(f.equal_shares and f.paged_kv and f.left_window for f in config.features)
    }
    if torch.cuda.get_device_capability()[0] != 9 or shared < {"BF16", "FP16"}:
        pytest.skip("no kernels that share keys are built for this GPU")


def lengths_of(rng: random.Random, batch: int) -> list[int]:
    kinds = (0, 1, rng.randint(1, 64), rng.randint(1, LONGEST), rng.randint(1, 300))
    return [rng.choice(kinds) for _ in range(batch)]


def make(seed: int, n_queries: int = 1):
    """A cache, packed queries, their starts, and the arguments of attention over it."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    dtype = (BF16, FP16)[seed % 2]
    batch = rng.choice((1, 3, 8, 40))
    cache = Cache(lengths_of(rng, batch), PAGE, HEADS_KV, SHAPES[dtype], dtype, device="cuda")
    starts = [n_queries * i for i in range(batch + 1)]
    q = torch.randn(starts[-1], HEADS, SHAPES[dtype], device="cuda").to(dtype)
    cu_seqlens_q = torch.tensor(starts, dtype=torch.int32, device="cuda")
    lengths = {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": n_queries}
    options = dict(MASKS[seed % len(MASKS)])
    if seed % 5 == 0:
        options["sinks"] = torch.linspace(-1, 2, HEADS, device="cuda")
    return cache, q, starts, lengths, options


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_lengths(first):
    for seed in range(first, first + 20):
        n_queries = (1, 2, 3, 4, 8)[seed % 5]  # with 8, a list is made, and a kernel merges
        cache, q, starts, lengths, options = make(seed, n_queries)
        cache.expire([lengths["max_seqlen_q"]] * len(cache.lengths), **options)
        made = pyflash.schedule(HEADS, *cache.tensors[::2], cache.seqlens, **lengths, **options)
        call = {**lengths, **options, "return_lse": True}
        try:
            own = pyflash.attention_paged(q, *cache.tensors, num_splits=-1, **call)
            given = pyflash.attention_paged(q, *cache.tensors, schedule=made, **call)
            cache.check_packed(starts, q, *given, **options)
            assert all(map(torch.equal, own, given))
        except BaseException as error:
            error.add_note(f"seed {seed}: {cache.lengths}, {lengths['max_seqlen_q']} queries")
            raise


@pytest.mark.parametrize("seed", range(12))
def test_packed_caches(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtype = (BF16, FP16)[seed % 2]
    lengths_k = lengths_of(rng, 12)
    lengths_q = [rng.randint(0, 3) for _ in lengths_k]
    cu_q, cu_k = (
        torch.tensor([0, *itertools.accumulate(x)], dtype=torch.int32, device="cuda")
        for x in (lengths_q, lengths_k)
    )
    q = torch.randn(sum(lengths_q), HEADS, SHAPES[dtype], device="cuda").to(dtype)
    k, v = torch.randn(2, sum(lengths_k), HEADS_KV, SHAPES[dtype], device="cuda").to(dtype)
    inputs = (q, k, v, cu_q, cu_k)
    options = MASKS[seed % len(MASKS)]
    out, lse = pyflash.attention_varlen(
        *inputs, 3, max(lengths_k), num_splits=-1, return_lse=True, **options
    )
    expect_varlen(*inputs, **options).check(out, lse)


def test_a_graph_serves_any_lengths():
    """The schedule made in it once, for two layers; the lengths change behind its back."""
    batch, width = 16, LONGEST // PAGE + 1
    cache = Cache([LONGEST] * batch, PAGE, HEADS_KV, 128, BF16, device="cuda", width=width)
    q = torch.randn(batch, 1, HEADS, 128, device="cuda").bfloat16()
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = pyflash.schedule(HEADS, *cache.tensors[::2], cache.seqlens, causal=True)

        def step():
            made.update(*cache.tensors[::2], cache.seqlens)
            call = {"schedule": made, "causal": True}
            first = pyflash.attention_paged(q, *cache.tensors, **call)
            return pyflash.attention_paged(first, *cache.tensors, **call)

        graph, out = captured(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    rng = random.Random(0)
    for _ in range(50):
        cache.seqlens.copy_(torch.tensor(lengths_of(rng, batch), dtype=torch.int32))
        graph.replay()
        found = out.clone()
        assert torch.equal(found, step())
        plain = pyflash.attention_paged(q, *cache.tensors, causal=True)
        plain = pyflash.attention_paged(plain, *cache.tensors, causal=True)
        assert torch.allclose(found.float(), plain.float(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("batch", [6, 40, 200])
def test_a_launch_that_a_graph_repeats_takes_no_part_of_the_launch_before(batch):
    """CTAs hand each other parts in the same memory, with the same tag, in every replay."""
    cache = Cache([LONGEST] * batch, PAGE, HEADS_KV, 128, BF16, device="cuda")
    q = torch.randn(batch, 1, HEADS, 128, device="cuda").bfloat16()

    def call():
        return pyflash.attention_paged(q, *cache.tensors, num_splits=-1, return_lse=True)

    graph, found = captured(call)
    rng = random.Random(batch)
    for i in range(200):
        lengths = [rng.randint(0, LONGEST)] * batch if i % 4 == 0 else lengths_of(rng, batch)
        cache.seqlens.copy_(torch.tensor(lengths, dtype=torch.int32))
        q.normal_()
        for tensor in found:
            tensor.fill_(float("nan"))
        graph.replay()
        assert all(map(torch.equal, found, call())), lengths


def test_streams_at_the_same_time():
    """Graphs and calls whose CTAs wait for each other, on four streams."""
    problems = []
    for seed in range(4):
        cache, q, _, lengths, options = make(seed, n_queries=1 + seed % 2)

        def call(q=q, cache=cache, lengths=lengths, options=options):
            return pyflash.attention_paged(q, *cache.tensors, num_splits=-1, **lengths, **options)

        problems.append((torch.cuda.Stream(), call, call(), captured(call)))
    torch.cuda.synchronize()
    for i in range(100):
        results = []
        for stream, call, _, (graph, found) in problems:
            with torch.cuda.stream(stream):
                if i % 2:
                    graph.replay()
                results.append(found if i % 2 else call())
        torch.cuda.synchronize()
        for result, (_, _, expected, _) in zip(results, problems, strict=True):
            assert torch.equal(result, expected)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 1000, LONGEST])
@pytest.mark.parametrize("batch", [2, 7, 33, 70, 256, 257])
def test_sequences_of_one_length(length, batch):
    """Whole tiles, parts of a tile alike, or equal shares."""
    torch.manual_seed(length)
    cache = Cache([length] * batch, PAGE, HEADS_KV, 128, BF16, device="cuda")
    starts = list(range(batch + 1))
    q = torch.randn(batch, HEADS, 128, device="cuda").bfloat16()
    lengths = {"cu_seqlens_q": torch.tensor(starts, dtype=torch.int32).cuda(), "max_seqlen_q": 1}
    call = {**lengths, "return_lse": True, "num_splits": -1}
    cache.check_packed(starts, q, *pyflash.attention_paged(q, *cache.tensors, **call))


@pytest.mark.parametrize("lengths", [(60_000, 1, 0, 700), (60_000,) * 4, (40, 0, 3, 1)])
def test_few_sequences_in_long_tables(lengths):
    """The table has room for so much that shares are chosen; a tile has dozens of parts, or one."""
    width = 60_000 // PAGE
    cache = Cache(lengths, PAGE, HEADS_KV, 128, BF16, device="cuda", width=width)
    q = torch.randn(4, 1, HEADS, 128, device="cuda").bfloat16()
    found = pyflash.attention_paged(q, *cache.tensors, return_lse=True)
    cache.check_padded(q, *found)
    shared = pyflash.attention_paged(q, *cache.tensors, return_lse=True, num_splits=-1)
    assert all(map(torch.equal, found, shared))


def test_more_sequences_than_are_read_at_a_time():
    batch = 1500
    cache = Cache([i % 90 for i in range(batch)], PAGE, 1, 128, BF16, device="cuda")
    q = torch.randn(batch, 1, 4, 128, device="cuda").bfloat16()
    expected = pyflash.attention_paged(q, *cache.tensors)
    found = pyflash.attention_paged(q, *cache.tensors, num_splits=-1)
    assert torch.allclose(found.float(), expected.float(), atol=2e-2, rtol=2e-2)


def test_a_schedule_of_other_shapes_is_refused():
    cache, q, _, lengths, _ = make(1)
    made = pyflash.schedule(HEADS, cache.k, cache.table[:1], cache.seqlens[:1])
    if len(cache.lengths) > 3:
        with pytest.raises(ValueError, match="schedule has shape"):
            pyflash.attention_paged(q, *cache.tensors, schedule=made, **lengths)
    many = torch.randn(len(cache.lengths), 65, HEADS, q.shape[-1], device="cuda").to(q.dtype)
    with pytest.raises(RuntimeError, match="queries are more than a tile's"):
        pyflash.attention_paged(many, *cache.tensors, num_splits=-1)
