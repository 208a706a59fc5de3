"""Gradients of pyflash beside those of PyTorch's attention in one process, in any memory layout.

    PYTHONPATH=.:tests python -m support.gradients 3000

draws as many cases, runs each by every contender in random order, and prints the wrong ones.

PyTorch caches cuDNN's plans by q, k and v, and each plan has the layouts that out and its gradient
had when it was made. So PyTorch's own gradients are wrong where the gradients of out come in more
than one layout. They are judged where all have the layout of out ("as_out"), which are right if
nobody else's plans are among PyTorch's. Those of pyflash are judged always.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyflash import attention
from pyflash.op.reference import attention_ref

# Where a (batch, seqlen, heads, d_head) tensor lies, given its extents.
LAYOUTS: dict[str, Callable[[int, int, int, int], Tensor]] = {
    "batch_rows_heads": lambda b, s, h, d: torch.empty(b, s, h, d),
    "batch_heads_rows": lambda b, s, h, d: torch.empty(b, h, s, d).transpose(1, 2),
    "rows_batch_heads": lambda b, s, h, d: torch.empty(s, b, h, d).transpose(0, 1),
    "of_packed_qkv": lambda b, s, h, d: torch.empty(b, s, 3, h, d)[:, :, 1],
    "of_wider_heads": lambda b, s, h, d: torch.empty(b, h, s, d + 24)[..., 8:-16].transpose(1, 2),
}
# The gradient of out also comes as a broadcast gives it.
UPSTREAM_LAYOUTS = (*LAYOUTS, "one_row_for_all")
AS_OUT = "as_out"
CONTENDERS = ("pyflash", "cudnn", "flash")
_BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
# Bounds as shares of the norm of a gradient.
_BOUNDS = {torch.float16: 5e-3, torch.bfloat16: 3e-2}


Inputs = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Problem:
    batch: int
    seqlen: int
    heads: int
    heads_kv: int
    d_head: int
    dtype: torch.dtype
    causal: bool
    layouts: tuple[str, str, str]  # of q, k and v
    softmax_scale: float = 0.25

    @property
    def options(self) -> dict[str, Any]:
        return {"causal": self.causal, "softmax_scale": self.softmax_scale}


def place(values: Tensor, layout: str) -> Tensor:
    """A tensor of these values, (batch, seqlen, heads, d_head), in this layout."""
    if layout == "one_row_for_all":
        return values[:1, :1].expand(values.shape)
    with torch.device(values.device):
        return LAYOUTS[layout](*values.shape).to(values.dtype).copy_(values)


def make(problem: Problem, seed: int) -> tuple[Inputs, Tensor]:
    """q, k, v, and values for the gradient of out, which have no layout yet."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def randn(heads: int) -> Tensor:
        size = (problem.batch, problem.seqlen, heads, problem.d_head)
        return torch.randn(size, generator=generator, device="cuda").to(problem.dtype)

    heads = (problem.heads, problem.heads_kv, problem.heads_kv)
    q, k, v = map(place, map(randn, heads), problem.layouts)
    return (q, k, v), randn(problem.heads)


