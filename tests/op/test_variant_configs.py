"""Which config runs a variant where none is named."""

from __future__ import annotations

import pytest

from pyflash.config import Arch, DType
from pyflash.op.variants.jit import default_config
from pyflash.variant import parse
from pyflash.variant.library import named
from pyflash.variant.needs import needs_of

SM90 = Arch.of(90)
FOUR = "(FP16, 64, 256, 64, 4): sm90+stages_4+overlap+persistent+rescale_threshold"
THREE = "(FP16, 64, 192, 96, 3): sm90+stages_3+overlap+persistent+rescale_threshold"
WIDE = "(FP16, 128, 192, 64, 3): sm90+stages_3+overlap+persistent+rescale_threshold"
WIDE_TWO = "(FP16, 128, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold"


@pytest.mark.parametrize("name", ["causal", "window", "documents", "prefix_lm", "softcap"])
def test_intervals_and_functions_of_a_score_need_nothing(name):
    needs = needs_of(named(name).variant)
    assert needs.words == ""
    assert str(default_config(DType.FP16, 64, SM90, needs)) == FOUR
    assert str(default_config(DType.FP16, 128, SM90, needs)) == WIDE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("alibi", "scores by position"),
        ("t5_bias", "scores by position"),
        ("natten_2d", "a mask as bits"),
        ("bools(m: bool[2]): s where m[q, k]",
         "a mask as bits and tensors of an element for each pair"),
        ("fullbias(bias: bf16[4]): s + bias[b, h, q, k]",
         "scores by position and tensors of an element for each pair"),
    ],
)  # fmt: skip
def test_what_is_kept_needs_room(text, words):
    needs = needs_of(parse(text) if ":" in text else named(text).variant)
    assert needs.words == words
    assert str(default_config(DType.FP16, 64, SM90, needs)) == THREE
    assert str(default_config(DType.FP16, 128, SM90, needs)) == WIDE_TWO


def test_the_smallest_d_head_that_is_large_enough_and_other_families():
    assert default_config(DType.BF16, 72, SM90).d_head == 96
    assert default_config(DType.BF16, 64, Arch.of(80)).family.name == "sm80_forward"
    with pytest.raises(ValueError, match="no config is for BF16 with d_head 300"):
        default_config(DType.BF16, 300, SM90)
