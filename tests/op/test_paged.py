"""Attention over pages on the CPU: right in fp64, whatever lies where nothing is to be read."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from support.paged import Cache, laid_out

import pyflash

FP16, BF16 = torch.float16, torch.bfloat16
LENGTHS = (37, 0, 1, 64)  # keys of the sequences
LONGEST = max(LENGTHS)


OPTIONS = {
    "full": {},
    "causal": {"causal": True},
    "left": {"window_left": 5},
    "local": {"window_left": 9, "window_right": 2},
    "chunks": {"attention_chunk": 16},
    "causal chunks": {"attention_chunk": 100, "causal": True},
    "softcap": {"softcap": 2.0, "causal": True},
    "scaled": {"softmax_scale": 0.3},
    "sinks": {"sinks": torch.linspace(-2, 3, 4), "causal": True},
    "alibi": {"alibi_slopes": torch.rand(4, 4)},
}


@pytest.mark.parametrize("page_size", [1, 2, 3, 8, 16, 17, 64, 256])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("seqlen_q", [1, 7, 70])
def test_padded_queries(page_size, options, seqlen_q):
    cache = Cache(LENGTHS, page_size)
    q = torch.randn(len(LENGTHS), seqlen_q, 4, 64).half()
    out, lse = pyflash.attention_paged(q, *cache.tensors, return_lse=True, **options)
    for b in range(len(LENGTHS)):
        cache.check(b, q[b], out[b], lse[b], **options)


@pytest.mark.parametrize("page_size", [1, 16, 48])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_packed_queries(page_size, options):
    cache = Cache(LENGTHS, page_size)
    lengths_q = (3, 5, 0, 64)
    cu_seqlens = torch.tensor([0, *itertools.accumulate(lengths_q)], dtype=torch.int32)
    q = torch.randn(sum(lengths_q), 4, 64).half()
    packed = {"cu_seqlens_q": cu_seqlens, "max_seqlen_q": max(lengths_q)}
    out, lse = pyflash.attention_paged(q, *cache.tensors, return_lse=True, **packed, **options)
    for b, n in enumerate(lengths_q):
        rows = slice(int(cu_seqlens[b]), int(cu_seqlens[b]) + n)
        cache.check(b, q[rows], out[rows], lse[:, rows], **options)


@pytest.mark.parametrize("dtype", [FP16, BF16])
@pytest.mark.parametrize("d_head", [8, 64, 128, 256])
@pytest.mark.parametrize(("heads", "heads_kv"), [(1, 1), (6, 1), (6, 2), (6, 6)])
def test_heads_and_dtypes(dtype, d_head, heads, heads_kv):
    cache = Cache(LENGTHS, 16, heads_kv, d_head, dtype)
    q = torch.randn(len(LENGTHS), 5, heads, d_head).to(dtype)
    out, lse = pyflash.attention_paged(q, *cache.tensors, causal=True, return_lse=True)
    for b in range(len(LENGTHS)):
        cache.check(b, q[b], out[b], lse[b], causal=True)


@pytest.mark.parametrize("layout", ["heads first", "of one tensor", "columns of one tensor"])
@pytest.mark.parametrize("page_size", [2, 16, 24])
def test_caches_are_views(layout, page_size):
    cache = Cache(LENGTHS, page_size)
    q = torch.randn(len(LENGTHS), 3, 4, 64).half()
    table = torch.cat([cache.table, torch.full_like(cache.table, 99)], 1)[:, : cache.table.shape[1]]
    assert not table.is_contiguous()
    k, v = laid_out(layout, cache.k, cache.v)
    assert k.stride() != cache.k.stride()
    expected = pyflash.attention_paged(q, *cache.tensors)
    assert torch.equal(pyflash.attention_paged(q, k, v, table, cache.seqlens), expected)


@pytest.mark.parametrize("packed", [False, True])
def test_a_contiguous_cache(packed):
    cache = Cache((50, 0, 49, 3), 50, width=1)
    cache.table.clamp_(0)
    q = torch.randn(4, 3, 4, 64).half()
    options = {"causal": True, "return_lse": True}
    if packed:
        q = q.flatten(0, 1)
        options |= {"cu_seqlens_q": torch.arange(5, dtype=torch.int32) * 3, "max_seqlen_q": 3}
    expected = pyflash.attention_paged(q, *cache.tensors, **options)
    rows = cache.table[:, 0].contiguous()
    found = pyflash.attention_cached(q, cache.k, cache.v, cache.seqlens, rows, **options)
    assert all(map(torch.equal, found, expected))
    k, v = (x[rows.long()] for x in (cache.k, cache.v))
    found = pyflash.attention_cached(q, k, v, cache.seqlens, **options)
    assert all(map(torch.equal, found, expected))
    with pytest.raises(ValueError, match=r"cache_rows has shape \(3,\): expected \(4,\)"):
        pyflash.attention_cached(q, k, v, cache.seqlens, rows[:3], **options)
    with pytest.raises(TypeError, match="cache_rows is int: expected a tensor or None"):
        pyflash.attention_cached(q, k, v, cache.seqlens, 3, **options)


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("seqlen_q", [1, 3])
def test_what_expired_from_a_window_is_not_read(page_size, seqlen_q):
    """Neither stale entries of the table left of the window, nor NaN in its first page."""
    window = 10
    cache = Cache((100, 7), page_size)
    q = torch.randn(2, seqlen_q, 4, 64).half()
    options = {"window_left": window, "causal": True}
    expected = pyflash.attention_paged(q, *cache.tensors, **options)
    for b, n in enumerate(cache.lengths):
        first = max(n - seqlen_q - window, 0)
        for key in range(first):
            page = cache.table[b, key // page_size].item()
            cache.k[page, key % page_size] = cache.v[page, key % page_size] = math.nan
        cache.table[b, : first // page_size] = -7
    assert torch.equal(pyflash.attention_paged(q, *cache.tensors, **options), expected)
    assert not expected.isnan().any()


@pytest.mark.parametrize("config", ["", "(FP16, 64, 64, 32, 4): async+eager+load_0_0_0_tiles"])
@pytest.mark.parametrize("page_size", [1, 5, 16, 64])
def test_pages_give_the_bits_of_packed_sequences(config, page_size):
    cache = Cache(LENGTHS, page_size)
    lengths_q = (5, 5, 5, 5)
    q = torch.randn(sum(lengths_q), 4, 64).half()
    cu_q, cu_k = (
        torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32) for n in (lengths_q, LENGTHS)
    )
    k, v = torch.cat(cache.keys), torch.cat(cache.values)
    options = {"causal": True, "config": config, "return_lse": True}
    expected = pyflash.attention_varlen(q, k, v, cu_q, cu_k, 5, LONGEST, **options)
    packed = {"cu_seqlens_q": cu_q, "max_seqlen_q": 5}
    found = pyflash.attention_paged(q, *cache.tensors, **packed, **options)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("seqlen_q", [0, 3])
@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize(("num_pages", "max_pages"), [(0, 0), (0, 2), (2, 0), (2, 2)])
def test_nothing_to_attend(batch, seqlen_q, num_pages, max_pages):
    q = torch.randn(batch, seqlen_q, 4, 64).half()
    k = v = torch.full((num_pages, 16, 2, 64), math.nan).half()
    table = torch.full((batch, max_pages), -1, dtype=torch.int32)
    seqlens = torch.zeros(batch, dtype=torch.int32)
    out, lse = pyflash.attention_paged(q, k, v, table, seqlens, return_lse=True)
    assert torch.equal(out, torch.zeros_like(q))
    assert torch.equal(lse, torch.full((batch, 4, seqlen_q), -math.inf))


Q = torch.randn(4, 3, 4, 64).half()
ONE = torch.tensor([0, 1, 2, 3, 4], dtype=torch.int32)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda c: {"block_table": c.table.long()}, "block_table is int64: expected int32"),
        (lambda c: {"seqlens_k": c.seqlens.long()}, "seqlens_k is int64: expected int32"),
        (lambda c: {"block_table": c.table[:3]}, r"block_table has shape \(3, 5\): expected \(4"),
        (lambda c: {"block_table": c.table[0]}, r"block_table has shape \(5,\): expected \(4, max"),
        (lambda c: {"block_table": c.table.t().contiguous().t()}, "block_table has stride 4 in it"),
        (lambda c: {"seqlens_k": c.seqlens[:3]}, r"seqlens_k has shape \(3,\): expected \(4,\)"),
        (lambda c: {"seqlens_k": c.seqlens + 50}, r"seqlens_k\[0\] = 87: expected a number from 0"),
        (lambda c: {"seqlens_k": c.seqlens - 2}, r"seqlens_k\[1\] = -2: expected a number from 0"),
        (lambda c: {"block_table": c.table + 99}, r"block_table\[0, 0\] = \d+: expected the numb"),
        (lambda c: {"block_table": c.table * 0 - 1}, r"block_table\[0, 0\] = -1: expected the num"),
        (lambda c: {"k_cache": c.k[..., :56]}, "k_cache has shape .*: expected d_head 64 as q"),
        (lambda c: {"k_cache": c.k.bfloat16()}, "k_cache is bfloat16: expected float16 as q"),
        (lambda c: {"k_cache": c.k[0]}, r"k_cache has shape .*: expected 4 dimensions, \(num_page"),
        (lambda c: {"v_cache": c.v[:2]}, r"v_cache has shape .*: expected num_pages \d+ as k_cach"),
        (lambda c: {"v_cache": c.v[:, :4]}, "v_cache has shape .*: expected page_size 16 as k_cac"),
        (lambda c: {"k_cache": c.k[:, :0], "v_cache": c.v[:, :0]}, "k_cache has page_size 0"),
        (lambda c: {"max_seqlen_q": 3}, "max_seqlen_q came without cu_seqlens_q: expected both"),
        (lambda c: {"cu_seqlens_q": ONE}, "cu_seqlens_q came without max_seqlen_q: expected both"),
        (lambda c: {"cu_seqlens_q": ONE, "max_seqlen_q": 1}, r"q has shape .*: expected 3 dimens"),
        (lambda c: {"q": Q[0], "cu_seqlens_q": ONE, "max_seqlen_q": 1}, "cu_seqlens_q ends with 4"),
        (lambda c: {"softcap": -1.0}, "softcap = -1"),
    ],
)  # fmt: skip
def test_wrong_calls_are_refused_in_words(changed, said):
    cache = Cache(LENGTHS, 16)
    names = ("k_cache", "v_cache", "block_table", "seqlens_k")
    arguments = {"q": Q, **dict(zip(names, cache.tensors, strict=True)), **changed(cache)}
    with pytest.raises(ValueError, match=f"^pyflash: {said}"):
        pyflash.attention_paged(**arguments)


def test_gradients_are_refused_in_forward():
    cache = Cache(LENGTHS, 16)
    q = Q.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="attention over pages and append_kv have no gradients"):
        pyflash.attention_paged(q, *cache.tensors)
    sinks = torch.zeros(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="have no gradients"):
        pyflash.attention_paged(Q, *cache.tensors, sinks=sinks)
    with torch.no_grad():
        pyflash.attention_paged(q, *cache.tensors)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("options", [{}, {"causal": True, "sinks": torch.zeros(4)}])
def test_opcheck(packed, options):
    cache = Cache(LENGTHS, 16)
    q = Q.flatten(0, 1) if packed else Q
    k, v = laid_out("of one tensor", cache.k.nan_to_num(), cache.v.nan_to_num())
    lengths = (torch.arange(5, dtype=torch.int32) * 3, 3) if packed else ()
    inputs = (q, k, v, cache.table, cache.seqlens, *lengths)
    torch.library.opcheck(torch.ops.pyflash.fwd_paged.default, inputs, options)


@pytest.mark.parametrize("packed", [False, True])
def test_out_is_written(packed):
    cache = Cache(LENGTHS, 16)
    q = Q.flatten(0, 1) if packed else Q
    options = {"causal": True, "return_lse": True}
    lengths = (torch.arange(5, dtype=torch.int32) * 3, 3) if packed else ()
    options |= dict(zip(("cu_seqlens_q", "max_seqlen_q"), lengths, strict=False))
    expected = pyflash.attention_paged(q, *cache.tensors, **options)
    out = torch.full_like(q, math.nan)
    found = pyflash.attention_paged(q, *cache.tensors, out=out, **options)
    assert found[0] is out
    assert all(map(torch.equal, found, expected))
    inputs = (q, cache.k.nan_to_num(), cache.v.nan_to_num(), cache.table, cache.seqlens, *lengths)
    given = {"causal": True, "out": torch.empty_like(q), "lse": torch.empty_like(expected[1])}
    torch.library.opcheck(torch.ops.pyflash.fwd_paged.out, inputs, given)
    q = q.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="have no gradients"):
        torch.ops.pyflash.fwd_paged.out(q, *inputs[1:], **given)


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (Q.bfloat16(), "out is bfloat16: expected float16"),
        (Q[:3], r"out has shape \(3, 3, 4, 64\): expected \(4, 3, 4, 64\)"),
        (Q[0], r"out has shape \(3, 4, 64\): expected \(4, 3, 4, 64\)"),
        (
            Q.transpose(1, 2).contiguous().transpose(1, 2),
            "out has strides or an address of other views",
        ),
        (torch.empty(4 * 3 * 4 * 64 + 1).half()[1:].view(4, 3, 4, 64), "out has strides or an ad"),
        (Q.to("meta"), "out is on meta: expected cpu"),
    ],
)
def test_wrong_outs_are_refused_in_words(out, said):
    with pytest.raises(ValueError, match=f"^pyflash: {said}"):
        pyflash.attention_paged(Q, *Cache(LENGTHS, 16).tensors, out=out)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic):
    cache = Cache(LENGTHS, 16)
    compiled = torch.compile(pyflash.attention_paged, fullgraph=True, dynamic=dynamic)
    for n in (3, 5):
        q = torch.randn(len(LENGTHS), n, 4, 64).half()
        expected = pyflash.attention_paged(q, *cache.tensors, causal=True)
        assert torch.equal(compiled(q, *cache.tensors, causal=True), expected)


def test_each_element_has_a_bound_of_its_own():
    """A small one may not be off by what a large one may."""
    torch.manual_seed(0)
    cache = Cache((200,), 16)
    cache.values[0][..., 0] /= 1000
    cache.v[cache.place(0)] = cache.values[0]
    q = torch.randn(1, 3, 4, 64).half()
    out, lse = pyflash.attention_paged(q, *cache.tensors, return_lse=True)
    cache.check_padded(q, out, lse)
    out[0, 1, 2, 0] += 1e-4
    with pytest.raises(AssertionError, match=r"1 elements of out are wrong, first \(0, 1, 2, 0\)"):
        cache.check_padded(q, out, lse)
