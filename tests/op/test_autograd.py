"""Gradients on the CPU against those of the reference, and what has none."""

import pytest
import torch
from support.problems import (
    MASKS,
    NO_MASK,
    PACKED,
    Mask,
    Shape,
    make_inputs,
    make_packed,
    new_memory_is_nan,
)
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from pyflash import attention, attention_varlen
from pyflash.op.autograd import TORCH_API
from pyflash.op.reference import attention_ref, attention_varlen_ref, tolerance

CAUSAL = Mask("causal", causal=True)
NO_SECOND = r"^pyflash: attention has no second derivatives"
SMALL = Shape("small", 2, 9, 12, 4, heads_kv=2)
SHAPES = [
    Shape("square", 1, 64, 64, 2),
    Shape("more_keys", 2, 37, 71, 2),
    Shape("fewer_keys", 1, 71, 37, 2),  # causal: the first rows have nothing to attend
    Shape("gqa", 2, 33, 47, 6, heads_kv=2),
    Shape("mqa_one_query", 2, 1, 61, 4, heads_kv=1),
    Shape("packed_qkv", 2, 31, 31, 2, "packed"),
    Shape("heads_first", 2, 31, 47, 4, "heads_first", heads_kv=2),
    Shape("one_kv_for_all_batches", 3, 31, 47, 2, "expanded"),
    Shape("nan_past_the_end", 2, 31, 47, 2, "nan_around"),
]


def leaves_of(shape, dtype=torch.float16, d_head=16):
    return [x.detach().requires_grad_() for x in make_inputs(shape, dtype, d_head)]


