"""Splits that a cluster of CTAs merges through each other's shared memory, on the emulator."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.cases import CAUSAL, WINDOW_AND_CAP, Case
from support.emulated import emulate
from support.problems import Packed, Shape

from pyflash.codegen.emulated import build_emulated
from pyflash.config import KernelConfig, parse
from pyflash.emulator import ORDERS, Report

CONFIGS = [
    parse(short_form).canonical()
    for short_form in (
        "(BF16, 128, 64, 64, 1): sm90+stages_3+overlap+rescale_threshold+pack_gqa",
        "(BF16, 128, 64, 64, 1): sm90+stages_2+overlap+persistent+rescale_threshold+pack_gqa",
        "(FP16, 64, 64, 64, 1): sm90+stages_3",
        "(BF16, 256, 64, 64, 1): sm90+stages_2+overlap+persistent+rescale_threshold+pack_gqa",
    )
]
MAX_CLUSTER = 16
# Two of a merging thread's loads: 4 columns, and the lse of the row.
COLUMNS, BYTES = 4, 16 + 4

# Lengths of three blocks and more, and of less than there are splits.
CASES = [
    Case("one_query_of_a_group", Shape("", 2, 1, 300, 6, heads_kv=2)),
    Case("causal", Shape("", 1, 70, 263, 2, "nan_around", 1), CAUSAL),
    Case("rows_with_nothing_to_attend", Shape("", 1, 150, 71, 1), CAUSAL),
    Case("window_and_cap", Shape("", 1, 67, 199, 1), WINDOW_AND_CAP),
    Case("nothing_to_attend", Shape("", 1, 33, 0, 2)),
    Case("sinks", Shape("", 1, 67, 131, 2), sinks="fp32"),
    Case("narrow_heads", Shape("", 1, 65, 140, 1, "nan_around"), d_head=40),
    Case("packed", Packed("", (70, 0, 1, 33), (65, 9, 200, 0), 2, 1), CAUSAL),
    Case("packed_queries_past_the_keys", Packed("", (150, 3), (41, 129), 2, 2)),
]  # fmt: skip


@pytest.fixture(scope="module")
def libraries() -> dict[KernelConfig, Path]:
    return build_emulated(CONFIGS)


def run(
    libraries, config, case, num_splits, order, resident_ctas=264
) -> tuple[torch.Tensor, torch.Tensor, Report]:
    inputs, expected = case.problem(config)
    options = case.options(config)
    options |= {"num_splits": num_splits, "resident_ctas": resident_ctas}
    out, lse, report = emulate(libraries, config, inputs, order=order, seed=7, **options)
    report.check()
    assert report.completed
    expected.check(out, lse)
    return out, lse, report


@pytest.mark.parametrize("num_splits", [2, 3, 8, MAX_CLUSTER])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_cluster_merges_its_splits(libraries, config, case, num_splits):
    order = ORDERS[(CASES.index(case) + num_splits) % len(ORDERS)]
    out, lse, report = run(libraries, config, case, num_splits, order)
    assert report.cluster == num_splits
    assert report.n_ctas % num_splits == 0
    # Every row is merged once, each of its vectors by a thread that reads the parts of all.
    rows = lse.numel()
    vectors = rows * math.ceil(out.shape[-1] / COLUMNS)
    at_a_time = 8  # splits, whose loads are issued together
    assert report.counts.cluster_loads == 2 * vectors * -(-num_splits // at_a_time) * at_a_time
    # The last split stands for those that are not there.
    idle = -num_splits % at_a_time
    least, most = (vectors * (num_splits - 1 + n) * BYTES for n in (0, idle))
    assert least <= report.counts.cluster_bytes <= most


@pytest.mark.parametrize("num_splits", [2, 3, 5, 8])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_an_infinite_value_stays_infinite(libraries, config, num_splits):
    """In the last split, which stands for those that a merging thread loads in vain."""
    case = Case("", Shape("", 1, 1, 64 * num_splits, 6, heads_kv=2))
    (q, k, v, *_), _ = case.problem(config)
    v[:, -1, :, 3] = torch.inf
    out, _, report = emulate(libraries, config, (q, k, v), num_splits=num_splits, resident_ctas=264)
    report.check()
    assert report.cluster == num_splits
    assert torch.isposinf(out[..., 3]).all()
    assert torch.isfinite(out).sum() == out.numel() - out[..., 3].numel()


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_order_of_ctas_changes_no_bit(libraries, config):
    results = [run(libraries, config, CASES[1], 3, order)[:2] for order in ORDERS]
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


def test_more_splits_than_a_cluster_takes_are_parts(libraries):
    _, _, report = run(libraries, CONFIGS[1], CASES[0], MAX_CLUSTER + 1, ORDERS[0])
    assert report.cluster == 1
    assert report.counts.cluster_syncs == report.counts.cluster_loads == 0
    assert "O_r2g" in report.sites
    assert "part_r2s" not in report.sites


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_clusters_that_do_not_run_at_a_time_are_parts(libraries, config):
    tiles = 2 * 2  # the heads of a group are rows
    for resident_ctas, cluster in ((3 * tiles, 3), (3 * tiles - 1, 1)):
        _, _, report = run(libraries, config, CASES[0], 3, ORDERS[0], resident_ctas)
        assert report.cluster == cluster
        last_round = resident_ctas if config.persistent else 3 * tiles
        assert report.n_ctas == min(3 * tiles, last_round)


def test_a_report_of_clusters_says_so(libraries):
    _, _, report = run(libraries, CONFIGS[0], CASES[0], 8, ORDERS[0])
    text = " ".join(str(report).split())
    assert "32 CTAs, 8 to a cluster, of 256 threads" in text
    assert "clusters: 256 syncs of warps" in text
    assert report.sites["part_r2s"]["shared_store"].max_degree == 1
    assert Report.from_json(report.to_json()) == report
