"""The bits of a row with batch_invariant: alone, among others, in chunks, packed, padded, in a
cache and in pages of any size."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paged import Cache
from support.refusals import int32

import pyflash
from pyflash.config import named_set
from pyflash.op.invariant import invariant_config

HEADS, HEADS_KV = 4, 2
OPTIONS = {
    "causal": {},
    "window": {"window_left": 20},
    "chunks": {"attention_chunk": 48},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": torch.linspace(-2, 3, HEADS)},
    "alibi": {"alibi_slopes": torch.linspace(0.1, 1, HEADS)},
    "scaled": {"softmax_scale": 0.3},
}


@st.composite
def batches(draw):
    """Keys of each sequence; of each, where its queries begin, which go to the last key; a page
    size, options, d_head, dtype, seed."""
    lengths = draw(st.lists(st.integers(1, 200), min_size=1, max_size=4))
    first = [draw(st.integers(0, n - 1)) for n in lengths]
    page_size = draw(st.sampled_from([1, 3, 8, 16, 64, 256]))
    options = OPTIONS[draw(st.sampled_from(list(OPTIONS)))]
    d_head = draw(st.sampled_from([16, 64, 80, 128]))
    dtype = draw(st.sampled_from([torch.float16, torch.bfloat16]))
    return lengths, first, page_size, options, d_head, dtype, draw(st.integers(0, 999))


def as_cache(keys, values, page_size, **sizes):
    cache = Cache([len(k) for k in keys], page_size, **sizes)
    for b, (k, v) in enumerate(zip(keys, values, strict=True)):
        cache.k[cache.place(b)], cache.v[cache.place(b)] = k, v
    return cache


@given(batches())
@settings(max_examples=40, deadline=None)
def test_bits_of_a_row(batch):
    lengths, first, page_size, options, d_head, dtype, seed = batch
    torch.manual_seed(seed)
    options = {"batch_invariant": True, "causal": True, "return_lse": True, **options}
    qs, ks, vs = (
        [torch.randn(n, heads, d_head).to(dtype) for n in lengths]
        for heads in (HEADS, HEADS_KV, HEADS_KV)
    )
    # Each sequence alone, as a whole.
    alone = [
        pyflash.attention(q[None], k[None], v[None], **options)
        for q, k, v in zip(qs, ks, vs, strict=True)
    ]
    q = torch.cat([q[begin:] for q, begin in zip(qs, first, strict=True)])
    out = torch.cat([x[0, begin:] for (x, _), begin in zip(alone, first, strict=True)])
    lse = torch.cat([x[0, :, begin:] for (_, x), begin in zip(alone, first, strict=True)], 1)
    lengths_q = [n - begin for n, begin in zip(lengths, first, strict=True)]
    starts_q, starts_k = (int32(0, *itertools.accumulate(n)) for n in (lengths_q, lengths))
    longest_q = max(lengths_q)

    def same(found):
        assert torch.equal(found[0], out)
        assert torch.equal(found[1], lse)

    k, v = torch.cat(ks), torch.cat(vs)
    bounds = (starts_q, starts_k, longest_q, max(lengths))
    same(pyflash.attention_varlen(q, k, v, *bounds, **options))
    sizes = {"heads_kv": HEADS_KV, "d_head": d_head, "dtype": dtype}
    cache = as_cache(ks, vs, page_size, **sizes)
    packed = {"cu_seqlens_q": starts_q, "max_seqlen_q": longest_q}
    same(pyflash.attention_paged(q, *cache.tensors, **packed, **options))
    # The last row of each, as decoding has it, in a contiguous cache.
    cache = as_cache(ks, vs, 200, width=1, **sizes)
    last = torch.stack([q[-1:] for q in qs])
    rows = cache.table[:, 0].contiguous()
    found = pyflash.attention_cached(last, cache.k, cache.v, cache.seqlens, rows, **options)
    assert torch.equal(found[0], torch.stack([x[0, -1:] for x, _ in alone]))
    assert torch.equal(found[1], torch.stack([x[0, :, -1:] for _, x in alone]))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("d_head", [64, 128])
@pytest.mark.parametrize("n_queries", [1, 2])
def test_the_last_queries_alone(name, d_head, n_queries):
    """Whose keys may begin at any of the first ones: at those of a window or a chunk."""
    torch.manual_seed(n_queries)
    options = {"batch_invariant": True, "causal": True, "return_lse": True, **OPTIONS[name]}
    for n in (70, 129, 300, 777):
        q, k, v = (torch.randn(1, n, heads, d_head).half() for heads in (HEADS, HEADS_KV, HEADS_KV))
        out, lse = pyflash.attention(q, k, v, **options)
        last, last_lse = pyflash.attention(q[:, -n_queries:], k, v, **options)
        assert torch.equal(last, out[:, -n_queries:]), n
        assert torch.equal(last_lse, lse[..., -n_queries:]), n


def test_a_config_for_each_head():
    archs = (0, 80, 90, 100)
    for sm_arch, dtype, d_head in itertools.product(archs, ("FP16", "BF16"), range(8, 257, 8)):
        config = invariant_config(dtype, d_head, sm_arch)
        few = invariant_config(dtype, d_head, sm_arch, few_rows=True)
        assert (few.d_head, few.B_c) == (config.d_head, config.B_c)
        assert few.has_own_rows
        assert config.has_own_rows
        assert config.d_head >= d_head
        assert config.is_legal(sm_arch or 80)
    for config in named_set("invariant"):
        features = config.family.built_features(config)
        assert any(of.paged_kv for of in features), config


Q = torch.zeros(1, 3, 4, 64).half()
K = torch.zeros(1, 5, 2, 64).half()
THRESHOLD = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax+stages_2+rescale_threshold"  # noqa: E501


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_splits": 2}, "batch_invariant came with num_splits = 2: expected 0, because"),
        ({"config": THRESHOLD}, "batch_invariant came with config .*: expected one without resc"),
        ({"variant": "causal"}, "batch_invariant came with a variant: expected one of them"),
    ],
)
def test_what_cannot_be_is_refused_in_words(options, said):
    with pytest.raises(ValueError, match=f"^pyflash: {said}"):
        pyflash.attention(Q, K, K, batch_invariant=True, **options)


def test_other_refusals():
    with pytest.raises(TypeError, match="batch_invariant is int: expected a bool"):
        pyflash.attention(Q, K, K, batch_invariant=1)
    with torch.autocast("cpu"), pytest.raises(ValueError, match="batch_invariant with q of float3"):
        pyflash.attention(Q.float(), K.float(), K.float(), batch_invariant=True)
    x = torch.zeros(1, 1, 1, 264).half()
    with pytest.raises(ValueError, match="batch_invariant with d_head 264: expected 256 at most"):
        pyflash.attention(x, x, x, batch_invariant=True)


def test_gradients_and_compile():
    options = {"causal": True, "batch_invariant": True}
    compiled = torch.compile(pyflash.attention, fullgraph=True, dynamic=True)
    for n in (3, 5):
        q, k = torch.randn(1, n, 4, 64).half().requires_grad_(), torch.randn(1, n, 2, 64).half()
        out = pyflash.attention(q, k, k, **options)
        assert torch.equal(compiled(q, k, k, **options), out)
    out.sum().backward()
    assert q.grad.isfinite().all()
