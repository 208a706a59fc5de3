"""A variant in the bench: its values, the work that it leaves, FlexAttention's functions of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyflash.op.reference import Expected
from pyflash.op.selection import Problem
from pyflash.op.variants.arguments import captured_of
from pyflash.op.variants.reference import expect, formula_of
from pyflash.ui.variants import AskedVariant
from pyflash.variant import Variant, bind
from pyflash.variant import tiles as variant_tiles
from pyflash.variant.expr import TRUE
from pyflash.variant.text import expression_text
from pyflash.variant.walk import postorder

_MOST_PAIRS = 1 << 26  # that are looked at together


@dataclass(frozen=True)
class Given:
    """A variant with numbers and tensors, on a problem's device, for its parameters."""

    variant: Variant
    name: str  # in records
    tensors: Mapping[str, Any] = field(compare=False)

    @classmethod
    def of(cls, asked: AskedVariant, problem: Problem) -> Given:
        of_problem = variant_tiles.Problem(
            problem.seqlen_q, problem.seqlen_k, problem.batch, problem.heads_q
        )
        return cls(asked.variant, asked.name, asked.tensors(of_problem, problem.device))

    @functools.cached_property
    def arguments(self) -> dict[str, Any]:
        """What `attention` is called with. Its mask is made once, as the block mask of
        FlexAttention is."""
        return {"variant": bind(self.variant, **self.tensors).frozen()}

    def expect(self, q: Tensor, k: Tensor, v: Tensor) -> Expected:
        return expect(q, k, v, **self.arguments)

    @property
    def mask_reads(self) -> set[str]:
        """The indices that the mask depends on."""
        nodes = postorder(self.variant.normal.mask)
        return {node.data for node in nodes if node.op == "index"}

    def flops(self, problem: Problem) -> int:
        """4 * d_head for each pair that the mask shows."""
        return 4 * problem.d_head * self.pairs(problem)

    def pairs(self, problem: Problem) -> int:
        """The pairs that the mask shows, of all batches and heads."""
        formula = formula_of(captured_of(self.variant, self.tensors))
        extents = {"b": problem.batch, "h": problem.heads_q}
        sizes = {name: n if name in self.mask_reads else 1 for name, n in extents.items()}
        repeated = math.prod(extents.values()) // math.prod(sizes.values())
        q_len, k_len = problem.seqlen_q, problem.seqlen_k
        rows = max(1, _MOST_PAIRS // (math.prod(sizes.values()) * k_len))

        def along(axis: int, first: int, end: int) -> Tensor:
            shape = [1] * 4
            shape[axis] = -1
            values = torch.arange(first, end, dtype=torch.int32, device=problem.device)
            return values.view(shape)

        at = {"b": along(0, 0, sizes["b"]), "h": along(1, 0, sizes["h"]), "k": along(3, 0, k_len)}
        numbers = {"q_len": q_len, "k_len": k_len, "q0": 0, "k0": 0}
        at |= {name: along(0, n, n + 1) for name, n in numbers.items()}
        shown = 0
        for first in range(0, q_len, rows):
            at["q"] = along(2, first, min(first + rows, q_len))
            extent = (*sizes.values(), at["q"].shape[2], k_len)
            shown += int(formula.shown(at).expand(extent).sum())
        return shown * repeated


def flex_functions(given: Given, problem: Problem) -> tuple[Any, Any]:
    """score_mod and mask_mod as a user of FlexAttention writes them; None where there is none."""
    variant = given.variant
    names = [param.name for param in variant.params]
    lengths = {"q_len": problem.seqlen_q, "k_len": problem.seqlen_k, "q0": 0, "k0": 0}
    made = []
    for root, arguments in ((variant.score, "s, b, h, q, k"), (variant.mask, "b, h, q, k")):
        text = expression_text(root)
        if root == TRUE or text == "s":
            made.append(None)
            continue
        source = (
            f"def make({', '.join([*names, *lengths])}):\n"
            f"    def function({arguments}):\n"
            f"        return {text}\n"
            f"    return function\n"
        )
        namespace = dict(_FUNCTIONS)
        exec(source, namespace)
        made.append(namespace["make"](**given.tensors, **lengths))
    return tuple(made)


def _to(dtype: torch.dtype) -> Callable[[Any], Any]:
    return lambda x: x.to(dtype) if isinstance(x, Tensor) else torch.tensor(x, dtype=dtype)


_TORCH = (
    "abs", "clamp", "cos", "erf", "exp", "exp2", "floor", "log", "log2", "rsqrt", "sigmoid", "sin",
    "sqrt", "tanh", "where",
)  # fmt: skip
# What functions of a variant's text are called.
_FUNCTIONS: dict[str, Any] = {
    **{name: getattr(torch, name) for name in _TORCH},
    "min": lambda a, b: torch.where(a < b, a, b),
    "max": lambda a, b: torch.where(a > b, a, b),
    "bool": _to(torch.bool),
    "i32": _to(torch.int32),
    "i64": _to(torch.int64),
    "f32": _to(torch.float32),
    "f16": _to(torch.float16),
    "bf16": _to(torch.bfloat16),
    "true": True,
    "false": False,
}
