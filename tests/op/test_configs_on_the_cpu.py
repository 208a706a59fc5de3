"""An explicit config on the CPU, where no kernel runs: what has to be true of it, what it sets."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

import pyflash
from pyflash.config import ARCHS, FAMILIES, FORWARD, DType, Family, KernelConfig
from pyflash.op.reference import expect

N, HEADS, D_HEAD = 100, 2, 64
# What the CPU's loop has of a config; q decides the others of these.
SETS = {"B_r", "B_c", "optimized_softmax", "dtype", "d_head"}
GUIDE = Path(__file__).parents[2] / "docs/guides/attention.md"


def is_legal(config: KernelConfig) -> bool:
    return any(config.is_legal(arch) for arch in ARCHS)


def config_of(family: Family, d_head: int = D_HEAD, dtype: DType = DType.FP16) -> KernelConfig:
    of_q = (c.replace(d_head=d_head, dtype=dtype) for c in family.ranked)
    return next(config for config in of_q if is_legal(config))


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, N, HEADS, D_HEAD, generator=generator).half() for _ in range(3)]


def varlen(q, k, v, **options):
    cu_seqlens = torch.tensor([0, N], dtype=torch.int32)
    return pyflash.attention_varlen(q[0], k[0], v[0], cu_seqlens, cu_seqlens, N, N, **options)[None]


def sdpa(q, k, v, **options):
    transposed = (x.transpose(1, 2) for x in (q, k, v))
    return pyflash.sdpa(*transposed, **options).transpose(1, 2)


CALLS = [pyflash.attention, varlen, sdpa]
of_every_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
of_every_family = pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family.op is FORWARD], ids=str
)


@of_every_call
@of_every_family
@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("compile", [True, False])
@pytest.mark.parametrize("d_head", [D_HEAD, 2 * D_HEAD])
def test_one_that_fits_need_not_be_built(call, family, as_text, compile, d_head):
    q, k, v = inputs()
    config = config_of(family, d_head)
    out = call(q, k, v, config=str(config) if as_text else config, compile=compile)
    lse = pyflash.attention(q, k, v, return_lse=True)[1]
    expect(q, k, v).check(out, lse)


@of_every_call
@of_every_family
@pytest.mark.parametrize("compile", [True, False])
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda family: config_of(family, dtype=DType.BF16), "is for BF16, q is FP16"),
        (lambda family: narrow(config_of(family)), "is for d_head up to 32, q has|legal nowhere"),
        (lambda family: config_of(family).replace(B_r=7), "is legal nowhere"),
        (lambda family: config_of(family).replace(d_head=40), "is legal nowhere"),
        (lambda family: f"{config_of(family)}+stages_none", "'stages_none'"),
    ],
    ids=["dtype", "d_head", "tile", "unsupported", "text"],
)
def test_one_that_does_not_fit_raises(call, family, compile, wrong, says):
    with pytest.raises(ValueError, match=says):
        call(*inputs(), config=wrong(family), compile=compile)


def narrow(config: KernelConfig) -> KernelConfig:
    return config.replace(d_head=D_HEAD // 2)


@functools.cache
def variations(family: Family) -> list[KernelConfig]:
    """One config, each time with another value of a field that means nothing on the CPU."""
    base = config_of(family)
    others = [
        base.replace(**{name: value})
        for name, values in family.choices().items()
        if name not in SETS
        for value in {*values, *((True, False) if base.field_types()[name] is bool else ())}
    ]
    return [config for config in others if config != base and is_legal(config)]


@of_every_family
def test_it_sets_blocks_and_softmax_and_nothing_else(family):
    q, k, v = inputs()
    base = config_of(family)
    out = pyflash.attention(q, k, v, config=base)
    assert len(variations(family)) >= 3
    for config in variations(family):
        assert torch.equal(out, pyflash.attention(q, k, v, config=config)), config
    blocks = next(c for B_c in (32, 96) if is_legal(c := base.replace(B_c=B_c)))
    assert not torch.equal(out, pyflash.attention(q, k, v, config=blocks))


@pytest.mark.parametrize(
    "text",
    [pyflash.attention.__doc__, pyflash.attention_varlen.__doc__, GUIDE.read_text()],
    ids=["attention", "attention_varlen", "guide"],
)
def test_users_are_told_what_holds_where(text):
    words = " ".join(text.replace("`", "").split())
    assert "On a GPU an explicit config is used or raises; there is no fallback." in words
    assert "On the CPU, where no kernel runs, it has to be legal on some GPU and to fit q" in words
