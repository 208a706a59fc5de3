"""The time that costs expect of a config, and what the shipped ones choose."""

import lzma
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.costs import FIGURES

from pyflash import FlashForwardKernelConfig
from pyflash.config import parse
from pyflash.op import tables
from pyflash.op.selection import class_of, expected_microseconds, problem_arguments
from pyflash.tuner.audit import GOOD
from pyflash.tuner.costs import of_built, ratio_of_choice
from pyflash.tuner.journal import read_journal
from pyflash.tuner.problems import parse_problem

# Audits 30 and 31 of docs/data: 80 random problems.
AUDITS = Path(__file__).parent / "h200_audits.jsonl.xz"

PACKING = parse("(FP16, 128, 64, 64, 1): sm90+stages_2+overlap+persistent+pack_gqa")
PERSISTENT = parse("(FP16, 128, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent")


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        # launch 2 + waves of tile 3 + steps of 0.5; 2 CTAs fit on an SM, each 1.4 times slower.
        ("heads=132,seqlen=64", 2 + 3 + 0.5),
        ("heads=264,seqlen=64", 2 + 1.4 * (3 + 0.5)),
        ("heads=265,seqlen=64", 2 + 1.4 * (3 + 0.5) + (3 + 0.5)),
        ("heads=132,seqlen=128", 2 + 1.4 * (3 + 2 * 0.5)),
        ("heads=4,seqlen_q=1,seqlen_k=640,num_splits=1", 2 + 3 + 10 * 0.5),
        # A partial result of each split, 4 * 128 elements, is written and read in fp32.
        (
            "heads=4,seqlen_q=1,seqlen_k=640,num_splits=2",
            2 + 3 + 2.5 + 3.12 + 0.5 * 2 * 4 * 128 * 8e-6,
        ),
        # Causal, 2 blocks of rows: one and two steps. As long as the longest; in two waves as the
        # mean.
        ("heads=1,seqlen=128,causal", 2 + 3 + 2 * 0.5),
        ("heads=264,seqlen=128,causal", 2 + 1.4 * (2 * 3 + 3 * 0.5)),
    ],
)
def test_the_expected_time(problem, expected):
    config = FlashForwardKernelConfig.parse(
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+stages_2"
    )
    assert config.num_ctas_per_sm(90) == 2
    assert microseconds(problem, config) == pytest.approx(expected)


def microseconds(problem, config, changes=None, **figures):
    """On 132 SMs, in one pass unless the problem's last word says otherwise."""
    words = problem.split(",")
    options = {"num_splits": 1}
    if words[-1].startswith("num_splits"):
        options = {"num_splits": int(words.pop().partition("=")[2])}
    parsed = parse_problem(f"{config.dtype.name.lower()},d_head={config.d_head},{','.join(words)}")
    parsed = replace(parsed, options=parsed.options | options, **changes or {})
    (found,) = expected_microseconds(parsed, config, 90, 132, [FIGURES | figures])
    return found


def test_several_sets_of_costs_are_priced_at_once():
    problem = parse_problem("fp16,heads=9,seqlen=300,d_head=128,causal")
    sets = [FIGURES, FIGURES | {"launch": 5.0}, FIGURES | {"step": 1.0}]
    each = [expected_microseconds(problem, PERSISTENT, 90, 132, [costs])[0] for costs in sets]
    assert expected_microseconds(problem, PERSISTENT, 90, 132, sets) == each
    assert each[1] == each[0] + 3
    assert len(set(each)) == 3
    arguments = problem_arguments(problem) | {
        "n_sms": 132,
        "kernel": str(PERSISTENT),
        "ctas_per_sm": 1,
    }
    with pytest.raises(RuntimeError, match="costs has 10 numbers: expected 11 for each set"):
        torch.ops.pyflash.expect_time(**arguments, costs=[1.0] * 10)


