"""Splits at fixed keys, as batch_invariant has them: a row's bits are those that it has alone,
beside longer sequences, whose splits are more, in pages, in chunks and as the last of many."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.paged import Cache

from pyflash.codegen.emulated import build_emulated
from pyflash.config import parse
from pyflash.config.features import EMULATED_PAGED_FIXED
from pyflash.emulator.run import run_library
from pyflash.op.invariant import AT_FIXED_KEYS
from pyflash.op.reference import expect

CONFIGS = {
    "sm90": "(FP16, 64, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent",
    "sm80": "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
}
HEADS, HEADS_KV, D_HEAD = 2, 1, 64
LENGTHS = (70, 2048, 2049, 4300)
OPTIONS = {
    "causal": {"causal": True},
    "window": {"causal": True, "window_left": 1500, "sinks": torch.tensor([-1.0, 2.0])},
}


@pytest.fixture(scope="module")
def libraries():
    built = build_emulated(map(parse, CONFIGS.values()), features=EMULATED_PAGED_FIXED)
    return dict(zip(CONFIGS, built.values(), strict=True))


def cache_of(keys, page_size: int) -> Cache:
    """In random pages that the table has no more entries than needed for."""
    lengths = [len(k) for k, _ in keys]
    width = math.ceil(max(lengths) / page_size)
    cache = Cache(lengths, page_size, HEADS_KV, D_HEAD, torch.float16, width=width)
    for b, (k, v) in enumerate(keys):
        cache.k[cache.place(b)], cache.v[cache.place(b)] = k, v
    return cache


def sequences(seed: int):
    torch.manual_seed(seed)
    of = ((1, HEADS), (0, HEADS_KV), (0, HEADS_KV))
    return [
        tuple(torch.randn(1, 3 if is_q else n, h, D_HEAD).half() for is_q, h in of) for n in LENGTHS
    ]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("options", OPTIONS)
def test_bits_of_a_row(libraries, name, options):
    options, config = OPTIONS[options], parse(CONFIGS[name])
    every = sequences(seed=len(options))

    def run(q, keys, page_size):
        cache = cache_of(keys, page_size)
        out, lse, report = run_library(
            libraries[name], (q, cache.k, cache.v), config, pages=cache.tensors[2:],
            num_splits=AT_FIXED_KEYS, **options,
        )  # fmt: skip
        report.check()
        return out, lse, report.problem["num_splits"]

    alone, n_splits = [], []
    for q, k, v in every:
        out, lse, n = run(q, [(k[0], v[0])], 64)
        alone.append((out, lse))
        n_splits.append(n)
        expect(q, k, v, **options).check(out, lse)
    assert n_splits == ([2, 2, 3, 5] if "sinks" in options else [1, 2, 3, 5])
    last, last_lse, _ = run(q[:, -1:], [(k[0], v[0])], 128)
    assert torch.equal(last, out[:, -1:])
    assert torch.equal(last_lse, lse[..., -1:])
    out, lse, n = run(torch.cat([q for q, _, _ in every]), [(k[0], v[0]) for _, k, v in every], 16)
    assert n >= 5
    for b, (of_one, lse_of_one) in enumerate(alone):
        assert torch.equal(out[b : b + 1], of_one)
        assert torch.equal(lse[b : b + 1], lse_of_one)
