"""Attention by its formula, and the error bound of a kernel.

expected = expect(q, k, v, causal=True)
expected.check(out, lse)      # raises AssertionError beyond the bound
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyflash.op.dropout import factor_of, kept, state_of_sequence
from pyflash.op.options import (
    PER_HEAD,
    AttentionOptions,
    refuse_unknown,
    softmax_scale_of,
    windows_asked,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Scores in memory at a time.
_MAX_SCORES = 1 << 28
# Takes scores, (batch, heads_kv, group, rows, seqlen_k), of these queries, and the two lengths;
# returns other scores, and which are shown.
Modifier = Callable[[Tensor, Tensor, int, int], tuple[Tensor, Tensor]]


def attention_ref(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    modify: Modifier | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]:
    """softmax(softmax_scale * q k^T) v with every step, and the results, in `dtype`.

    modify: of a variant, what it makes of scaled and capped scores.

    Shapes, options and semantics as `pyflash.attention`, any dtype and device; config and
    num_splits have no effect. Returns (out, lse). With the 16-bit type of the inputs, it is the
    formula in PyTorch without a fused kernel.
    """
    refuse_unknown("attention_ref", options)
    batch, seqlen_q, heads, d_head = q.shape
    seqlen_k, heads_kv = k.shape[1:3]
    softmax_scale = softmax_scale_of(options, d_head)
    softcap, sinks = options.get("softcap", 0.0), options.get("sinks")
    group = heads // max(1, heads_kv)
    if sinks is not None:  # a score of each row, behind those of the keys
        sinks = sinks.to(dtype).view(heads_kv, group, 1, 1)
    # (batch, heads_kv, group, seqlen_q, d_head), and without the group for k and v
    q = q.to(dtype).unflatten(2, (heads_kv, group)).permute(0, 2, 3, 1, 4)
    k, v = (x.to(dtype).transpose(1, 2) for x in (k, v))
    n_rows = max(1, _MAX_SCORES // max(1, batch * heads * seqlen_k))
    outs, lses = [q[:, :, :, :0]], [q[:, :, :, :0, 0]]
    for start in range(0, seqlen_q, n_rows):
        q_rows = q[:, :, :, start : start + n_rows]
        # One matrix of all rows of a group, so that k and v are not copied for each head.
        scores = _product(q_rows.flatten(2, 3), k.transpose(-1, -2)) * softmax_scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.unflatten(2, q_rows.shape[2:4])
        rows = torch.arange(start, start + q_rows.shape[3], device=q.device, dtype=torch.int32)
        scores = with_alibi(scores, options, rows, seqlen_q, seqlen_k)
        masked = ~attended_with(options, rows, seqlen_q, seqlen_k)
        nothing = masked.all(-1, keepdim=True)
        if modify is not None:
            scores, shown = modify(scores, rows, seqlen_q, seqlen_k)
            masked = masked | ~shown
            nothing = (masked | (scores == -math.inf)).all(-1, keepdim=True)
        scores = scores.masked_fill(masked, -math.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
        # NOTE: of a row without a score the softmax is NaN, and so is its gradient.
        known = scores.masked_fill(nothing, 0) if nothing.any() else scores
        p = torch.softmax(known, dim=-1)[..., :seqlen_k]
        if nothing.any():
            p = p.masked_fill(nothing, 0)
        if dropout_p := options.get("dropout_p"):
            is_kept = kept(options, batch, heads, rows, seqlen_k).unflatten(1, (heads_kv, group))
            p = torch.where(is_kept, p * factor_of(dropout_p), 0)
        outs.append(_product(p.flatten(2, 3), v).unflatten(2, p.shape[2:4]))
        lses.append(torch.logsumexp(scores, dim=-1))
    out = torch.cat(outs, dim=3).permute(0, 3, 1, 2, 4).flatten(2, 3).contiguous()
    return out, torch.cat(lses, dim=3).flatten(1, 2)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b. PyTorch's product of fp16 on a CPU sums in fp32, too, but without a fast kernel."""
    if a.dtype is torch.float16 and a.device.type == "cpu":
        return (a.float() @ b.float()).to(a.dtype)
    return a @ b


