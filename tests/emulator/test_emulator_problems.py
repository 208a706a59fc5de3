"""Masks, sinks, groups of heads, narrow heads, packed sequences and split keys on the emulator:
right, free of races and the like, and without a look at blocks that a mask leaves nothing of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.emulated import BEST, CONFIGS, emulate, libraries, n_mma
from support.problems import (
    NO_MASK,
    Mask,
    Packed,
    Shape,
    inputs_and_expected,
    make_inputs,
    make_packed,
    make_sinks,
    packed_and_expected,
)

from pyflash import FlashForwardKernelConfig
from pyflash.emulator import ORDERS
from pyflash.op.reference import Expected, expect, expect_varlen
from pyflash.op.selection import TORCH_DTYPES

__all__ = ["libraries"]

CAUSAL = Mask("causal", causal=True)
WINDOW_AND_CAP = Mask("window_and_cap", window_left=50, window_right=3, softcap=5.0)


BLOCKS_LEFT_OUT = Mask("left_window", window_left=40)


@dataclass(frozen=True)
class Case:
    name: str
    shape: Shape | Packed
    mask: Mask = NO_MASK
    num_splits: int = 1
    # Columns of d_head; None: as many as the config has.
    d_head: int | None = None
    # Of the sinks, "own" being that of q; None: no sinks.
    sinks: str | None = None

    def __str__(self) -> str:
        return self.name

    def options(self, config: FlashForwardKernelConfig) -> dict[str, Any]:
        options = {**self.mask.options, "num_splits": self.num_splits}
        if self.sinks:
            dtype = TORCH_DTYPES[config.dtype] if self.sinks == "own" else torch.float32
            options["sinks"] = make_sinks(self.shape.heads, dtype)
        return options

    def problem(self, config: FlashForwardKernelConfig) -> tuple[tuple[Any, ...], Expected]:
        """Of the op's positional arguments, and what has to come out."""
        packed = isinstance(self.shape, Packed)
        dtype, d_head = TORCH_DTYPES[config.dtype], min(self.d_head or 512, config.d_head)
        if not self.sinks:
            make = packed_and_expected if packed else inputs_and_expected
            return make(self.shape, dtype, d_head, mask=self.mask)
        options = self.options(config)
        del options["num_splits"]
        if packed:
            inputs = make_packed(self.shape, dtype, d_head)
            return inputs, expect_varlen(*inputs[:5], **options)
        inputs = make_inputs(self.shape, dtype, d_head)
        return inputs, expect(*inputs, **options)


# Lengths of several blocks, the last ragged, at every block size.
CASES = [
    Case("causal", Shape("", 1, 199, 199, 1), CAUSAL),
    Case("causal_fewer_queries", Shape("", 2, 71, 170, 1, "nan_around"), CAUSAL),
    # 130 rows, two blocks of them or one, have nothing to attend.
    Case("causal_more_queries", Shape("", 1, 201, 71, 2, "nan_around", 1), CAUSAL),
    Case("window", Shape("", 1, 199, 263, 1), Mask("", window_left=33, window_right=20)),
    Case("left_window", Shape("", 1, 190, 131, 1), Mask("", window_left=70)),
    Case("right_window", Shape("", 1, 67, 199, 1), Mask("", window_right=40)),
    Case("diagonal", Shape("", 1, 140, 133, 1), Mask("", window_left=0, window_right=0)),
    Case("cap", Shape("", 1, 67, 131, 3, "nan_around", 1), Mask("", softcap=0.7)),
    Case("window_and_cap", Shape("", 1, 131, 199, 2, "contiguous", 1), WINDOW_AND_CAP),
    Case("one_query", Shape("", 2, 1, 199, 6, heads_kv=2)),
    Case("one_query_and_window", Shape("", 1, 1, 199, 4, "nan_around", 2), WINDOW_AND_CAP),
    Case("narrow_heads", Shape("", 1, 67, 131, 4, "sliced", 2), d_head=72),
    Case("very_narrow_heads", Shape("", 1, 131, 67, 2, "sliced"), CAUSAL, d_head=40),
    Case("packed", Packed("", (33, 0, 70, 1), (131, 5, 0, 67), 2, 1)),
    Case("packed_causal", Packed("", (0, 131, 17, 65), (7, 70, 0, 129), 2, 2), CAUSAL),
    Case("packed_narrow_heads", Packed("", (67, 9), (70, 33), 2, 2), WINDOW_AND_CAP, d_head=40),
    Case("splits", Shape("", 1, 67, 263, 2), num_splits=2),
    Case("more_splits_than_blocks", Shape("", 1, 67, 131, 2, "nan_around", 1), CAUSAL, 6),
    Case("splits_of_rows_without_keys", Shape("", 1, 199, 70, 1), CAUSAL, 3),
    Case("packed_splits", Packed("", (67, 0, 17), (131, 9, 0), 2, 1), WINDOW_AND_CAP, 3, 40),
    Case("splits_of_no_query", Shape("", 1, 0, 67, 2), num_splits=2),
    Case("splits_of_one_query", Shape("", 1, 1, 263, 4, heads_kv=2), num_splits=3, d_head=40),
    Case("sinks", Shape("", 2, 67, 131, 3, "nan_around", 1), sinks="float32"),
    Case("sinks_and_window", Shape("", 1, 131, 199, 2), BLOCKS_LEFT_OUT, sinks="own"),
    Case("sinks_of_rows_without_keys", Shape("", 1, 199, 70, 2), CAUSAL, sinks="float32"),
    Case("sinks_without_keys", Shape("", 1, 33, 0, 2), sinks="own"),
    Case("sinks_of_one_query", Shape("", 2, 1, 199, 6, heads_kv=2), sinks="own"),
    Case("sinks_and_all_else", Shape("", 1, 67, 199, 2), WINDOW_AND_CAP, d_head=40, sinks="own"),
    Case("packed_sinks", Packed("", (33, 0, 70, 1), (131, 5, 0, 67), 2, 1), sinks="float32"),
    Case("splits_and_sinks", Shape("", 1, 67, 263, 2), CAUSAL, 3, sinks="own"),
    Case("few_blocks", Shape("", 1, 67, 40, 2), d_head=40),
    Case("one_block_in_the_window", Shape("", 1, 1, 263, 2), Mask("", window_left=9)),
]


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


def test_a_capped_score_costs_a_reciprocal_and_no_exponential(libraries):
    """Where a thread has a score near the cap: with the first cap all do, with the last none."""
    inputs = make_inputs(Shape("", 1, 64, 128, 1), torch.float16, 128)
    options = [{"softcap": cap} for cap in (0.1, 0.0, 1e3)]
    near, uncapped, far = (emulate(libraries, BEST, inputs, **o)[2].counts for o in options)
    assert near.reciprocals == 64 * 128
    assert uncapped.reciprocals == far.reciprocals == 0
    assert near.exponentials == uncapped.exponentials == far.exponentials


@pytest.mark.parametrize("softcap", [1e-2, 1.0, 50.0, 1e3, 1e5, 1e8])
def test_every_cap_is_as_accurate(libraries, softcap):
    """Scores far below the cap: an absolute error of tanh would grow with it."""
    inputs = make_inputs(Shape("", 1, 64, 192, 1), torch.float16, 128)
    out, lse, _ = emulate(libraries, BEST, inputs, softcap=softcap)
    expected = expect(*inputs, softcap=softcap)
    expected.check(out, lse)
    assert torch.allclose(lse.double(), expected.lse.double(), rtol=5e-6, atol=5e-6)


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
