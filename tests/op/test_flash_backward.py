"""The calls of PyTorch's flash backward for gradients on a GPU, with a stand-in that computes on
the CPU by PyTorch's conventions (aten/src/ATen/native/transformers/cuda/flash_attn)."""

import math
from itertools import pairwise

import pytest
import torch
from support.problems import (
    MASKS,
    NO_MASK,
    PACKED,
    Mask,
    Packed,
    Shape,
    make_inputs,
    make_packed,
    make_sinks,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from pyflash import attention, attention_varlen
from pyflash.op.backward import cpu, cuda
from pyflash.op.reference import attended

MAX_GRID = 65535
SHAPES = [
    Shape("more_keys", 2, 37, 71, 2),
    Shape("fewer_keys", 2, 131, 37, 4, heads_kv=2),
    Shape("heads_first", 2, 31, 47, 4, "heads_first", heads_kv=2),
    Shape("packed_qkv", 2, 31, 31, 2, "packed"),
    Shape("one_kv_for_all_batches", 3, 131, 7, 2, "expanded"),
]
UNCAPPED = [mask for mask in MASKS if "softcap" not in mask.options]
# More windows for fewer keys than queries, where PyTorch's conventions bite.
WINDOWS = [
    Mask("left_of_many", window_left=3),
    Mask("right_of_more_than_the_keys", window_right=50),
    Mask("both_of_more_than_the_keys", window_left=20, window_right=60),
]


class FlashBackward:
    """torch.ops.aten._flash_attention_backward."""

    def __init__(self):
        self.calls = []

    def __call__(
        self, grad_out, q, k, v, out, lse, cu_q, cu_k, max_q, max_k, dropout_p, is_causal,
        rng_state, unused, *, scale=None, window_size_left=None, window_size_right=None,
    ):  # fmt: skip
        assert dropout_p == 0
        assert grad_out.is_contiguous()
        assert out.is_contiguous()
        assert lse.is_contiguous()
        for x in (grad_out, q, k, v, out):
            assert x.data_ptr() % 16 == 0
            assert x.stride(-1) == 1
        self.calls.append((q.shape, cu_q, cu_k))
        gradients = tuple(torch.full_like(x, torch.nan) for x in (q, k, v))
        if cu_q is None:
            seqlen_q, seqlen_k = q.shape[1], k.shape[1]
            problems = [(b, b, b) for b in range(len(q))]
        else:
            assert cu_q.dtype == cu_k.dtype == torch.int32
            seqlen_q, seqlen_k = max_q, max_k
            starts = zip(pairwise(cu_q), pairwise(cu_k), strict=True)
            problems = [(slice(*i), slice(*j), (slice(None), slice(*i))) for i, j in starts]
        assert 0 < len(problems) <= MAX_GRID
        assert 0 < q.shape[-2] <= MAX_GRID
        assert min(seqlen_q, seqlen_k) > 0
        windows = self.windows(window_size_left, window_size_right, is_causal, seqlen_k)
        for i, j, lse_rows in problems:
            sequence = (grad_out[i], out[i], lse[lse_rows], q[i], k[j], v[j])
            results = self.one(*(x.double() for x in sequence), scale, windows)
            for whole, rows, values in zip(gradients, (i, j, j), results, strict=True):
                whole[rows] = values.to(whole.dtype)
        return gradients

    def windows(self, left, right, is_causal, seqlen_k):
        assert abs(left) < 2**30
        assert abs(right) < 2**30
        if is_causal:
            right = 0
        left = -1 if left >= seqlen_k else left
        right = -1 if right >= seqlen_k else right
        if left < 0 <= right:
            left = seqlen_k
        if right < 0 <= left:
            right = seqlen_k
        return left, right

    def one(self, grad_out, out, lse, q, k, v, scale, windows):
        """The gradients of one sequence, (rows, heads, d_head), with lse (heads, rows)."""
        group = q.shape[1] // k.shape[1]
        scale = scale or 1 / math.sqrt(q.shape[-1])
        q, out, grad_out = (x.transpose(0, 1) for x in (q, out, grad_out))
        k, v = (x.transpose(0, 1).repeat_interleave(group, 0) for x in (k, v))
        keep = attended(torch.arange(q.shape[1]), q.shape[1], k.shape[1], *windows)
        scores = (q @ k.mT * scale).masked_fill(~keep, -math.inf)
        p = torch.exp(scores - lse[..., None])  # NaN where both are -inf
        d_scores = p * (grad_out @ v.mT - (grad_out * out).sum(-1, keepdim=True)) * scale
        dk, dv = (x.unflatten(0, (-1, group)).sum(1) for x in (d_scores.mT @ q, p.mT @ grad_out))
        return (x.transpose(0, 1) for x in (d_scores @ k, dk, dv))


@pytest.fixture
def flash_backward(monkeypatch):
    stand_in = FlashBackward()
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", stand_in)
    return stand_in


def check(actual, expected, like):
    for a, b, x in zip(actual, expected, like, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=2e-3)
        assert a.stride() == torch.empty_like(x).stride()


@pytest.mark.usefixtures("flash_backward")
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_sinks_are_in_lse(shape):
    """PyTorch's backward knows of no sinks: P = exp(S - lse) is right because lse holds them."""
    inputs = make_inputs(shape, torch.float16, 16)
    sinks = make_sinks(shape.heads, torch.float32)
    leaves = [x.detach().requires_grad_() for x in inputs]
    out, lse = attention(*leaves, causal=True, sinks=sinks, return_lse=True)
    upstream = torch.randn_like(out)
    actual = cuda.bwd(upstream, out.detach(), lse, *inputs, causal=True)
    check(actual, torch.autograd.grad(out, leaves, upstream), inputs)


def run_both(inputs, mask):
    out, lse = attention(*inputs, return_lse=True, **mask.options)
    saved = (torch.randn_like(out), out, lse, *inputs)
    return cuda.bwd(*saved, **mask.options), cpu.bwd(*saved, **mask.options)


@pytest.mark.parametrize(
    "mask", [NO_MASK, *(m for m in MASKS if "softcap" not in m.options), *WINDOWS], ids=str
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_padded_sequences(flash_backward, shape, mask):
    """Pitfall 10: rows with nothing to attend give NaN. lse is infinity there for PyTorch."""
    inputs = make_inputs(shape, torch.float16, 16)
    check(*run_both(inputs, mask), inputs)
    assert len(flash_backward.calls) == 1


@pytest.mark.parametrize("mask", [NO_MASK, *UNCAPPED[::2], *WINDOWS], ids=str)
@pytest.mark.parametrize(
    "packed", [*PACKED[1:4], Packed("fewer_keys", (131, 9), (37, 5), 2, 1)], ids=str
)
def test_packed_sequences(flash_backward, packed, mask):
    """Pitfall 10: rows with nothing to attend give NaN."""
    inputs = make_packed(packed, torch.float16, 16)
    out, lse = attention_varlen(*inputs, return_lse=True, **mask.options)
    saved = (torch.randn_like(out), out, lse, *inputs)
    check(
        cuda.bwd_varlen(*saved, **mask.options),
        cpu.bwd_varlen(*saved, **mask.options),
        inputs[:3],
    )


def test_cu_seqlens_are_clamped(flash_backward):
    """Their values are not looked at on a GPU, nor may they lead out of the tensors."""
    *qkv, starts_q, starts_k, max_q, max_k = make_packed(PACKED[1], torch.float16, 16)
    out, lse = attention_varlen(*qkv, starts_q, starts_k, max_q, max_k, return_lse=True)
    wrong_q, wrong_k = starts_q.clone(), starts_k.clone()
    wrong_q[-1] += 1000
    wrong_k[0] -= 1000
    arguments = (*qkv, wrong_q, wrong_k, max_q, max_k)
    cuda.bwd_varlen(torch.randn_like(out), out, lse, *arguments)
    ((_, passed_q, passed_k),) = flash_backward.calls
    assert torch.equal(passed_q, starts_q)
    assert torch.equal(passed_k, starts_k)


def test_more_batches_than_a_grid_holds(flash_backward, monkeypatch):
    """Pitfall 8: grids of more than 65535."""
    monkeypatch.setattr(cuda, "MAX_GRID", 2)
    inputs = make_inputs(Shape("five", 5, 9, 12, 2), torch.float16, 16)
    check(*run_both(inputs, MASKS[0]), inputs)
    assert [shape[0] for shape, *_ in flash_backward.calls] == [2, 2, 1]


@pytest.mark.parametrize("shape", [(0, 5, 7, 2), (2, 0, 7, 2), (2, 5, 0, 2)], ids=str)
def test_nothing_is_asked_for_empty_inputs(flash_backward, shape):
    """Pitfall 11: empty inputs."""
    inputs = make_inputs(Shape("empty", *shape), torch.float16, 16)
    for gradients in run_both(inputs, NO_MASK):
        for gradient, x in zip(gradients, inputs, strict=True):
            assert torch.equal(gradient, torch.zeros_like(x))
    assert not flash_backward.calls


@pytest.mark.parametrize("offset", [0, 1])
def test_gradients_of_out_are_made_contiguous_and_aligned(flash_backward, offset):
    inputs = make_inputs(SHAPES[0], torch.float16, 16)
    out, lse = attention(*inputs, return_lse=True)
    memory = torch.randn(out.numel() + offset).half()
    for upstream in (memory[offset:].view(out.shape), torch.ones(()).half().expand(out.shape)):
        saved = (upstream, out, lse, *inputs)
        check(cuda.bwd(*saved), cpu.bwd(*saved), inputs)


def on_fake_gpu(call, *shapes, **options):
    """Calls with tensors that claim to be on a GPU, the first of them requiring gradients."""
    with FakeTensorMode():
        q, *others = (torch.empty(x, dtype=torch.float16, device="cuda") for x in shapes)
        return call(q.requires_grad_(), *others, **options)


def test_softcap_is_refused_at_once_on_a_gpu():
    shapes = [(1, 5, 2, 64)] * 3
    with torch.no_grad():
        assert not on_fake_gpu(attention, *shapes, softcap=30.0).requires_grad
    with pytest.raises(RuntimeError, match=r"^pyflash: softcap = 30 has no gradients on a GPU"):
        on_fake_gpu(attention, *shapes, softcap=30.0)


def test_grids_that_cannot_be_are_refused_at_once_on_a_gpu():
    """Pitfall 8: grids of more than 65535."""
    with pytest.raises(RuntimeError, match=r"^pyflash: q has heads 65536: expected at most 65535"):
        on_fake_gpu(attention, *[(1, 5, 65536, 64)] * 3)

    def varlen(q, k, v):
        starts = torch.empty(65537, dtype=torch.int32, device="cuda")
        return attention_varlen(q, k, v, starts, starts, 1, 1)

    with pytest.raises(RuntimeError, match=r"^pyflash: cu_seqlens_q is for 65536 sequences"):
        on_fake_gpu(varlen, *[(65536, 1, 64)] * 3)
