"""Packed sequences of different lengths, whose tiles both forward families take from a list, on the
emulator."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.emulated import BEST
from support.emulated_sm90 import CONFIGS
from support.problems import Packed, make_packed
from support.uneven import check_used, make_uneven

from pyflash.codegen.emulated import build_emulated
from pyflash.config import parse
from pyflash.emulator.run import run_library
from pyflash.op.reference import expect_varlen
from pyflash.op.selection import TORCH_DTYPES
from pyflash.op.used_lengths import Used, ranges_of

CLUSTER = parse("(FP16, 128, 64, 64, 1): sm90+stages_3")
LISTED = [CONFIGS[0], CONFIGS[1], CONFIGS[4], BEST]
MASKS = (
    {},
    {"causal": True},
    {"window_left": 50, "window_right": 0},
    {"window_left": 20, "window_right": 70},
)


@pytest.fixture(scope="module")
def libraries():
    return build_emulated([*LISTED, CLUSTER])


def lengths_of(chance: random.Random) -> tuple[int, ...]:
    kinds = [0, 1, chance.randint(2, 63), chance.choice((61, 67, 127, 131)), chance.randint(1, 16)]
    lengths = [*chance.choices(kinds, k=chance.randint(2, 5)), chance.choice((257, 300, 389))]
    chance.shuffle(lengths)
    return tuple(lengths)


def packed_of(seed: int) -> Packed:
    chance = random.Random(seed)
    q = lengths_of(chance)
    k = q if seed % 2 else tuple(chance.choice((0, 1, 67, 300, n)) for n in q)
    heads = chance.choice(((1, 1), (4, 2), (3, 1)))
    return Packed(f"seed {seed}", q, k, *heads)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("config", LISTED, ids=str)
def test_packed_sequences_of_any_lengths(libraries, config, seed):
    """Beside NaN, which no row may see."""
    packed = packed_of(seed)
    options = MASKS[seed % len(MASKS)]
    inputs = make_packed(packed, TORCH_DTYPES[config.dtype], config.d_head, seed=seed)
    order = ("ascending", "descending", "random")[seed % 3]
    run = {"order": order, "seed": seed, "resident_ctas": 1 + seed % 3}
    out, lse, report = run_library(libraries[config], inputs, config, **run, **options)
    report.check()
    expect_varlen(*inputs[:5], **options).check(out, lse)
    n_tiles = sum(-(-n // config.B_r) for n in packed.seqlens_q)
    if config is BEST:  # a CTA for each tile that there may be
        assert report.n_ctas <= packed.heads * (n_tiles + len(packed.seqlens_q))


@pytest.mark.parametrize("seed", [4, 11])
@pytest.mark.parametrize("config", LISTED, ids=str)
def test_padded_sequences_of_any_lengths(libraries, config, seed):
    """seqlens_q and seqlens_k, as `attention` hands them to kernels; NaN is past the ends."""
    dtype = TORCH_DTYPES[config.dtype]
    case = make_uneven(seed, longest=150, d_head=config.d_head, dtype=dtype)
    ranges = ranges_of(case.q, case.k, Used(None, case.seqlens_q), Used(None, case.seqlens_k))
    inputs = (*(x.flatten(0, 1) for x in (case.q, case.k, case.v)), *ranges.packing)
    options = MASKS[seed % len(MASKS)]
    out, lse, report = run_library(libraries[config], inputs, config, seed=seed, **options)
    report.check()
    shape = case.q.shape[:2]
    out, lse = out.unflatten(0, shape), lse.unflatten(1, shape).transpose(0, 1)
    check_used(replace(case, options=options), out, lse)


@pytest.mark.parametrize("num_splits", [2, 3])
@pytest.mark.parametrize("resident_ctas", [1, 200])
def test_splits_of_listed_tiles(libraries, num_splits, resident_ctas):
    """Merged apart, or by clusters where all of them run at a time."""
    packed = Packed("", (1, 5, 0, 130), (300, 70, 9, 200), 4, 2)
    inputs = make_packed(packed, torch.float16, CLUSTER.d_head)
    run = {"num_splits": num_splits, "resident_ctas": resident_ctas, "causal": True}
    out, lse, report = run_library(libraries[CLUSTER], inputs, CLUSTER, **run)
    report.check()
    assert (report.cluster == num_splits) == (resident_ctas == 200)
    expect_varlen(*inputs[:5], causal=True).check(out, lse)


def test_the_largest_lengths_are_bounds_that_cost_nothing(libraries):
    """Tiles beyond the ends of all sequences are none of the grid's, whatever the bounds are."""
    inputs = make_packed(Packed("", (1, 70, 3), (300, 70, 9), 2, 1), torch.float16, 64)
    loose = (*inputs[:5], 74, 379)
    expected = expect_varlen(*inputs[:5], causal=True)
    n_ctas = []
    for arguments in (inputs, loose):
        out, lse, report = run_library(libraries[BEST], arguments, BEST, causal=True)
        report.check()
        expected.check(out, lse)
        n_ctas.append(report.n_ctas)
    assert n_ctas[0] == n_ctas[1]


@pytest.mark.parametrize("config", LISTED[:2], ids=str)
@pytest.mark.parametrize("listed_ctas", [1, 3, 9])
def test_the_list_says_how_many_ctas_take_tiles_of_many_rows(libraries, config, listed_ctas):
    """They write rows of sequences of so many, and no other."""
    packed = Packed("", (1, 200, 5, 0, 1), (130, 260, 5, 7, 0), 4, 2)
    inputs = make_packed(packed, TORCH_DTYPES[config.dtype], config.d_head)
    run = {"least_listed_rows": 6, "listed_ctas": listed_ctas, "resident_ctas": 4}
    out, lse, report = run_library(libraries[config], inputs, config, causal=True, **run)
    assert {f.kind for f in report.findings} == {"not_written"}
    written = ~lse.isnan()
    for sequence, (begin, end) in enumerate(zip(inputs[3], inputs[3][1:], strict=False)):
        assert (written[:, begin:end] == (packed.seqlens_q[sequence] >= 6)).all()
    expected = expect_varlen(*inputs[:5], causal=True)
    others = expected.out.to(out.dtype), expected.lse.float()
    expected.check(out.where(~out.isnan(), others[0]), lse.where(written, others[1]))