@pytest.mark.parametrize(
    ("heads", "seqlen_k", "splits"),
    [
        (1, 5120, 16),
        (1, 16384, 64),  # more than a cluster has, and most SMs idle
        (8, 1024, 8),
        (8, 5120, 8),  # 8 clusters of 16 do not fit
        (16, 5120, 6),  # nor 16 of 8
        (24, 5120, 4),
        (32, 16384, 33),  # persistent CTAs, two to an SM
        (64, 5120, 2),
        (112, 5120, 1),
        (160, 5120, 8),  # 160 would leave SMs with one CTA
        (264, 5120, 1),
        (320, 5120, 4),  # a second round of a few
        (528, 5120, 1),
    ],
)
def test_splits_of_a_kernel_that_merges_them_in_clusters(heads, seqlen_k, splits):
    """Only the cost of a split is not 0."""
    figures = dict.fromkeys(FIGURES, 0.0) | {"split": 1.0}
    problem = f"heads={heads},seqlen_q=1,seqlen_k={seqlen_k},num_splits=0"
    found = microseconds(problem, PACKING, **figures)
    assert max(1, round(found)) == splits


@pytest.mark.parametrize(
    ("seqlen_q", "expected"),
    [
        (8, 2 + 3 + 0.5),  # 8 queries of 8 heads are the 64 rows of a tile: one to an SM
        (9, 2 + 1.4 * (3 + 0.5)),  # two, which share it
        (64, 2 + 4 * 1.4 * (3 + 0.5)),  # eight, two at a time
    ],
)
def test_heads_that_share_keys_are_rows_of_one_tile(seqlen_q, expected):
    assert PACKING.num_ctas_per_sm(90) == 2
    problem = f"heads=1056,heads_kv=132,seqlen_q={seqlen_q},seqlen_k=64"
    assert microseconds(problem, PACKING) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("heads", "waves"),
    [
        (99, 1 + (1 + 66 / 132) / 2),
        (132, 2),
        (133, 2 + (1 + 2 / 132) / 2),
    ],
)
def test_of_a_ragged_last_wave_of_unequal_tiles_half_is_waited_for(heads, waves):
    """Causal, two tiles for a head, of one and of two steps; a CTA to an SM."""
    expected = 2 + waves * (3 + 0.5 * 1.5)
    assert microseconds(f"heads={heads},seqlen=256,causal", PERSISTENT) == pytest.approx(expected)


def test_a_wave_is_no_shorter_than_its_longest_tile():
    assert microseconds("heads=66,seqlen=256,causal", PERSISTENT) == pytest.approx(2 + 3 + 2 * 0.5)


def test_a_warpgroup_without_rows_or_keys_spares_its_part_of_a_step():
    assert microseconds("heads=9,seqlen=128", PERSISTENT, rows=1.0) == pytest.approx(2 + 3 + 0.5)
    one_of_two = "heads=9,seqlen_q=65,seqlen_k=256,causal"  # the first of two attends a block less
    assert microseconds(one_of_two, PERSISTENT) == pytest.approx(2 + 3 + 2 * 0.5)
    half = microseconds("heads=9,seqlen_q=64,seqlen_k=128", PERSISTENT, rows=1.0)
    assert half == pytest.approx(2 + 3 + 0.5 / 2)


def test_packed_sequences_count_by_their_mean_length():
    """Not as if each had the largest, which is what they have where no total is given."""
    problem = "batch=40,heads=16,seqlen=1000,packed"
    as_padded = microseconds(problem.removesuffix(",packed"), PERSISTENT)
    unknown = {"total_q": 0, "total_k": 0}
    assert microseconds(problem, PERSISTENT, unknown) == pytest.approx(as_padded)
    drawn = microseconds(problem, PERSISTENT)  # lengths from half to all: 0.76 in the mean
    assert 0.6 * as_padded < drawn < 0.95 * as_padded
    short = {"total_q": 20_000, "total_k": 20_000}
    assert microseconds(problem, PERSISTENT, short) < drawn