def with_alibi(
    scores: Tensor, options: AttentionOptions, rows: Tensor, seqlen_q: int, seqlen_k: int
) -> Tensor:
    """scores, (batch, heads_kv, group, rows, seqlen_k), of these queries less ALiBi's distances."""
    slopes = options.get("alibi_slopes")
    if slopes is None:
        return scores
    keys = torch.arange(seqlen_k, device=rows.device, dtype=rows.dtype)
    distance = (rows[:, None] + (seqlen_k - seqlen_q) - keys).abs()
    slopes = slopes.to(scores.dtype).reshape(-1, *scores.shape[1:3], 1, 1)
    return scores - slopes * distance.to(scores.dtype)


def of_sequence(options: AttentionOptions, b: int, heads: int) -> AttentionOptions:
    """The options of one of several sequences: its row of tensors that have one for each."""
    part = slice(b, b + 1)
    rows = {n: x[part] for n in PER_HEAD if (x := options.get(n)) is not None and x.dim() == 2}
    if (state := options.get("dropout_state")) is not None:
        rows["dropout_state"] = state_of_sequence(state, b, heads)
    return {**options, **rows}


def attended_with(options: AttentionOptions, rows: Tensor, seqlen_q: int, seqlen_k: int) -> Tensor:
    """Which keys these queries attend under every option that masks, (rows, seqlen_k), bool."""
    result = attended(rows, seqlen_q, seqlen_k, *windows_asked(options))
    if chunk := options.get("attention_chunk"):
        keys = torch.arange(seqlen_k, device=rows.device, dtype=torch.int64)
        aligned = rows.long() + (seqlen_k - seqlen_q)
        result &= (aligned[:, None] // chunk) == (keys // chunk)
    return result


def attended(
    rows: Tensor, seqlen_q: int, seqlen_k: int, window_left: int, window_right: int
) -> Tensor:
    """Which keys these queries attend under windows, (rows, seqlen_k), bool."""
    keys = torch.arange(seqlen_k, device=rows.device, dtype=rows.dtype)
    distance = keys - (rows[:, None] + (seqlen_k - seqlen_q))
    result = torch.ones_like(distance, dtype=torch.bool)
    whole = seqlen_q + seqlen_k  # a window as large masks nothing, and fits the type
    if window_left >= 0:
        result &= distance >= -min(window_left, whole)
    if window_right >= 0:
        result &= distance <= min(window_right, whole)
    return result


def attention_varlen_ref(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]:
    """`attention_ref` of each sequence of packed tensors, shapes as `pyflash.attention_varlen`.

    Returns (out, lse), lse (heads, total_q).
    """
    outs, lses = [q[:0].to(dtype)], [q[:0, :, 0].T.to(dtype)]
    bounds_q, bounds_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for b in range(len(bounds_q) - 1):
        rows_q = slice(bounds_q[b], bounds_q[b + 1])
        rows_k = slice(bounds_k[b], bounds_k[b + 1])
        sequence = (x[None] for x in (q[rows_q], k[rows_k], v[rows_k]))
        out, lse = attention_ref(*sequence, dtype=dtype, **of_sequence(options, b, q.shape[1]))
        outs.append(out[0])
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, dim=1)


def tolerance(ref: Tensor, pt16: Tensor) -> float:
    """The largest error of a correct output, by FlashAttention's rule:

        2 * max|pt16 - ref| + 2 * max|(ref + 0.3) - 0.3 - ref|

    twice the error of the formula in PyTorch in the 16-bit type, `pt16`, and twice the rounding
    error of one addition and one subtraction in that type. `ref` is attention in fp32 or fp64.
    """
    if ref.numel() == 0:
        return 0.0
    rounded = ref.to(pt16.dtype)
    rounding = (rounded + 0.3 - 0.3 - rounded).abs().max().item()
    return 2 * (pt16.to(ref.dtype) - ref).abs().max().item() + 2 * rounding


