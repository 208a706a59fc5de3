"""Blocks that a mask cuts, in SM90 forward kernels that make their bits beside QK^T: layouts of
rows and columns, rows and warpgroups that a block shows nothing of, and what hidden scores hold."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from support.cut_blocks import MATCHED, cases, documents
from support.planted.own_bits import BUGS, PLANTED
from support.planted.planting import build_planted, is_right, switched_on
from torch import Tensor

import pyflash
from pyflash.config import parse as parse_config
from pyflash.emulator.run import run_library
from pyflash.op.variants.arguments import captured_of
from pyflash.op.variants.reference import expect
from pyflash.variant import parse
from pyflash.variant.library import named

PINGPONG = "(FP16, 64, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold"
CONFIGS = {
    "three": "(FP16, 64, 192, 64, 3): sm90+stages_3+overlap+persistent+rescale_threshold",
    "pingpong": PINGPONG,
    "four": "(FP16, 64, 256, 64, 4): sm90+stages_2+overlap+persistent+rescale_threshold",
    "rows_decide": PINGPONG + "+rows_decide",
    "each_row": "(FP16, 64, 128, 64, 2): sm90+stages_2+pingpong+persistent",
    "packed_heads": "(FP16, 64, 64, 128, 1): sm90+stages_2+overlap+rescale_threshold+pack_gqa",
    "part_of_lanes": "(FP16, 64, 64, 80, 1): sm90+stages_2+overlap+persistent+rescale_threshold",
    "four_words": "(FP16, 64, 64, 176, 1): sm90+stages_2+overlap+persistent+rescale_threshold",
}
OF_HEADS = "of_heads(c: i32[2]): s where c[h, q] <= c[h, k]"
TIMES = "times(t: f32[1]): s where t[k] <= t[q]"
WIDE = "wide(n: i64[2]): s where n[b, q] == n[b, k]"
TEXTS = {
    **{x.partition("(")[0]: x for x in (MATCHED, OF_HEADS, TIMES, WIDE)},
    **{
        name: name
        for name in ("documents", "prefix_lm", "block_causal", "window", "dilated", "padding")
    },
}


def inputs(q_len: int, k_len: int, batch: int = 2, heads: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(q_len + k_len)
    sizes = ((q_len, heads), (k_len, 1), (k_len, 1))
    return [torch.randn(batch, *size, 64, generator=generator).half() for size in sizes]


def values_of(name: str, q_len: int, k_len: int) -> dict[str, Any]:
    n = max(q_len, k_len)
    random = torch.Generator().manual_seed(n)
    return {
        "matched": {"a": documents(n)[:, :q_len], "c": documents(n)[:, :k_len]},
        "of_heads": {"c": documents(n)},
        "times": {"t": torch.rand(n, generator=random)},
        "wide": {"n": documents(n).long() + (1 << 40)},
        "documents": {"doc": documents(n)},
        "prefix_lm": {"prefix": torch.tensor([k_len // 3, 1], dtype=torch.int32)},
        "block_causal": {"block": 48},
        "window": {"left": 70, "right": 20},
        "dilated": {"width": 30, "dilation": 3},
        "padding": {"lengths": torch.tensor([k_len - 30, 5], dtype=torch.int32)},
    }[name]


def check(name: str, qkv: list[Tensor], config: str, tensors: dict[str, Any], **options: Any):
    """That the kernel is its formula, and computes nothing again."""
    text = TEXTS[name]
    variant = named(text).variant if text == name else parse(text)
    out, lse, report = pyflash.emulate(
        *qkv, CONFIGS[config], variant=variant, tensors=tensors, **options
    )
    report.check()
    options.pop("num_splits", None)
    expect(*qkv, variant=variant, tensors=tensors, **options).check(out, lse)
    assert "QK_g2r" not in report.sites
    return out


@pytest.mark.parametrize(
    ("name", "config"),
    [
        *product(("matched",), CONFIGS),
        *product(TEXTS, ("three",)),
        *product(("documents", "window", "prefix_lm"), ("pingpong", "four")),
        ("of_heads", "packed_heads"),
        ("times", "part_of_lanes"),
    ],
)
def test_masks_in_configs(name, config):
    check(name, inputs(330, 400), config, values_of(name, 330, 400))


@pytest.mark.parametrize("config", ["three", "pingpong", "four"])
@pytest.mark.parametrize(
    "lengths", [(90, 333), (70, 65), (1, 130), (129, 1), (192, 192), (257, 512)], ids=str
)
def test_ends_of_sequences(config, lengths):
    check("matched", inputs(*lengths), config, values_of("matched", *lengths))


OPTIONS = {
    "splits": {"num_splits": 3},
    "window": {"window_left": 40, "window_right": 3},
    "cap": {"softcap": 2.0},
    "sinks": {"sinks": torch.tensor([0.5, -3.0])},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("config", ["three", "pingpong"])
def test_options(config, option):
    check("matched", inputs(200, 512), config, values_of("matched", 200, 512), **OPTIONS[option])


@pytest.mark.parametrize("config", ["three", "pingpong", "four", "rows_decide", "each_row"])
@pytest.mark.parametrize("case", cases())
def test_rows_and_warpgroups_that_blocks_show_nothing_of(config, case):
    out = check("matched", inputs(400, 400), config, cases()[case])
    if case == "mixed":
        assert (out[:, 64:128] == 0).all()


@pytest.mark.parametrize("config", ["three", "pingpong", "four", "rows_decide"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 6e4])
def test_hidden_scores_do_not_leak(config, value):
    """Of keys that no row of the tile is shown, in blocks that it attends."""
    tensors = cases()["mixed"]
    q, k, v = inputs(400, 400)
    k[:, 150:170] = value
    *found, report = pyflash.emulate(
        q, k, v, CONFIGS[config], variant=parse(MATCHED), tensors=tensors
    )
    report.check()
    clean = inputs(400, 400)
    expect(*clean, variant=parse(MATCHED), tensors=tensors).check(*found)


def growing(n: int) -> list[Tensor]:
    """Scores of each block exceed those of the blocks after it by far."""
    q, k, v = inputs(n, n)
    for first in range(0, n, 64):
        k[:, first : first + 64] *= 10.0 * ((n - first) // 64 + 1)
    return [8 * q, k, v]


@pytest.mark.parametrize("config", ["three", "pingpong", "four", "rows_decide"])
@pytest.mark.parametrize("case", ["mixed", "interleaved"])
def test_scores_that_overflow_are_made_again(config, case):
    """With the bits of their own block."""
    qkv, tensors = growing(400), cases()[case]
    *found, report = pyflash.emulate(*qkv, CONFIGS[config], variant=parse(MATCHED), tensors=tensors)
    report.check()
    expect(*qkv, variant=parse(MATCHED), tensors=tensors).check(*found)
    assert "QK_g2r" in report.sites


@pytest.mark.parametrize("config", ["three", "pingpong"])
def test_packed_sequences(config):
    lengths_q, lengths_k = (100, 0, 31, 265), (256, 7, 0, 329)
    q, k, v = inputs(300, 350)
    packed = [
        torch.cat([x[i % 2, :n] for i, n in enumerate(lengths)])
        for x, lengths in ((q, lengths_q), (k, lengths_k), (v, lengths_k))
    ]
    starts = [
        torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
        for lengths in (lengths_q, lengths_k)
    ]
    tensors = {"doc": documents(330).repeat(2, 1)}
    *found, report = pyflash.emulate_varlen(
        *packed, *starts, 265, 329, CONFIGS[config], variant="documents", tensors=tensors
    )
    report.check()
    expect(*packed, *starts, variant="documents", tensors=tensors).check(*found)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    configs = {name: parse_config(CONFIGS[name]) for name in ("three", "pingpong")}
    root = tmp_path_factory.mktemp("planted_own_bits")
    return build_planted(BUGS, configs, root, variant=parse(PLANTED).normal)


def is_wrong(library, config: str, case: str, silent: bool = False) -> bool:
    """Wrong results or findings, or where `silent`, scores that are computed again."""
    qkv, tensors = inputs(400, 400), cases()[case]
    out, lse, report = run_library(
        library, tuple(qkv), parse_config(CONFIGS[config]), captured=captured_of(PLANTED, tensors)
    )
    right = is_right(expect(*qkv, variant=parse(PLANTED), tensors=tensors), out, lse)
    if silent:
        assert right
        assert not report.findings
        return "QK_g2r" in report.sites
    return bool(report.findings) or not right


@pytest.mark.parametrize("case", ["mixed", "second_rows", "whole_after_none", "long"])
@pytest.mark.parametrize("config", ["three", "pingpong"])
def test_nothing_is_wrong_while_no_bug_is_on(planted, config, case):
    for silent in (False, True):
        assert not is_wrong(planted[config], config, case, silent)


@pytest.mark.parametrize(
    ("bug", "config"), [(bug, config) for bug in BUGS for config in bug.configs], ids=str
)
def test_a_bug_is_found(planted, bug, config):
    with switched_on(BUGS, bug, planted[config]):
        assert is_wrong(planted[config], config, bug.problem, bug.silent)
