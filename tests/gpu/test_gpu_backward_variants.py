"""The kernels of op backward on a GPU: packed sequences, softcap, chunks, ALiBi, sinks and the
gradient of lse, in every combination, against fp64."""

from __future__ import annotations

import math

import pytest
import torch
from support.gpu_kernels import forbid_borrowed, skip_without_kernels, skip_without_kernels_for

from pyflash import attention, attention_varlen
from pyflash.op.reference import attention_ref, attention_varlen_ref, tolerance

pytestmark = pytest.mark.gpu

MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_left": 70, "window_right": 9},
    "chunks": {"attention_chunk": 48},
    "causal_chunks": {"causal": True, "attention_chunk": 150},
}
VARIANTS = ("plain", "softcap", "low_softcap", "slopes", "sinks")
PADDED = {
    "ragged": (2, 4, 2, 197, 331),
    "fewer_keys": (1, 2, 2, 333, 170),
    "many_tiles": (2, 4, 4, 700, 900),
}
PACKED = {
    "ragged": ((300, 1, 133, 64), (350, 40, 133, 129)),
    "empty_ones": ((0, 260, 0, 37, 90, 0), (130, 0, 0, 37, 340, 250)),
    "one_after_a_block": ((65, 129, 127, 1), (129, 65, 1, 257)),
    "many": ((37,) * 150, (51,) * 150),
    "none_has_keys": ((20, 30), (0, 0)),
}


@pytest.fixture(autouse=True)
def _own_kernels_run(monkeypatch):
    skip_without_kernels()
    forbid_borrowed(monkeypatch)


def options_of(mask, variant, heads):
    numbers = torch.linspace(-1, 2, heads, device="cuda")
    options = {
        "plain": {},
        "softcap": {"softcap": 20.0},
        "low_softcap": {"softcap": 1.5},
        "slopes": {"alibi_slopes": numbers.abs() * 0.3},
        "sinks": {"sinks": numbers},
    }
    return MASKS[mask] | options[variant]


def check(ours, reference, leaves, sinks):
    """Gradients from out and lse; those of sinks, too."""
    dtype, found = leaves[0].dtype, []
    torch.manual_seed(1)
    upstream = None
    for run, to in ((ours, dtype), (reference, torch.float64), (reference, dtype)):
        inputs = [x.detach().to(to).requires_grad_() for x in leaves]
        more = [] if sinks is None else [sinks.detach().clone().requires_grad_()]
        extra = {"dtype": to} if run is reference else {}
        if more:
            extra["sinks"] = more[0]
        out, lse = run(*inputs, **extra)
        if upstream is None:
            upstream = torch.randn_like(out), torch.randn_like(lse)
            products = (out * upstream[0]).detach().double()
        lse = lse.masked_fill(lse == -math.inf, 0)
        upstreams = (upstream[0].to(out.dtype), upstream[1].to(lse.dtype))
        found.append(
            torch.autograd.grad((out, lse), inputs + more, upstreams, materialize_grads=True)
        )
    for name, actual, exact, rough in zip(("dq", "dk", "dv", "dsinks"), *found, strict=False):
        error = (actual.double() - exact.double()).abs().max().item() if exact.numel() else 0.0
        bound = tolerance(exact.double(), rough) + 1e-5
        if name == "dsinks":  # a sum over all rows, of products with out as it is rounded
            bound += torch.finfo(dtype).eps / 2 * products.square().sum().sqrt().item()
        assert error <= bound, f"{name}: error {error:.3e}, bound {bound:.3e}"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("size", PADDED)
@pytest.mark.parametrize(("dtype", "d_head"), [(torch.bfloat16, 128), (torch.float16, 64)], ids=str)
def test_padded(dtype, d_head, size, mask, variant):
    torch.manual_seed(0)
    batch, heads, heads_kv, n_q, n_k = PADDED[size]
    shapes = [(batch, n_q, heads, d_head), *[(batch, n_k, heads_kv, d_head)] * 2]
    leaves = [torch.randn(shape, dtype=dtype, device="cuda") for shape in shapes]
    options = options_of(mask, variant, heads)
    sinks = options.pop("sinks", None)
    check(
        lambda *x, **more: attention(*x, return_lse=True, **options, **more),
        lambda *x, dtype, **more: attention_ref(*x, dtype=dtype, **options, **more),
        leaves,
        sinks,
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mask", ["full", "window", "causal_chunks"])
def test_widest_heads(mask, variant):
    skip_without_kernels_for(256)
    test_padded(torch.bfloat16, 256, "ragged", mask, variant)
    test_packed(torch.bfloat16, 256, "ragged", mask, variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lengths", PACKED)
@pytest.mark.parametrize(("dtype", "d_head"), [(torch.bfloat16, 128), (torch.float16, 64)], ids=str)
def test_packed(dtype, d_head, lengths, mask, variant):
    torch.manual_seed(0)
    heads, heads_kv = 4, 2
    starts = [torch.tensor([0, *x], device="cuda").cumsum(0).int() for x in PACKED[lengths]]
    totals = [int(x[-1]) for x in starts]
    shapes = [(totals[0], heads, d_head), *[(totals[1], heads_kv, d_head)] * 2]
    leaves = [torch.randn(shape, dtype=dtype, device="cuda") for shape in shapes]
    longest = [max(x) for x in PACKED[lengths]]
    options = options_of(mask, variant, heads)
    sinks = options.pop("sinks", None)
    check(
        lambda *x, **more: attention_varlen(
            *x, *starts, *longest, return_lse=True, **options, **more
        ),
        lambda *x, dtype, **more: attention_varlen_ref(*x, *starts, dtype=dtype, **options, **more),
        leaves,
        sinks,
    )


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("d_head", [64, 128])
def test_a_neighbour_of_nan_changes_nothing(d_head, mask):
    """Nor do rows behind the last sequence, whose gradients are zeros."""
    lengths, behind = (100, 77, 190), 30
    starts = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    total = int(starts[-1])
    first, last = slice(0, 100), slice(177, total)
    generator = torch.Generator("cuda").manual_seed(0)
    size = (3, total + behind, 2, d_head)
    clean = torch.randn(size, generator=generator, dtype=torch.bfloat16, device="cuda")
    upstream = torch.randn(size[1:], generator=generator, dtype=torch.bfloat16, device="cuda")
    found = []
    for nan in (False, True):
        values, grad_out = clean.clone(), upstream.clone()
        if nan:
            for x in (*values, grad_out):
                x[100:177] = x[total:] = torch.nan
        leaves = [x.requires_grad_() for x in values.unbind()]
        out = attention_varlen(*leaves, starts, starts, 190, 190, **MASKS[mask])
        found.append(torch.autograd.grad(out, leaves, grad_out))
    for a, b in zip(*found, strict=True):
        for rows in (first, last):
            torch.testing.assert_close(a[rows], b[rows], rtol=2e-2, atol=2e-2)
        assert torch.equal(b[total:], torch.zeros_like(b[total:]))


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_lse_in_a_compiled_call(mask):
    def run(q, k, v):
        return attention(q, k, v, return_lse=True, **MASKS[mask])

    inputs = torch.randn(3, 2, 200, 4, 128, dtype=torch.bfloat16, device="cuda")
    found = []
    for function in (run, torch.compile(run, fullgraph=True)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out, lse = function(*leaves)
        found.append(torch.autograd.grad(out.float().sum() + lse.sum(), leaves))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
