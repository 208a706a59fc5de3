"""An attention of your own: ALiBi within documents, written in three ways, with gradients.

    python examples/variant_alibi.py [--seqlen 192] [--emulate]

A score function and a mask are one value, a variant. It is written as text, as Python operators, or
as the functions of PyTorch's FlexAttention; equal ones are one variant, and run as one kernel. On a
GPU the kernel is compiled at the first call. --emulate runs that kernel on the CPU instead, which
compiles it for a minute the first time.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import pyflash
from pyflash.variant import Parameters, V, Variant, define, parse
from pyflash.variant.tiles import Problem, Tile, tile

TEXT = """alibi_in_documents(slope: f32[1], document: i32[1]):
s + slope[h] * (k - q) where (k <= q) & (document[q] == document[k])"""
CONFIG = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
HEADS, D_HEAD = 4, 64


def by_operators() -> Variant:
    p = Parameters(slope="f32[1]", document="i32[1]")
    score = V.score + p.slope[V.h] * (V.k - V.q)
    mask = (V.k <= V.q) & (p.document[V.q] == p.document[V.k])
    return define("alibi_in_documents", p, score, mask)


def by_functions(q: Tensor, k: Tensor, v: Tensor, slope: Tensor, document: Tensor) -> Tensor:
    """As a user of FlexAttention writes it."""

    def score_mod(s, b, h, i, j):
        return s + slope[h] * (j - i)

    def mask_mod(b, h, i, j):
        return (j <= i) & (document[i] == document[j])

    n = q.shape[1]
    block_mask = create_block_mask(mask_mod, None, None, n, n, q.device)
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return pyflash.flex_attention(
        *heads_first, score_mod=score_mod, block_mask=block_mask
    ).transpose(1, 2)


def by_formula(q: Tensor, k: Tensor, v: Tensor, slope: Tensor, document: Tensor) -> Tensor:
    j = torch.arange(q.shape[1], device=q.device)
    i = j[:, None]
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) / D_HEAD**0.5
    scores = scores + slope[:, None, None] * (j - i)
    shown = (j <= i) & (document[:, None] == document)
    weights = torch.softmax(scores.masked_fill(~shown, -torch.inf), -1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v.float())


def tiles_of(variant: Variant, values: dict[str, Tensor]) -> Iterator[str]:
    """none, some or all: kernels skip the first and do not test the last."""
    n = len(values["document"])
    plain: dict[str, Any] = {name: x.tolist() for name, x in values.items()}
    for i, j in product(range(0, n, 64), repeat=2):
        at = Tile(q=(i, min(i + 64, n) - 1), k=(j, min(j + 64, n) - 1))
        yield tile(variant.mask, at, Problem(n, n, 1, HEADS), plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seqlen", type=int, default=192)
    parser.add_argument("--emulate", action="store_true")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    shape = (1, asked.seqlen, HEADS, D_HEAD)
    q, k, v = (torch.randn(shape, device=device).half().requires_grad_() for _ in range(3))
    values = {
        "slope": 2.0 ** -torch.arange(1, HEADS + 1, device=device),
        "document": torch.arange(asked.seqlen, device=device, dtype=torch.int32) // 50,
    }

    variant = parse(TEXT)
    assert by_operators().key == variant.key
    print(f"{variant.name}: key {variant.key}")
    print("tiles of 64 x 64 that the mask shows:", dict(Counter(tiles_of(variant, values))))

    options = {"compile": True, "backward": "reference"}
    out = pyflash.attention(q, k, v, variant=variant, tensors=values, **options)
    expected = by_formula(q, k, v, *values.values())
    print(f"text: max |error| {(out - expected).abs().max():.1e}")
    with torch.no_grad():
        flex = by_functions(q, k, v, *values.values())
    print(f"functions: max |error| {(flex - expected).abs().max():.1e}")

    grad_out = torch.randn_like(expected)
    found = torch.autograd.grad(out, (q, k, v), grad_out.half())
    wanted = torch.autograd.grad(expected, (q, k, v), grad_out)
    worst = max((a - b).abs().max().item() for a, b in zip(found, wanted, strict=True))
    print(f"gradients: max |error| {worst:.1e}")

    if asked.emulate:
        inputs = (x.detach().cpu() for x in (q, k, v))
        on_cpu = {name: x.cpu() for name, x in values.items()}
        emulated, _, report = pyflash.emulate(*inputs, CONFIG, variant=variant, tensors=on_cpu)
        report.check()
        error = (emulated - expected.cpu()).abs().max()
        print(f"the kernel, emulated: max |error| {error:.1e}, nothing wrong found")


if __name__ == "__main__":
    main()
