"""Kernels with a variant on a GPU: every named one, in both forward families, against fp64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.variants import values_of

import pyflash
from pyflash.codegen.build import build_with_variants, nearest_archs
from pyflash.config import DType, parse
from pyflash.op import library
from pyflash.op.variants.jit import default_config
from pyflash.op.variants.reference import expect
from pyflash.variant.library import named, names
from pyflash.variant.tiles import Problem

pytestmark = pytest.mark.gpu

SM80 = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
# Equal lengths, more keys than queries, fewer, one query.
PROBLEMS = {
    "square": Problem(300, 300, 2, 4),
    "more keys": Problem(130, 517, 1, 4),
    "fewer keys": Problem(390, 140, 2, 2),
    "one query": Problem(1, 700, 3, 4),
}


@pytest.fixture(scope="module")
def configs() -> dict[str, str]:
    """By family, a config that is built with every named variant."""
    major, minor = torch.cuda.get_device_capability()
    archs = nearest_archs([10 * major + minor])
    own = default_config(DType.FP16, 64, archs[0])
    chosen = {str(config.family): config for config in (own, parse(SM80))}
    variants = [named(name).variant for name in names()]
    library.load(build_with_variants(variants, chosen.values(), archs))
    return {family: config.canonical().short_form() for family, config in chosen.items()}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("family", ["sm80_forward", "sm90_forward"])
@pytest.mark.parametrize("name", names())
def test_it_is_its_formula(configs, name, family, problem):
    if family not in configs:
        pytest.skip(f"no default config is of {family} here")
    at = PROBLEMS[problem]
    if name == "tree":  # whose ancestors are the bits of a number
        at = replace(at, q_len=min(at.q_len, 60), k_len=min(at.k_len, 62))
    torch.manual_seed(len(name))
    heads_kv = at.heads // 2
    sizes = ((at.q_len, at.heads), (at.k_len, heads_kv), (at.k_len, heads_kv))
    inputs = [torch.randn(at.batch, *size, 64, device="cuda").half() for size in sizes]
    tensors = {
        name: x.cuda() if isinstance(x, torch.Tensor) else x
        for name, x in values_of(name, at).items()
    }
    out, lse = pyflash.attention(
        *inputs, variant=name, tensors=tensors, config=configs[family], return_lse=True
    )
    expect(*inputs, variant=name, tensors=tensors).check(out, lse)
    again = pyflash.attention(*inputs, variant=name, tensors=tensors, config=configs[family])
    assert torch.equal(out, again)


def test_flex_attention_compiles_what_it_needs():
    q, k, v = torch.randn(3, 1, 4, 333, 64, device="cuda").half()
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], device="cuda")

    def score_mod(score, b, h, i, j):
        return score + slopes[h] * (j - i)

    out = pyflash.flex_attention(q, k, v, score_mod)
    inputs = [x.transpose(1, 2) for x in (q, k, v)]
    tensors = {"slope": slopes}
    variant = "alibi(slope: f32[1]): s + slope[h] * (k - q)"
    expected = expect(*inputs, variant=variant, tensors=tensors)
    assert ((out.transpose(1, 2).double() - expected.out).abs() <= expected.bound).all()
