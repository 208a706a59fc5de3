"""Attention over pages on a GPU: beside fp64, with NaN in everything that has no effect.

Pitfalls are those of serving, by number. PYFLASH_PAGED_CASES: how many random cases there are.
"""

from __future__ import annotations

import itertools
import os
import random

import pytest
import torch
from support.graphs import asked_of_cuda, captured, medians
from support.invariant import build_invariant
from support.paged import LAYOUTS, Cache, laid_out
from test_paged_writes import random_slots

import pyflash
from pyflash.op import own_rows

pytestmark = pytest.mark.gpu

FP16, BF16 = torch.float16, torch.bfloat16
HEADS = 4
CASES = int(os.environ.get("PYFLASH_PAGED_CASES", "240"))
AT_A_TIME = 40
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "left": {"window_left": 20, "causal": True},
    "local": {"window_left": 9, "window_right": 2},
    "chunks": {"attention_chunk": 48, "causal": True},
}


def is_right(cache, seqlen_q, heads, expired=True, packed=False, **options):
    """One call, checked. seqlen_q: a number, or one for each sequence where they are packed."""
    lengths_q = seqlen_q if packed else [seqlen_q] * len(cache.lengths)
    if expired:
        cache.expire(lengths_q, **options)
    d_head, dtype = cache.k.shape[-1], cache.k.dtype
    if not packed:
        q = torch.randn(len(lengths_q), seqlen_q, heads, d_head, device="cuda").to(dtype)
        out, lse = pyflash.attention_paged(q, *cache.tensors, return_lse=True, **options)
        cache.check_padded(q, out, lse, **options)
        return
    starts = [0, *itertools.accumulate(lengths_q)]
    q = torch.randn(starts[-1], heads, d_head, device="cuda").to(dtype)
    out, lse = pyflash.attention_paged(
        q,
        *cache.tensors,
        cu_seqlens_q=torch.tensor(starts, dtype=torch.int32, device="cuda"),
        max_seqlen_q=max(lengths_q),
        return_lse=True,
        **options,
    )
    cache.check_packed(starts, q, out, lse, **options)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("d_head", [64, 128])
