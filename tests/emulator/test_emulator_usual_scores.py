"""The way by which SM90 forward kernels make the scores of most blocks of a variant: what a tile
keeps, blocks that it leaves out, and scores that overflow."""

from __future__ import annotations

import pytest
import torch
from support.planted.planting import build_planted, is_right, switched_on
from support.planted.usual_scores import BUGS, BUGS_OF_LINES, LINE, PLANTED
from torch import Tensor

import pyflash
from pyflash.config import parse as parse_config
from pyflash.emulator.run import run_library
from pyflash.op.variants.arguments import captured_of
from pyflash.op.variants.reference import expect
from pyflash.variant import parse

PINGPONG = "(FP16, 64, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold"
CONFIGS = {
    "pingpong": PINGPONG,
    "three_consumers": (
        "(FP16, 64, 192, 96, 3): sm90+stages_2+overlap+persistent+rescale_threshold"
    ),
    "four_consumers": (
        "(FP16, 64, 256, 64, 4): sm90+stages_2+overlap+persistent+rescale_threshold"
    ),
    "packed_heads": "(FP16, 64, 64, 128, 1): sm90+stages_2+overlap+rescale_threshold+pack_gqa",
}
TEXTS = {
    "alibi": "alibi(slope: f32[1]): s + slope[h] * (k - q) where k <= q + k_len - q_len",
    "falls": "falls(x: f32): s - x * f32(k)",
    "both": PLANTED,
    "rows_and_columns": "tables(row: f32[2], column: f32[2]): s * row[h, q] + column[b, k]",
    "bits_of_scores": "bits(slope: f32[1], m: bool[2]): s + slope[h] * (k - q) where m[q, k]",
}
# Every text, and of each other config those that differ there: three consumers copy no tensor this
# way, and have bits of 96 keys; four keep nothing of a tile; rows of packed heads are of several.
PAIRS = [
    *((name, "pingpong") for name in TEXTS),
    ("both", "three_consumers"),
    ("bits_of_scores", "three_consumers"),
    ("alibi", "four_consumers"),
    ("rows_and_columns", "packed_heads"),
    ("bits_of_scores", "packed_heads"),
]


def problem_of(text: str, q_len: int, k_len: int, late: bool = False):
    """q, k, v of 2 batches, 2 heads and one of keys, and what the variant captures. late: scores of
    earlier blocks, which come later, are far larger."""
    generator = torch.Generator().manual_seed(q_len + k_len)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    qkv = [numbers(2, *size, 64).half() for size in ((q_len, 2), (k_len, 1), (k_len, 1))]
    if late:
        for block in range(k_len // 128):
            qkv[1][:, 128 * block + 7] *= 60.0 * (k_len // 128 - block)
    made = {
        "a": numbers(2, 2, q_len, k_len).bfloat16(),
        "slope": torch.tensor([0.5, 0.01]),
        "x": 0.02,
        "row": numbers(2, q_len).abs(),
        "column": numbers(2, k_len),
        "m": numbers(q_len, k_len) < 0.3,
    }
    return qkv, {param.name: made[param.name] for param in parse(text).params}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("name", "config"), PAIRS)
def test_it_is_its_formula(name, config, late):
    text = TEXTS[name]
    for q_len, k_len in ((200, 512), (300, 500)):
        qkv, tensors = problem_of(text, q_len, k_len, late)
        variant = parse(text)
        out, lse, report = pyflash.emulate(*qkv, CONFIGS[config], variant=variant, tensors=tensors)
        report.check()
        expect(*qkv, variant=variant, tensors=tensors).check(out, lse)


# Bugs of each variant that they are planted beside.
GROUPS = {PLANTED: BUGS, LINE: BUGS_OF_LINES}


@pytest.fixture(scope="module", params=GROUPS, ids=["scores", "lines"])
def planted(request, tmp_path_factory):
    text = request.param
    root = tmp_path_factory.mktemp("planted_usual_scores")
    config = {"pingpong": parse_config(PINGPONG)}
    built = build_planted(GROUPS[text], config, root, variant=parse(text).normal)
    return text, built["pingpong"]


def is_wrong(text: str, library, name: str) -> bool:
    qkv, tensors = problem_of(text, 300, 512, late=name == "late")
    out, lse, report = run_library(
        library, tuple(qkv), parse_config(PINGPONG), captured=captured_of(text, tensors), seed=1
    )
    expected = expect(*qkv, variant=parse(text), tensors=tensors)
    return bool(report.findings) or not is_right(expected, out, lse)


@pytest.mark.parametrize("name", ["all", "late"])
def test_nothing_is_wrong_while_no_bug_is_on(planted, name):
    assert not is_wrong(*planted, name)


def test_bugs_are_found(planted):
    text, library = planted
    missed = []
    for bug in GROUPS[text]:
        with switched_on(GROUPS[text], bug, library):
            missed += [] if is_wrong(text, library, bug.problem) else [str(bug)]
    assert not missed
