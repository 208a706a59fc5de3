"""Tensors of an element for each pair, which SM90 forward kernels copy to shared memory a block
ahead: every kind and alignment, edges of sequences and of blocks, and what is not copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.planted.planting import build_planted, is_right, switched_on
from support.planted.streams import BUGS, PLANTED
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
    "one_consumer": "(FP16, 64, 64, 128, 1): sm90+stages_2+overlap+persistent+rescale_threshold",
    "packed_heads": "(FP16, 64, 64, 128, 1): sm90+stages_2+overlap+rescale_threshold+pack_gqa",
    "rows_decide": PINGPONG + "+rows_decide",
    "each_row": "(FP16, 64, 128, 64, 2): sm90+stages_2+overlap+pingpong+persistent",
}
KINDS = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "i32": torch.int32,
    "i64": torch.int64,
}
MASKED = "masked(m: bool[4]): s where m[b, h, q, k]"
BOTH = "both(a: bf16[4], m: bool[2], w: i32): s + a[b, h, q, k] where m[q, k] | (k <= q + w)"


def added(kind: str) -> str:
    value = "a[b, h, q, k]" if kind in ("bf16", "f16", "f32") else "f32(a[b, h, q, k])"
    return f"added(a: {kind}[4]): s + {value}"


def tensor_of(text: str, *shape: int) -> dict[str, Tensor]:
    """The one that it captures."""
    if text == MASKED:
        return {"m": shown(*shape)}
    kind = text.partition(": ")[2].partition("[")[0]
    return {"a": numbers(kind, *shape)}


def numbers(kind: str, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (2 * torch.randn(*shape, generator=generator)).to(KINDS[kind])


def shown(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(7)) < 0.6


def inputs(q_len: int, k_len: int, heads: int = 2, d_head: int = 64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(q_len + k_len)
    sizes = ((q_len, heads), (k_len, 1), (k_len, 1))
    return [torch.randn(2, *size, d_head, generator=generator).half() for size in sizes]


def check(
    text: str, qkv: list[Tensor], config: str = PINGPONG, copies: bool = True, **options: Any
):
    """That the kernel is its formula, and that it copies where it should."""
    variant, tensors = parse(text), options.pop("tensors")
    out, lse, report = pyflash.emulate(*qkv, config, variant=variant, tensors=tensors, **options)
    report.check()
    assert (report.counts.cp_async > 0) == copies
    options.pop("num_splits", None)
    expect(*qkv, variant=variant, tensors=tensors, **options).check(out, lse)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("text", [added("bf16"), MASKED], ids=["added", "masked"])
def test_families_of_configs_copy(config, text):
    check(text, inputs(150, 384), CONFIGS[config], tensors=tensor_of(text, 2, 2, 150, 384))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind):
    check(
        added(kind), inputs(129, 256), copies=kind != "i64",
        tensors={"a": numbers(kind, 2, 2, 129, 256)},
    )  # fmt: skip


def test_a_block_of_which_a_part_has_room():
    config = PINGPONG.replace("64, 128, 128, 2", "128, 128, 128, 2")
    check(
        added("f32"), inputs(70, 256, d_head=128), config,
        tensors={"a": numbers("f32", 2, 2, 70, 256)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("k_len", "extent", "copies"),
    [(384, 384, True), (328, 328, True), (333, 333, False), (333, 384, True), (100, 104, False)],
)
@pytest.mark.parametrize("text", [added("bf16"), MASKED], ids=["added", "masked"])
def test_ends_of_sequences_and_tables(text, k_len, extent, copies):
    """Blocks that end behind the table, rows that are not aligned, a table longer than the keys."""
    copies = copies and not (text == MASKED and extent == 328)  # a multiple of 8, not of 16
    check(text, inputs(90, k_len), copies=copies, tensors=tensor_of(text, 2, 2, 90, extent))


def test_a_block_that_ends_behind_its_table_is_not_copied():
    def copies(k_len: int) -> int:
        tensors = {"a": numbers("bf16", 2, 2, 90, k_len)}
        *_, report = pyflash.emulate(
            *inputs(90, k_len), PINGPONG, variant=parse(added("bf16")), tensors=tensors
        )
        return report.counts.cp_async

    assert copies(328) == copies(256) < copies(384)


VIEWS = {
    "broadcast": (lambda x: x[:1, :1, :1].expand(2, 2, 90, 384), True),
    "of_heads": (lambda x: x[:, :, :1].expand(2, 2, 90, 384), True),
    "aligned_slice": (lambda x: torch.cat([x, x], -1)[..., 16:400], True),
    "odd_slice": (lambda x: torch.cat([x, x], -1)[..., 1:385], False),
    "transposed": (lambda x: x.transpose(2, 3).contiguous().transpose(2, 3), False),
    "of_every_second": (lambda x: torch.stack([x, x], -1)[..., 0], False),
    "heads_inside": (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), True),
    "from_the_end": (lambda x: x.flip(2), True),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("text", [added("f16"), MASKED], ids=["added", "masked"])
def test_layouts(text, view):
    make, copies = VIEWS[view]
    (tensor,) = tensor_of(text, 2, 2, 90, 384).items()
    check(text, inputs(90, 384), copies=copies, tensors={tensor[0]: make(tensor[1])})


@pytest.mark.parametrize("config", CONFIGS)
def test_a_score_and_a_mask(config):
    """Blocks that the mask does not cut need its table no more."""
    tensors = {"a": numbers("bf16", 2, 2, 300, 512), "m": shown(300, 512), "w": 150}
    check(BOTH, inputs(300, 512), CONFIGS[config], tensors=tensors)


OPTIONS = {
    "splits": {"num_splits": 3},
    "window": {"window_left": 40, "window_right": 3},
    "cap": {"softcap": 2.0},
    "sinks": {"sinks": torch.tensor([0.5, -3.0])},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("text", [added("bf16"), MASKED], ids=["added", "masked"])
def test_options(text, option):
    tensors = tensor_of(text, 2, 2, 200, 512)
    check(text, inputs(200, 512), tensors=tensors, **OPTIONS[option])


def test_scores_that_overflow_are_made_again_from_the_tensor():
    """Of blocks that follow each other: the copy in shared memory is the next block's by then."""
    table = numbers("f32", 2, 2, 130, 512).bfloat16()
    for block in range(4):
        table[..., 7::11, 128 * block : 128 * block + 128] += 150.0 * (4 - block)
    check(added("bf16"), inputs(130, 512), tensors={"a": table})


