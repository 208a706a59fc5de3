"""Rows and keys of which a mask shows each other those with the same number: blocks that it cuts in
every way that matters to kernels."""

from __future__ import annotations

import torch
from torch import Tensor

MATCHED = "matched(a: i32[2], c: i32[2]): s where a[b, q] == c[b, k]"


def parts(n: int, *lengths: int) -> Tensor:
    """The numbers of parts of such lengths, (n); the last one has the rest."""
    ends = torch.tensor(lengths).cumsum(0)
    return torch.searchsorted(ends, torch.arange(n), right=True).int()


def documents(n: int) -> Tensor:
    """Of 2 batches: ends within a warpgroup, at one, and at a row beside one."""
    return torch.stack([parts(n, 40, 70, 82, 64, 1, 127), parts(n, 191, 2, 100)])


def cases(n: int = 400) -> dict[str, dict[str, Tensor]]:
    """What rows and keys are of, (batch, n) each."""
    mixed, numbers = documents(n), torch.arange(n).int().repeat(2, 1)
    rows, keys = mixed.clone(), mixed.clone()
    rows[:, 20:30] = 90  # have no key
    rows[:, 64:128] = 91  # nor has this warpgroup
    keys[:, 150:170] = 92  # no row has these
    apart = torch.where(torch.arange(n) < 256, 1, 2).int()
    # A thread's second row meets its first score when its first has met all of its own.
    second = torch.where(torch.arange(n) % 16 < 8, 2, 1).int()
    gap = torch.full((n,), 3, dtype=torch.int32)
    gap[128:256] = 4
    apart_again = torch.where(torch.arange(n) < 192, gap, torch.arange(n) % 2 * 2 + 2).int()
    apart_again[64:192], apart_again[320:] = 4, 4
    # Bounds do not tell that blocks show nothing.
    none = torch.where(torch.arange(n) < 256, 1, torch.arange(n) % 2 * 2).int()
    return {
        "mixed": {"a": rows, "c": keys},
        "interleaved": {"a": numbers % 2, "c": numbers % 2},
        "second_rows": {"a": second.repeat(2, 1), "c": apart.repeat(2, 1)},
        "whole_after_none": {"a": torch.full_like(mixed, 1), "c": none.repeat(2, 1)},
        # Whole blocks between cut ones.
        "long": {"a": parts(n, 30, 330).repeat(2, 1), "c": parts(n, 30, 330).repeat(2, 1)},
        # Blocks that are no neighbours.
        "gap": {"a": torch.full_like(mixed, 3), "c": gap.repeat(2, 1)},
        "whole_after_gap": {"a": torch.full_like(mixed, 3), "c": apart_again.repeat(2, 1)},
        "nothing": {"a": torch.full_like(mixed, 7), "c": torch.full_like(mixed, 8)},
    }
