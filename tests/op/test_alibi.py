"""ALiBi on the CPU: FlashAttention's definition, results and gradients, beside other options."""

import math

import pytest
import torch
from support.problems import Packed, Shape, make_inputs, make_packed

from pyflash import attention, attention_varlen
from pyflash.op.reference import attention_ref, expect, expect_varlen

SHAPES = [
    Shape("primes", 2, 113, 127, 4, heads_kv=2),
    Shape("fewer_keys", 2, 257, 67, 2),
    Shape("one_query", 2, 1, 257, 8, heads_kv=2),
    Shape("few_queries", 2, 3, 130, 4, heads_kv=1),
]
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_left": 30, "window_right": 9},
    "chunks": {"causal": True, "attention_chunk": 40},
    "scale": {"softmax_scale": 0.7},
}


def slopes_of(heads: int, batch: int | None = None) -> torch.Tensor:
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
    return slopes if batch is None else slopes * torch.arange(1, batch + 1)[:, None]


def test_the_definition_is_flash_attentions():
    """out = softmax(scale * q k^T - slope * |i + seqlen_k - seqlen_q - j|) v"""
    q, k, v = (torch.randn(2, n, 3, 16, dtype=torch.float64) for n in (5, 9, 9))
    slopes = slopes_of(3)
    i, j = torch.arange(5)[:, None], torch.arange(9)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(16)
    scores = scores - slopes[None, :, None, None] * (i + 9 - 5 - j).abs()
    wanted = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
    out, lse = attention_ref(q, k, v, dtype=torch.float64, alibi_slopes=slopes)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(lse, scores.logsumexp(-1))


@pytest.mark.parametrize("of_each_sequence", [False, True], ids=["heads", "batch_heads"])
@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_and_gradients_are_the_formulas(shape, options, of_each_sequence):
    slopes = slopes_of(shape.heads, shape.batch if of_each_sequence else None)
    inputs = make_inputs(shape, torch.float16, 32)
    leaves = [x.detach().requires_grad_() for x in inputs]
    out, lse = attention(*leaves, return_lse=True, alibi_slopes=slopes, **options)
    expect(*inputs, alibi_slopes=slopes, **options).check(out.detach(), lse)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    upstream = torch.randn_like(out)
    reference = attention_ref(*exact, dtype=torch.float64, alibi_slopes=slopes, **options)[0]
    wanted = torch.autograd.grad(reference, exact, upstream.double())
    for a, b in zip(torch.autograd.grad(out, leaves, upstream), wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-2)


@pytest.mark.parametrize("of_each_sequence", [False, True], ids=["heads", "batch_heads"])
@pytest.mark.parametrize("sinks", [False, True])
def test_packed_sequences(sinks, of_each_sequence):
    packed = Packed("", (70, 0, 9, 100), (65, 9, 0, 131), 4, 2)
    slopes = slopes_of(4, 4 if of_each_sequence else None)
    options = {"causal": True, "sinks": torch.randn(4) if sinks else None, "alibi_slopes": slopes}
    inputs = make_packed(packed, torch.bfloat16, 64)
    out, lse = attention_varlen(*inputs, return_lse=True, **options)
    expect_varlen(*inputs[:5], **options).check(out, lse)
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    out = attention_varlen(*leaves, *inputs[3:], **options)
    for b, (first_q, first_k) in enumerate(((0, 0), (70, 65), (70, 74), (79, 74))):
        n_q, n_k = packed.seqlens_q[b], packed.seqlens_k[b]
        parts = [
            x.detach()[None, f : f + n].requires_grad_()
            for x, f, n in zip(leaves, (first_q, first_k, first_k), (n_q, n_k, n_k), strict=True)
        ]
        own = options | {"alibi_slopes": slopes[b] if of_each_sequence else slopes}
        alone = attention(*parts, **own)
        torch.testing.assert_close(alone[0], out[first_q : first_q + n_q])
        upstream = torch.randn_like(out)
        whole = torch.autograd.grad(out, leaves, upstream, retain_graph=True)
        grads = torch.autograd.grad(alone, parts, upstream[None, first_q : first_q + n_q])
        for x, y, f, n in zip(
            whole, grads, (first_q, first_k, first_k), (n_q, n_k, n_k), strict=True
        ):
            torch.testing.assert_close(x[f : f + n], y[0])


def test_refusals():
    inputs = make_inputs(Shape("", 2, 8, 8, 3), torch.float16, 16)
    with pytest.raises(
        ValueError, match="alibi_slopes came with softcap = 5: expected one of them"
    ):
        attention(*inputs, alibi_slopes=slopes_of(3), softcap=5.0)
    with pytest.raises(ValueError, match=r"alibi_slopes has shape \(4,\)"):
        attention(*inputs, alibi_slopes=slopes_of(4))
    with pytest.raises(ValueError, match="alibi_slopes is float16: expected float32"):
        attention(*inputs, alibi_slopes=slopes_of(3).half())
    with pytest.raises(RuntimeError, match="alibi_slopes requires gradients, and has none"):
        attention(*inputs, alibi_slopes=slopes_of(3).requires_grad_())
