"""Kernels with a variant on the emulated machine, in both forward families: masks as ranges and as
bits, and scores with parts of a row, a column and a pair."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from support.variants import values_of
from torch import Tensor

import pyflash
from pyflash.codegen.emulated import build_emulated
from pyflash.config import Features, parse
from pyflash.emulator.run import run_library
from pyflash.op.variants.arguments import captured_of
from pyflash.op.variants.reference import expect
from pyflash.variant.library import named
from pyflash.variant.tiles import Problem

CONFIGS = {
    "sm80": "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "sm90": "(FP16, 64, 128, 64, 2): sm90+stages_2+overlap+persistent+rescale_threshold",
}
NAMES = ("alibi", "documents", "dilated", "bias", "t5_bias")
# More keys than queries, fewer, one query, one key, lengths of whole blocks.
PROBLEMS = [
    Problem(150, 200, 1, 4),
    Problem(70, 65, 2, 2),
    Problem(1, 130, 1, 2),
    Problem(129, 1, 1, 2),
    Problem(128, 128, 1, 2),
]
OPTIONS = [
    {},
    {"window_left": 40, "window_right": 3},
    {"softcap": 2.0, "softmax_scale": 0.3},
    {"sinks": torch.tensor([0.5, -3.0, 2.0, 0.0])},
    {"num_splits": 3},
]


def make(at: Problem) -> list[Tensor]:
    generator = torch.Generator().manual_seed(at.q_len)
    sizes = ((at.q_len, at.heads), (at.k_len, at.heads // 2), (at.k_len, at.heads // 2))
    return [torch.randn(at.batch, *size, 64, generator=generator).half() for size in sizes]


@pytest.mark.parametrize("at", PROBLEMS, ids=range(len(PROBLEMS)))
@pytest.mark.parametrize(("family", "name"), list(product(CONFIGS, NAMES)))
def test_it_is_its_formula(family, name, at):
    inputs, tensors = make(at), values_of(name, at)
    out, lse, report = pyflash.emulate(*inputs, CONFIGS[family], variant=name, tensors=tensors)
    report.check()
    expect(*inputs, variant=name, tensors=tensors).check(out, lse)


# One kernel has what all options need, one neither a cap nor sinks: `emulate` would compile one for
# each option.
COMBINATIONS = [
    Features.parse(text)
    for text in ("right_window+left_window", "right_window+left_window+softcap+sinks")
]


@pytest.fixture(scope="module", params=product(CONFIGS, ("alibi", "documents")), ids="-".join)
def composed(request):
    """A config, its library with a variant, and the variant's name."""
    family, name = request.param
    config = parse(CONFIGS[family])
    (library,) = build_emulated([config], named(name).variant.normal, COMBINATIONS).values()
    return config.canonical(), library, name


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "none")
def test_it_composes_with_options(composed, options):
    (config, library, name), at = composed, PROBLEMS[0]
    inputs, tensors = make(at), values_of(name, at)
    captured = captured_of(name, tensors)
    out, lse, report = run_library(library, inputs, config, captured=captured, **options)
    report.check()
    of_problem = {n: x for n, x in options.items() if n != "num_splits"}
    expect(*inputs, variant=name, tensors=tensors, **of_problem).check(out, lse)


_PACKED = ("documents", "alibi", "t5_bias", "chunked")


@pytest.mark.parametrize(("family", "name"), list(product(CONFIGS, _PACKED)))
def test_packed_sequences_are_their_own(family, name):
    """Sequences without queries, without keys, and of a key more than a block."""
    at = Problem(150, 200, 4, 2)
    q, k, v = make(at)
    lengths_q, lengths_k = (100, 0, 31, 65), (129, 7, 0, 65)
    packed = [
        torch.cat([x[b, :n] for b, n in enumerate(lengths)])
        for x, lengths in ((q, lengths_q), (k, lengths_k), (v, lengths_k))
    ]
    starts = [
        torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
        for lengths in (lengths_q, lengths_k)
    ]
    tensors = values_of(name, at)
    *found, report = pyflash.emulate_varlen(
        *packed, *starts, 150, 200, CONFIGS[family], variant=name, tensors=tensors
    )
    report.check()
    expect(*packed, *starts, variant=name, tensors=tensors).check(*found)


def test_tiles_that_are_long_by_place_are_dealt_out_to_all_ctas():
    """The first tile of queries of each head has all keys. Sections of two heads, which are two
    rounds of CTAs, would all give those tiles to the same two of four."""
    at = Problem(512, 512, 8, 2)
    text = "m(reach: i32): s where (q < 128) | (abs(q - k) <= reach)"
    *_, report = pyflash.emulate(
        *make(at), CONFIGS["sm90"], variant=text, tensors={"reach": 5}, resident_ctas=4
    )
    report.check()
    counts = report.counts
    # Columns of WGMMAs, of 64 rows and a depth of 16.
    of_all = (counts.wgmma_flops_ss + counts.wgmma_flops_rs) / (2 * 64 * 16)
    of_first = sum(event.a for event in report.timeline if event.kind == "mma")
    assert 0.9 < of_first / (of_all / 4) < 1.1


@pytest.mark.parametrize("family", CONFIGS)
def test_what_a_mask_hides_is_not_read(family):
    """A NaN in a hidden key, and in V of hidden blocks, reaches no row."""
    at = Problem(70, 260, 1, 2)
    q, k, v = make(at)
    document = torch.zeros(1, 260, dtype=torch.int32)
    document[:, 70:] = 1
    tensors = {"doc": document}
    expected = pyflash.attention(q, k, v, variant="documents", tensors=tensors)
    k[:, 70:], v[:, 128:] = torch.nan, torch.nan
    out, _, report = pyflash.emulate(q, k, v, CONFIGS[family], variant="documents", tensors=tensors)
    report.check()
    torch.testing.assert_close(out, expected, rtol=0, atol=2e-3)
