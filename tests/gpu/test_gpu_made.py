"""What variants have made before their kernels is used again by calls that need the same, and by no
others: everything that may differ, in turns, beside fp64."""

from __future__ import annotations

import ctypes
import gc
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.graphs import captured, names_of_kernels
from torch.nn.attention.flex_attention import create_block_mask

import pyflash
from pyflash.op.variants.arguments import captured_of
from pyflash.op.variants.reference import attention_variant_ref, expect
from pyflash.variant import bind, parse

pytestmark = pytest.mark.gpu

SM80 = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
CHUNKED = "chunked"
OF_HEADS = "of_heads: s where (k + h * 40 + b * 70) % 200 < 130"
OF_FLOATS = "of_floats(c: f32): s where f32(k) <= f32(q) * c"
DOCUMENTS = parse("documents(doc: i32[2]): s where doc[b, q] == doc[b, k]")
BOOLS = parse("bools(m: bool[2]): s where m[q, k]")
TABLE = parse("table(t: f32[1]): s + t[abs(k - q) % 16]")
MAKER = re.compile(r"variant::(prepare|judge_blocks|list_blocks|list_query_blocks|sort_tiles)<")
DEFAULT = 256 << 20


@pytest.fixture(autouse=True)
def nothing_is_held():
    """Nor what the tests of other files made in this process."""
    free_all()
    yield
    free_all()


def free_all() -> None:
    pyflash.keep_masks(0)
    run(CHUNKED, {"chunk": 50}, (64, 64))  # which frees
    pyflash.keep_masks(DEFAULT)
    assert held()[0] == 0


def held() -> tuple[int, int]:
    return torch.ops.pyflash.held_of_made()


def inputs_of(lengths=(300, 300), batch=2, heads=4, heads_kv=2, seed=0) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    q_len, k_len = lengths
    return [
        torch.randn(batch, n, h, 64, device="cuda", generator=generator).half()
        for n, h in ((q_len, heads), (k_len, heads_kv), (k_len, heads_kv))
    ]


def run(variant, tensors=None, lengths=(300, 300), sizes=None, **options):
    inputs = inputs_of(lengths, **(sizes or {}))
    options = {"compile": True, "return_lse": True} | options
    return pyflash.attention(*inputs, variant=variant, tensors=tensors, **options)


def check(variant, tensors=None, lengths=(300, 300), sizes=None, **options) -> None:
    results = run(variant, tensors, lengths, sizes, **options)
    of_formula = {n: x for n, x in options.items() if n not in ("config", "num_splits")}
    inputs = inputs_of(lengths, **(sizes or {}))
    expect(*inputs, variant=variant, tensors=tensors, **of_formula).check(*results)


def gradients(variant, tensors=None, lengths=(300, 300), sizes=None, **options):
    inputs = [x.requires_grad_() for x in inputs_of(lengths, **(sizes or {}))]
    out = pyflash.attention(*inputs, variant=variant, tensors=tensors, compile=True, **options)
    torch.manual_seed(1)
    grad_out = torch.randn(out.shape, device="cuda").half()
    return inputs, grad_out, torch.autograd.grad(out, inputs, grad_out)


def check_gradients(variant, tensors=None, lengths=(300, 300), sizes=None, **options) -> None:
    inputs, grad_out, found = gradients(variant, tensors, lengths, sizes, **options)
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    out, _ = attention_variant_ref(
        *leaves, captured_of(variant, tensors), None, None, dtype=torch.float64, **options
    )
    for one, other in zip(found, torch.autograd.grad(out, leaves, grad_out.double()), strict=True):
        assert (one - other).norm() <= 2e-3 * other.norm()