@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 8, 16, 48, 64, 128, 256])
def test_pages_masks_and_lengths(page_size, d_head, mask):
    """Pitfalls 1 to 5, 16 and 28."""
    lengths = (0, 1, page_size - 1, page_size, page_size + 1, 127, 300, 4 * page_size)
    for seqlen_q, group in ((1, 4), (3, 4), (70, 1)):
        cache = Cache(lengths, page_size, HEADS // group, d_head, BF16, device="cuda")
        is_right(cache, seqlen_q, HEADS, **MASKS[mask])


def random_case(seed):
    """Arguments of `Cache`, and of `is_right`."""
    rng = random.Random(seed)
    packed, page_size = rng.random() < 0.5, rng.choice([1, 5, 8, 16, 32, 64, 128, 256])
    lengths = [rng.choice([0, 1, rng.randrange(700), rng.randrange(40)]) for _ in range(3)]
    heads_kv, group = rng.choice([1, 2]), rng.choice([1, 2, 3, 8])
    seqlen_q = [rng.choice([0, 1, 2, rng.randrange(1, 150)]) for _ in lengths]
    if not any(seqlen_q):
        seqlen_q[0] = 1
    options = dict(MASKS[rng.choice(list(MASKS))], num_splits=rng.choice([0, 0, 1, 2, 7]))
    extra = rng.choice(["", "", "", "softcap", "sinks", "alibi_slopes"])
    heads = heads_kv * group
    if extra == "softcap":
        options["softcap"] = 3.0
    elif extra:
        options[extra] = torch.linspace(0.1, 2, heads, device="cuda")
    d_head = rng.choice([64, 128, 128, 80, 40])
    sizes = {"heads_kv": heads_kv, "d_head": d_head, "dtype": rng.choice([FP16, BF16])}
    called = {"heads": heads, "packed": packed, **options}
    return (lengths, page_size), sizes, seqlen_q if packed else seqlen_q[0], called


@pytest.mark.parametrize("first", range(0, CASES, AT_A_TIME))
def test_random_cases(first):
    """Pitfalls 19 and 24."""
    for seed in range(first, min(first + AT_A_TIME, CASES)):
        torch.manual_seed(seed)
        sizes, shapes, seqlen_q, called = random_case(seed)
        try:
            is_right(Cache(*sizes, **shapes, device="cuda"), seqlen_q, **called)
        except BaseException as error:
            error.add_note(f"seed {seed}: {random_case(seed)}")
            raise


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
def test_caches_are_views(layout, page_size):
    """Pitfalls 7 and 8."""
    cache = Cache((37, 300), page_size, device="cuda")
    q = torch.randn(2, 3, 4, 64, device="cuda").half()
    k, v = laid_out(layout, cache.k, cache.v)
    expected = pyflash.attention_paged(q, *cache.tensors)
    assert torch.equal(pyflash.attention_paged(q, k, v, *cache.tensors[2:]), expected)


FEW = "(BF16, 128, 64, 64, 1): sm90+stages_2+overlap+persistent+rescale_threshold+pack_gqa"
MANY = "(BF16, 128, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold"
SM80 = "(BF16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax+stages_2+rescale_threshold"  # noqa: E501
# Over pages it has causal masks alone, and no gathered rows.
LONG = "(BF16, 128, 192, 80, 3): sm90+stages_3+overlap+pingpong+persistent+rescale_threshold"


@pytest.mark.parametrize(
    ("config", "mask"),
    [*itertools.product((FEW, MANY, SM80), ("full", "causal")), (LONG, "causal")],
)
def test_pages_give_the_bits_of_packed_sequences(config, mask):
    """Blocks, and the order of sums, are those without pages."""
    if torch.cuda.get_device_capability()[0] != 9 and "sm90" in config:
        pytest.skip("its kernels run on a Hopper")
    lengths = (1000, 129, 64, 0)
    torch.manual_seed(0)
    k, v = ([torch.randn(n, 2, 128, device="cuda").to(BF16) for n in lengths] for _ in "kv")
    q = torch.randn(4 * 70, 4, 128, device="cuda").to(BF16)
    starts = [0, *itertools.accumulate(lengths)]
    cu_q = torch.arange(5, dtype=torch.int32, device="cuda") * 70
    cu_k = torch.tensor(starts, dtype=torch.int32, device="cuda")
    options = {"config": config, "num_splits": 1, "return_lse": True, **MASKS[mask]}
    found = [
        pyflash.attention_varlen(q, torch.cat(k), torch.cat(v), cu_q, cu_k, 70, 1000, **options)
    ]
    for page_size in (8, 16, 64, 256) if config == LONG else (1, 8, 16, 48, 64, 256):
        cache = Cache(lengths, page_size, 2, 128, BF16, device="cuda")
        for b in range(4):
            cache.k[cache.place(b)], cache.v[cache.place(b)] = k[b], v[b]
        packed = {"cu_seqlens_q": cu_q, "max_seqlen_q": 70}
        found.append(pyflash.attention_paged(q, *cache.tensors, **packed, **options))
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("bad", [-1, 10**6, 2**31 - 1, -(2**31)])
def test_pages_that_do_not_exist_are_zeros(bad, page_size):
    """Pitfall 5."""
    cache = Cache((130, 130), page_size, device="cuda")
    q = torch.randn(2, 1, 4, 64, device="cuda").half()
    expected = pyflash.attention_paged(q, *cache.tensors)
    cache.table[1] = bad
    out = pyflash.attention_paged(q, *cache.tensors)
    assert torch.equal(out[0], expected[0])
    assert (out[1] == 0).all()


@pytest.mark.parametrize("capacity", [77, 300, 512])
@pytest.mark.parametrize("mask", ["full", "left"])
def test_a_contiguous_cache(capacity, mask):
    cache = Cache((capacity, 0, capacity - 1, 3), capacity, device="cuda", width=1)
    cache.expire([3] * 4, **MASKS[mask])
    cache.table.clamp_(0)
    q = torch.randn(4, 3, HEADS, 64, device="cuda").half()
    inputs = (cache.k, cache.v, cache.seqlens)
    rows = cache.table[:, 0].contiguous()
    found = pyflash.attention_cached(q, *inputs, rows, return_lse=True, **MASKS[mask])
    cache.check_padded(q, *found, **MASKS[mask])
    k, v = (x[rows.long()] for x in (cache.k, cache.v))
    same = pyflash.attention_cached(q, k, v, cache.seqlens, return_lse=True, **MASKS[mask])
    assert all(map(torch.equal, same, found))


@pytest.mark.parametrize("before", ["nothing", "a call", "a call on another stream"])
def test_a_graph_keeps_the_table_of_a_contiguous_cache(before, monkeypatch):
    """Pitfall 17 of serving. Others, more of them, are called between replays."""
    monkeypatch.setattr(own_rows, "_kept", {})
    q = torch.randn(4, 1, 8, 128, device="cuda").to(BF16)
    k, v = torch.randn(2, 9, 200, 2, 128, device="cuda").to(BF16)
    lengths = torch.tensor([200, 0, 7, 130], dtype=torch.int32, device="cuda")
    rows = torch.arange(4, dtype=torch.int32, device="cuda")
    expected = pyflash.attention_cached(q, k, v, lengths, rows)
    run = lambda: pyflash.attention_cached(q, k, v, lengths)  # noqa: E731
    if before == "a call":
        assert torch.equal(run(), expected)
    elif before == "a call on another stream":
        other = torch.cuda.Stream()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            torch.cuda._sleep(10**7)
            run()
        assert torch.equal(run(), expected)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    for _ in range(3):
        found.fill_(torch.nan)
        more = torch.full((9,), 200, dtype=torch.int32, device="cuda")
        pyflash.attention_cached(torch.randn(9, 1, 8, 128, device="cuda").to(BF16), k, v, more)
        torch.full((1 << 20,), 10**6, dtype=torch.int32, device="cuda")
        graph.replay()
        assert torch.equal(found, expected)


@pytest.mark.parametrize("page_size", [1, 64])
def test_lengths_are_clamped_to_the_table(page_size):
    cache = Cache((128, 128), page_size, device="cuda", width=128 // page_size)
    q = torch.randn(2, 1, 4, 64, device="cuda").half()
    expected = pyflash.attention_paged(q, *cache.tensors)
    cache.seqlens.copy_(torch.tensor([10**9, 2**31 - 1]))
    assert torch.equal(pyflash.attention_paged(q, *cache.tensors), expected)
    cache.seqlens.fill_(-5)
    assert (pyflash.attention_paged(q, *cache.tensors) == 0).all()


def test_pages_beyond_32_bits():
    """Pitfall 6 of serving: the last page begins past 2^32 elements."""
    free, _ = torch.cuda.mem_get_info()
    page_size, heads_kv, d_head = 64, 8, 128
    num_pages = 2**32 // (page_size * heads_kv * d_head) + 8
    if free < 2.5 * num_pages * page_size * heads_kv * d_head * 2:
        pytest.skip("not enough memory")
    shape = (num_pages, page_size, heads_kv, d_head)
    k, v = (torch.empty(shape, dtype=BF16, device="cuda") for _ in "kv")
    pages = torch.tensor([[num_pages - 1, 0, num_pages - 2]], dtype=torch.int32, device="cuda")
    for x in (k, v):
        x[pages.flatten().long()] = torch.randn(3, *shape[1:], device="cuda").to(BF16)
    q = torch.randn(1, 2, 8, d_head, device="cuda").to(BF16)
    lengths = torch.tensor([150], dtype=torch.int32, device="cuda")
    near = torch.arange(3, dtype=torch.int32, device="cuda")[None]
    few = (x[pages.flatten().long()] for x in (k, v))
    expected = pyflash.attention_paged(q, *few, near, lengths)
    assert torch.equal(pyflash.attention_paged(q, k, v, pages, lengths), expected)


def test_nothing_to_attend():
    """Pitfall 28."""
    for batch, num_pages, width in itertools.product((0, 2), (0, 2), (0, 3)):
        q = torch.randn(batch, 1, 4, 64, device="cuda").half()
        k = v = torch.full((num_pages, 16, 2, 64), torch.nan, device="cuda").half()
        table = torch.zeros(batch, width, dtype=torch.int32, device="cuda")
        lengths = torch.full((batch,), 40 if num_pages == 0 else 0, dtype=torch.int32).cuda()
        out, lse = pyflash.attention_paged(q, k, v, table, lengths, return_lse=True)
        assert (out == 0).all()
        if num_pages or not width:
            assert (lse == -torch.inf).all()


@pytest.fixture(scope="module")
def invariant_kernels():
    build_invariant()


def random_lengths(rng: random.Random, batch: int, longest: int) -> torch.Tensor:
    kinds = lambda: (0, 1, rng.randrange(longest + 1), rng.randrange(200), longest)  # noqa: E731
    return torch.tensor([rng.choice(kinds()) for _ in range(batch)], dtype=torch.int32)


@pytest.mark.parametrize(
    ("page_size", "batch_invariant"),
    [(1, False), (16, False), (64, False), (1, True), (8, True), (16, True), (64, True)],
)
@pytest.mark.parametrize("seqlen_q", [1, 5])
def test_a_graph_serves_all_lengths(page_size, seqlen_q, batch_invariant, request):
    """Captured at one set of lengths, it gives the bits of calls at 200 others.
    Pitfalls 12, 13 and 15."""
    options = {"causal": True, "return_lse": True}
    if batch_invariant:
        request.getfixturevalue("invariant_kernels")
        options["batch_invariant"] = True
    # NOTE: several CTAs share a sequence: splits at fixed keys are 2048.
    batch, capacity = 4, 8192
    cache = Cache((capacity,) * batch, page_size, device="cuda", width=capacity // page_size)
    q = torch.randn(batch, seqlen_q, HEADS, 64, device="cuda").half()
    cache.seqlens.copy_(torch.tensor([3, 0, 100, 17]))
    run = lambda: pyflash.attention_paged(q, *cache.tensors, **options)  # noqa: E731
    graph, found = captured(run)
    rng = random.Random(0)
    for _ in range(200):
        lengths = random_lengths(rng, batch, capacity)
        order = torch.randperm(capacity // page_size, device="cuda")
        cache.table.copy_(cache.table[:, order])
        cache.seqlens.copy_(lengths)
        q.normal_()
        for x in found:
            x.fill_(torch.nan)
        graph.replay()
        assert all(map(torch.equal, found, run())), lengths


@pytest.mark.times
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("seqlen_q", [1, 4])
def test_a_replay_takes_as_long_as_a_graph_of_its_lengths(seqlen_q, batch_invariant, request):
    """Within 2 %, at 10 random sets of lengths. Pitfall 12."""
    options = {"causal": True}
    if batch_invariant:
        request.getfixturevalue("invariant_kernels")
        options["batch_invariant"] = True
    batch, capacity, n_calls = 24, 8192, 8
    cache = Cache((capacity,) * batch, 64, 8, 128, BF16, device="cuda", width=capacity // 64)
    q = torch.randn(batch, seqlen_q, 32, 128, device="cuda").to(BF16)
    run = lambda: [  # noqa: E731
        pyflash.attention_paged(q, *cache.tensors, **options) for _ in range(n_calls)
    ]
    cache.seqlens.fill_(17)
    graph, _ = captured(run)
    rng = random.Random(0)
    ratios = []
    for _ in range(10):
        cache.seqlens.copy_(random_lengths(rng, batch, capacity))
        fresh, _ = captured(run)
        for n_samples in (25, 50, 100):  # what differs is still there among more
            times = medians({"replayed": graph.replay, "fresh": fresh.replay}, n_samples)
            ratio = times["replayed"] / times["fresh"]
            if 0.98 < ratio < 1.02:
                break
        ratios.append(ratio)
    assert all(0.98 < ratio < 1.02 for ratio in ratios), ratios


@pytest.mark.parametrize("num_splits", [0, 1, 8, -1])
def test_a_step_takes_no_memory_and_waits_for_nothing(num_splits):
    """Replayed, it asks nothing of torch's allocator; called with `out`, no more than the call
    before it gave back. Neither asks memory of CUDA, or waits. Pitfall 31."""
    if num_splits < 0 and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("CTAs share keys on a Hopper")
    cache = Cache((900,) * 8, 16, 2, 128, BF16, device="cuda", width=64)
    q = torch.randn(8, 1, 8, 128, device="cuda").to(BF16)
    k, v = (torch.randn(8, 2, 128, device="cuda").to(BF16) for _ in "kv")
    starts, out = torch.arange(9, dtype=torch.int32, device="cuda"), torch.empty_like(q)
    options = {"causal": True, "num_splits": num_splits, "out": out}

    def step():
        slots = pyflash.slots_of(cache.table, cache.seqlens, starts, 16, 8)
        pyflash.append_kv(k, v, cache.k, cache.v, slots)
        return pyflash.attention_paged(q, *cache.tensors, **options)

    def changes(call):
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()
        for _ in range(10):
            call()
        torch.cuda.synchronize()
        after = torch.cuda.memory_stats()
        names = ("allocation.all.allocated", "segment.all.allocated", "allocated_bytes.all.current")
        return [after[name] - before[name] for name in names]

    call = lambda: pyflash.attention_paged(q, *cache.tensors, **options)  # noqa: E731
    graph, _ = captured(step)
    assert changes(graph.replay) == [0, 0, 0]
    n_taken, *others = changes(call)
    assert others == [0, 0]
    assert n_taken <= 10 * 2  # lse, and memory to work in
    for one in (graph.replay, call):
        asked = asked_of_cuda(one)
        if not any("Launch" in name for name in asked):
            pytest.skip("CUPTI does not trace here")
        wrong = ("Synchronize", "Malloc", "MemAlloc", "Free")
        found = [name for name in asked if any(part in name for part in wrong)]
        assert not found
        assert "cudaMemcpy" not in asked


@pytest.mark.parametrize("page_size", [1, 16])
def test_append(page_size):
    """Pitfalls 9, 10, 11 and 29."""
    cache = Cache((37, 0, 64), page_size, device="cuda", spare=20)
    spare = cache.num_pages - sum(-(-n // page_size) for n in cache.lengths)
    assert spare == 20
    k, v = (torch.randn(6, 2, 64, device="cuda").half() for _ in "kv")
    used = torch.arange(cache.num_pages * page_size, device="cuda")
    kept = cache.k.clone()
    slots = torch.tensor([5, -1, 10**9, 3, -(2**40)], device="cuda")
    pyflash.append_kv(k, v, cache.k, cache.v, slots)
    flat, before = cache.k.flatten(0, 1), kept.flatten(0, 1)
    assert torch.equal(flat[5], k[0])
    assert torch.equal(flat[3], k[3])
    others = used[(used != 5) & (used != 3)]
    assert torch.equal(flat[others].nan_to_num(7), before[others].nan_to_num(7))


@pytest.mark.parametrize("first", range(0, 64, 16))
def test_slots(first):
    """By a kernel, if a library has it, as on the CPU."""
    for seed in range(first, first + 16):
        found = pyflash.slots_of(*random_slots(seed, "cuda"))
        assert torch.equal(found.cpu(), pyflash.slots_of(*random_slots(seed)))


def test_no_synchronization():
    """Pitfall 31."""
    cache = Cache((37, 300), 16, device="cuda")
    q = torch.randn(2, 1, 4, 64, device="cuda").half()
    pyflash.attention_paged(q, *cache.tensors)
    cu = torch.tensor([0, 1, 2], dtype=torch.int32, device="cuda")
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        slots = pyflash.slots_of(cache.table, cache.seqlens, cu, 16, 2)
        pyflash.append_kv(cache.k[0, :2], cache.v[0, :2], cache.k, cache.v, slots)
        pyflash.attention_paged(q, *cache.tensors)
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.parametrize("options", [{}, {"causal": True}])
def test_opcheck(options):
    """Pitfall 29."""
    cache = Cache((37, 3), 16, device="cuda")
    q = torch.randn(2, 3, 4, 64, device="cuda").half()
    k, v = laid_out("of one tensor", cache.k.nan_to_num(), cache.v.nan_to_num())
    inputs = (q, k, v, cache.table, cache.seqlens)
    torch.library.opcheck(torch.ops.pyflash.fwd_paged.default, inputs, options)


def _step(n: int, page_size: int = 16, batch: int = 4, width: int = 64):
    """A cache of sequences of n keys, and one query of each."""
    cache = Cache((n,) * batch, page_size, device="cuda", width=width)
    return cache, torch.randn(batch, 1, HEADS, 64, device="cuda").half()


def test_pitfall_17_a_graph_outlives_what_others_free():
    """Memory that calls outside the graph used is freed and filled with NaN before the replay."""
    cache, q = _step(1000)
    expected = pyflash.attention_paged(q, *cache.tensors, num_splits=8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = pyflash.attention_paged(q, *cache.tensors, num_splits=8)
    larger, many = _step(1000, batch=64)
    pyflash.attention_paged(many, *larger.tensors, num_splits=32)
    del larger, many
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    filled = [torch.full((2**22,), torch.nan, device="cuda") for _ in range(8)]
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected)
    assert all(x.isnan().all() for x in filled)


def test_pitfall_30_a_compiled_step_is_in_graphs():
    """A step that appends and attends, under mode="reduce-overhead"."""
    from torch._dynamo.utils import counters

    cache, q = _step(100)
    k, v = (torch.randn(4, 2, 64, device="cuda").half() for _ in "kv")
    starts = torch.arange(5, dtype=torch.int32, device="cuda")

    def step(q, k, v, k_cache, v_cache, table, lengths):
        slots = pyflash.slots_of(table, lengths, starts, 16, 4)
        pyflash.append_kv(k, v, k_cache, v_cache, slots)
        return pyflash.attention_paged(q, k_cache, v_cache, table, lengths, causal=True)

    expected = step(q, k, v, *cache.tensors).clone()
    for x in (cache.k, cache.v):
        torch._dynamo.mark_static_address(x)
    counters.clear()
    compiled = torch.compile(step, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        out = compiled(q, k, v, *cache.tensors).clone()
    assert torch.equal(out, expected)
    assert counters["inductor"]["cudagraph_skips"] == 0


def _seconds(call, n: int = 10, rounds: int = 5) -> float:
    """The least of several rounds: others may use the GPU, too."""
    call()
    found = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(n):
            call()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / n / 1000)
    return min(found)


def test_pitfall_34_short_sequences_take_no_scan():
    """Eight times the sequences take at most twelve times as long, padded and packed."""
    for packed in (False, True):
        times = []
        for batch in (1024, 8192):
            cache, q = _step(16, batch=batch, width=4)
            options = {}
            if packed:
                starts = torch.arange(batch + 1, dtype=torch.int32, device="cuda")
                q, options = q[:, 0], {"cu_seqlens_q": starts, "max_seqlen_q": 1}
            call = lambda: pyflash.attention_paged(q, *cache.tensors, **options)  # noqa: B023, E731
            times.append(_seconds(call))
        assert times[1] < 12 * times[0], times


def test_pitfall_35_capture_on_several_streams():
    """Two graphs, captured on two streams, replayed at once."""
    graphs = []
    for n in (100, 900):
        cache, q = _step(n)
        expected = pyflash.attention_paged(q, *cache.tensors, num_splits=4)
        torch.cuda.synchronize()
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = pyflash.attention_paged(q, *cache.tensors, num_splits=4)
        graphs.append((stream, graph, out, expected, cache, q))
    for _ in range(20):
        for stream, graph, out, *_ in graphs:
            with torch.cuda.stream(stream):
                out.zero_()
                graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for _, _, out, expected, *_ in graphs)


@pytest.mark.parametrize("packed", [False, True])
def test_out_is_written(packed):
    cache, q = _step(100)
    options = {}
    if packed:
        starts = torch.arange(5, dtype=torch.int32, device="cuda")
        q, options = q[:, 0], {"cu_seqlens_q": starts, "max_seqlen_q": 1}
    expected = pyflash.attention_paged(q, *cache.tensors, **options)
    out = torch.full_like(expected, torch.nan)
    assert pyflash.attention_paged(q, *cache.tensors, out=out, **options) is out
    assert torch.equal(out, expected)


@pytest.mark.parametrize("n_prefix", [0, 100])
def test_a_shared_prefix(n_prefix):
    torch.manual_seed(0)
    own = Cache((37, 0, 5), 16, device="cuda", spare=20)
    pages = torch.tensor(sorted({*range(own.num_pages)} - {*own.table.flatten().tolist()}))
    table = pages[:7].int().cuda()[None]
    prefix = torch.randn(2, 112, 2, 64, device="cuda").half()
    for x, new in zip((own.k, own.v), prefix, strict=True):
        x[table[0].long()] = new.view(7, 16, 2, 64)
    q = torch.randn(6, HEADS, 64, device="cuda").half()
    int32 = lambda *x: torch.tensor(x, dtype=torch.int32, device="cuda")  # noqa: E731
    levels = [
        (table, int32(n_prefix), int32(0, 6), 6),
        (own.table, own.seqlens, int32(0, 2, 4, 6), 2),
    ]
    out, lse = pyflash.attention_cascade(q, own.k, own.v, levels, causal=True, return_lse=True)
    for b in range(3):
        rows = slice(2 * b, 2 * b + 2)
        own.keys[b] = torch.cat([prefix[0, :n_prefix], own.keys[b]])
        own.values[b] = torch.cat([prefix[1, :n_prefix], own.values[b]])
        if own.lengths[b] >= 2:  # else causal of the level hides other keys than that of all
            own.check(b, q[rows], out[rows], lse[:, rows], causal=True)


@pytest.mark.parametrize("dtype", [FP16, BF16])
@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("shape", [(64, 32, 128), (3, 5, 4, 72), (1, 1, 8), (0, 4, 64)])
def test_merged_states_are_those_of_the_cpu(shape, n, dtype):
    outs = [torch.randn(shape).to(dtype) for _ in range(n)]
    lses = [10 * torch.randn(*shape[:-3], shape[-2], shape[-3]) for _ in range(n)]
    for i, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        lse[..., i::3] = -torch.inf
        out[..., i::3, :, :] = torch.nan
    expected = pyflash.merge_states(list(zip(outs, lses, strict=True)))
    on_gpu = [[x.cuda() for x in tensors] for tensors in (outs, lses)]
    into = [x.cuda() for x in map(torch.empty_like, expected)]
    assert torch.ops.pyflash.merge_states(*on_gpu, *into)
    for x, y in zip(into, expected, strict=True):
        unit = torch.finfo(x.dtype).eps
        torch.testing.assert_close(x.cpu(), y, atol=max(unit, 1e-5), rtol=max(unit, 1e-6))


@pytest.mark.usefixtures("invariant_kernels")
@pytest.mark.parametrize("first", range(0, 500, 50))
def test_pitfalls_21_22_23_bits_of_a_row(first):
    """500 random batches: each sequence alone, among others, in chunks, and in other pages."""
    masks = ({}, {"window_left": 100}, {"sinks": torch.linspace(-2, 3, HEADS, device="cuda")})
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        lengths = [
            rng.randrange(1, rng.choice([20, 300, 3000, 7000])) for _ in range(rng.randrange(2, 6))
        ]
        lengths_q = [rng.choice([1, 1, rng.randrange(1, min(n, 400) + 1)]) for n in lengths]
        d_head, dtype = rng.choice([64, 128]), rng.choice([FP16, BF16])
        options = {"causal": True, "batch_invariant": True, "return_lse": True, **rng.choice(masks)}
        cache = Cache(lengths, rng.choice([8, 16, 64, 256]), 2, d_head, dtype, device="cuda")
        starts = [0, *itertools.accumulate(lengths_q)]
        # Scores of some rows leap, so that sums of a block are large, or overflow.
        scales = torch.tensor(rng.choices([1, 8, 40, 200], k=starts[-1]), device="cuda")
        q = torch.randn(starts[-1], HEADS, d_head, device="cuda")
        q = (q * scales[:, None, None]).to(dtype)
        packed = {
            "cu_seqlens_q": torch.tensor(starts, dtype=torch.int32, device="cuda"),
            "max_seqlen_q": max(lengths_q),
        }
        out, lse = pyflash.attention_paged(q, *cache.tensors, **packed, **options)
        for b, (k, v) in enumerate(zip(cache.keys, cache.values, strict=True)):
            rows = slice(starts[b], starts[b + 1])
            n = rng.randrange(1, lengths_q[b] + 1)  # the last of its queries alone
            alone = q[rows][-n:]
            found = pyflash.attention(alone[None], k[None], v[None], **options)
            assert torch.equal(found[0][0], out[rows][-n:]), seed
            assert torch.equal(found[1][0], lse[:, rows][:, -n:]), seed
            other = Cache([len(k)], rng.choice([8, 32, 128]), 2, d_head, dtype, device="cuda")
            other.k[other.place(0)], other.v[other.place(0)] = k, v
            found = pyflash.attention_paged(alone[None], *other.tensors, **options)
            assert torch.equal(found[0][0], out[rows][-n:]), seed


@pytest.mark.usefixtures("invariant_kernels")
def test_pitfalls_21_22_23_bits_of_long_rows():
    """Where several CTAs share the keys of a row: beside longer and shorter sequences, in a graph,
    and as one of many queries, which are cut into slices."""
    torch.manual_seed(3)
    options = {"causal": True, "batch_invariant": True, "return_lse": True}
    lengths = [1, 2047, 2048, 2049, 6000, 20_000]
    cache = Cache(lengths, 16, 2, 128, BF16, device="cuda")
    q = torch.randn(len(lengths), 1, HEADS, 128, device="cuda").to(BF16)
    out, lse = pyflash.attention_paged(q, *cache.tensors, **options)
    for b, (k, v) in enumerate(zip(cache.keys, cache.values, strict=True)):
        cache.check(b, q[b], out[b], lse[b], causal=True)
        found = pyflash.attention(q[b : b + 1], k[None], v[None], **options)
        assert torch.equal(found[0][0], out[b]), b
        assert torch.equal(found[1][0], lse[b]), b
    seqlens, expected = cache.seqlens.clone(), (out, lse)
    with torch.inference_mode():
        graph = torch.cuda.CUDAGraph()
        cache.seqlens.fill_(7)
        with torch.cuda.graph(graph):
            out, lse = pyflash.attention_paged(q, *cache.tensors, **options)
        cache.seqlens.copy_(seqlens)
        graph.replay()
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])
    # The parts of 10 splits take more than kMostBytesOfParts of host/slices.h.
    k, v = cache.keys[-1][None], cache.values[-1][None]
    many = torch.randn(1, 15_000, HEADS, 128, device="cuda").to(BF16)
    many[0, -1:] = q[-1]
    many_out, many_lse = pyflash.attention(many, k, v, **options)
    assert torch.equal(many_out[0, -1:], expected[0][-1])
    assert torch.equal(many_lse[0, :, -1:], expected[1][-1])
    default = pyflash.attention(many, k, v, causal=True)
    assert (many_out.float() - default.float()).abs().max() < 2e-2
