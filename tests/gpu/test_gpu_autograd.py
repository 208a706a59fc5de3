"""Gradients on a GPU against those of the reference."""

import pytest
import torch
from support.gpu_calls import CONFIGS
from support.problems import Mask, Packed, Shape, make_inputs, make_packed
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyflash import DType, Problem, attention, attention_varlen, select
from pyflash.op.backward import cudnn, kernels
from pyflash.op.reference import attention_ref, attention_varlen_ref, tolerance

pytestmark = pytest.mark.gpu

FULL = Mask("full")
CAUSAL = Mask("causal", causal=True)
MASKS = [
    FULL,
    CAUSAL,
    Mask("left", window_left=50),
    Mask("right", window_right=40),
    Mask("right_wider_than_the_keys", window_right=100),
    Mask("both", window_left=33, window_right=65),
    Mask("causal_window", causal=True, window_left=37),
    Mask("chunks", attention_chunk=48),
    Mask("causal_chunks", causal=True, attention_chunk=40),
    Mask("window_and_chunks", window_left=20, window_right=9, attention_chunk=64),
]
SHAPES = [
    Shape("square", 2, 128, 128, 3),
    Shape("more_keys", 2, 67, 257, 3),
    Shape("fewer_keys", 2, 257, 67, 3),  # causal: the first rows have nothing to attend
    Shape("gqa", 2, 131, 197, 6, heads_kv=2),
    Shape("mqa", 1, 200, 131, 4, heads_kv=1),
    Shape("packed_qkv", 2, 131, 131, 3, "packed"),
    Shape("heads_first", 2, 131, 67, 4, "heads_first", heads_kv=2),
    Shape("one_query", 2, 1, 257, 4, heads_kv=2),
]
PACKED = [
    Packed("primes", (113, 7, 131), (127, 67, 5), 3, 3),
    Packed("empty_ones", (0, 33, 0, 17, 0), (5, 0, 0, 129, 7), 2, 2),
    Packed("gqa", (65, 1, 200), (63, 300, 200), 6, 2),
]


def gradients(run, inputs, upstream, dtype=None):
    """The gradients of q, k and v, where `upstream` is that of out. With a dtype, all is in it."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    out, _ = run(*leaves)
    return torch.autograd.grad(out, leaves, upstream.to(out.dtype))


def check_gradients(ours, reference, inputs):
    """`ours` and `reference` take q, k and v and return (out, lse); the latter a dtype as well. The
    error may be 3 times that of PyTorch's attention in the 16-bit type."""
    upstream = torch.randn_like(inputs[0])
    dtype = inputs[0].dtype
    actual = gradients(ours, inputs, upstream, dtype)
    double, half = (
        gradients(lambda *x, to=to: reference(*x, dtype=to), inputs, upstream, to)
        for to in (torch.float64, dtype)
    )
    for name, gradient, exact, rough, x in zip("qkv", actual, double, half, inputs, strict=True):
        assert gradient.shape == x.shape
        assert gradient.dtype == dtype
        error = (gradient - exact).abs().max().item() if gradient.numel() else 0.0
        bound = 1.5 * tolerance(exact, rough)
        assert error <= bound, f"gradient of {name}: error {error:.3e}, bound {bound:.3e}"


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_within_tolerance(shape, mask):
    """Pitfall 10: rows with nothing to attend give NaN."""
    check_gradients(
        lambda q, k, v: attention(q, k, v, return_lse=True, **mask.options),
        lambda q, k, v, dtype: attention_ref(q, k, v, dtype=dtype, **mask.options),
        make_inputs(shape, torch.float16, 64, "cuda"),
    )


