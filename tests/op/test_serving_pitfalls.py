"""What goes wrong in attention over caches: 36 pitfalls, each the business of the tests that
`TESTS` names. Those of this file have the numbers in their names."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest
import torch
from support.paged import Cache
from support.refusals import int32
from torch.utils._python_dispatch import TorchDispatchMode

import pyflash
from pyflash.config import parse
from pyflash.op import append
from pyflash.op.selection import splits_by_rule

PITFALLS = {
    1: "NaN in unused slots reaches the output",
    2: "NaN in keys that expired from a window, in the first page that is kept",
    3: "ids left of the window that are freed or stale are read",
    4: "table entries past the last page are read; the table is as wide as the context",
    5: "ids out of range are read or written",
    6: "page id times stride in 32 bits",
    7: "the stride of pages is taken for dense; K and V interleaved",
    8: "odd strides of dimensions of size 1",
    9: "slot -1 is the last one; k longer than slots",
    10: "append without room overwrites others",
    11: "lengths before and after append mixed up; several queries on a filled cache",
    12: "splits frozen at capture, lengths longer at replay",
    13: "a bound of lengths baked into a graph, or changing bits",
    14: "more splits than were captured",
    15: "counters not reset at replay",
    16: "padded CTAs read entries that nobody wrote",
    17: "a cached buffer freed while a graph holds it",
    18: "metadata of another size than the kernel expects",
    19: "packed, paged and split at once: wrong above batch 1",
    20: "two to eight queries lose splitting",
    21: "a neighbour's prefill changes a row's bits",
    22: "the number of splits from a sum over the batch",
    23: "decoding and prefill reduce differently",
    24: "splits chosen over pages: NaN",
    25: "two empty states merge to NaN",
    26: "lse of another base, or not contiguous",
    27: "a sink counted twice, or never",
    28: "sequences of length 0; rows past cu_seqlens",
    29: "a mutation missing in the schema; views cloned",
    30: "graphs skipped because of mutated inputs",
    31: "lengths copied to the host",
    32: "the plan made in every layer",
    33: "a window off by one; pages and tokens mixed as units",
    34: "a scan of the batch in each CTA",
    35: "capture on several streams",
    36: "fp8 accumulated over long contexts",
}

_EMULATED = "emulator/test_emulator_paged.py::"
_GPU = "gpu/test_gpu_paged.py::"
_COMPAT = "compat/test_flash_attn.py::"
_PAGED = "op/test_paged.py::"
_WRITES = "op/test_paged_writes.py::"
_HERE = "op/test_serving_pitfalls.py::"
_MATRICES = (_EMULATED + "test_pages_masks_and_lengths", _GPU + "test_pages_masks_and_lengths")
_INVARIANT = (
    "op/test_batch_invariant.py::test_bits_of_a_row",
    _EMULATED + "test_pitfalls_21_22_23_bits_of_a_row_without_a_threshold",
    _GPU + "test_pitfalls_21_22_23_bits_of_a_row",
)

TESTS = {
    1: (_PAGED + "test_padded_queries", *_MATRICES),
    2: (_PAGED + "test_what_expired_from_a_window_is_not_read", *_MATRICES),
    3: (_PAGED + "test_what_expired_from_a_window_is_not_read", *_MATRICES),
    4: (_HERE + "test_pitfall_4_a_table_as_wide_as_the_context", *_MATRICES),
    5: (
        _PAGED + "test_wrong_calls_are_refused_in_words",
        _EMULATED + "test_pages_that_do_not_exist_are_zeros",
        _GPU + "test_pages_that_do_not_exist_are_zeros",
        _WRITES + "test_append_past_the_last_page_is_refused_and_writes_nothing",
    ),
    6: (
        _HERE + "test_pitfall_6_pages_beyond_32_bits",
        _WRITES + "test_slots_beyond_32_bits",
        _GPU + "test_pages_beyond_32_bits",
    ),
    7: (
        _PAGED + "test_caches_are_views",
        _WRITES + "test_append_writes_the_rows_of_slots_alone",
        _EMULATED + "test_a_bug_is_found",  # one planted: pages as if they were dense
        _GPU + "test_caches_are_views",
    ),
    8: (
        _HERE + "test_pitfall_8_strides_of_dimensions_of_size_1",
        _EMULATED + "test_pitfall_8_strides_of_dimensions_of_size_1",
    ),
    9: (
        _WRITES + "test_append_writes_the_rows_of_slots_alone",
        _COMPAT + "test_pitfall_9_a_page_of_minus_one_is_no_page",
        _COMPAT + "test_pitfall_9_new_keys_longer_than_their_lengths",
        _GPU + "test_append",
    ),
    10: (
        _COMPAT + "test_pitfall_10_append_without_room_writes_nothing",
        _WRITES + "test_slots_are_those_of_the_definition",
    ),
    11: (
        _COMPAT + "test_pitfall_11_lengths_are_those_before_append",
        _WRITES + "test_a_step_appends_its_keys_and_attends_them",
    ),
    12: (
        _COMPAT + "test_pitfall_12_a_plan_serves_other_lengths",
        _GPU + "test_a_graph_serves_all_lengths",
    ),
    13: (
        _COMPAT + "test_pitfall_13_a_bound_of_lengths_changes_no_bit",
        _GPU + "test_a_graph_serves_all_lengths",
    ),
    14: (_EMULATED + "test_pitfalls_14_19_24_27_splits_of_packed_queries",),
    15: (
        _EMULATED + "test_pitfall_15_a_second_run_gives_the_same_bits",
        _GPU + "test_a_graph_serves_all_lengths",
    ),
    16: _MATRICES,
    17: (
        _GPU + "test_pitfall_17_a_graph_outlives_what_others_free",
        "compat/test_continuous_batching.py::test_a_graph_makes_its_own_step",
    ),
    18: (_COMPAT + "test_wrong_caches_are_refused",),
    19: (
        _EMULATED + "test_pitfalls_14_19_24_27_splits_of_packed_queries",
        _GPU + "test_random_cases",
    ),
    20: (_HERE + "test_pitfall_20_a_few_queries_are_split",),
    21: (_HERE + "test_pitfalls_21_22_a_row_depends_on_no_neighbour", *_INVARIANT),
    22: (_HERE + "test_pitfalls_21_22_a_row_depends_on_no_neighbour", *_INVARIANT),
    23: (_HERE + "test_pitfall_23_decoding_has_the_bits_of_prefill", *_INVARIANT),
    24: (
        _EMULATED + "test_pitfalls_14_19_24_27_splits_of_packed_queries",
        _GPU + "test_random_cases",
    ),
    25: (_WRITES + "test_merged_empty_states_are_empty",),
    26: (
        _HERE + "test_pitfall_26_lse_is_natural_and_contiguous",
        _WRITES + "test_merge_takes_two_states_and_strides_of_any_kind",
    ),
    27: (
        _EMULATED + "test_pitfalls_14_19_24_27_splits_of_packed_queries",
        _PAGED + "test_padded_queries",
    ),
    28: (_PAGED + "test_nothing_to_attend", _GPU + "test_nothing_to_attend", *_MATRICES),
    29: (
        _HERE + "test_pitfall_29_schemas_tell_what_is_written",
        _HERE + "test_pitfall_29_a_compiled_step_clones_no_cache",
        _WRITES + "test_opcheck_of_append",
        _GPU + "test_opcheck",
    ),
    30: (_GPU + "test_pitfall_30_a_compiled_step_is_in_graphs",),
    31: (
        _HERE + "test_pitfall_31_a_step_reads_no_tensor_on_the_host",
        _GPU + "test_no_synchronization",
    ),
    32: (_HERE + "test_pitfall_32_a_layer_is_one_op",),
    33: (_HERE + "test_pitfall_33_windows_count_keys",),
    34: (_GPU + "test_pitfall_34_short_sequences_take_no_scan",),
    35: (_GPU + "test_pitfall_35_capture_on_several_streams",),
    36: ("op/test_fp8.py::test_pitfall_36_long_contexts",),
}


@functools.cache
def _tests_in(path: Path) -> frozenset[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef))


def test_each_pitfall_has_tests_that_exist():
    assert list(PITFALLS) == list(TESTS) == list(range(1, 37))
    folder = Path(__file__).parents[1]
    for number, tests in TESTS.items():
        assert tests, number
        for file, name in (test.split("::") for test in tests):
            assert name in _tests_in(folder / file), f"{number}: {file}::{name}"


def random_q(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, 64).half()


@pytest.mark.parametrize("page_size", [1, 16, 24])
@pytest.mark.parametrize("seqlen_q", [1, 2, 5])
def test_pitfall_4_a_table_as_wide_as_the_context(page_size, seqlen_q):
    """The last sequence ends where the table's memory ends, and no entry is spare."""
    width = 3
    capacity = width * page_size
    cache = Cache((capacity - 1, capacity), page_size, width=width)
    q = random_q(2, seqlen_q, 4)
    out, lse = pyflash.attention_paged(q, *cache.tensors, causal=True, return_lse=True)
    cache.check_padded(q, out, lse, causal=True)


