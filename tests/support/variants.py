"""Named variants with tensors for parameters, and attention by their references, pair by pair."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import torch
from torch import Tensor

from pyflash.op.reference import Expected, tolerance
from pyflash.ui.variants import tensors_of
from pyflash.variant.library import named
from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem


def values_of(name: str, problem: Problem) -> dict[str, Any]:
    """The example's, tensors where the parameters are."""
    entry = named(name)
    return tensors_of(entry.variant, entry.example(problem))


def by_pairs(
    name: str, q: Tensor, k: Tensor, v: Tensor, example: dict[str, Any], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(out, lse) of padded sequences by the variant's reference, with steps of `dtype`."""
    _, q_len, heads, d_head = q.shape
    k_len, group = k.shape[1], heads // k.shape[2]
    keys, values = (x.to(dtype).repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.to(dtype), keys) / math.sqrt(d_head)
    numbers = scores.tolist()
    for b, h, i, j in product(*map(range, scores.shape)):
        pair = Pair(numbers[b][h][i][j], b, h, i, j, q_len, k_len)
        score = named(name).reference(pair, **example)
        numbers[b][h][i][j] = -math.inf if score is None else score
    scores = torch.tensor(numbers, dtype=torch.float64).view(scores.shape).to(dtype)
    p = torch.softmax(scores, -1).nan_to_num(0)  # rows without a pair
    return torch.einsum("bhqk,bkhd->bqhd", p, values), scores.logsumexp(-1)


def expect_by_pairs(
    name: str, q: Tensor, k: Tensor, v: Tensor, example: dict[str, Any]
) -> Expected:
    out, lse = by_pairs(name, q, k, v, example, torch.float64)
    pt16, _ = by_pairs(name, q, k, v, example, q.dtype)
    return Expected(out, lse, bound=tolerance(out, pt16), lse_bound=1e-4)
