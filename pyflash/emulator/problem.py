"""A call of attention as a kernel gets it, and what the host makes of partial results: the part of
cute_kernels/host/problem.cpp and cute_kernels/merge_splits.cu, for the emulator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# ForwardParams' word for a window that cuts nothing.
_NO_WINDOW = 1 << 30

# The strides that ForwardParams has, in the order of the dimensions.
_AXES = {
    **dict.fromkeys(("q", "k", "v", "o"), ("batch", "row", "head")),
    "lse": ("batch", "head"),
    "lse_partial": ("split", "batch", "head"),
}


@dataclass(frozen=True)
class Problem:
    """The fields of ForwardParams."""

    numbers: dict[str, int | float]  # but the strides; windows that cut nothing are -1
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]

    @property
    def params(self) -> dict[str, int | float]:
        """Every field that is no pointer."""
        params = dict(self.numbers)
        for side in ("window_left", "window_right"):
            if params[side] < 0:
                params[side] = _NO_WINDOW
        packed = "cu_seqlens_q" in self.inputs
        for name, tensor in (self.inputs | self.outputs).items():
            axes = [axis for axis in _AXES.get(name, ()) if not (packed and axis == "batch")]
            for axis, stride in zip(axes, tensor.stride(), strict=False):
                params[f"{name.removesuffix('_partial')}_strides.{axis}"] = stride
        return params


def problem_of(
    inputs: tuple[Any, ...],
    out: Tensor,
    lse: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    num_splits: int = 1,
) -> Problem:
    """`inputs` and options as the ops fwd and fwd_varlen take them, `out` and `lse` as they return
    them. With num_splits > 1 the outputs are partial; `merge` makes out and lse of them."""
    q, k, v, *packing = inputs
    cu_seqlens = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), packing, strict=False))
    seqlen_q, seqlen_k = packing[2:] if packing else (q.shape[1], k.shape[1])
    softmax_scale = 1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    window_left = window_left if window_left < seqlen_k - 1 else -1
    window_right = 0 if causal else window_right
    window_right = window_right if window_right < seqlen_q - 1 else -1
    if not packing and seqlen_q == 1:
        if window_left >= 0:
            k, v, window_left = k[:, -1 - window_left :], v[:, -1 - window_left :], -1
        q, out, lse = _group_as_rows(q, k, out, lse)
        seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    numbers = {
        "batch": len(packing[0]) - 1 if packing else q.shape[0],
        "heads": q.shape[-2],
        "heads_kv": k.shape[-2],
        "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_k,
        "total_q": q.shape[0] if packing else 0,
        "total_k": k.shape[0] if packing else 0,
        "d_head": q.shape[-1],
        "window_left": window_left,
        "window_right": window_right,
        "softcap": float(softcap),
        "softmax_scale": float(softmax_scale),
        "num_splits": num_splits,
    }
    outputs = {"o": out, "lse": lse}
    if num_splits > 1:
        outputs = {
            "o_partial": lse.new_full((num_splits, *lse.shape, q.shape[-1]), torch.nan),
            "lse_partial": lse.new_full((num_splits, *lse.shape), torch.nan),
        }
    return Problem(numbers, {"q": q, "k": k, "v": v, **cu_seqlens}, outputs)


def _group_as_rows(q: Tensor, k: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One query: the heads of q that share a head of k and v become rows of one Q block."""
    groups = (k.shape[2], q.shape[2] // max(1, k.shape[2]))
    q, out = (x.squeeze(1).unflatten(1, groups).transpose(1, 2) for x in (q, out))
    return q, out, lse.view(lse.shape[0], *groups)


def merge(partials: dict[str, Tensor], out: Tensor, lse: Tensor) -> None:
    """lse = ln(sum_s exp(lse_s)), out = sum_s exp(lse_s - lse) O_s, in fp32."""
    o_partial, lse_partial = partials["o_partial"], partials["lse_partial"]
    merged = lse_partial.logsumexp(0)
    weighted = (lse_partial - merged).exp()[..., None] * o_partial
    nothing = (lse_partial == -math.inf)[..., None]  # attended: a weight of 0
    rows = weighted.masked_fill(nothing, 0).sum(0)  # (..., heads, seqlen, d_head)
    rows = rows.view(*lse.shape, out.shape[-1])
    out.copy_(rows.transpose(-3, -2))
    lse.copy_(merged.view(lse.shape))
