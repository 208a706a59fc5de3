"""Tensors of other libraries' models as kernels take them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

VECTOR = 8  # elements of 16 bits that a kernel reads at a time


def fitted(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None
) -> tuple[Tensor, Tensor, Tensor, float]:
    """q, k and v of one d_head, a multiple of 8, by zeros that change no score, and aligned; and
    the scale of the true d_head. The columns of out past those of v are zeros."""
    d_head = max(q.shape[-1], v.shape[-1])
    d_head += -d_head % VECTOR
    wide = [
        aligned(x if x.shape[-1] == d_head else pad(x, (0, d_head - x.shape[-1])))
        for x in (q, k, v)
    ]
    return wide[0], wide[1], wide[2], 1 / math.sqrt(q.shape[-1]) if scale is None else scale


def aligned(x: Tensor) -> Tensor:
    """A copy where vectors of 16 bytes cannot be read, as in a slice of a fused projection."""
    *strides, last = x.stride()
    is_aligned = last == 1 and all(
        stride % VECTOR == 0 or n <= 1 for stride, n in zip(strides, x.shape, strict=False)
    )
    if not torch.compiler.is_compiling():  # which does not know the offset
        is_aligned = is_aligned and x.storage_offset() % VECTOR == 0
    # NOTE: contiguous() copies nothing where the first element alone is not aligned.
    return x if is_aligned else x.clone(memory_format=torch.contiguous_format)
