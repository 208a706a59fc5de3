"""Blocks that a mask cuts, on a GPU: SM90 kernels that make their bits beside QK^T, and fp64."""

from __future__ import annotations

import pytest
import torch
from support.cut_blocks import MATCHED, cases

import pyflash
from pyflash.codegen.build import build_with_variants, nearest_archs
from pyflash.config import parse
from pyflash.op import library
from pyflash.op.variants.reference import expect
from pyflash.variant import parse as parse_variant

pytestmark = pytest.mark.gpu

CONFIGS = {
    "three": "(BF16, 128, 192, 64, 3): sm90+stages_3+overlap+persistent+rescale_threshold",
    "pingpong": "(BF16, 128, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+"
    "rescale_threshold",
    "four": "(BF16, 64, 256, 64, 4): sm90+stages_4+overlap+persistent+rescale_threshold",
}


@pytest.fixture(scope="module")
def kernels() -> None:
    """Those of each config with the mask."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("these are kernels of sm_90")
    configs = map(parse, CONFIGS.values())
    library.load(build_with_variants([parse_variant(MATCHED)], configs, nearest_archs([90])))


def inputs(n: int, d_head: int, heads: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(n)
    sizes = ((n, heads), (n, heads // 2), (n, heads // 2))
    return [torch.randn(2, *size, d_head, device="cuda").bfloat16() for size in sizes]


@pytest.mark.parametrize("n", [400, 1500])
@pytest.mark.parametrize("case", cases())
@pytest.mark.parametrize("config", CONFIGS)
def test_it_is_its_formula(kernels, config, case, n):
    config = parse(CONFIGS[config])
    tensors = {name: x.cuda() for name, x in cases(n)[case].items()}
    qkv = inputs(n, config.d_head)
    given = {"variant": MATCHED, "tensors": tensors, "config": config.canonical().short_form()}
    out, lse = pyflash.attention(*qkv, **given, return_lse=True)
    expect(*qkv, variant=MATCHED, tensors=tensors).check(out, lse)
    assert torch.equal(out, pyflash.attention(*qkv, **given))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("config", CONFIGS)
def test_hidden_scores_do_not_leak(kernels, config, value):
    config = parse(CONFIGS[config])
    tensors = {name: x.cuda() for name, x in cases(1500)["mixed"].items()}
    q, k, v = inputs(1500, config.d_head)
    given = {"variant": MATCHED, "tensors": tensors, "config": config.canonical().short_form()}
    clean = pyflash.attention(q, k, v, **given)
    k[:, 150:170] = value  # which no row is shown
    assert torch.equal(pyflash.attention(q, k, v, **given), clean)