def test_pitfall_6_pages_beyond_32_bits(tmp_path):
    """Pages of 2^30 elements: their places are past 2^31 elements, and past 2^32 bytes."""
    page, width = 2**30, 8 * 2 * 64
    storage = torch.from_file(str(tmp_path / "sparse"), True, 4 * page, dtype=torch.float16)
    cache = storage.as_strided((4, 8, 2, 64), (page, 128, 64, 1))
    table = int32(3, 1).view(1, 2)
    keys = torch.randn(12, 2, 64).half()
    slots = pyflash.slots_of(table, int32(12), int32(0, 12), 8, 12)
    pyflash.append_kv(keys, keys, cache, cache, slots)
    assert torch.equal(storage[3 * page : 3 * page + width], keys[:8].flatten())
    q = random_q(1, 3, 4)
    out = pyflash.attention_paged(q, cache, cache, table, int32(12))
    assert torch.equal(out, pyflash.attention(q, keys[None], keys[None]))


ODD = 3 * 2**20 + 5


@pytest.mark.parametrize("what", ["page", "head", "row", "sequence"])
def test_pitfall_8_strides_of_dimensions_of_size_1(what):
    page_size, heads_kv = (1 if what == "row" else 16), (1 if what == "head" else 2)
    cache = Cache((page_size,), page_size, heads_kv, spare=0, width=1)
    q = random_q(1, 3, 2)
    expected = pyflash.attention_paged(q, *cache.tensors)
    tensors = list(cache.tensors)
    if what == "sequence":
        tensors[2] = tensors[2].as_strided((1, 1), (ODD, 1))
        q = q.as_strided(q.shape, (ODD, *q.stride()[1:]))
    else:
        dimension = {"page": 0, "row": 1, "head": 2}[what]
        strides = list(cache.k.stride())
        strides[dimension] = ODD
        tensors[:2] = (x.as_strided(x.shape, strides) for x in tensors[:2])
    assert torch.equal(pyflash.attention_paged(q, *tensors), expected)