def test_rows_without_a_key_and_blocks_without_one():
    table = shown(2, 2, 140, 640)
    table[:, :, 5:80, 128:384] = False
    table[:, :, 100:110] = False
    table[:, :, 64:128, :512] = False
    check(MASKED, inputs(140, 640), tensors={"m": table})


def test_indices_that_are_functions_of_rows():
    text = "rows(a: f16[3], at: i32[2]): s + a[h // 2, at[b, q], k] where (k + q) % 3 != 0"
    rows = torch.arange(2 * 90, dtype=torch.int32).view(2, 90) * 7 % 31 - 15
    tensors = {"a": numbers("f16", 1, 31, 256), "at": rows}
    check(text, inputs(90, 256), tensors=tensors)


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
    tensors = {"a": numbers("bf16", 4, 2, 100, 256), "m": shown(100, 256), "w": 20}
    *found, report = pyflash.emulate_varlen(
        *packed, *starts, 100, 256, PINGPONG, variant=parse(BOTH), tensors=tensors
    )
    report.check()
    assert report.counts.cp_async > 0
    expect(*packed, *starts, variant=parse(BOTH), tensors=tensors).check(*found)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    root = tmp_path_factory.mktemp("planted_streams")
    config = {"pingpong": parse_config(PINGPONG)}
    return build_planted(BUGS, config, root, variant=parse(PLANTED).normal)["pingpong"]


def is_wrong(library, name: str) -> bool:
    qkv, tensors = problem_of(name)
    out, lse, report = run_library(
        library, tuple(qkv), parse_config(PINGPONG), captured=captured_of(PLANTED, tensors), seed=1
    )
    expected = expect(*qkv, variant=parse(PLANTED), tensors=tensors)
    return bool(report.findings) or not is_right(expected, out, lse)


def problem_of(name: str) -> tuple[list[Tensor], dict[str, Tensor]]:
    q_len, k_len = 200, 384
    tensors = {
        "a": numbers("bf16", 2, 2, q_len, k_len),
        "f": numbers("f32", 2, 2, q_len, k_len),
        "m": shown(2, 2, q_len, k_len),
    }
    if name == "odd":
        tensors["a"] = torch.cat([tensors["a"]] * 2, -1)[..., 1 : 1 + k_len]
    elif name == "late":
        for block in range(3):
            tensors["a"][..., 128 * block + 7] = 400.0 * (3 - block)
    return inputs(q_len, k_len), tensors


@pytest.mark.parametrize("name", ["all", "odd", "late"])
def test_nothing_is_wrong_while_no_bug_is_on(planted, name):
    assert not is_wrong(planted, name)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_found(planted, bug):
    with switched_on(BUGS, bug, planted):
        assert is_wrong(planted, bug.problem)
