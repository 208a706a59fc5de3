"""Attention over caches of e4m3 on a GPU: beside fp64 of what their elements stand for, with the
byte of NaN in everything that has no effect."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.fp8 import Fp8Cache

import pyflash

pytestmark = pytest.mark.gpu

FP16, BF16 = torch.float16, torch.bfloat16
HEADS = 8
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "left": {"window_left": 20, "causal": True},
    "local": {"window_left": 9, "window_right": 2},
    "chunks": {"attention_chunk": 48, "causal": True},
}
EXTRAS = {
    "": {},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": torch.linspace(-2, 3, HEADS)},
    "alibi": {"alibi_slopes": torch.linspace(0.1, 0.4, HEADS)},
    "splits": {"num_splits": 5, "sinks": torch.linspace(-2, 3, HEADS)},
}


def on_gpu(options):
    return {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}


def cache_of(lengths, page_size, seqlens_q, d_head, dtype, kind, **options) -> Fp8Cache:
    cache = Fp8Cache(lengths, page_size, 2, d_head, dtype, device="cuda")
    cache.expire(seqlens_q, **options)
    cache.quantise(kind)
    return cache


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("page_size", [1, 7, 16, 64, 256])
def test_pages_masks_and_lengths(page_size, mask, extra):
    number = list(MASKS).index(mask) + page_size + list(EXTRAS).index(extra)
    dtype, d_head = (FP16, BF16)[number % 2], (64, 128, 112)[number % 3]
    seqlen_q = (1, 4, 17, 100)[number // 2 % 4]
    options = on_gpu({**MASKS[mask], **EXTRAS[extra]})
    torch.manual_seed(number)
    lengths = (0, 1, page_size, page_size + 1, 127, 300, 1031)
    kind = ("of all", "of each head")[number // 3 % 2]
    cache = cache_of(lengths, page_size, [seqlen_q] * len(lengths), d_head, dtype, kind,
                     **MASKS[mask])  # fmt: skip
    q = torch.randn(len(lengths), seqlen_q, HEADS, d_head, device="cuda").to(dtype)
    out, lse = pyflash.attention_paged(q, *cache.fp8, return_lse=True, **cache.scales, **options)
    cache.check_padded(q, out, lse, **options)


@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_packed_queries(dtype):
    lengths_q = (1, 4, 0, 16, 130, 17)
    cache = cache_of((37, 700, 5, 129, 200, 64), 16, lengths_q, 128, dtype, "of each head",
                     causal=True)  # fmt: skip
    starts = [0, *itertools.accumulate(lengths_q)]
    q = torch.randn(starts[-1], HEADS, 128, device="cuda").to(dtype)
    out, lse = pyflash.attention_paged(
        q, *cache.fp8, cu_seqlens_q=torch.tensor(starts, dtype=torch.int32, device="cuda"),
        max_seqlen_q=130, return_lse=True, causal=True, **cache.scales,
    )  # fmt: skip
    cache.check_packed(starts, q, out, lse, causal=True)


def test_contiguous_caches_and_append():
    torch.manual_seed(0)
    k8, v8 = (torch.zeros(3, 500, 2, 128, device="cuda").to(torch.float8_e4m3fn) for _ in "kv")
    scales = {name: torch.tensor([0.02, 0.03], device="cuda") for name in ("k_scale", "v_scale")}
    new = torch.randn(2, 3 * 400, 2, 128, device="cuda").bfloat16()
    slots = (torch.arange(3)[:, None] * 500 + torch.arange(400)).flatten().cuda()
    pyflash.append_kv(*new, k8, v8, slots, **scales)
    lengths = torch.tensor([400, 0, 123], dtype=torch.int32, device="cuda")
    q = torch.randn(3, 1, 8, 128, device="cuda").bfloat16()
    out = pyflash.attention_cached(q, k8, v8, lengths, **scales)
    pairs = ((k8, scales["k_scale"]), (v8, scales["v_scale"]))
    k, v = (x.double() * scale.double()[:, None] for x, scale in pairs)
    for b, n in enumerate(lengths.tolist()):
        keys, values = (x[b, :n].repeat_interleave(4, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[b].double(), keys) / 128**0.5
        expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        assert (
            (out[b] - expected).abs().max() <= 0.02 * values.abs().max() if n else not out[b].any()
        )


def test_no_synchronization_and_any_lengths_in_a_graph():
    """Scales are read on the device, when the graph is replayed."""
    cache = cache_of((300, 64), 16, (1, 1), 128, BF16, "of each head")
    q = torch.randn(2, 1, HEADS, 128, device="cuda").bfloat16()
    pyflash.attention_paged(q, *cache.fp8, **cache.scales)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pyflash.attention_paged(q, *cache.fp8, **cache.scales)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = pyflash.attention_paged(q, *cache.fp8, **cache.scales)
    cache.scales["v_scale"].mul_(2)
    cache.seqlens[0] = 77
    graph.replay()
    assert torch.equal(out, pyflash.attention_paged(q, *cache.fp8, **cache.scales))


def test_batch_invariant_is_refused():
    cache = cache_of((300,), 16, (1,), 128, BF16, "of all")
    q = torch.randn(1, 1, HEADS, 128, device="cuda").bfloat16()
    with pytest.raises(ValueError, match="batch_invariant came with caches of float8_e4m3fn"):
        pyflash.attention_paged(q, *cache.fp8, **cache.scales, batch_invariant=True)
