"""Attention with random variants beside float64, element by element: values, and gradients of q, k,
v and of what is captured.

    PYTHONPATH=.:tests python -m support.random_attention [--count 300] [--seed 0] [--device cuda]

The scores of q and k have few bits, so that they are the same in every precision and no comparison
of them depends on one. On a GPU each variant is compiled.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import torch
from support.programs import captured, program
from support.torch_programs import torch_value
from torch import Tensor

import pyflash
from pyflash.variant import Variant
from pyflash.variant.evaluate import evaluate
from pyflash.variant.expr import constant, operation

Q_LEN, K_LEN, HEADS, HEADS_KV, D_HEAD = 10, 37, 4, 2, 16
EXTENTS = (1, HEADS, Q_LEN, K_LEN)
_LARGEST = 20.0  # of a score, beyond which rounding of it decides


def variant_of(seed: int) -> Variant:
    """A random one, whose scores are no NaN and not large."""
    made = program(Random(seed), levels=3)
    number = operation("where", operation("==", made.score, made.score), made.score, constant(0.0))
    score = operation("clamp", number, constant(-_LARGEST), constant(_LARGEST))
    return Variant("random", made.params, score, made.mask)


def inputs_of(seed: int) -> list[Tensor]:
    """(batch, seqlen, heads, d_head), fp16: q and k are quarters."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (
        torch.randint(-4, 5, (1, n, heads, D_HEAD), generator=generator).half() / 4
        for n, heads in ((Q_LEN, HEADS), (K_LEN, HEADS_KV))
    )
    return [q, k, torch.randn(1, K_LEN, HEADS_KV, D_HEAD, generator=generator).half()]


def values_of(variant: Variant) -> dict[str, Any]:
    """Numbers and tensors by parameter."""
    arrays = captured()
    found = {}
    for param in variant.params:
        value = torch.as_tensor(np.asarray(arrays[param.name]))
        value = value.bfloat16() if param.kind.value == "bf16" else value
        found[param.name] = value if param.rank is not None else value.item()
    return found


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    keys = k.repeat_interleave(HEADS // HEADS_KV, 2)
    return torch.einsum("bqhd,bkhd->bhqk", q, keys) / math.sqrt(D_HEAD)


def attended(scores: Tensor, shown: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse)."""
    scores = scores.masked_fill(~shown, -math.inf)
    lse = scores.logsumexp(-1)
    # A row without a pair has no weights.
    weights = torch.exp(scores - lse.masked_fill(lse.isinf(), 0)[..., None])
    return torch.einsum("bhqk,bkhd->bqhd", weights, v.repeat_interleave(2, 2)), lse


def places() -> dict[str, np.ndarray]:
    """Indices and lengths of every pair, in a row."""
    found = dict(zip("bhqk", (x.ravel() for x in np.indices(EXTENTS, np.int32)), strict=True))
    lengths = {"q_len": Q_LEN, "k_len": K_LEN, "q0": 0, "k0": 0}
    return found | {name: np.full_like(found["b"], n) for name, n in lengths.items()}


def check_values(seed: int, device: str = "cpu") -> None:
    tensors = {
        name: x.to(device) if isinstance(x, Tensor) else x
        for name, x in values_of(variant_of(seed)).items()
    }
    out, lse = pyflash.attention(
        *(x.to(device) for x in inputs_of(seed)),
        variant=variant_of(seed), tensors=tensors, return_lse=True, compile=device != "cpu",
    )  # fmt: skip
    compare(seed, out, lse)


def compare(seed: int, out: Tensor, lse: Tensor) -> None:
    """Raises AssertionError where they are not those of `variant_of` with `inputs_of`."""
    variant, (q, k, v) = variant_of(seed), inputs_of(seed)
    s = scores_of(q.double(), k.double())
    at = places() | captured() | {"s": s.numpy().astype(np.float32).ravel()}
    with np.errstate(all="ignore"):
        score, shown = (np.broadcast_to(x, at["b"].shape) for x in evaluate(variant, at))
    score, shown = (torch.tensor(np.array(x)).view(EXTENTS) for x in (score, shown))
    expected, expected_lse = attended(score.double(), shown, v.double())
    say = f"seed {seed}: {variant}\n".__add__
    torch.testing.assert_close(lse.cpu().double(), expected_lse, rtol=1e-4, atol=1e-3, msg=say)
    torch.testing.assert_close(out.cpu().double(), expected, rtol=4e-3, atol=4e-3, msg=say)


def check_gradients(
    seed: int,
    device: str = "cpu",
    combined: Variant | None = None,
    beside: Mapping[str, Any] | None = None,
) -> bool:
    """False: the gradient in float64 is not finite or large, and nothing is compared. combined: the
    variant of the call, if it is not that of the seed but computes the same, given what stands
    beside the seed's own values. Every float tensor requires a gradient, so that all calls of a
    variant run one kernel; the gradients of those that are not the seed's own are 0."""
    variant, inputs, values = variant_of(seed), inputs_of(seed), values_of(variant_of(seed))
    if "f16(" in str(variant):  # rounded from float64 and from float32 they may differ
        return False
    names = [n for n, x in values.items() if _has_gradient(x)]
    own = [x.to(device).requires_grad_() for x in inputs]
    given = {n: x.to(device) if isinstance(x, Tensor) else x for n, x in values.items()}
    given = dict(beside or {}) | given
    others = [n for n, x in given.items() if _has_gradient(x) and n not in names]
    for name in (*names, *others):
        given[name] = given[name].detach().requires_grad_()
    out = pyflash.attention(
        *own, variant=combined or variant, tensors=given, compile=device != "cpu"
    )
    grad_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).half()
    # The normal form may lack a parameter.
    found = torch.autograd.grad(
        out,
        [*own, *(given[n] for n in (*names, *others))],
        grad_out.to(device),
        allow_unused=True,
        materialize_grads=True,
    )
    found, zeros = found[: len(own) + len(names)], found[len(own) + len(names) :]
    assert not any(x.any() for x in zeros), f"seed {seed}: {others}"

    wide = [x.detach().double().requires_grad_() for x in inputs]
    tables = {n: values[n].detach().double().requires_grad_() for n in names}
    arrays = {n: torch.as_tensor(np.asarray(x)) for n, x in (captured() | places()).items()}
    arrays |= tables | {"s": scores_of(*wide[:2]).flatten()}
    score, shown = (
        torch.as_tensor(torch_value(root, arrays, torch.float64)).expand(math.prod(EXTENTS))
        for root in (variant.score, variant.mask)
    )
    score, shown = score.double().view(EXTENTS), shown.bool().view(EXTENTS)
    expected_out, _ = attended(score, shown, wide[2])
    leaves = [*wide, *tables.values()]
    expected = torch.autograd.grad(
        expected_out, leaves, grad_out.double(), allow_unused=True, materialize_grads=True
    )
    if not all(x.isfinite().all() and x.abs().max() < 1e4 for x in expected):
        return False
    for name, one, other in zip(["q", "k", "v", *names], found, expected, strict=True):
        scale = max(1.0, other.abs().max().item())
        torch.testing.assert_close(
            one.cpu().double(), other, rtol=1e-2, atol=5e-3 * scale,
            msg=f"d{name}, seed {seed}: {variant}\n".__add__,
        )  # fmt: skip
    return True


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    wrong, compared = 0, 0
    for seed in range(asked.seed, asked.seed + asked.count):
        try:
            check_values(seed, asked.device)
            compared += check_gradients(seed, asked.device)
        except AssertionError as error:
            wrong += 1
            print(error)
    print(f"{asked.count} programs, gradients of {compared}, {wrong} wrong")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