# Two calls, whose masks or whose tiles differ in one thing.
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a captured integer": tuple(
        {"variant": CHUNKED, "tensors": {"chunk": chunk}} for chunk in (130, 70)
    ),
    "a captured float": tuple(
        {"variant": OF_FLOATS, "tensors": {"c": c}} for c in (0.75, 0.75 - 1 / 64)
    ),
    "the length of q": tuple(
        {"variant": CHUNKED, "tensors": {"chunk": 90}, "lengths": (n, 300)} for n in (300, 290)
    ),
    "the length of k": tuple(
        {"variant": CHUNKED, "tensors": {"chunk": 90}, "lengths": (300, n)} for n in (300, 310)
    ),
    "heads": tuple(
        {"variant": OF_HEADS, "sizes": {"heads": n, "heads_kv": 2}} for n in (4, 8)
    ),
    "batches": tuple({"variant": OF_HEADS, "sizes": {"batch": n}} for n in (2, 3)),
    "causal": tuple(
        {"variant": CHUNKED, "tensors": {"chunk": 90}, "causal": x} for x in (True, False)
    ),
    "a window": tuple(
        {"variant": OF_HEADS, "window_left": n} for n in (70, 20)
    ),
    "chunks": tuple(
        {"variant": OF_HEADS, "attention_chunk": n} for n in (100, 50)
    ),
    "the variant": (
        {"variant": "one: s where (q * 31 + k * 5) % 7 < 3"},
        {"variant": "other: s where (q * 31 + k * 5) % 7 < 4"},
    ),
    "the config": (
        {"variant": CHUNKED, "tensors": {"chunk": 90}},
        {"variant": CHUNKED, "tensors": {"chunk": 90}, "config": SM80},
    ),
    "splits": tuple(
        {"variant": CHUNKED, "tensors": {"chunk": 90}, "num_splits": n} for n in (1, 2)
    ),
}  # fmt: skip
IN_TURNS = "AAABBBABABAA"


def in_turns(one: Callable[[], None], other: Callable[[], None]) -> None:
    for turn in IN_TURNS:
        (one if turn == "A" else other)()


@pytest.mark.parametrize("name", PAIRS)
def test_calls_that_differ_share_nothing(name):
    one, other = PAIRS[name]
    in_turns(lambda: check(**one), lambda: check(**other))
    assert held()[0] > 0


@pytest.mark.parametrize("name", [n for n in PAIRS if n not in ("the config", "splits")])
def test_gradients_that_differ_share_nothing(name):
    one, other = PAIRS[name]
    in_turns(lambda: check_gradients(**one), lambda: check_gradients(**other))
    assert held()[0] > 0


def documents(seed: int, length=300) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randint(0, 3, (2, length), device="cuda").int().sort(-1).values


