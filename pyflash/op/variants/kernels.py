"""Gradients of attention with a variant on a GPU by pyflash's own kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyflash.op.backward.choice import switch_is_on
from pyflash.op.backward.cudnn import readable
from pyflash.op.backward.kernels import PADDED
from pyflash.op.errors import run
from pyflash.op.options import OPTIONS
from pyflash.op.variants.arguments import Captured


def options_in_backward(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options of kernels of op backward."""
    asked = {name: x for name, x in arguments.items() if OPTIONS[name].in_backward}
    if switch_is_on():
        asked["deterministic"] = True
    return asked


def bwd_variant_kernels(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    captured: Captured,
    packing: Sequence[Any],
    config: str,
    summed: Sequence[int],
    promise: Sequence[int] | None,
    **options: Any,
) -> list[Tensor]:
    """The gradients of q, k and v, and of the captured tensors `summed`, by their places. packing:
    cu_seqlens and the longest lengths, or (). promise: as the forward pass has it."""
    q, k, v = map(readable, (q, k, v))  # gradients lie as these
    # Nothing writes keys of a packed sequence behind max_seqlen_k, if it is longer than that.
    empty_like = torch.zeros_like if packing else torch.empty_like
    gradients = [empty_like(x) for x in (q, k, v)]
    tensors = [captured.tensors[place] for place in summed]
    sums = [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in tensors]
    run(
        torch.ops.pyflash.run_variant_backward,
        grad_out, out, lse, None, q, k, v, *(packing or PADDED), *gradients,
        *captured, sums, list(summed), promise,
        **{**options_in_backward(options), "config": config},
    )  # fmt: skip
    return [*gradients, *map(_like, sums, tensors)]


def _like(total: Tensor, x: Tensor) -> Tensor:
    """In the type of x, and as an empty one like it lies."""
    if x.dtype == total.dtype and x.is_contiguous():
        return total
    return torch.empty_like(x).copy_(total)