@dataclass(frozen=True, slots=True)
class Expected:
    """The results to be expected of attention, with bounds; `expect` computes it."""

    out: Tensor
    lse: Tensor
    bound: float  # on the error of out
    lse_bound: float  # on the error of lse, absolute and relative

    def error(self, out: Tensor) -> float:
        """max|out - ref|; NaN where either holds a NaN, or both an infinity."""
        return (out.to(self.out.dtype) - self.out).abs().max().item() if out.numel() else 0.0

    def check(self, out: Tensor, lse: Tensor | None = None) -> float:
        """Returns the error of out. Raises AssertionError with error, bound and worst place if out
        is beyond the bound, lse (if given) beyond its own, or a shape or dtype is wrong."""
        assert out.shape == self.out.shape, f"out is {out.shape}, expected {self.out.shape}"
        error = self.error(out)
        if not error <= self.bound:
            raise AssertionError(f"out: {_worst(out, self.out)}; bound {self.bound:.3e}")
        if lse is not None:
            self._check_lse(lse)
        return error

    def _check_lse(self, lse: Tensor) -> None:
        assert lse.shape == self.lse.shape, f"lse is {lse.shape}, expected {self.lse.shape}"
        assert lse.dtype == torch.float32, f"lse is {lse.dtype}, expected float32"
        if not torch.allclose(
            lse.to(self.lse.dtype), self.lse, rtol=self.lse_bound, atol=self.lse_bound
        ):
            raise AssertionError(f"lse: {_worst(lse, self.lse)}; bound {self.lse_bound:.0e}")


def expect(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[AttentionOptions]) -> Expected:
    """The reference for q, k and v, in fp64 for small shapes and in fp32 for large ones, with its
    bounds: `tolerance` for out, 1e-4 for lse (fp32 sums of fp32 exponentials)."""
    dtype = _reference_dtype(q.shape[0] * q.shape[2] * q.shape[1] * k.shape[1])
    out, lse = attention_ref(q, k, v, dtype=dtype, **options)
    pt16, _ = attention_ref(q, k, v, dtype=q.dtype, **options)
    return Expected(out, lse, bound=tolerance(out, pt16), lse_bound=1e-4)


def expect_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    **options: Unpack[AttentionOptions],
) -> Expected:
    """`expect` for packed tensors."""
    packed = (q, k, v, cu_seqlens_q, cu_seqlens_k)
    n_scores = (cu_seqlens_q.diff().long() * cu_seqlens_k.diff()).sum().item() * q.shape[1]
    out, lse = attention_varlen_ref(*packed, dtype=_reference_dtype(n_scores), **options)
    pt16, _ = attention_varlen_ref(*packed, dtype=q.dtype, **options)
    return Expected(out, lse, bound=tolerance(out, pt16), lse_bound=1e-4)


def _reference_dtype(n_scores: int) -> torch.dtype:
    return torch.float64 if n_scores <= 1 << 22 else torch.float32


def check(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lse: Tensor | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[float, float]:
    """Returns (error, bound) of an output of attention; raises AssertionError beyond the bound. To
    check several outputs of the same inputs, call `expect` once."""
    expected = expect(q, k, v, **options)
    return expected.check(out, lse), expected.bound


def _worst(actual: Tensor, expected: Tensor) -> str:
    actual = actual.to(expected.dtype)
    difference = (actual - expected).abs().nan_to_num(nan=math.inf)
    difference[actual == expected] = 0  # equal infinities too
    place = tuple(int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))
    return (
        f"{actual[place].item():.6g} at {place}, expected {expected[place].item():.6g}: "
        f"error {difference[place].item():.3e}"
    )