def bools(seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.rand(300, 300, device="cuda", generator=generator) < 0.6


OF_TENSORS = {
    "documents": (DOCUMENTS, "doc", documents),
    "bools": (BOOLS, "m", bools),
    "table": (TABLE, "t", lambda seed: torch.arange(16.0, device="cuda") * (seed + 1) / 8),
}


@pytest.mark.parametrize("name", OF_TENSORS)
@pytest.mark.parametrize("checked", [check, check_gradients])
def test_tensors_of_frozen_values(name, checked):
    variant, param, make = OF_TENSORS[name]
    pair = [bind(variant, **{param: make(seed)}).frozen() for seed in range(2)]
    for seed in (5, 6, 7):
        in_turns(lambda: checked(pair[0]), lambda: checked(pair[1]))
        pair[0].values[param].copy_(make(seed))  # which is seen
    n_held = held()[0]
    assert n_held > 0
    del pair[0]
    gc.collect()
    checked(pair[0])
    assert held()[0] < n_held


@pytest.mark.parametrize("name", OF_TENSORS)
def test_without_a_promise_tensors_are_read_in_each_call(name):
    variant, param, make = OF_TENSORS[name]
    tensor = make(0)
    values = {param: tensor}
    for seed in range(3):
        tensor.data.copy_(make(seed))  # which PyTorch does not count
        for _ in range(3):
            check(variant, values)
            check(bind(variant, **values))
    assert held()[0] == 0


def test_tensors_that_take_the_place_of_others():
    """Of values that ended: at the same address, and never written."""
    places = set()
    for seed in range(12):
        value = bind(DOCUMENTS, doc=documents(seed)).frozen()
        places.add(value.values["doc"].data_ptr())
        for _ in range(3):
            check(value)
        del value
        gc.collect()
    assert len(places) < 12


def flex(mask, score_mod=None):
    q, k, v = (x.transpose(1, 2) for x in inputs_of())
    return pyflash.flex_attention(
        q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=True, return_lse=True
    )


def check_flex(mask, doc) -> None:
    out, lse = flex(mask)
    expected = expect(*inputs_of(), variant=DOCUMENTS, tensors={"doc": doc})
    expected.check(out.transpose(1, 2), lse)


def block_mask(doc: torch.Tensor) -> Any:
    def same(b, h, q, k):
        return doc[b, q] == doc[b, k]

    return create_block_mask(same, 2, None, 300, 300, "cuda")


def test_block_masks():
    docs = [documents(0), documents(1)]
    masks = [block_mask(doc) for doc in docs]
    in_turns(lambda: check_flex(masks[0], docs[0]), lambda: check_flex(masks[1], docs[1]))
    assert held()[0] == 2
    names = names_of_kernels(lambda: flex(masks[0]))
    assert not any(map(MAKER.search, names))
    del masks[0]
    gc.collect()
    check_flex(masks[0], docs[1])
    assert held()[0] == 1
    for seed in range(2, 8):
        mask = block_mask(documents(seed))
        for _ in range(3):
            check_flex(mask, documents(seed))


def test_a_block_mask_promises_nothing_of_score_functions():
    weight, mask = torch.zeros(300, device="cuda"), block_mask(torch.zeros_like(documents(0)))
    text = "keys(w: f32[1]): s + w[k] * 0.5 + exp(w[q])"
    for value in (1.0, 2.0, 4.0):
        weight.data.copy_(torch.linspace(-value, value, 300) / 4)
        for _ in range(3):
            out, lse = flex(mask, lambda s, b, h, q, k: s + weight[k] * 0.5 + torch.exp(weight[q]))
            expect(*inputs_of(), variant=text, tensors={"w": weight}).check(
                out.transpose(1, 2), lse
            )


def counted(call: Callable[[], Any]) -> list[list[str]]:
    """Our kernels of calls that nobody made before, the first to the fourth."""
    counts = [names_of_kernels(call) for _ in range(4)]
    if not all(counts):
        pytest.skip("CUPTI may not trace")
    return [[name for name in names if "flash" in name] for names in counts]


FRESH = {
    "numbers": [{"variant": CHUNKED, "tensors": {"chunk": n}} for n in (90, 93)],
    "lengths": [{"variant": OF_HEADS, "lengths": n} for n in ((300, 300), (299, 301))],
    "a frozen value": [{"variant": DOCUMENTS, "seed": seed} for seed in range(2)],
}


def call_of(variant, seed=None, **others) -> dict[str, Any]:
    if seed is not None:
        variant = bind(variant, doc=documents(seed)).frozen()
    return {"variant": variant, **others}


@pytest.mark.parametrize("name", FRESH)
def test_a_third_call_launches_its_kernel_alone(name):
    other, call = (call_of(**given) for given in FRESH[name])
    run(**other)  # compiles
    first, second, third, fourth = counted(lambda: run(**call))
    assert any(map(MAKER.search, first))
    assert any(map(MAKER.search, second))
    assert len(third) == len(fourth) == 1
    results = [run(**call) for _ in range(3)]
    assert all(all(map(torch.equal, found, results[0])) for found in results)
    check(**call)


def test_a_third_backward_launches_no_maker():
    gradients(CHUNKED, {"chunk": 90})  # compiles
    calls = counted(lambda: gradients(CHUNKED, {"chunk": 94}))
    assert [any(map(MAKER.search, names)) for names in calls] == [True, True, False, False]


def test_scores_of_tensors_beside_masks_without_any():
    """Nothing is made of a tensor that the kernel reads itself."""
    text = "biased(a: f32[4]): s + a[b, h, q, k] where (k <= q) & ((q + k) % 5 < 3)"
    a = torch.randn(2, 4, 300, 300, device="cuda")
    for value in range(3):
        a.data.copy_(torch.randn_like(a) + value)
        for _ in range(3):
            check(text, {"a": a})


def test_streams_share_nothing():
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    counts = []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                check(CHUNKED, {"chunk": 90})
        stream.synchronize()
        counts.append(held()[0])
    assert counts == [1, 2, 3]


def test_streams_of_others_that_end():
    """A stream may have the handle of one before it."""
    runtime = torch.cuda.cudart()
    check(CHUNKED, {"chunk": 90})  # of this stream: from now on there are several
    free_all()
    for i in range(6):
        handle = ctypes.c_void_p()
        runtime.cudaStreamCreate(ctypes.addressof(handle))
        stream = torch.cuda.ExternalStream(handle.value)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                check(CHUNKED, {"chunk": 90})
        stream.synchronize()
        runtime.cudaStreamDestroy(handle.value)
        assert held()[0] == 1 + i
    pyflash.keep_masks(0)
    check(CHUNKED, {"chunk": 70})
    assert held()[0] == 0


def test_what_a_graph_captures_is_its_own():
    call = {"variant": CHUNKED, "tensors": {"chunk": 90}}
    for _ in range(3):
        check(**call)
    inputs = inputs_of()
    graph, results = captured(
        lambda: pyflash.attention(*inputs, **call, compile=True, return_lse=True)
    )
    names = names_of_kernels(graph.replay)
    assert not names or any(map(MAKER.search, names))
    pyflash.keep_masks(0)
    run(CHUNKED, {"chunk": 31})
    assert held()[0] == 0
    for result in results:
        result.zero_()
    graph.replay()
    expect(*inputs_of(), **call).check(*results)


def test_memory_of_private_pools_is_not_kept():
    pool = torch.cuda.MemPool()
    call = {"variant": CHUNKED, "tensors": {"chunk": 90}}
    run(**call)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with torch.cuda.use_mem_pool(pool):
        for _ in range(4):
            run(**call)
    assert held()[0] == 1
    assert torch.cuda.memory_allocated() == before
    check(**call)


def test_trees_of_graphs():
    """Inductor's warm-ups run in pools whose memory must not outlive them."""

    @torch.compile(mode="reduce-overhead", fullgraph=True)
    def model(q, k, v):
        out = pyflash.attention(q, k, v, variant=CHUNKED, tensors={"chunk": 90})
        return pyflash.attention(out, k, v, variant=CHUNKED, tensors={"chunk": 90})

    check(CHUNKED, {"chunk": 90})  # compiles
    inputs = inputs_of()
    once = run(CHUNKED, {"chunk": 90})[0]
    expected = pyflash.attention(once, *inputs[1:], variant=CHUNKED, tensors={"chunk": 90})
    with torch.no_grad():
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            assert torch.equal(model(*inputs), expected)


@pytest.mark.parametrize("own_streams", [True, False])
def test_threads(own_streams):
    chunks = (30, 70, 130, 190)
    expected = {chunk: run(CHUNKED, {"chunk": chunk}) for chunk in chunks}
    for chunk in chunks:
        check(CHUNKED, {"chunk": chunk})
    torch.cuda.synchronize()
    size = held()[1] // 2
    assert size > 0
    pyflash.keep_masks(size)  # so that some go all the time
    wrong, main = [], torch.cuda.current_stream()

    def work(seed: int) -> None:
        torch.cuda.set_device(0)
        with torch.cuda.stream(torch.cuda.Stream() if own_streams else main):
            for i in range(60):
                chunk = chunks[(i * (seed + 1) + seed) % 4]
                found = run(CHUNKED, {"chunk": chunk})
                if not all(map(torch.equal, found, expected[chunk])):
                    wrong.append((seed, i, chunk))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    run(CHUNKED, {"chunk": 31})  # frees what this stream made
    assert held()[1] <= size


def test_a_bound_on_bytes():
    chunks = range(20, 60)
    expected = {chunk: run(CHUNKED, {"chunk": chunk}) for chunk in chunks}
    run(CHUNKED, {"chunk": 20})
    size = held()[1]
    assert size > 0
    pyflash.keep_masks(2 * size + size // 2)
    results = []
    for _ in range(3):
        for chunk in chunks:
            # NOTE: nothing waits: memory goes from one to the next in the order of the stream.
            results += [(chunk, run(CHUNKED, {"chunk": chunk})) for _ in range(3)]
            assert held()[1] <= 2 * size + size // 2
    assert all(all(map(torch.equal, found, expected[chunk])) for chunk, found in results)
    check(CHUNKED, {"chunk": 59})


def test_packed_sequences_are_read_in_each_call():
    q, k, v = (x[0] for x in inputs_of())
    starts = torch.tensor([0, 100, 300], dtype=torch.int32, device="cuda")
    for cut in (100, 180, 40, 100):
        starts[1] = cut
        for _ in range(3):
            results = pyflash.attention_varlen(
                q, k, v, starts, starts, 300, 300,
                variant=CHUNKED, tensors={"chunk": 50}, compile=True, return_lse=True,
            )  # fmt: skip
            expect(q, k, v, starts, starts, variant=CHUNKED, tensors={"chunk": 50}).check(*results)
    assert held()[0] == 0


def test_nothing_waits():
    call = {"variant": CHUNKED, "tensors": {"chunk": 90}}
    run(**call)
    inputs = inputs_of()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for chunk in (40, 41):
            for _ in range(3):
                pyflash.attention(*inputs, variant=CHUNKED, tensors={"chunk": chunk})
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_more_than_a_quarter_of_the_bound_is_not_kept():
    """Bits of 24k queries and keys."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("bits of masks are of kernels of sm_90")
    lengths = (24_000, 24_000)
    for _ in range(3):
        run("far: s where (q * 31 + k * 5) % 7 < 3", lengths=lengths, sizes={"batch": 1})
    assert held()[0] == 0