def gradients(run, inputs, upstream, dtype):
    """The gradients of q, k and v, in `dtype`, where `upstream` is that of out."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    out, _ = run(*leaves)
    return torch.autograd.grad(out, leaves, upstream.to(dtype), materialize_grads=True)


def check_gradients(ours, reference, inputs):
    """`ours` and `reference` take q, k and v and return (out, lse); the latter a dtype as well. The
    bound is that for out, with PyTorch's gradients in the 16-bit type, and what float32 leaves
    where terms cancel."""
    dtype = inputs[0].dtype
    upstream = torch.randn(inputs[0].shape).to(dtype)
    exact, rough = (
        gradients(lambda *x, to=to: reference(*x, dtype=to), inputs, upstream, to)
        for to in (torch.float64, dtype)
    )
    with new_memory_is_nan():
        actual = gradients(ours, inputs, upstream, dtype)
    for name, gradient, right, half, x in zip("qkv", actual, exact, rough, inputs, strict=True):
        assert (gradient.shape, gradient.dtype) == (x.shape, dtype)
        error = (gradient - right).abs().max().item() if x.numel() else 0.0
        bound = tolerance(right, half) + 1e-5
        assert error <= bound, f"gradient of {name}: error {error:.3e}, bound {bound:.3e}"


@pytest.mark.parametrize(
    ("shape", "mask"),
    [
        *((shape, mask) for shape in SHAPES for mask in (NO_MASK, MASKS[0], MASKS[-1])),
        *((shape, mask) for shape in SHAPES[1:4] for mask in MASKS[1:-1]),
    ],
    ids=str,
)
def test_gradients_are_within_tolerance(shape, mask):
    """Pitfall 10: rows with nothing to attend give NaN."""
    check_gradients(
        lambda *x: attention(*x, return_lse=True, **mask.options),
        lambda *x, dtype: attention_ref(*x, dtype=dtype, **mask.options),
        make_inputs(shape, torch.float16, 32),
    )


@pytest.mark.parametrize("mask", [NO_MASK, CAUSAL, MASKS[-1]], ids=str)
@pytest.mark.parametrize("packed", PACKED, ids=str)
def test_gradients_of_packed_sequences(packed, mask):
    """Pitfall 11: empty inputs. Some sequences have no rows, or no keys."""
    q, k, v, *lengths = make_packed(packed, torch.bfloat16, 16)
    check_gradients(
        lambda *x: attention_varlen(*x, *lengths, return_lse=True, **mask.options),
        lambda *x, dtype: attention_varlen_ref(*x, *lengths[:2], dtype=dtype, **mask.options),
        (q, k, v),
    )


@pytest.mark.parametrize("d_head", [8, 80, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_any_head_dimension_and_scale(dtype, d_head):
    options = {"causal": True, "softmax_scale": 0.2}
    check_gradients(
        lambda *x: attention(*x, return_lse=True, **options),
        lambda *x, dtype: attention_ref(*x, dtype=dtype, **options),
        make_inputs(SMALL, dtype, d_head),
    )


def test_the_same_bits_every_time():
    """Pitfall 19: other bits from run to run."""
    leaves = leaves_of(Shape("gqa", 2, 131, 197, 4, heads_kv=2), d_head=64)
    out = attention(*leaves, causal=True)
    first = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    for _ in range(3):
        again = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("shape", [(0, 5, 7), (2, 0, 7), (2, 5, 0)], ids=str)
def test_gradients_of_empty_inputs_are_zero(shape):
    """Pitfall 11: empty inputs."""
    leaves = leaves_of(Shape("empty", *shape, 2))
    attention(*leaves).sum().backward()
    for x in leaves:
        assert torch.equal(x.grad, torch.zeros_like(x))


# What is asked for


@pytest.mark.parametrize("wanted", ["q", "k", "v", "kv"])
def test_gradients_of_some(wanted):
    inputs = dict(zip("qkv", leaves_of(SMALL), strict=True))
    everything = torch.autograd.grad(attention(**inputs).sum(), list(inputs.values()))
    some = {name: x.detach().requires_grad_(name in wanted) for name, x in inputs.items()}
    attention(**some).sum().backward()
    for (name, x), gradient in zip(some.items(), everything, strict=True):
        assert torch.equal(x.grad, gradient) if name in wanted else x.grad is None


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(1, 2),
        lambda x: x[..., ::2],
        lambda x: x.sum((1, 3)),
        lambda x: x.flatten()[1:],
    ],
    ids=["transposed", "every_other", "expanded", "shifted"],
)
def test_gradients_of_out_of_any_layout(view):
    leaves = leaves_of(SMALL)
    out = attention(*leaves)
    upstream = torch.randn_like(view(out.detach()))
    (contiguous,) = torch.autograd.grad(view(out), out, upstream, retain_graph=True)
    expected = torch.autograd.grad(out, leaves, contiguous.contiguous(), retain_graph=True)
    actual = torch.autograd.grad(view(out), leaves, upstream)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_no_graph_where_no_gradient_is_wanted():
    leaves = leaves_of(SMALL)
    with torch.no_grad():
        assert attention(*leaves).grad_fn is None
    with torch.inference_mode():
        assert attention(*leaves).grad_fn is None
    assert attention(*(x.detach() for x in leaves)).grad_fn is None


def test_inputs_changed_in_place_are_noticed():
    q, k, v = leaves_of(SMALL)
    changed = k * 1
    out = attention(q, changed, v)
    changed.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_recompute_the_same(use_reentrant):
    leaves = leaves_of(SMALL)
    plain = torch.autograd.grad(attention(*leaves).sum(), leaves)
    checkpoint(attention, *leaves, use_reentrant=use_reentrant).sum().backward()
    for x, gradient in zip(leaves, plain, strict=True):
        assert torch.equal(x.grad, gradient)


# Other derivatives


def test_second_derivatives_are_refused():
    q, k, v = leaves_of(SMALL)
    (first,) = torch.autograd.grad(attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match=NO_SECOND):
        first.sum().backward()


def test_forward_mode_is_refused():
    q, k, v = make_inputs(SMALL, torch.float16, 16)
    sentence = r"^pyflash: attention has no forward-mode derivatives"
    with pytest.raises(RuntimeError, match=sentence):
        torch.func.jvp(lambda x: attention(x, k, v), (q,), (q,))
    with forward_ad.dual_level():
        with pytest.raises(RuntimeError, match=sentence):
            attention(q, forward_ad.make_dual(k, k), v)
        assert torch.equal(attention(q, k, v), attention(q.clone(), k, v))


@pytest.mark.skipif(TORCH_API == "public", reason="needs private parts of torch")
def test_torch_func_grad():
    """Also nested, where only one level goes through attention."""
    q, k, v = leaves_of(SMALL)
    weight = torch.randn(q.shape)

    def loss(q, weight):
        return (attention(q, k, v) * weight).sum()

    expected = torch.autograd.grad(loss(q, weight), q)[0]
    assert torch.equal(torch.func.grad(loss)(q.detach(), weight), expected)

    def of_weight(q):
        return torch.func.grad(loss, argnums=1)(q, weight).sum()

    expected = torch.autograd.grad(attention(q, k, v).float().sum(), q)[0]
    assert torch.equal(torch.func.grad(of_weight)(q.detach()), expected)

    def of_q(q):
        return torch.func.grad(loss)(q, weight).sum()

    with pytest.raises(RuntimeError, match=NO_SECOND):
        torch.func.grad(of_q)(q.detach())
