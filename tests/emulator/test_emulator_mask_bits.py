"""Masks that SM90 forward kernels take as bits, made before them: every layout of rows and columns,
edges of sequences and blocks, what else a block has, and where there are no bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.planted.mask_bits import BOOLS, BUGS, BUGS_OF_BOOLS, PLANTED
from support.planted.planting import build_planted, is_right, switched_on
from support.variants import values_of
from torch import Tensor

import pyflash
from pyflash.config import parse as parse_config
from pyflash.config.variant_needs import VariantNeeds
from pyflash.emulator.run import run_library
from pyflash.op.variants.arguments import as_variant, captured_of
from pyflash.op.variants.reference import expect
from pyflash.variant import Variant, parse
from pyflash.variant.cpp import struct_of
from pyflash.variant.library import named, names, natten_2d
from pyflash.variant.needs import needs_of
from pyflash.variant.tiles import Problem

PINGPONG = "(FP16, 64, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold"
SHORT = "(FP16, 64, 64, 64, 1): sm90+stages_2+overlap+persistent+rescale_threshold+three_ctas"
CONFIGS = {
    "pingpong": PINGPONG,
    "packed_heads": "(FP16, 64, 64, 128, 1): sm90+stages_2+overlap+rescale_threshold+pack_gqa",
    "rows_decide": PINGPONG + "+rows_decide",
    "half_a_word": "(FP16, 64, 128, 64, 2): sm90+stages_2+overlap+pingpong+persistent",
    "three_ctas": SHORT,
    "part_of_a_word": "(FP16, 64, 64, 80, 1): sm90+stages_2+overlap+persistent+rescale_threshold",
    "four_words": "(FP16, 64, 64, 176, 1): sm90+stages_2+overlap+persistent+rescale_threshold",
}
MASKED = "masked(m: bool[2]): s where m[q, k]"
COMPUTED = "computed: s where (q * 31 + k * 5) % 7 < 3"
OF_BATCH = "of_batch(m: bool[3]): s where m[b, q, k]"
OF_HEAD = "of_head(m: bool[3]): s where m[h, q, k] | ((q + k + h) % 5 == 0)"
BIASED = "biased(a: bf16[4], m: bool[2]): s + a[b, h, q, k] where m[q, k]"


def shown(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(7)) < 0.6


def tensors_of(text: str, q_len: int, k_len: int) -> dict[str, Tensor]:
    """Of 2 batches and 2 heads."""
    variant = parse(text)
    shapes = {"m": (2, q_len, k_len), "a": (2, 2, q_len, k_len)}
    found = {}
    for param in variant.params:
        shape = shapes[param.name][-param.rank :]
        is_mask = param.name == "m"
        generator = torch.Generator().manual_seed(k_len)
        found[param.name] = (
            shown(*shape) if is_mask else torch.randn(*shape, generator=generator).bfloat16()
        )
    return found


def inputs(q_len: int, k_len: int, heads: int = 2, d_head: int = 64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(q_len + k_len)
    sizes = ((q_len, heads), (k_len, 1), (k_len, 1))
    return [torch.randn(2, *size, d_head, generator=generator).half() for size in sizes]


def check(text: str | Variant, qkv: list[Tensor], config: str = PINGPONG, **options: Any):
    """That the kernel is its formula. The report, in which bools that are copied show."""
    variant, tensors = as_variant(text), options.pop("tensors")
    out, lse, report = pyflash.emulate(*qkv, config, variant=variant, tensors=tensors, **options)
    report.check()
    for name in ("num_splits", "resident_ctas"):
        options.pop(name, None)
    expect(*qkv, variant=variant, tensors=tensors, **options).check(out, lse)
    return report


@pytest.mark.parametrize(
    ("text", "config"),
    [
        *((MASKED, name) for name in CONFIGS),
        *((OF_HEAD, name) for name in ("pingpong", "packed_heads", "four_words")),
    ],
    ids=lambda x: x.partition("(")[0],
)
def test_layouts_of_configs(text, config):
    report = check(text, inputs(150, 384), CONFIGS[config], tensors=tensors_of(text, 150, 384))
    assert report.counts.cp_async == 0


OF_BITS = [name for name in names() if needs_of(named(name).variant) == VariantNeeds(bits=True)]


@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 5.0}], ids=["plain", "capped"])
@pytest.mark.parametrize("name", OF_BITS)
def test_named_masks_in_tiles_for_few_keys(name, options):
    at = Problem(60, 62, 2, 4) if name == "tree" else Problem(150, 300, 2, 4)  # tree: bits of keys
    tensors, qkv = values_of(name, at), inputs(at.q_len, at.k_len, heads=at.heads)
    check(named(name).variant, qkv, SHORT, tensors=tensors, resident_ctas=3, **options)


@pytest.mark.parametrize("text", [COMPUTED, OF_BATCH, BIASED], ids=lambda x: x.partition("(")[0])
def test_kinds_of_masks(text):
    check(text, inputs(150, 384), tensors=tensors_of(text, 150, 384))


@pytest.mark.parametrize(
    "lengths", [(90, 333), (70, 65), (1, 130), (129, 1), (128, 128), (257, 512)], ids=str
)
def test_ends_of_sequences(lengths):
    """Rows of a tile and keys of a block that are not there, and a tensor that ends with them."""
    report = check(MASKED, inputs(*lengths), tensors=tensors_of(MASKED, *lengths))
    assert report.counts.cp_async == 0


def test_groups_that_do_not_divide_a_tile():
    text = "of_head(m: bool[3]): s where m[h, q, k]"
    tensors = {"m": shown(3, 90, 200)}
    check(text, inputs(90, 200, heads=3), CONFIGS["packed_heads"], tensors=tensors)


def test_natten():
    values = {"height": 12, "width": 17, "kernel": 5}
    check(natten_2d.TEXT, inputs(204, 204), tensors=values)


OPTIONS = {
    "splits": {"num_splits": 3},
    "window": {"window_left": 40, "window_right": 3},
    "cap": {"softcap": 2.0},
    "sinks": {"sinks": torch.tensor([0.5, -3.0])},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("text", [MASKED, BIASED], ids=lambda x: x.partition("(")[0])
def test_options(text, option):
    check(text, inputs(200, 512), tensors=tensors_of(text, 200, 512), **OPTIONS[option])


@pytest.mark.parametrize("config", ["pingpong", "rows_decide"])
def test_scores_that_overflow_are_made_again(config):
    """With the words of their own block: those of the next one are there by then."""
    check(MASKED, growing(), CONFIGS[config], tensors=tensors_of(MASKED, 130, 512))


def growing() -> list[Tensor]:
    """Scores of each block exceed those of the blocks after it by far."""
    q, k, v = inputs(130, 512)
    for block in range(4):
        k[:, 128 * block : 128 * block + 128] *= 40.0 * (4 - block)
    return [8 * q, k, v]


def test_rows_without_a_key_and_blocks_without_one():
    """Blocks that a mask hides are not read."""
    table = shown(140, 640)
    table[5:80, 128:384] = False
    table[100:110] = False
    table[:128, :128] = False
    table[:, 512:] = False
    table[128:] = True
    table[128:, 128:] = False
    q, k, v = inputs(140, 640)
    k[:, 512:], v[:, 512:] = torch.nan, torch.nan
    out, lse, report = pyflash.emulate(
        q, k, v, PINGPONG, variant=parse(MASKED), tensors={"m": table}
    )
    report.check()
    clean = inputs(140, 640)
    expect(*clean, variant=parse(MASKED), tensors={"m": table}).check(out, lse)


def test_a_mask_that_shows_everything_is_no_mask():
    qkv, table = inputs(140, 384), {"m": torch.ones(140, 384, dtype=torch.bool)}
    *found, _ = pyflash.emulate(*qkv, PINGPONG, variant=parse(MASKED), tensors=table)
    *expected, _ = pyflash.emulate(*qkv, PINGPONG)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_packed_sequences():
    lengths_q, lengths_k = (100, 0, 31, 65), (256, 7, 0, 129)
    q, k, v = inputs(150, 256)
    packed = [
        torch.cat([x[i % 2, :n] for i, n in enumerate(lengths)])
        for x, lengths in ((q, lengths_q), (k, lengths_k), (v, lengths_k))
    ]
    starts = [
        torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
        for lengths in (lengths_q, lengths_k)
    ]
    text = "relative(m: bool[2]): s where m[q, k] & ((q + 3 * k + k_len) % 7 != 0)"
    tensors = {"m": shown(100, 256)}
    *found, report = pyflash.emulate_varlen(
        *packed, *starts, 100, 256, PINGPONG, variant=parse(text), tensors=tensors
    )
    report.check()
    assert report.counts.cp_async == 0
    expect(*packed, *starts, variant=parse(text), tensors=tensors).check(*found)


def test_a_mask_of_one_tile_each_is_copied_as_before():
    """One batch of one head, which bits would serve once."""
    qkv = [x[:1, :, :1] for x in inputs(150, 384)]
    report = check(MASKED, qkv, tensors=tensors_of(MASKED, 150, 384))
    assert report.counts.cp_async > 0


@pytest.mark.parametrize("text", [MASKED, COMPUTED], ids=lambda x: x.partition("(")[0])
def test_bits_are_what_kernels_evaluate(text):
    qkv, tensors = inputs(150, 384), tensors_of(text, 150, 384)
    given = {"variant": parse(text), "tensors": tensors}
    out, lse, _ = pyflash.emulate(*qkv, PINGPONG, **given)
    of_one, lse_of_one, _ = pyflash.emulate(*(x[1:, :, :1] for x in qkv), PINGPONG, **given)
    assert torch.equal(out[1:, :, :1], of_one)
    assert torch.equal(lse[1:, :1], lse_of_one)


@pytest.mark.parametrize(
    ("text", "is_dear"),
    [
        (MASKED, True),
        (COMPUTED, True),
        ("causal: s where k <= q", False),
        ("documents(doc: i32[1]): s where doc[q] == doc[k]", False),
        ("gathered(m: bool[1]): s where m[q * k]", True),
    ],
)
def test_which_masks_are_dear(text, is_dear):
    assert f"kMaskIsDear = {str(is_dear).lower()};" in struct_of(parse(text))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return _planted(BUGS, PLANTED, tmp_path_factory.mktemp("planted_bits"))


@pytest.fixture(scope="module")
def planted_bools(tmp_path_factory):
    return _planted(BUGS_OF_BOOLS, BOOLS, tmp_path_factory.mktemp("planted_bools"))


def _planted(bugs, text, root):
    config = {"pingpong": parse_config(PINGPONG)}
    return build_planted(bugs, config, root, variant=parse(text).normal)["pingpong"]


def is_wrong(library, text: str, name: str) -> bool:
    k_len = {"long": 700, "of_bools": 384, "strided": 384, "three_tiles": 384}.get(name, 333)
    qkv = growing() if name == "growing" else inputs(300 if name == "three_tiles" else 200, k_len)
    tensors = {"m": shown(qkv[0].shape[1], qkv[1].shape[1])}
    if name == "sparse":
        tensors["m"][:128, 128:256] = False
        tensors["m"][:, 256:] = True
    if name == "strided":
        tensors["m"] = tensors["m"].repeat_interleave(2, dim=1)[:, ::2]
        tensors["m"][:, 1::2] ^= True
    out, lse, report = run_library(
        library, tuple(qkv), parse_config(PINGPONG), captured=captured_of(text, tensors), seed=1
    )
    expected = expect(*qkv, variant=parse(text), tensors=tensors)
    return bool(report.findings) or not is_right(expected, out, lse)


@pytest.mark.parametrize("name", ["all", "long", "sparse", "growing"])
def test_nothing_is_wrong_while_no_bug_is_on(planted, name):
    assert not is_wrong(planted, PLANTED, name)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_found(planted, bug):
    with switched_on(BUGS, bug, planted):
        assert is_wrong(planted, PLANTED, bug.problem)


@pytest.mark.parametrize("name", ["of_bools", "sparse", "strided", "three_tiles"])
def test_nothing_is_wrong_of_bools_while_no_bug_is_on(planted_bools, name):
    assert not is_wrong(planted_bools, BOOLS, name)


@pytest.mark.parametrize("bug", BUGS_OF_BOOLS, ids=str)
def test_a_bug_of_bools_is_found(planted_bools, bug):
    with switched_on(BUGS_OF_BOOLS, bug, planted_bools):
        assert is_wrong(planted_bools, BOOLS, bug.problem)
