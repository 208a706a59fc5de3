"""Kernels with a variant that is many in one, in both forward families: named forms and random
programs are right, and each planted bug is found. One compilation a family."""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip("ninja", reason="building needs ninja")

import torch
from support.combined_variants import (
    PARTS,
    RANDOM_SEEDS,
    all_values,
    number_of,
    parts,
    values,
    whole,
)
from support.planted.planting import Bug, is_right, switched_on
from support.planted.variants import BUGS, CONFIGS, planted_libraries
from support.random_attention import compare, inputs_of
from torch import Tensor

from pyflash.emulator.run import run_library
from pyflash.op.reference import Expected
from pyflash.op.variants.arguments import captured_of
from pyflash.op.variants.reference import expect
from pyflash.variant import parse

__all__ = ["planted_libraries"]

# part, (batch, heads, q_len, k_len), options
PROBLEMS: dict[str, tuple[str, tuple[int, int, int, int], dict[str, Any]]] = {
    **{name: (name, (2, 2, 150, 200), {}) for name in PARTS},
    "heads": ("of_heads", (1, 4, 70, 300), {}),
    "split": ("documents", (2, 2, 100, 420), {"num_splits": 2}),
    "softcap": ("bias", (1, 2, 70, 90), {"softcap": 1.0}),
    "sinks": ("of_row", (1, 2, 70, 90), {"sinks": torch.tensor([1.0, -2.0])}),
    "windows": ("alibi", (1, 2, 150, 200), {"window_left": 70, "window_right": 5}),
    "two_tiles": ("alibi", (1, 2, 300, 330), {}),
    "packed": ("blocks", (2, 2, 70, 150), {}),
    # The last query of a tile sees the first key of a block, the last tile the last of a block.
    "last_query": ("of_heads", (1, 1, 128, 200), {}),
    "last_key": ("of_heads", (1, 1, 129, 129), {}),
}
_LENGTHS = ((70, 33), (150, 40))  # of the packed sequences: queries, and keys


@functools.cache
def problem_of(name: str) -> tuple[tuple[Any, ...], Expected, Any, dict[str, Any]]:
    """The inputs, what is expected, what is captured, and the options."""
    part, extents, options = PROBLEMS[name]
    own = values(part, *extents)
    if name.startswith("last"):
        own = {"reach": torch.tensor([1], dtype=torch.int32)}
    inputs = make(*extents)
    variant = parse(PARTS[part])
    given = {n: x for n, x in options.items() if n != "num_splits"}
    if name == "packed":
        starts = [torch.tensor([0, *n]).cumsum(0, dtype=torch.int32) for n in _LENGTHS]
        lengths = (_LENGTHS[0], _LENGTHS[1], _LENGTHS[1])
        packed = [
            torch.cat([x[b, :n] for b, n in enumerate(of)])
            for x, of in zip(inputs, lengths, strict=True)
        ]
        packed[2][_LENGTHS[1][0] :] = torch.nan  # the second sequence's, behind the first's tail
        expected = expect(*packed, *starts, variant=variant, tensors=own)
        inputs = (*packed, *starts, *map(max, _LENGTHS))
    else:
        expected = expect(*inputs, variant=variant, tensors=own, **given)
    captured = captured_of(whole(), all_values(number_of(part), own))
    return tuple(inputs), expected, captured, options


def make(batch: int, heads: int, q_len: int, k_len: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    sizes = ((q_len, heads), (k_len, max(1, heads // 2)), (k_len, max(1, heads // 2)))
    return [torch.randn(batch, *size, 64, generator=generator).half() for size in sizes]


def is_wrong(library, family: str, name: str, order: str = "ascending") -> bool:
    inputs, expected, captured, options = problem_of(name)
    out, lse, report = run_library(
        library, inputs, CONFIGS[family], captured=captured, order=order, seed=1, **options
    )
    if name == "packed":  # of the second sequence nothing is to be said
        rows = _LENGTHS[0][0]
        expected = Expected(expected.out[:rows], expected.lse[:, :rows], 4e-3, expected.lse_bound)
        out, lse = out[:rows], lse[:, :rows]
    return bool(report.findings) or not is_right(expected, out, lse)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("family", CONFIGS)
def test_a_chosen_part_is_its_formula(planted_libraries, family, name):
    assert not is_wrong(planted_libraries[family], family, name)


@pytest.mark.parametrize("seed", RANDOM_SEEDS)
@pytest.mark.parametrize("family", CONFIGS)
def test_random_programs_are_those_of_float64(planted_libraries, family, seed):
    which = len(PARTS) + RANDOM_SEEDS.index(seed)
    assert parts()[which].name == "random"
    captured = captured_of(whole(), all_values(which, {}))
    out, lse, report = run_library(
        planted_libraries[family], tuple(inputs_of(seed)), CONFIGS[family], captured=captured,
        order="random", seed=seed,
    )  # fmt: skip
    report.check()
    compare(seed, out, lse)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_found(planted_libraries, bug: Bug):
    for family in bug.configs:
        library = planted_libraries[family]
        with switched_on(BUGS, bug, library):
            assert is_wrong(library, family, bug.problem), family
