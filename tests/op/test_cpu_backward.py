"""The backward pass on the CPU beside the formula in float64 with the same out and lse, on drawn
problems: every option with every other, lengths from 0, packed and padded, groups of heads."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyflash import attention, attention_varlen
from pyflash.op.backward import cpu
from pyflash.op.options import softmax_scale_of
from pyflash.op.reference import attended_with, of_sequence, with_alibi

# The roundings of a result, as a share of it.
ROUNDING = {torch.float16: 2**-11, torch.bfloat16: 2**-8}
# What sums in float32 lose, as a share of the largest result.
SUMS = 2e-5


def exact(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_lse: Tensor | None,
    options: dict[str, Any],
) -> tuple[Tensor, ...]:
    """dq, dk and dv of padded sequences."""
    rows, keys, group = q.shape[1], k.shape[1], q.shape[2] // max(k.shape[2], 1)
    grad_out, out, q, k, v = (x.double().transpose(1, 2) for x in (grad_out, out, q, k, v))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scale = softmax_scale_of(options, q.shape[-1])
    scores, slope = q @ k.mT * scale, torch.ones(())
    if cap := options.get("softcap"):
        tanh = torch.tanh(scores / cap)
        scores, slope = cap * tanh, 1 - tanh * tanh
    indices = torch.arange(rows)
    # (batch, heads_kv, group, rows, keys)
    by_groups = with_alibi(scores.unflatten(1, (-1, group)), options, indices, rows, keys)
    scores = by_groups.flatten(1, 2)
    keep = attended_with(options, indices, rows, keys) & (lse != -math.inf)[..., None]
    p = torch.exp(scores - lse.double()[..., None]).masked_fill(~keep, 0)
    delta = (grad_out * out).sum(-1, keepdim=True)
    if grad_lse is not None:
        delta = delta - grad_lse.double()[..., None]
    d_scores = (p * (grad_out @ v.mT - delta)).masked_fill(~keep, 0) * slope * scale
    dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (d_scores.mT @ q, p.mT @ grad_out))
    return tuple(x.transpose(1, 2) for x in (d_scores @ k, dk, dv))


def check(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for name, got, right in zip(("dq", "dk", "dv"), actual, expected, strict=True):
        assert got.shape == right.shape
        if not got.numel():
            continue
        bound = ROUNDING[got.dtype] * right.abs() + SUMS * right.abs().max() + 1e-7
        beyond = ((got.double() - right).abs() / bound).max().item()
        assert beyond <= 1, f"{name} is {beyond:.3g} times its bound off"


@st.composite
def problems(draw: Any) -> dict[str, Any]:
    heads_kv, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2)]))
    options: dict[str, Any] = {}
    mask = draw(st.sampled_from(["full", "causal", "left", "both", "chunk", "causal_chunk"]))
    window = st.integers(0, 80)
    if "causal" in mask:
        options["causal"] = True
    if mask in ("left", "both"):
        options["window_left"] = draw(window)
    if mask == "both":
        options["window_right"] = draw(window)
    if "chunk" in mask:
        options["attention_chunk"] = draw(st.integers(1, 90))
    more = draw(st.sampled_from(["none", "softcap", "slopes", "sinks", "scale"]))
    if more == "softcap":
        options["softcap"] = draw(st.sampled_from([0.5, 30.0]))
    if more == "scale":
        options["softmax_scale"] = draw(st.sampled_from([1e-6, 1.0]))
    length = st.sampled_from([0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 100, 129])
    n_sequences = draw(st.integers(1, 3))
    packed = draw(st.booleans())
    pair = st.tuples(length, length)
    return {
        "heads": (heads_kv * group, heads_kv),
        "d_head": draw(st.sampled_from([8, 16, 40, 64])),
        "dtype": draw(st.sampled_from(list(ROUNDING))),
        "options": options,
        "more": more,
        "packed": packed,
        "lengths": draw(st.lists(pair, min_size=n_sequences, max_size=n_sequences)),
        "grad_lse": draw(st.booleans()),
        "expanded": draw(st.booleans()),
        "seed": draw(st.integers(0, 1 << 30)),
    }


@settings(max_examples=40, deadline=None)
@given(problems())
def test_gradients_are_those_of_the_formula(problem):
    torch.manual_seed(problem["seed"])
    (heads, heads_kv), d_head, dtype = problem["heads"], problem["d_head"], problem["dtype"]
    lengths, packed, options = problem["lengths"], problem["packed"], dict(problem["options"])
    batch = len(lengths)
    lengths_q, lengths_k = zip(*(lengths if packed else [lengths[0]] * batch), strict=True)

    def randn(n: tuple[int, ...], heads: int) -> Tensor:
        shape = (sum(n), heads, d_head) if packed else (batch, n[0], heads, d_head)
        return torch.randn(shape).to(dtype)

    q, k, v = randn(lengths_q, heads), randn(lengths_k, heads_kv), randn(lengths_k, heads_kv)
    if problem["more"] == "slopes":
        options["alibi_slopes"] = torch.rand(batch, heads)
    sinks = {"sinks": torch.randn(heads)} if problem["more"] == "sinks" else {}
    starts = [torch.tensor([0, *n]).cumsum(0).int() for n in (lengths_q, lengths_k)]
    packing = (*starts, max(lengths_q), max(lengths_k)) if packed else ()
    call = attention_varlen if packed else attention
    out, lse = call(q, k, v, *packing, return_lse=True, **options, **sinks)
    grad_out = randn(lengths_q, heads)
    if problem["expanded"]:
        grad_out = grad_out[..., :1, :].expand(grad_out.shape)
    grad_lse = torch.randn(lse.shape) if problem["grad_lse"] else None
    results = cpu.bwd(grad_out, out, lse, q, k, v, *packing, grad_lse=grad_lse, **options)
    if not packed:
        check(results, exact(grad_out, out, lse, q, k, v, grad_lse, options))
        return
    for b, (of_q, of_k) in enumerate(zip(*(pairwise(x.tolist()) for x in starts), strict=True)):
        rows, keys = slice(*of_q), slice(*of_k)
        sequence = (grad_out[rows], out[rows], lse[:, rows], q[rows], k[keys], v[keys])
        expected = exact(
            *(x[None] for x in sequence),
            None if grad_lse is None else grad_lse[None, :, rows],
            of_sequence(options, b, q.shape[1]),
        )
        found = [x[part] for x, part in zip(results, (rows, keys, keys), strict=True)]
        check(tuple(x[None] for x in found), expected)


@pytest.mark.parametrize("which", range(3))
def test_a_nan_stays_in_its_sequence(which):
    """One of several packed sequences has it in q, k or grad_out."""
    torch.manual_seed(0)
    starts = torch.tensor([0, 30, 70, 100], dtype=torch.int32)
    q, k, v, grad_out = (torch.randn(100, 2, 16).half() for _ in range(4))
    (q, k, grad_out)[which][30:70] = torch.nan
    packing = (starts, starts, 40, 40)
    out, lse = attention_varlen(q, k, v, *packing, return_lse=True)
    for gradient in cpu.bwd(grad_out, out, lse, q, k, v, *packing):
        assert gradient[:30].isfinite().all()
        assert gradient[70:].isfinite().all()
        assert gradient[30:70].isnan().any()


@pytest.mark.parametrize("causal", [False, True])
def test_bits_do_not_depend_on_the_number_of_threads(causal):
    torch.manual_seed(0)
    q, grad_out = (torch.randn(2, 130, 6, 32).bfloat16() for _ in range(2))
    k, v = (torch.randn(2, 130, 2, 32).bfloat16() for _ in range(2))
    out, lse = attention(q, k, v, causal=causal, return_lse=True)
    n_threads, found = torch.get_num_threads(), []
    for n in (1, 2, 5):
        torch.set_num_threads(n)
        found.append(cpu.bwd(grad_out, out, lse, q, k, v, causal=causal))
    torch.set_num_threads(n_threads)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_nothing_is_attended():
    """No keys, and a window beyond all of them: zeros, also where dlse is not."""
    q, k, v = (torch.randn(1, n, 2, 16).half() for n in (5, 3, 3))
    for keys, options in ((0, {}), (3, {"window_right": 0, "window_left": 0})):
        out, lse = attention(q, k[:, :keys], v[:, :keys], return_lse=True, **options)
        results = cpu.bwd(
            torch.randn_like(out), out, lse, q, k[:, :keys], v[:, :keys],
            grad_lse=torch.ones_like(lse), **options,
        )  # fmt: skip
        hidden = lse[0, 0] == -math.inf
        assert hidden.any()
        assert (results[0][0, hidden] == 0).all()
        assert all(x.isfinite().all() for x in results)
