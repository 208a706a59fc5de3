"""Several variants as one, among which a number chooses: an emulated kernel for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from support.random_attention import values_of as values_of_program
from support.random_attention import variant_of as random_variant

from pyflash.variant import Param, Variant, parse
from pyflash.variant.expr import constant, load, operation
from pyflash.variant.scalars import Scalar
from pyflash.variant.value import as_score

_WHICH = Param("which", Scalar.I32, None)


def combined(parts: Sequence[Variant]) -> Variant:
    """The one with the number `which` of `parts`, whose parameters of one name are one."""
    score, mask = parts[0].score, parts[0].mask
    params = {_WHICH.name: _WHICH}
    for i, part in enumerate(parts):
        params |= {param.name: param for param in part.params}
        if i > 0:
            chosen = operation("==", load(_WHICH), constant(i))
            score = operation("where", chosen, as_score(part.score), as_score(score))
            mask = operation("where", chosen, part.mask, mask)
    return Variant("combined", tuple(params.values()), score, mask)


# Scores with parts of a row, a column, a pair and a table; masks of ranges and of bits.
PARTS = {
    "alibi": "alibi(slope: f32[1]): s + slope[h] * (k - q - k_len + q_len)"
    " where k <= q + k_len - q_len",
    "documents": "documents(doc: i32[2]): s where doc[b, q] == doc[b, k]",
    "dilated": "dilated: s where (k - q) % 3 == 0",
    "of_heads": "of_heads(reach: i32[1]): s where abs(k - q) <= reach[h]",
    "bias": "bias(bias: f32[4]): s + bias[b, h, q, k]",
    "of_row": "of_row(row: f32[2]): s + row[h, q]",
    "of_column": "of_column(jump: f32[1]): s + jump[k] where k != 70",
    "blocks": "blocks: s where (k // 64 + q // 128) % 2 == 0",
    "apart": "apart: s where (k // 64 % 2 == 0) & (k % 64 < 60 + q // 128)",
    "but_one": "but_one: s where (k // 64 != 1) | (k % 64 < 5)",
    "ring": "ring: s where abs(k - q) <= 90",
    "prefix": "prefix(prefix: i32[1]): s * 0.5 where (k < prefix[b]) | (k == q)",
}
RANDOM_SEEDS = tuple(range(100, 108))
# For gradients, scores with slopes, one of which is NaN where a score is 0.
CURVED = {
    "cap": "cap(cap: f32): cap * tanh(s / cap) where k <= q + k_len - q_len",
    "table": "table(table: f32[2]): s + table[h, clamp(k - q, -20, 20) + 20]",
    "indices": "indices: s * (1.0 + 0.1 * h + 0.05 * b) + sin(0.3 * q) * cos(0.2 * k) - s * s / 64",
    "root": "root: sqrt(s * s) * 0.7",
    "by_row": "by_row(gain: f32[2]): s * gain[h, q] where k - q <= 40",
}
# Random programs whose slopes are not 0 or 1 everywhere.
CURVED_SEEDS = (104, 112, 118, 126, 135)


@cache
def parts() -> list[Variant]:
    return [*map(parse, PARTS.values()), *map(random_variant, RANDOM_SEEDS)]


@cache
def whole() -> Variant:
    return combined(parts())


@cache
def parts_of_gradients() -> list[Variant]:
    return [*map(parse, (PARTS | CURVED).values()), *map(random_variant, CURVED_SEEDS)]


@cache
def whole_of_gradients() -> Variant:
    return combined(parts_of_gradients())


def values(name: str, batch: int, heads: int, q_len: int, k_len: int) -> dict[str, Any]:
    """What a part of PARTS or CURVED captures."""
    generator = torch.Generator().manual_seed(3)
    longest = max(q_len, k_len)
    found: dict[str, Any] = {
        "alibi": {"slope": 2.0 ** -torch.arange(1, heads + 1)},
        "documents": {
            "doc": torch.stack(
                [(torch.arange(longest) * (b + 2) // longest).int() for b in range(batch)]
            )
        },
        "of_heads": {"reach": (17 + 20 * torch.arange(heads)).int()},
        "bias": {"bias": torch.randn(batch, heads, q_len, k_len, generator=generator)},
        "of_row": {"row": torch.randn(heads, q_len, generator=generator)},
        # Far above what comes before, as kernels walk: a maximum that grows late.
        "of_column": {"jump": (torch.arange(k_len) < 9).float() * 300},
        "prefix": {"prefix": torch.tensor([1 + 40 * b for b in range(batch)], dtype=torch.int32)},
        "cap": {"cap": 1.5},
        "table": {"table": torch.randn(heads, 41, generator=generator)},
        "by_row": {"gain": 1 + torch.rand(heads, q_len, generator=generator)},
    }
    return found.get(name, {})


def all_values(
    which: int, own: Mapping[str, Any], of: Sequence[Variant] | None = None
) -> dict[str, Any]:
    """What the variant made of `of`, by default `whole`, captures: those of a part, and some for
    the others."""
    of = parts() if of is None else of
    found: dict[str, Any] = {}
    for param in (param for variant in of for param in variant.params):
        if param.rank is not None:
            kind = {"f32": torch.float32, "i32": torch.int32}.get(param.kind.value, torch.bool)
            found[param.name] = torch.zeros([1] * param.rank, dtype=kind)
        else:
            found[param.name] = 1.0 if param.kind.value == "f32" else 0
    for variant in of:
        if variant.name == "random":
            found |= values_of_program(variant)
    return found | dict(own) | {"which": which}


def number_of(name: str) -> int:
    """Which part has that name."""
    return list(PARTS).index(name)