def gradients(
    contender: str, problem: Problem, inputs: Inputs, values: Tensor, layout: str
) -> tuple[Inputs, Tensor]:
    """Those of q, k and v, and the gradient of out that they are for."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    if contender == "pyflash":
        out = attention(*leaves, **problem.options)
    else:
        q, k, v = (x.transpose(1, 2) for x in leaves)
        with sdpa_kernel(_BACKENDS[contender]):
            out = F.scaled_dot_product_attention(
                q, k, v, is_causal=problem.causal, scale=problem.softmax_scale, enable_gqa=True
            )
        out = out.transpose(1, 2)
    grad_out = torch.empty_like(out).copy_(values) if layout == AS_OUT else place(values, layout)
    return torch.autograd.grad(out, leaves, grad_out), grad_out


def exact_gradients(problem: Problem, inputs: Inputs, grad_out: Tensor) -> Inputs:
    leaves = [x.double().requires_grad_() for x in inputs]
    out, _ = attention_ref(*leaves, dtype=torch.float64, **problem.options)
    return torch.autograd.grad(out, leaves, grad_out.double())


def errors(actual: Inputs, exact: Inputs) -> dict[str, float]:
    """The errors of dq, dk and dv as parts of their norms."""
    return {
        name: ((a.double() - e).norm() / e.norm()).item()
        for name, a, e in zip(("dq", "dk", "dv"), actual, exact, strict=True)
    }


def wrong(
    problem: Problem, order: tuple[str, ...], upstream_layouts: tuple[str, ...], seed: int = 0
) -> list[str]:
    """Runs the contenders in this order, each with the gradient of out in a layout of its own. A
    line for each whose gradients are wrong."""
    inputs, values = make(problem, seed)
    found = []
    for contender, layout in zip(order, upstream_layouts, strict=True):
        actual, grad_out = gradients(contender, problem, inputs, values, layout)
        off = errors(actual, exact_gradients(problem, inputs, grad_out))
        is_judged = contender != "cudnn" or layout == AS_OUT
        if is_judged and not max(off.values()) <= _BOUNDS[problem.dtype]:
            found.append(f"{contender} of {order}, gradients of out {upstream_layouts}: {off}")
    return [f"{line}\n  {problem}, seed {seed}" for line in found]


# Few, so that contenders meet problems that others had. In every second one PyTorch's cuDNN has
# gradients of out in any layout.
SHAPES = [(3, 33, 4, 4, 32), (3, 34, 4, 4, 32), (2, 130, 4, 2, 64), (2, 131, 4, 2, 64)]
SHAPES += [(1, 64, 2, 2, 128), (1, 65, 2, 2, 128)]


def draw(seed: int) -> tuple[Problem, tuple[str, ...], tuple[str, ...]]:
    rng = random.Random(seed)
    shape = rng.randrange(len(SHAPES))
    problem = Problem(
        *SHAPES[shape],
        dtype=rng.choice(list(_BOUNDS)),
        causal=rng.random() < 0.5,
        layouts=tuple(rng.choice(list(LAYOUTS)) for _ in "qkv"),
        softmax_scale=rng.choice((0.1, 0.25, 1.0)),
    )
    order = tuple(rng.sample(CONTENDERS, len(CONTENDERS)))
    layouts = (
        AS_OUT if contender == "cudnn" and shape % 2 == 0 else rng.choice(UPSTREAM_LAYOUTS)
        for contender in order
    )
    return problem, order, tuple(layouts)


def fuzz(n_cases: int) -> list[str]:
    """The wrong ones of the first cases."""
    return list(
        itertools.chain.from_iterable(wrong(*draw(seed), seed=seed) for seed in range(n_cases))
    )


def in_both_orders(layout_of_q: str, layout_of_kv: str, dtype: torch.dtype) -> list[str]:
    """pyflash before PyTorch's cuDNN attention and behind it. Each pair of layouts of their
    gradients of out has a length of its own, so that no plan is cached for it."""
    problem = Problem(2, 0, 4, 4, 32, dtype, True, (layout_of_q, layout_of_kv, layout_of_kv))
    orders = (("pyflash", "cudnn"), ("cudnn", "pyflash"))
    of_upstream = [*list(LAYOUTS)[:3], UPSTREAM_LAYOUTS[-1], AS_OUT]
    ways = itertools.product(orders, itertools.product(of_upstream, repeat=2))
    found = []
    for seqlen, (order, layouts) in enumerate(ways, start=17):
        found += wrong(replace(problem, seqlen=seqlen), order, layouts)
    return found


def main() -> None:
    n_cases = int(sys.argv[1])
    found = fuzz(n_cases)
    print(*found, f"{n_cases} cases, {len(found)} wrong", sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