@pytest.mark.parametrize("n_queries", range(1, 9))
def test_pitfall_20_a_few_queries_are_split(n_queries):
    """By the rule on an H200, which knows shapes alone."""
    few = "(BF16, 128, 64, 64, 1): sm90+stages_2+overlap+persistent+rescale_threshold+pack_gqa"
    problem = pyflash.Problem(
        batch=1, heads_q=32, heads_kv=8, seqlen_q=n_queries, seqlen_k=2**16, d_head=128,
        dtype="BF16", page_size=64, options={"causal": True},
    )  # fmt: skip
    assert splits_by_rule(problem, parse(few), sm_arch=90, n_sms=132) >= 8


def _as_cache(keys, values, page_size):
    """Pages of sequences, and what attention over them takes."""
    cache = Cache([len(k) for k in keys], page_size, keys[0].shape[1], dtype=keys[0].dtype)
    for b, (k, v) in enumerate(zip(keys, values, strict=True)):
        cache.k[cache.place(b)], cache.v[cache.place(b)] = k, v
    return cache


@pytest.mark.parametrize("neighbour", [(9, 0), (10, 0), (9, 300), (130, 130)])
def test_pitfalls_21_22_a_row_depends_on_no_neighbour(neighbour):
    """On the CPU, where a config is named: a row alone, and beside another sequence."""
    options = {"causal": True, "config": CONFIG}
    torch.manual_seed(0)
    k, v = torch.randn(2, 300, 2, 64).half().unbind(0)
    q = random_q(1, 4)
    alone = _as_cache([k], [v], 16)
    one = {"cu_seqlens_q": int32(0, 1), "max_seqlen_q": 1}
    expected = pyflash.attention_paged(q, *alone.tensors, **one, **options)
    n_queries, n_before = neighbour
    n = n_queries + n_before
    others = _as_cache([torch.randn(n, 2, 64).half(), k], [torch.randn(n, 2, 64).half(), v], 8)
    packed = {"cu_seqlens_q": int32(0, n_queries, n_queries + 1), "max_seqlen_q": n_queries}
    out = pyflash.attention_paged(
        torch.cat([random_q(n_queries, 4), q]), *others.tensors, **packed, **options
    )
    assert torch.equal(out[-1:], expected)


