"""FlashAttention's functions in all combinations of what FlashAttention 2 and 3 and vLLM let
callers ask of them, beside the formula. On a GPU: tests/gpu/test_gpu_flash_calls.py."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.flash_calls import (
    KEYS,
    MASKS,
    SPELLINGS,
    CachedCase,
    PackedCase,
    check_combined,
)

TOLD = ["tensor", "int", "none"]  # how cache_seqlens is told
WHERE = ["rows", "picked rows", "pages"]
CACHED = ["2", "3"]  # vLLM has no such function

CASES = [
    (spelling, where, told, mask, appends)
    for spelling, where, told, mask, appends in itertools.product(
        CACHED, WHERE, TOLD, MASKS, [False, True]
    )
    if not (appends and told == "none")  # there is no room
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("spelling", "where", "told", "mask", "appends"), CASES)
def test_results_and_caches(seed, spelling, where, told, mask, appends):
    CachedCase(seed, spelling, where, told, mask, appends).check()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("seed", range(6))
def test_packed_queries_and_new_keys(seed, mask):
    """Of FlashAttention 3."""
    CachedCase(seed, "3", "pages", "tensor", mask, True).check_packed()


# What each spelling has of them.
EXTRAS = {
    "2": ["", "softcap", "alibi_slopes"],
    "3": ["", "softcap", "s_aux"],
    "vllm": ["", "softcap", "alibi_slopes", "s_aux"],
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize(
    ("spelling", "extra"), [(name, extra) for name in EXTRAS for extra in EXTRAS[name]]
)
def test_packed_sequences(seed, spelling, keys, mask, extra):
    PackedCase(seed, spelling, keys, mask, extra).check()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("seed", range(8))
def test_parts_are_combined(seed, dtype):
    check_combined(seed, dtype)


@pytest.mark.parametrize("spelling", CACHED)
@pytest.mark.parametrize(
    "asked", ["rotary_cos", "rotary_sin", "cache_leftpad"], ids=lambda name: name
)
def test_what_is_not_there_is_refused_before_anything_is_written(spelling, asked):
    case = CachedCase(0, spelling, "rows", "tensor", "full", True)
    before = [cache.clone().nan_to_num(7) for cache in case.caches]
    q, k, v = (case.rows(case.batch, case.n_new, n) for n in (case.heads, *[case.heads_kv] * 2))
    told = {asked: torch.zeros(case.batch, 8)}
    with pytest.raises(ValueError, match=asked):
        SPELLINGS[spelling].flash_attn_with_kvcache(
            q, *case.caches, k, v, **case.arguments(), **told
        )
    for cache, same in zip(case.caches, before, strict=True):
        assert torch.equal(cache.nan_to_num(7), same)