@pytest.mark.parametrize(
    ("total", "waves", "tiles", "steps"),
    [
        (1024, 2, 1, 4),  # both are as long
        # A mean of 288 up to 512: 139, 288 and 437 rows and keys are 2, 3 and 4 tiles of as many
        # steps, of 4 that there might be.
        (576, 1 + (1 + 28 / 132) / 2, (2 + 3 + 4) / 12, (2 * 2 + 3 * 3 + 4 * 4) / 12),
    ],
)
def test_tiles_that_a_packed_sequence_lacks_take_no_time(total, waves, tiles, steps):
    """160 of two sequences and 20 heads, 132 at a time."""
    drawn = {"total_q": total, "total_k": total}
    found = microseconds("batch=2,heads=20,seqlen=512,packed", PERSISTENT, drawn)
    assert found == pytest.approx(2 + waves * (3 * tiles + 0.5 * steps))


def test_masks_softcaps_memory_and_clusters_have_their_costs():
    one = "heads=1,seqlen=128"
    assert microseconds(one, PERSISTENT, capped=2.0) == pytest.approx(2 + 3 + 0.5)
    assert microseconds(one + ",softcap=9", PERSISTENT, capped=2.0) == pytest.approx(2 + 3 + 1)
    assert microseconds(one + ",causal", PERSISTENT, mask=0.5) == pytest.approx(2 + 3 + 0.75)
    # Keys and values of 8 heads, and a row of q and of o each.
    decoding = "heads=8,seqlen_q=1,seqlen_k=1000"
    megabytes = 8 * 1001 * 128 * 4e-6
    waiting = microseconds(decoding, PACKING, megabyte=9.0)
    assert waiting == pytest.approx(2 + 3 + 16 * 0.5 + 9 * megabytes)
    # A cluster merges splits without partial results in memory.
    in_cluster = microseconds(decoding + ",num_splits=4", PACKING, partial=1e6)
    assert in_cluster == pytest.approx(2 + 3 + 4 * 0.5 + 3 + 4 * 0.06)


def test_keys_that_no_query_attends_do_not_cross_memory():
    problem = "heads=8,seqlen_q=100,seqlen_k=10000"
    for mask, n_keys in (("", 10000), (",causal,window_left=255", 355)):
        of_memory = microseconds(problem + mask, PERSISTENT, megabyte=1.0) - microseconds(
            problem + mask, PERSISTENT
        )
        assert of_memory == pytest.approx(8 * (100 + n_keys) * 128 * 4e-6)


# The least share of problems within 3 % of the best, the most of the geometric mean and of all.
@pytest.mark.parametrize(
    ("kind", "n", "share", "mean", "worst"),
    [("many", 61, 0.8, 1.015, 1.15), ("few", 19, 0.85, 1.01, 1.1)],
)
def test_the_shipped_costs_choose_well(tmp_path, kind, n, share, mean, worst):
    """By themselves, for audited problems that they were not fitted to."""
    shipped = tables.read_table(tables.SHIPPED_DIR / "nvidia_h200.json")
    fits = {
        (parse(row["config"]), row["kind"]): ({name: row[name] for name in tables.COSTS}, 0, 0)
        for row in shipped["costs"]
    }
    assert not set(shipped["made"]["journals"]) & {"h200-audit-30.jsonl", "h200-audit-31.jsonl"}
    journal = tmp_path / "audits.jsonl"
    journal.write_bytes(lzma.decompress(AUDITS.read_bytes()))
    ratios = [
        ratio_of_choice(record, problem, fits, 90, 132)
        for record in of_built(read_journal(journal))
        if "ratio" in record and class_of(problem := parse_problem(record["name"])).kind == kind
    ]
    assert len(ratios) == n
    assert sum(ratio <= GOOD for ratio in ratios) >= share * n
    assert math.exp(sum(map(math.log, ratios)) / n) < mean
    assert max(ratios) < worst