@pytest.mark.parametrize("d_head", [8, 40, 64, 80, 128, 200, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_any_head_dimension_and_dtype(dtype, d_head):
    if d_head > max(config.d_head for config in CONFIGS):
        pytest.skip(f"no config for d_head {d_head} is built")
    options = {"causal": True, "softmax_scale": 0.2}
    check_gradients(
        lambda q, k, v: attention(q, k, v, return_lse=True, **options),
        lambda q, k, v, dtype: attention_ref(q, k, v, dtype=dtype, **options),
        make_inputs(Shape("gqa", 2, 131, 197, 4, heads_kv=2), dtype, d_head, "cuda"),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seqlen", [256, 2048])
@pytest.mark.parametrize("scale", [0.125, 0.03, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_gradients_with_any_softmax_scale(scale, seqlen, dtype):
    """As exact as their dtype, whose subnormal numbers are coarse."""
    inputs = make_inputs(Shape("square", 2, seqlen, seqlen, 4), dtype, 64, "cuda")
    upstream = torch.randn_like(inputs[0])
    actual = gradients(lambda *x: attend(*x, softmax_scale=scale), inputs, upstream, dtype)
    exact = gradients(
        lambda *x: attention_ref(*x, dtype=torch.float64, softmax_scale=scale),
        inputs, upstream, torch.float64,
    )  # fmt: skip
    for name, gradient, right in zip("qkv", actual, exact, strict=True):
        error, rounding = (
            ((x.double() - right).norm() / right.norm()).item() for x in (gradient, right.to(dtype))
        )
        assert error <= 5 * rounding, f"d{name} is off by {error:.2e}, rounding by {rounding:.2e}"


@pytest.mark.parametrize("mask", [FULL, CAUSAL, *MASKS[3:6]], ids=str)
@pytest.mark.parametrize("packed", PACKED, ids=str)
def test_gradients_of_packed_sequences(packed, mask):
    """Pitfall 11: empty inputs. Some of these sequences have no rows, or no keys."""
    q, k, v, *lengths = make_packed(packed, torch.float16, 64, "cuda")
    check_gradients(
        lambda *x: attention_varlen(*x, *lengths, return_lse=True, **mask.options),
        lambda *x, dtype: attention_varlen_ref(*x, *lengths[:2], dtype=dtype, **mask.options),
        (q, k, v),
    )


@pytest.mark.parametrize(
    "shape",
    [
        Shape("no_keys", 2, 33, 0, 2),
        Shape("no_queries", 2, 0, 33, 2),
        Shape("no_batch", 0, 33, 7, 2),
    ],
    ids=str,
)
def test_gradients_without_anything_to_attend_are_zero(shape):
    """Pitfall 11: empty inputs."""
    inputs = make_inputs(shape, torch.float16, 64, "cuda")
    for x, gradient in zip(
        inputs, gradients(attend, inputs, torch.randn_like(inputs[0]), torch.float16), strict=True
    ):
        assert torch.equal(gradient, torch.zeros_like(x))


def attend(q, k, v, **options):
    return attention(q, k, v, return_lse=True, **options)


def test_rows_with_nothing_to_attend_have_no_gradient():
    """Pitfall 10: rows with nothing to attend give NaN."""
    inputs = make_inputs(Shape("fewer_keys", 1, 200, 70, 2), torch.bfloat16, 64, "cuda")
    grad_q, *_ = gradients(
        lambda *x: attend(*x, causal=True), inputs, torch.randn_like(inputs[0]), torch.bfloat16
    )
    assert not grad_q[:, :130].any()
    assert grad_q[:, 131:].any(dim=-1).all()  # of one key, softmax is constant


def test_gradients_of_more_batches_than_65535():
    """Pitfall 8: grids of more than 65535."""
    check_gradients(
        attend,
        lambda q, k, v, dtype: attention_ref(q, k, v, dtype=dtype),
        make_inputs(Shape("batches", 65_537, 2, 3, 1), torch.float16, 64, "cuda"),
    )


def test_splits_and_configs_change_no_gradient():
    inputs = make_inputs(Shape("gqa", 1, 33, 700, 4, heads_kv=2), torch.float16, 128, "cuda")
    ways = [{"num_splits": 1}, {"num_splits": 4}]
    ways += [{"config": c} for c in CONFIGS if c.dtype.name == "FP16" and c.d_head == 128]
    for way in ways:
        check_gradients(
            lambda *x, way=way: attend(*x, **way),
            lambda q, k, v, dtype: attention_ref(q, k, v, dtype=dtype),
            inputs,
        )


def test_gradients_on_a_side_stream():
    """Pitfall 5: wrong GPU, default stream."""
    inputs = make_inputs(Shape("square", 2, 257, 257, 3), torch.float16, 64, "cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        check_gradients(attend, lambda q, k, v, dtype: attention_ref(q, k, v, dtype=dtype), inputs)
    side.synchronize()


def test_softcap_has_no_gradient_and_says_so_at_once(monkeypatch):
    """With gradients wanted the forward call is refused where no kernel of op backward takes it;
    without, it runs."""
    monkeypatch.setattr(kernels, "choice", lambda *_: ("", "none is asked"))
    q, k, v = make_inputs(Shape("square", 1, 64, 64, 2), torch.float16, 64, "cuda")
    q.requires_grad_()
    with pytest.raises(RuntimeError, match=r"pyflash: .*softcap"):
        attention(q, k, v, softcap=10.0)
    with torch.no_grad():
        assert attention(q, k, v, softcap=10.0).shape == q.shape


def test_training_step_under_autocast():
    """A projection in float32, attention in the type that autocast names."""
    torch.manual_seed(0)
    qkv = torch.nn.Linear(256, 3 * 256, device="cuda")
    x = torch.randn(2, 131, 256, device="cuda")

    def loss(attend):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            q, k, v = qkv(x).unflatten(-1, (3, 4, 64)).unbind(2)
            return attend(q, k, v).float().square().mean()

    grads = [
        torch.autograd.grad(loss(attend), list(qkv.parameters()))
        for attend in (
            lambda q, k, v: attention(q, k, v, causal=True),
            lambda q, k, v: attention_ref(q, k, v, causal=True, dtype=torch.float32)[0],
        )
    ]
    for ours, reference in zip(*grads, strict=True):
        scale = reference.abs().max().item()
        torch.testing.assert_close(ours, reference, atol=0.02 * scale, rtol=0)


@pytest.mark.skipif(
    cudnn.refusal(torch.device("cuda"), torch.bfloat16, 64, 64, 64, {}) is not None,
    reason="cuDNN's backward is not used on this machine",
)
@pytest.mark.parametrize("mask", [FULL, CAUSAL], ids=str)
@pytest.mark.parametrize("d_head", [8, 40, 64, 96, 128])
@pytest.mark.parametrize(
    "shape",
    [
        Shape("square", 2, 515, 515, 3),
        Shape("gqa", 2, 384, 384, 6, heads_kv=2),
        Shape("packed_qkv", 1, 1021, 1021, 2, "packed"),
    ],
    ids=str,
)
def test_cudnn_computes_what_flash_does(shape, d_head, mask, monkeypatch):
    monkeypatch.setattr(kernels, "choice", lambda *_: ("", ""))
    monkeypatch.setattr(kernels, "are_built", lambda: False)
    q, k, v = make_inputs(shape, torch.bfloat16, d_head, "cuda")
    sinks = torch.randn(shape.heads, device="cuda")
    problem = Problem(
        batch=shape.batch, heads_q=shape.heads, heads_kv=k.shape[2], seqlen_q=q.shape[1],
        seqlen_k=k.shape[1], d_head=d_head, dtype=DType.BF16, options=mask.options,
    )  # fmt: skip
    assert select(problem).backward == "PyTorch's cuDNN backward"
    check_gradients(
        lambda *x: attend(*x, **mask.options),
        lambda q, k, v, dtype: attention_ref(q, k, v, dtype=dtype, **mask.options),
        (q, k, v),
    )
    upstream = torch.randn_like(q)

    def with_sinks(*leaves):
        return attend(*leaves, sinks=sinks, **mask.options)

    by_cudnn = gradients(with_sinks, (q, k, v), upstream)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert "flash" in select(problem).backward
        by_flash = gradients(with_sinks, (q, k, v), upstream)
    for a, b in zip(by_cudnn, by_flash, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * b.abs().max().item())


def test_deterministic_algorithms_give_the_same_gradients_each_time():
    inputs = make_inputs(Shape("square", 2, 1024, 1024, 4), torch.float16, 128, "cuda")
    upstream = torch.randn_like(inputs[0])
    torch.use_deterministic_algorithms(True)
    try:
        first, *others = (gradients(attend, inputs, upstream) for _ in range(3))
    finally:
        torch.use_deterministic_algorithms(False)
    for other in others:
        assert all(map(torch.equal, first, other))
