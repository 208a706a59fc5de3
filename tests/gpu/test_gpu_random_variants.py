"""Random variants on a GPU beside float64, several in each kernel."""

from __future__ import annotations

import pytest
import torch
from support.combined_variants import (
    PARTS,
    RANDOM_SEEDS,
    all_values,
    combined,
    parts,
    values,
    whole,
)
from support.random_attention import check_gradients, compare, inputs_of, values_of, variant_of

import pyflash
from pyflash.op.variants.reference import expect
from pyflash.variant import parse

pytestmark = pytest.mark.gpu
_TOGETHER = 6  # programs of a kernel


def on_gpu(values):
    return {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in values.items()}


@pytest.mark.parametrize("name", PARTS)
def test_a_chosen_part_is_its_formula(name):
    extents = (2, 4, 300, 500)
    own = values(name, *extents)
    q, k, v = (
        torch.randn(2, n, heads, 64, device="cuda", dtype=torch.float16)
        for n, heads in ((300, 4), (500, 2), (500, 2))
    )
    tensors = on_gpu(all_values(list(PARTS).index(name), own))
    out, lse = pyflash.attention(
        q, k, v, variant=whole(), tensors=tensors, return_lse=True, compile=True
    )
    expected = expect(q, k, v, variant=parse(PARTS[name]), tensors=on_gpu(own))
    expected.check(out, lse)


@pytest.mark.parametrize("seed", RANDOM_SEEDS)
def test_programs_of_the_emulator_are_those_of_float64(seed):
    which = len(PARTS) + RANDOM_SEEDS.index(seed)
    check(seed, whole(), on_gpu(all_values(which, {})))
    assert parts()[which] == variant_of(seed)


@pytest.mark.parametrize("first", range(0, 300, _TOGETHER))
def test_random_programs_are_those_of_float64(first):
    seeds = range(first, first + _TOGETHER)
    programs = [variant_of(seed) for seed in seeds]
    variant, found = combined(programs), {}
    for program in programs:
        found |= values_of(program)
    for which, seed in enumerate(seeds):
        check(seed, variant, on_gpu(found | {"which": which}))


@pytest.mark.parametrize("first", range(0, 300, _TOGETHER))
def test_gradients_of_random_programs_are_those_of_float64(first):
    """Of q, k, v and of what is captured, where they are finite."""
    programs = {seed: variant_of(seed) for seed in range(first, first + _TOGETHER)}
    variant, beside = combined(list(programs.values())), {}
    for program in programs.values():
        beside |= values_of(program)
    compared = 0
    for which, seed in enumerate(programs):
        compared += check_gradients(seed, "cuda", variant, on_gpu(beside | {"which": which}))
    assert compared >= 1


def check(seed, variant, tensors):
    out, lse = pyflash.attention(
        *(x.cuda() for x in inputs_of(seed)),
        variant=variant, tensors=tensors, return_lse=True, compile=True,
    )  # fmt: skip
    compare(seed, out.cpu(), lse.cpu())
