"""When gradients on a GPU come from cuDNN, and the call of it, with a stand-in that computes on the
CPU by PyTorch's conventions (aten/src/ATen/native/cudnn/MHA.cpp)."""

import math

import pytest
import torch
from support.problems import Mask, Shape, make_inputs, make_sinks

import pyflash
from pyflash import DType, Problem, attention
from pyflash.op.backward import cpu, cuda, cudnn

CAUSAL = Mask("causal", causal=True)
FULL = Mask("full")
H200 = torch.device("cuda", 0)


class CudnnBackward:
    """torch.ops.aten._scaled_dot_product_cudnn_attention_backward."""

    def __init__(self):
        self.n_calls = 0

    def __call__(
        self, grad_out, q, k, v, out, lse, seed, offset, bias, cum_q, cum_k, max_q, max_k,
        dropout_p, is_causal, *, scale=None,
    ):  # fmt: skip
        self.n_calls += 1
        assert (bias, cum_q, cum_k, dropout_p) == (None, None, None, 0.0)
        assert math.copysign(1, dropout_p) == -1  # plans of its own
        assert grad_out.stride() == out.stride() == torch.empty_like(q).stride()
        assert (max_q, max_k) == (q.shape[2], k.shape[2])
        assert lse.shape == (*q.shape[:3], 1)
        assert lse.is_contiguous()
        assert seed.dtype == offset.dtype == torch.int64
        for x in (grad_out, q, k, v, out):
            assert x.data_ptr() % 16 == 0
            assert x.stride(-1) == 1
            assert all(s > 0 and s % 8 == 0 for s in x.stride()[:-1])
        layouts = [torch.empty_like(x) for x in (q, k, v)]
        group = q.shape[1] // k.shape[1]
        scale = scale or 1 / math.sqrt(q.shape[-1])
        grad_out, q, k, v, out, lse = (x.double() for x in (grad_out, q, k, v, out, lse))
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        scores = q @ k.mT * scale
        if is_causal:  # aligned with the first key
            scores = scores.masked_fill(~torch.ones_like(scores).tril().bool(), -math.inf)
        p = torch.exp(scores - lse)
        d_scores = p * (grad_out @ v.mT - (grad_out * out).sum(-1, keepdim=True)) * scale
        dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (d_scores.mT @ q, p.mT @ grad_out))
        values = (d_scores @ k, dk, dv)
        return tuple(a.copy_(b) for a, b in zip(layouts, values, strict=True))


@pytest.fixture
def hopper(monkeypatch):
    """A Hopper GPU with cuDNN; its backward."""
    stand_in = CudnnBackward()
    monkeypatch.setattr(cudnn, "_backward", stand_in)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch, "__version__", f"{cudnn.TESTED_TORCH[0]}.0+cu130")
    return stand_in


def refusal(seqlen_q=64, seqlen_k=64, d_head=64, dtype=torch.float16, packed=False, **options):
    return cudnn.refusal(H200, dtype, seqlen_q, seqlen_k, d_head, options, packed)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("reason", "problem"),
    [
        (None, {}),
        (None, {"causal": True}),
        (None, {"seqlen_q": 37}),
        (None, {"d_head": 128}),
        ("sequences are packed", {"packed": True}),
        ("d_head is 136, more than 128", {"d_head": 136}),
        ("a window is neither full nor causal", {"causal": True, "window_left": 5}),
        ("a window is neither full nor causal", {"window_right": 5}),
        (
            "cuDNN aligns a causal mask with the first key, and q and k differ in length",
            {"causal": True, "seqlen_q": 37},
        ),
        ("q or k has fewer than two rows", {"seqlen_q": 1}),
        ("q or k has fewer than two rows", {"seqlen_k": 1}),
        (None, {"softmax_scale": 1 / 32}),
        (None, {"softmax_scale": 1e-6, "dtype": torch.bfloat16}),
        (
            "cuDNN rounds in fp16 what softmax_scale = 0.03 makes too small for it",
            {"softmax_scale": 0.03},
        ),
    ],
)
def test_what_cudnn_computes(reason, problem):
    assert refusal(**problem) == reason


@pytest.mark.usefixtures("hopper")
def test_settings_of_torch_are_respected(monkeypatch):
    torch.use_deterministic_algorithms(True)
    try:
        assert "use_deterministic_algorithms" in refusal()
    finally:
        torch.use_deterministic_algorithms(False)
    assert refusal() is None
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        assert refusal() == "torch.backends.cuda.enable_cudnn_sdp is off"
    monkeypatch.setattr(torch, "__version__", "2.10.1")
    assert refusal() == "cuDNN's plans are kept apart in torch 2.11 alone"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert refusal() == "the GPU is not a Hopper"
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    assert refusal() == "this torch has no cuDNN"


@pytest.mark.parametrize("mask", [FULL, CAUSAL], ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        Shape("square", 2, 37, 37, 2),
        Shape("gqa", 2, 31, 31, 6, heads_kv=2),
        Shape("heads_first", 2, 31, 31, 4, "heads_first", heads_kv=2),
        Shape("packed_qkv", 2, 31, 31, 2, "packed"),
        Shape("one_kv_for_all_batches", 3, 17, 17, 2, "expanded"),
    ],
    ids=str,
)
def test_gradients_and_their_layout(hopper, monkeypatch, shape, mask):
    monkeypatch.setattr(cudnn, "refusal", lambda *_: None)
    inputs = make_inputs(shape, torch.float16, 16)
    sinks = make_sinks(shape.heads, torch.float32)
    out, lse = attention(*inputs, return_lse=True, sinks=sinks, **mask.options)
    upstream = torch.randn(out.numel() + 1).half()[1:].view(out.shape)  # not aligned
    saved = (upstream, out, lse, *inputs)
    options = mask.options | {"softmax_scale": 0.3}
    actual, expected = cuda.bwd(*saved, **options), cpu.bwd(*saved, **options)
    assert hopper.n_calls == 1
    for a, b, x in zip(actual, expected, inputs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=2e-3)
        assert a.stride() == torch.empty_like(x).stride()


def test_select_tells_whose_kernels_compute_gradients():
    problem = {"batch": 1, "heads_q": 2, "heads_kv": 2, "d_head": 64, "dtype": DType.FP16}
    on_cpu = Problem(**problem, seqlen_q=64, seqlen_k=64, device="cpu")
    assert pyflash.select(on_cpu).backward == "the formula in float32"
