"""The time that costs expect of a config, and what the shipped ones choose."""

import math
from dataclasses import replace

import pytest
from support.costs import FIGURES
from support.headers import ROOT

from pyflash import FlashForwardKernelConfig
from pyflash.config import parse
from pyflash.op import tables
from pyflash.op.selection import class_of, expected_microseconds
from pyflash.tuner.audit import GOOD
from pyflash.tuner.costs import of_built, ratio_of_choice
from pyflash.tuner.journal import read_journal
from pyflash.tuner.problems import parse_problem


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        # launch 2 + waves of tile 3 + steps of 0.5; 2 CTAs fit on an SM, each 1.4 times slower.
        ("heads=132,seqlen=64", 2 + 3 + 0.5),
        ("heads=264,seqlen=64", 2 + 1.4 * (3 + 0.5)),
        ("heads=265,seqlen=64", 2 + 1.4 * (3 + 0.5) + (3 + 0.5)),
        ("heads=132,seqlen=128", 2 + 1.4 * (3 + 2 * 0.5)),
        ("heads=4,seqlen_q=1,seqlen_k=640,num_splits=1", 2 + 3 + 10 * 0.5),
        ("heads=4,seqlen_q=1,seqlen_k=640,num_splits=2", 2 + 3 + 2.5 + 3.12 + 2 * 4 * 128 / 375000),
        # Causal, 2 blocks of rows: one and two steps. As long as the longest; in two rounds one of
        # each to a slot.
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
    return expected_microseconds(parsed, config, 90, 132, **FIGURES | figures)


PACKING = parse("(FP16, 128, 64, 64, 1): sm90+stages_2+overlap+persistent+pack_gqa")
PERSISTENT = parse("(FP16, 128, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent")


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
    """Of the costs only a split's is not 0."""
    figures = dict.fromkeys(FIGURES, 0.0) | {"split": 1.0, "memory": 1e30, "l2": 1e30}
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
    ("heads", "tiles", "steps"),
    [
        (66, 1, 2),  # a CTA for each of 132 tiles, of one and of two steps
        (99, 2, 3),  # the 66 that are left go to CTAs from the last one on
        (132, 2, 3),
        (133, 3, 4),  # what is left of a round joins the section: the last two tiles are short
    ],
)
def test_persistent_ctas_take_every_other_round_backwards(heads, tiles, steps):
    expected = 2 + 3 * tiles + 0.5 * steps
    assert microseconds(f"heads={heads},seqlen=256,causal", PERSISTENT) == pytest.approx(expected)


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
    ("total", "tiles", "steps"),
    [
        (1024, 2, 8),  # both are as long
        (576, 1, 4),  # the second has 64 rows, a tile of four: for whom a second is left lacks one
    ],
)
def test_tiles_that_a_packed_sequence_lacks_are_passed(total, tiles, steps):
    """160 of two sequences and 20 heads, of four steps, 132 at a time."""
    drawn = {"total_q": total, "total_k": total}
    found = microseconds("batch=2,heads=20,seqlen=512,packed", PERSISTENT, drawn)
    assert found == pytest.approx(2 + 3 * tiles + 0.5 * steps)


def test_masks_softcaps_memory_and_clusters_have_their_costs():
    one = "heads=1,seqlen=128"
    assert microseconds(one, PERSISTENT, capped=2.0) == pytest.approx(2 + 3 + 0.5)
    assert microseconds(one + ",softcap=9", PERSISTENT, capped=2.0) == pytest.approx(2 + 3 + 1)
    assert microseconds(one + ",causal", PERSISTENT, mask=0.5) == pytest.approx(2 + 3 + 0.75)
    # Keys and values of 8 heads, and a row of q and of o each: 8 * (1000 + 1) * 128 * 4 bytes.
    decoding = "heads=8,seqlen_q=1,seqlen_k=1000"
    bytes_ = 8 * 1001 * 128 * 4
    slow = microseconds(decoding, PACKING, memory=0.001)
    assert slow == pytest.approx(2 + bytes_ / 1e3, rel=1e-4)
    hidden = microseconds(decoding, PACKING, memory=1.0)
    assert hidden < microseconds(decoding, PACKING, memory=1.0, cold=0.5)
    # A cluster merges splits without partial results in memory.
    in_cluster = microseconds(decoding + ",num_splits=4", PACKING)
    assert in_cluster == pytest.approx(2 + 3 + 4 * 0.5 + 3 + 4 * 0.06)


def test_keys_that_l2_does_not_hold_are_read_for_each_tile():
    """Many packed heads in one order of tiles: a section of 296 heads of 0.5 MB."""
    config = parse("(FP16, 128, 64, 64, 1): sm90+stages_2+overlap+persistent+pack_gqa")
    problem = "batch=37,heads=64,heads_kv=8,seqlen=1047"
    once, each = (microseconds(problem + mask, config, memory=1e-3) for mask in ("", ",causal"))
    assert each > 5 * once


def test_the_shipped_costs_choose_well():
    """By themselves, for audited problems that they were fitted to."""
    shipped = tables.read_table(tables.SHIPPED_DIR / "nvidia_h200.json")
    fits = {
        (parse(row["config"]), row["kind"]): ({name: row[name] for name in tables.COSTS}, 0, 0)
        for row in shipped["costs"]
    }

    def ratios_of(kind, *audits):
        journals = [
            read_journal(ROOT / f"docs/data/h200-audit-{number}.jsonl") for number in audits
        ]
        return [
            ratio_of_choice(record, problem, fits, 90, 132)
            for record in of_built([record for journal in journals for record in journal])
            if "ratio" in record and class_of(problem := parse_problem(record["name"])).kind == kind
        ]

    for ratios, n, good, mean in (
        (ratios_of("many", 23), 170, 147, 1.011),
        (ratios_of("few", 27, 24), 190, 160, 1.015),
    ):
        assert len(ratios) == n
        assert sum(ratio <= GOOD for ratio in ratios) >= good
        assert math.exp(sum(map(math.log, ratios)) / n) < mean
        assert max(ratios) < 1.35
