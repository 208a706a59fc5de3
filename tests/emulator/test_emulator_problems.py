"""Masks, sinks, groups of heads, narrow heads, packed sequences and split keys on the emulator:
right, free of races and the like, and without a look at blocks that a mask leaves nothing of."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.cases import CASES
from support.emulated import BEST, CONFIGS, emulate, libraries, n_mma
from support.problems import (
    Packed,
    Shape,
    far_below_a_cap,
    growing,
    growing_below_zero,
    make_inputs,
    make_packed,
    near_a_cap,
    rising,
)

from pyflash.emulator import ORDERS
from pyflash.op.reference import expect, expect_varlen
from pyflash.op.selection import TORCH_DTYPES

__all__ = ["libraries"]


def run(libraries, config, case, order):
    inputs, expected = case.problem(config)
    out, lse, report = emulate(
        libraries, config, inputs, order=order, seed=5, **case.options(config)
    )
    report.check()
    assert report.completed
    expected.check(out, lse)
    assert report.counts.mma == n_mma(config, report, inputs)
    return out, lse


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_kernels_are_right_and_nothing_is_found(libraries, config, case):
    """In an order that is another for the next config, and for the next case."""
    n = CONFIGS.index(config) + CASES.index(case)
    run(libraries, config, case, ORDERS[n % len(ORDERS)])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("config", [BEST, CONFIGS[0], CONFIGS[7]], ids=str)
def test_the_order_of_warps_changes_no_bit(libraries, config, case):
    results = [run(libraries, config, case, order) for order in ORDERS]
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


def test_a_causal_mask_halves_the_blocks(libraries):
    """512 rows and keys are 8 blocks of 64: of 8 * 8 the kernel looks at 1 + 2 + ... + 8."""
    assert (BEST.B_r, BEST.B_c, BEST.d_head) == (64, 64, 128)
    inputs = make_inputs(Shape("", 1, 512, 512, 1), torch.float16, 128)
    full, causal = (emulate(libraries, BEST, inputs, causal=c)[2].counts for c in (False, True))
    assert full.mma == 64 * 512
    assert causal.mma == 36 * 512
    loads = (36 * 2 + 8) * 64 * 16  # of K and V, and of Q: 16 in a row
    assert causal.cp_async == loads


def test_a_score_near_the_cap_costs_a_reciprocal_and_no_exponential(libraries):
    """With the first cap all of them are near, with the last none. Maxima cost some, too."""
    inputs = make_inputs(Shape("", 1, 64, 128, 1), torch.float16, 128)
    options = [{"softcap": cap} for cap in (0.1, 0.0, 1e3)]
    near, uncapped, far = (emulate(libraries, BEST, inputs, **o)[2].counts for o in options)
    assert near.reciprocals - far.reciprocals == 64 * 128
    assert 64 <= far.reciprocals < 64 * 128 / 4
    assert uncapped.reciprocals == 0
    assert near.exponentials == uncapped.exponentials == far.exponentials


@pytest.mark.parametrize("softcap", [1e-2, 1.0, 50.0, 1e3, 1e5, 1e8])
def test_every_cap_is_as_accurate(libraries, softcap):
    """Scores far below the cap: an absolute error of tanh would grow with it."""
    inputs = make_inputs(Shape("", 1, 64, 192, 1), torch.float16, 128)
    out, lse, _ = emulate(libraries, BEST, inputs, softcap=softcap)
    expected = expect(*inputs, softcap=softcap)
    expected.check(out, lse)
    assert torch.allclose(lse.double(), expected.lse.double(), rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_scores_from_far_below_a_cap_to_far_above(libraries, config):
    """The series, tanh, and rows whose largest score is among the lowest."""
    dtype = TORCH_DTYPES[config.dtype]
    inputs = near_a_cap(make_inputs(Shape("", 1, 131, 200, 2), dtype, config.d_head))
    out, lse, report = emulate(libraries, config, inputs, softcap=30.0)
    report.check()
    expect(*inputs, softcap=30.0).check(out, lse)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_scores_far_below_a_cap_under_small_ones(libraries, config):
    """Where only the magnitude tells that the series does not do."""
    shape, dtype = Shape("", 1, 70, 320, 1), TORCH_DTYPES[config.dtype]
    inputs = far_below_a_cap(make_inputs(shape, dtype, config.d_head))
    out, lse, report = emulate(libraries, config, inputs, softcap=30.0)
    report.check()
    expect(*inputs, softcap=30.0).check(out, lse)


@pytest.mark.parametrize("softmax_scale", [1e-9, 1e-30])
def test_a_cap_of_scores_so_small_that_powers_of_them_vanish(libraries, softmax_scale):
    """A power of 0 beside a masked score of minus infinity is no number."""
    inputs = make_inputs(Shape("", 1, 64, 64, 1), torch.float16, 128)
    options = {"softcap": 50.0, "softmax_scale": softmax_scale, "causal": True}
    out, lse, report = emulate(libraries, BEST, inputs, **options)
    report.check()
    expect(*inputs, **options).check(out, lse)


def test_a_cap_keeps_what_is_not_a_number(libraries):
    q, k, v = make_inputs(Shape("", 1, 64, 64, 1), torch.float16, 128)
    q = q.clone()
    q[0, 3, 0, 0] = torch.nan
    out, lse, _ = emulate(libraries, BEST, (q, k, v), softcap=5.0)
    is_nan = torch.arange(64) == 3
    assert torch.equal(out[0, :, 0].isnan().all(1), is_nan)
    assert torch.equal(lse[0, 0].isnan(), is_nan)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("infinite", [slice(64), slice(128, 192)], ids=["first", "last"])
@pytest.mark.parametrize("config", [BEST, CONFIGS[0]], ids=str)
def test_keys_whose_scores_are_minus_infinity_count_nothing(
    libraries, config, infinite, num_splits
):
    """By value, not by a mask; whole blocks of them, so that a split may have no others."""
    q, k, v = (x.abs() + 0.1 for x in make_inputs(Shape("", 1, 64, 192, 1), torch.float16, 128))
    finite = torch.ones(192, dtype=torch.bool)
    finite[infinite] = False
    k[:, infinite] = -torch.inf
    out, lse, report = emulate(libraries, config, (q, k, v), num_splits=num_splits)
    assert not report.findings
    expect(q, k[:, finite], v[:, finite]).check(out, lse)


@pytest.mark.parametrize("grow", [growing, growing_below_zero, rising])
@pytest.mark.parametrize("config", [BEST, CONFIGS[6], CONFIGS[14]], ids=str)
def test_maxima_that_grow_from_block_to_block(libraries, config, grow):
    dtype = TORCH_DTYPES[config.dtype]
    inputs = grow(make_inputs(Shape("", 1, 67, 300, 2), dtype, config.d_head))
    out, lse, report = emulate(libraries, config, inputs)
    report.check()
    expect(*inputs).check(out, lse)


def test_a_sink_of_minus_infinity_changes_no_bit(libraries):
    inputs = make_inputs(Shape("", 1, 67, 131, 2), torch.float16, 128)
    options = {"causal": True, "window_left": 50}
    with_sinks = emulate(libraries, BEST, inputs, sinks=torch.full((2,), -torch.inf), **options)
    assert all(map(torch.equal, with_sinks[:2], emulate(libraries, BEST, inputs, **options)[:2]))


def test_partial_results_are_counted_where_they_are_stored(libraries):
    """Two columns of 8 rows at a time, each row a whole sector."""
    inputs = make_inputs(Shape("", 1, 64, 128, 1), torch.float16, 128)
    _, _, report = emulate(libraries, BEST, inputs, num_splits=2)
    stores = report.sites["O_r2g"]["global_store"]
    assert stores.bytes == 2 * 64 * 128 * 4
    assert stores.instructions * 32 * 8 == stores.bytes
    assert stores.sectors == stores.ideal_sectors == stores.bytes // 32
    assert "O_s2g" not in report.sites


@pytest.mark.parametrize(
    ("lengths_q", "lengths_k"),
    [
        ((0, 70, 1000), (0, 1 << 30, -(1 << 30))),
        ((0, -5, 99), (50, 20, 90)),
        ((-9, 33, 33), (1000, -1000, 1 << 30)),
    ],
)
def test_lengths_that_lie_lead_to_no_access_out_of_bounds(libraries, lengths_q, lengths_k):
    q, k, v, *_ = make_packed(Packed("", (40, 59), (41, 50), 2, 1), torch.float16, 128)
    lying = [torch.tensor(x, dtype=torch.int32) for x in (lengths_q, lengths_k)]
    _, _, report = emulate(libraries, BEST, (q, k, v, *lying, 99, 91), causal=True)
    assert report.completed
    assert {finding.kind for finding in report.findings} <= {"not_written"}


def test_sequences_longer_than_announced_keep_rows_that_nothing_wrote(libraries):
    packed = Packed("", (100, 20), (70, 100), 1, 1)
    q, k, v, *cu_seqlens, _, max_k = make_packed(packed, torch.float16, 128)
    inputs = (q, k, v, *cu_seqlens, 64, max_k)
    out, lse, report = emulate(libraries, BEST, inputs)
    written = torch.tensor([True] * 64 + [False] * 36 + [True] * 20)
    assert torch.equal(lse.isnan()[0], ~written)
    assert {finding.kind for finding in report.findings} == {"not_written"}
    expected = expect_varlen(q, k, v, *cu_seqlens)
    assert (out - expected.out)[written].abs().max() <= expected.bound
