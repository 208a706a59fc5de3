"""The merge of attention over parts of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from pyflash.op.autograd import is_seen_by_nobody
from pyflash.op.errors import check_device, check_types, dtype_name, require


@overload
def merge_states(
    states: Sequence[tuple[Tensor, Tensor]], /, *, out: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
@overload
def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, *, out: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...
def merge_states(*states: Any, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Attention over all keys, from (out, lse) of attention over parts of them.

    merge_states(out_a, lse_a, out_b, lse_b) or merge_states([(out_a, lse_a), ...]). outs are
    (batch, seqlen_q, heads, d_head) with lses (batch, heads, seqlen_q), or (total_q, heads, d_head)
    with (heads, total_q); natural logarithms, any strides. A part whose lse is -inf has no effect,
    whatever its out holds. Where all are, out is 0 and lse -inf.

    Returns out, in the dtype of the first, written into `out` if that is given, and lse, float32 or
    what is wider.

    NOTE: a sink that is in more than one of the parts counts as often.
    """
    pairs = _pairs_of(states)
    outs, lses = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if out is not None:
        require(
            out.shape == outs[0].shape
            and out.dtype == outs[0].dtype
            and out.device == outs[0].device,
            f"out is {_described(out)}: expected {_described(outs[0])}, as those that are merged",
        )
    if (merged := _merged_by_kernel(outs, lses, out)) is not None:
        return merged
    dtype = torch.promote_types(lses[0].dtype, torch.float32)
    stacked = torch.stack([lse.to(dtype) for lse in lses])
    largest = stacked.amax(0)
    shift = torch.where(largest == -torch.inf, 0, largest).detach()
    weights = torch.exp(stacked - shift)
    total = weights.sum(0)
    is_empty = total == 0
    total = torch.where(is_empty, 1, total)
    merged = torch.zeros_like(outs[0], dtype=dtype)
    for x, weight in zip(outs, weights / total, strict=True):
        of_rows = weight.transpose(-1, -2).unsqueeze(-1)
        merged = merged + torch.where(of_rows == 0, 0, x.to(dtype) * of_rows)
    lse = torch.where(is_empty, -torch.inf, shift + torch.log(total))
    if out is None:
        return merged.to(outs[0].dtype), lse
    return out.copy_(merged), lse


def _merged_by_kernel(
    outs: list[Tensor], lses: list[Tensor], out: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """None where the op does not merge these, or somebody looks at which operations run."""
    given = [*outs, *lses, *([] if out is None else [out])]
    if (
        not all(type(x) is Tensor for x in given)
        or not is_seen_by_nobody(given[0])
        or (torch.is_grad_enabled() and any(x.requires_grad for x in given))
        or outs[0].device.type not in ("cpu", "cuda")
        or any(x.dtype != outs[0].dtype for x in outs)
        or any(x.dtype != torch.float32 for x in lses)
    ):
        return None
    if out is None:
        out = torch.empty(outs[0].shape, dtype=outs[0].dtype, device=outs[0].device)
    else:
        torch.autograd.graph.increment_version(out)
    lse = torch.empty(lses[0].shape, dtype=torch.float32, device=outs[0].device)
    return (out, lse) if torch.ops.pyflash.merge_states(outs, lses, out, lse) else None


def _pairs_of(states: tuple[Any, ...]) -> list[tuple[Tensor, Tensor]]:
    flat = len(states) != 1
    listed = list(states) if flat else [x for pair in states[0] for x in pair]
    require(
        len(listed) == 4 if flat else len(listed) > 0 and len(listed) % 2 == 0,
        f"merge_states got {len(listed)} tensors: expected out_a, lse_a, out_b and lse_b, or a "
        "list of pairs of out and lse",
    )
    pairs = list(zip(listed[::2], listed[1::2], strict=True))
    first = listed[0]
    for i, (out, lse) in enumerate(pairs):
        check_types({f"out {i}": out, f"lse {i}": lse}, {})
        require(
            out.shape == first.shape and out.dim() in (3, 4),
            f"out {i} has shape {tuple(out.shape)}: expected that of the first, (batch, seqlen, "
            "heads, d_head) or (total, heads, d_head)",
        )
        rows = (*out.shape[:-3], out.shape[-2], out.shape[-3])
        require(lse.shape == rows, f"lse {i} has shape {tuple(lse.shape)}: expected {tuple(rows)}")
        for name, x in ((f"out {i}", out), (f"lse {i}", lse)):
            check_device(first, "out 0", **{name: x})
            require(x.is_floating_point(), f"{name} is {dtype_name(x.dtype)}: expected floats")
    return pairs


def _described(x: Tensor) -> str:
    return f"{tuple(x.shape)}, {dtype_name(x.dtype)} on {x.device}"