CONFIG = "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_0_0_0_tiles+opt_softmax"


@pytest.mark.parametrize("chunk", [7, 64, 100])
def test_pitfall_23_decoding_has_the_bits_of_prefill(chunk):
    torch.manual_seed(1)
    n = 150
    k, v = torch.randn(2, n, 2, 64).half().unbind(0)
    q = random_q(n, 4)
    options = {"causal": True, "config": CONFIG}
    expected = pyflash.attention(q[None], k[None], v[None], **options)[0]
    for begin in range(0, n, chunk):
        end = min(begin + chunk, n)
        cache = _as_cache([k[:end]], [v[:end]], 16)
        out = pyflash.attention_paged(q[None, begin:end], *cache.tensors, **options)[0]
        assert torch.equal(out, expected[begin:end])


@pytest.mark.parametrize("packed", [False, True])
def test_pitfall_26_lse_is_natural_and_contiguous(packed):
    cache = Cache((37, 5), 16)
    q = random_q(2, 3, 4)
    options = {"return_lse": True}
    if packed:
        q = q.flatten(0, 1)
        options |= {"cu_seqlens_q": int32(0, 3, 6), "max_seqlen_q": 3}
    _, lse = pyflash.attention_paged(q, *cache.tensors, **options)
    assert lse.is_contiguous()
    scores = q.view(2, 3, 4, 64)[1].double().transpose(0, 1)
    scores = scores @ cache.keys[1].double().repeat_interleave(2, 1).permute(1, 2, 0) / 8
    found = lse[:, 3:] if packed else lse[1]
    torch.testing.assert_close(found.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_pitfall_29_schemas_tell_what_is_written():
    ops = torch.ops.pyflash
    written = {
        ops.fwd_paged.default: [],
        ops.fwd_paged.out: ["out", "lse"],
        ops.append_kv.default: ["k_cache", "v_cache"],
    }
    for op, names in written.items():
        arguments = op._schema.arguments
        found = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        assert found == names, op


def test_pitfall_29_a_compiled_step_clones_no_cache():
    """K and V are views of one storage; after functionalization both are written in place."""
    from torch._inductor.utils import run_and_get_code

    storage = torch.zeros(4, 2, 16, 2, 64).half()
    table, lengths, starts = int32(2, 0).view(1, 2), int32(17), int32(0, 17)
    q, k, v = random_q(17, 4), random_q(17, 2), random_q(17, 2)

    def step(storage, q, k, v):
        k_cache, v_cache = storage.unbind(1)
        slots = pyflash.slots_of(table, lengths, starts, 16, 17)
        pyflash.append_kv(k, v, k_cache, v_cache, slots)
        packed = {"cu_seqlens_q": starts, "max_seqlen_q": 17}
        return pyflash.attention_paged(q, k_cache, v_cache, table, lengths, causal=True, **packed)

    expected = pyflash.attention(q[None], k[None], v[None], causal=True)[0]
    out, (code, *_) = run_and_get_code(torch.compile(step, fullgraph=True), storage, q, k, v)
    assert torch.equal(out, expected)
    assert torch.equal(storage[2, 0], k[:16])
    assert torch.equal(storage[0, 1, :1], v[16:])
    assert "empty_strided_cpu((4, 16, 2, 64)" not in code
    assert "empty_strided_cpu((4, 2, 16, 2, 64)" not in code


def test_pitfall_31_a_step_reads_no_tensor_on_the_host():
    """Tensors without data: what would read a number of them raises."""
    with torch.device("meta"):
        table, lengths, starts = (torch.zeros(n).int() for n in ((3, 4), 3, 4))
        k, q = torch.zeros(8, 2, 64).half(), torch.zeros(8, 4, 64).half()
        caches = torch.zeros(2, 9, 16, 2, 64).half().unbind(0)
        slots = pyflash.slots_of(table, lengths, starts, 16, 8)
        append._append(k, k, *caches, slots)
        packed = {"cu_seqlens_q": starts, "max_seqlen_q": 8}
        out = pyflash.attention_paged(q, *caches, table, lengths, **packed)
        levels = ((table[:1], lengths[:1], starts[:2], 8), (table, lengths, starts, 4))
        merged = pyflash.attention_cascade(q, *caches, levels)
    assert out.shape == merged.shape == (8, 4, 64)


class _Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.names.append(str(op))
        return op(*args, **(kwargs or {}))


def test_pitfall_32_a_layer_is_one_op():
    """A layer plans nothing by ops of its own: lengths and tables are made once a step."""
    cache, q = Cache((37, 5), 16), random_q(2, 1, 4)
    with _Ops() as ops:
        pyflash.attention_paged(q, *cache.tensors, causal=True)
    assert ops.names == ["pyflash.fwd_paged.default"]


@pytest.mark.parametrize("window", [0, 1, 15, 16, 17, 36, 37])
@pytest.mark.parametrize("page_size", [1, 16])
def test_pitfall_33_windows_count_keys(window, page_size):
    """window_left = w is w keys beside the query's own, whatever a page holds; FlashAttention's
    window_size is the same."""
    from pyflash.compat.flash_attn import flash_attn_with_kvcache

    n = 37
    cache = Cache((n,), page_size)
    cache.v.zero_()
    cache.k.zero_()
    first = max(n - 1 - window, 0)
    cache.v[cache.place(0, first)] = 1
    q = random_q(1, 1, 4)
    out = pyflash.attention_paged(q, *cache.tensors, window_left=window, causal=True)
    assert (out == 1).all()
    if first > 0:
        wider = pyflash.attention_paged(q, *cache.tensors, window_left=window + 1, causal=True)
        share = (window + 1) / (window + 2)
        torch.testing.assert_close(wider.float(), torch.full_like(wider, share).float(), atol=1e-3,
                                   rtol=0)  # fmt: skip
    found = flash_attn_with_kvcache(
        q, cache.k, cache.v, cache_seqlens=cache.seqlens, block_table=cache.table,
        window_size=(window, 0), causal=True,
    )  # fmt: skip
    assert torch.equal(found, out)
