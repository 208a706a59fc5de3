"""The SM90 kernels on the emulator: right, nothing found, and counted exactly."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.cases import CASES, CAUSAL, Case
from support.emulated import emulate
from support.emulated_sm90 import BEST, CONFIGS, RESIDENT_CTAS, libraries, n_wgmma
from support.problems import Packed, Shape

from pyflash.emulator import ORDERS

__all__ = ["libraries"]

SM90_CASES = [
    Case("two_blocks", Shape("", 1, 128, 128, 1)),
    Case("prime_lengths", Shape("", 2, 113, 127, 2)),
    Case("one_of_everything", Shape("", 1, 1, 1, 1)),
    Case("past_tile_edges", Shape("", 1, 129, 65, 1)),
    Case("nothing_to_attend", Shape("", 1, 33, 0, 2)),
    Case("nan_past_the_end", Shape("", 1, 67, 131, 2, "nan_around")),
    Case("packed_qkv", Shape("", 1, 131, 131, 2, "packed")),
    Case("heads_first", Shape("", 2, 67, 35, 2, "heads_first")),
    Case("columns_of_wider_rows", Shape("", 1, 67, 67, 2, "sliced")),
    Case("many_tiles", Shape("", 2, 333, 100, 2), CAUSAL),
    Case("many_tiles_of_a_group", Shape("", 1, 200, 150, 6, heads_kv=2), CAUSAL),
    Case("packed_of_many_tiles", Packed("", (300, 0, 150), (65, 9, 200), 2, 1), CAUSAL),
]  # fmt: skip


def run(libraries, config, case, order):
    inputs, expected = case.problem(config)
    options = case.options(config)
    out, lse, report = emulate(
        libraries, config, inputs, order=order, seed=5, resident_ctas=RESIDENT_CTAS, **options
    )
    report.check()
    assert report.completed
    expected.check(out, lse)
    if report.problem["num_splits"] == 1:
        counts = report.counts
        assert (counts.wgmma_ss, counts.wgmma_rs) == n_wgmma(config, report, inputs)
    return out, lse


def refused(case: Case) -> bool:
    return bool(case.sinks) and case.shape.seqlen_k == 0 if isinstance(case.shape, Shape) else False


@pytest.mark.parametrize("case", [*SM90_CASES, *CASES], ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_kernels_are_right_and_nothing_is_found(libraries, config, case):
    """In an order that is another for the next config, and for the next case."""
    if refused(case):
        with pytest.raises(RuntimeError, match="cannot run this problem: it has sinks and no keys"):
            run(libraries, config, case, ORDERS[0])
        return
    n = CONFIGS.index(config) + [*SM90_CASES, *CASES].index(case)
    run(libraries, config, case, ORDERS[n % len(ORDERS)])


@pytest.mark.parametrize("case", SM90_CASES, ids=str)
def test_the_order_of_warps_changes_no_bit(libraries, case):
    results = [run(libraries, BEST, case, order) for order in ORDERS]
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))
