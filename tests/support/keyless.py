"""Every combination of features over problems with queries that attend no key: single rows, whole
tiles, whole sequences, and tensors without keys.

Such a row has out = 0 and, as lse, its sink, or -inf.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from support.problems import Mask, Packed, Shape, make_inputs, make_packed
from torch import Tensor

from pyflash.op.options import windows_of
from pyflash.op.reference import Expected, attended, expect, expect_varlen

MASKS = [
    Mask("full"),
    Mask("right", causal=True),
    Mask("left", window_left=40),
    Mask("right_left", window_left=40, window_right=3),
]
CAPS = (0.0, 50.0)
# One that vanishes beside any other term of a softmax, and one beside which all others do.
SINKS = (-300.0, 0.5, 300.0, -torch.inf)
HEADS = len(SINKS)


def shapes(B_r: int) -> list[Shape | Packed]:
    """For tiles of B_r rows. With a right window the first rows attend nothing: a tile, or more
    where heads are packed into its rows, and some of the next."""
    return [
        Shape("tiles", 1, B_r + 40, 30, HEADS, heads_kv=HEADS // 2),
        Packed("sequences", (9, 0, B_r + 20, 1), (0, 9, 10, 0), HEADS, HEADS // 2),
        Shape("no_keys", 1, 9, 0, HEADS),
    ]


@dataclass(frozen=True)
class Case:
    shape: Shape | Packed
    mask: Mask
    softcap: float
    sinks: bool
    narrow: bool  # heads narrower than the kernel's
    num_splits: int

    def __str__(self) -> str:
        words = [str(self.shape), str(self.mask)]
        words += [f"cap_{self.softcap:g}"] if self.softcap else []
        words += [name for name in ("sinks", "narrow") if getattr(self, name)]
        return "-".join([*words, f"splits_{self.num_splits}"])

    @property
    def is_packed(self) -> bool:
        return isinstance(self.shape, Packed)

    @property
    def has_no_keys(self) -> bool:
        return isinstance(self.shape, Shape) and self.shape.seqlen_k == 0

    def inputs(self, dtype: torch.dtype, d_head: int, device: str = "cpu") -> tuple[Any, ...]:
        """The op's positional arguments."""
        make = make_packed if self.is_packed else make_inputs
        return make(self.shape, dtype, d_head - 8 if self.narrow else d_head, device)

    def options(self, device: str = "cpu") -> dict[str, Any]:
        sinks: Tensor | None = torch.tensor(SINKS, device=device) if self.sinks else None
        return {**self.mask.options, "softcap": self.softcap, "sinks": sinks}

    def expected(self, inputs: tuple[Any, ...]) -> Expected:
        options = self.options(str(inputs[0].device))
        return (
            expect_varlen(*inputs[:5], **options) if self.is_packed else expect(*inputs, **options)
        )


FEATURES = tuple(itertools.product(MASKS, CAPS, (False, True), (False, True), (1, 3)))


def cases(shape: Shape | Packed) -> Iterator[Case]:
    """Those of `FEATURES` with which some row of the shape attends nothing."""
    for mask, *others in FEATURES:
        if any(_has_keyless_rows(*lengths, mask) for lengths in _lengths(shape)):
            yield Case(shape, mask, *others)


def _lengths(shape: Shape | Packed) -> list[tuple[int, int]]:
    if isinstance(shape, Packed):
        return list(zip(shape.seqlens_q, shape.seqlens_k, strict=True))
    return [(shape.seqlen_q, shape.seqlen_k)]


def _has_keyless_rows(seqlen_q: int, seqlen_k: int, mask: Mask) -> bool:
    windows = windows_of(mask.options, seqlen_q, seqlen_k)
    return not attended(torch.arange(seqlen_q), seqlen_q, seqlen_k, *windows).any(dim=1).all()


def check(case: Case, expected: Expected, out: Tensor, lse: Tensor) -> None:
    """Raises AssertionError that names the case."""
    try:
        expected.check(out, lse)
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from error
