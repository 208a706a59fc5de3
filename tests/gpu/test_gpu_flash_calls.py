"""FlashAttention's functions on a GPU, as tests/compat/test_flash_calls.py has them on the CPU:
longer sequences, more queries, wider heads and pages by TMA and gathered."""

from __future__ import annotations

import pytest
import torch
from compat.test_flash_calls import CASES, EXTRAS
from support.flash_calls import KEYS, MASKS, CachedCase, PackedCase, Sizes, check_combined

pytestmark = pytest.mark.gpu

LARGE = Sizes(
    device="cuda",
    capacity=768,
    page_sizes=(1, 3, 16, 64, 256),
    d_heads=(40, 64, 128),
    queries=(1, 3, 70, 200),
    new=(1, 4, 130),
    groups=(1, 3, 8),
)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("spelling", "where", "told", "mask", "appends"), CASES)
def test_results_and_caches(seed, spelling, where, told, mask, appends):
    CachedCase(seed, spelling, where, told, mask, appends, LARGE).check()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("seed", range(6))
def test_packed_queries_and_new_keys(seed, mask):
    CachedCase(seed, "3", "pages", "tensor", mask, True, LARGE).check_packed()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize(
    ("spelling", "extra"), [(name, extra) for name in EXTRAS for extra in EXTRAS[name]]
)
def test_packed_sequences(seed, spelling, keys, mask, extra):
    PackedCase(seed, spelling, keys, mask, extra, LARGE).check()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("seed", range(8))
def test_parts_are_combined(seed, dtype):
    check_combined(seed, dtype, LARGE)
