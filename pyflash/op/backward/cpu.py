"""Gradients on the CPU: the formula in float32, block by block, in C++
(cute_kernels/host/cpu_backward.cpp)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from pyflash.op.backward import kernels
from pyflash.op.options import AttentionOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


def bwd(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *packing: Any,
    grad_lse: Tensor | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]:
    return kernels.bwd(grad_out, out, lse, q, k, v, packing=packing, grad_lse=grad_lse, **options)


bwd_varlen = bwd
