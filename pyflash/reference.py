"""Attention as its formula says it, and how far a kernel may be from it.

expected = expect(q, k, v)
expected.check(out, lse)      # raises AssertionError beyond the bound
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Scores held at a time.
_MAX_SCORES = 1 << 28


def attention_ref(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """softmax(softmax_scale * q k^T) v with every step, and the results, in `dtype`.

    Shapes and semantics as `pyflash.attention`, any dtype and device. Returns (out, lse). With the
    16-bit type of the inputs, it is what PyTorch makes of the formula without a fused kernel.
    """
    batch, _, heads, d_head = q.shape
    if softmax_scale is None:
        softmax_scale = 1 / math.sqrt(d_head)
    q, k, v = (x.to(dtype).transpose(1, 2) for x in (q, k, v))  # (batch, heads, seqlen, d_head)
    rows = max(1, _MAX_SCORES // max(1, batch * heads * k.shape[2]))
    outs = [q.new_empty(batch, heads, 0, d_head)]
    lses = [q.new_empty(batch, heads, 0)]
    for q_rows in q.split(rows, dim=2):
        scores = q_rows @ k.transpose(-1, -2) * softmax_scale
        lses.append(torch.logsumexp(scores, dim=-1))
        outs.append(torch.softmax(scores, dim=-1) @ v)
    return torch.cat(outs, dim=2).transpose(1, 2).contiguous(), torch.cat(lses, dim=2)


def tolerance(ref: Tensor, pt16: Tensor) -> float:
    """The largest error of an output that is right, FlashAttention's rule:

        2 * max|pt16 - ref| + 2 * max|(ref + 0.3) - 0.3 - ref|

    twice the error of PyTorch's 16-bit attention, `pt16`, and twice what one addition and one
    subtraction round away in the 16-bit type. `ref` is attention in fp32 or fp64.
    """
    if ref.numel() == 0:
        return 0.0
    rounded = ref.to(pt16.dtype)
    rounding = (rounded + 0.3 - 0.3 - rounded).abs().max().item()
    return 2 * (pt16.to(ref.dtype) - ref).abs().max().item() + 2 * rounding


@dataclass(frozen=True, slots=True)
class Expected:
    """What attention of some q, k and v has to give; `expect` makes it."""

    out: Tensor
    lse: Tensor
    bound: float  # on the error of out
    lse_bound: float  # on the error of lse, absolute and relative

    def error(self, out: Tensor) -> float:
        """max|out - ref|; NaN where there is a NaN, or an infinity, to compare."""
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


def expect(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float | None = None) -> Expected:
    """The reference for q, k and v, in fp64 for small shapes and in fp32 for large ones, with the
    bounds that go with it: `tolerance` for out, 1e-4 for lse (fp32 sums of fp32 exponentials)."""
    small = q.shape[0] * q.shape[2] * q.shape[1] * k.shape[1] <= 1 << 22
    dtype = torch.float64 if small else torch.float32
    out, lse = attention_ref(q, k, v, softmax_scale=softmax_scale, dtype=dtype)
    pt16, _ = attention_ref(q, k, v, softmax_scale=softmax_scale, dtype=q.dtype)
    return Expected(out, lse, bound=tolerance(out, pt16), lse_bound=1e-4)


def check(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lse: Tensor | None = None,
    softmax_scale: float | None = None,
) -> tuple[float, float]:
    """Returns (error, bound) of an output of attention; raises AssertionError beyond the bound.

    To check several outputs of the same inputs, `expect` once.
    """
    expected = expect(q, k, v, softmax_scale=softmax_scale)
    return expected.check(out, lse), expected.bound


def _worst(actual: Tensor, expected: Tensor) -> str:
    difference = (actual.to(expected.dtype) - expected).abs().nan_to_num(nan=math.inf)
    place = tuple(int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))
    return (
        f"{actual[place].item():.6g} at {place}, expected {expected[place].item():.6g}: "
        f"error {difference[place].item():.3e}"
    )
