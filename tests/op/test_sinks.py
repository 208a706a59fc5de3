"""Sinks, on the CPU: logits that join the softmax denominator only.

tests/gpu/test_gpu_sinks.py runs the tests that take `device` on a GPU."""

import math
import re

import pytest
import torch
from support.problems import (
    GQA,
    MASKS,
    NO_MASK,
    PACKED,
    Mask,
    Packed,
    Shape,
    make_inputs,
    make_packed,
    make_sinks,
    new_memory_is_nan,
)
from support.refusals import CONFIG

import pyflash
from pyflash import DType, Problem, attention, attention_varlen
from pyflash.op.backward import bwd_sinks
from pyflash.op.reference import (
    attention_ref,
    attention_varlen_ref,
    expect,
    expect_varlen,
    tolerance,
)

DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
CAUSAL = Mask("causal", causal=True)
SHAPES = [
    Shape("primes", 2, 113, 127, 3),
    Shape("fewer_keys", 1, 71, 37, 2),  # causal: the first rows have nothing to attend
    Shape("no_keys", 2, 33, 0, 2),
    Shape("gqa", 2, 37, 71, 6, heads_kv=2),
    *GQA[2:5],  # one query: the heads of a group are rows of one block
]
SOFTMAXES = [CONFIG, CONFIG.replace("+opt_softmax", "")]
RAGGED = Packed("ragged", (65, 0, 200, 1), (63, 9, 0, 70), 6, 2)


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.mark.parametrize("config", SOFTMAXES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sinks_with_each_softmax(shape, config, device):
    inputs = make_inputs(shape, torch.float16, 64, device)
    sinks = 3 * make_sinks(shape.heads, torch.float32, device)
    out, lse = attention(*inputs, sinks=sinks, config=config, return_lse=True)
    expect(*inputs, sinks=sinks).check(out, lse)


@DTYPES
@pytest.mark.parametrize("of_q", [False, True], ids=["fp32_sinks", "sinks_as_q"])
@pytest.mark.parametrize("mask", [NO_MASK, CAUSAL, MASKS[5], MASKS[-1]], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sinks_are_within_tolerance(shape, mask, of_q, dtype, device):
    inputs = make_inputs(shape, dtype, 64, device)
    sinks = make_sinks(shape.heads, dtype if of_q else torch.float32, device)
    with new_memory_is_nan(device):
        out, lse = attention(*inputs, sinks=sinks, return_lse=True, **mask.options)
    expect(*inputs, sinks=sinks, **mask.options).check(out, lse)


@pytest.mark.parametrize("mask", [NO_MASK, CAUSAL, MASKS[5]], ids=str)
@pytest.mark.parametrize("packed", [*PACKED[:-1], RAGGED], ids=str)
def test_sinks_of_packed_sequences(packed, mask, device):
    inputs = make_packed(packed, torch.float16, 64, device)
    sinks = make_sinks(packed.heads, torch.float32, device)
    with new_memory_is_nan(device):
        out, lse = attention_varlen(*inputs, sinks=sinks, return_lse=True, **mask.options)
    expect_varlen(*inputs[:5], sinks=sinks, **mask.options).check(out, lse)


def test_a_row_with_nothing_to_attend_is_zero_with_the_sink_as_lse(device):
    """Pitfall 10: rows with nothing to attend give NaN."""
    q, k, v = make_inputs(Shape("fewer_keys", 1, 5, 3, 2), torch.float16, 64, device)
    sinks = torch.tensor([0.5, -math.inf], device=device)
    out, lse = attention(q, k, v, causal=True, sinks=sinks, return_lse=True)
    assert torch.equal(out[:, :2], torch.zeros_like(out[:, :2]))
    torch.testing.assert_close(lse[0, :, :2], sinks[:, None].expand(2, 2))


def test_a_sink_is_the_score_of_a_key_whose_value_is_zero(device):
    """Neither scaled nor capped: the key gives the score that the sink is."""
    q, k, v = make_inputs(Shape("square", 1, 40, 40, 2), torch.float16, 64, device)
    with_key = attention_ref(
        q,
        torch.cat([torch.zeros_like(k[:, :1]), k], 1),
        torch.cat([torch.zeros_like(v[:, :1]), v], 1),
        dtype=torch.float64,
    )
    with_sink = attention_ref(q, k, v, sinks=torch.zeros(2, device=device), dtype=torch.float64)
    for a, b in zip(with_key, with_sink, strict=True):
        torch.testing.assert_close(a, b)


def test_extreme_sinks(device):
    """-inf is no sink; one far above all scores leaves nothing, without overflow."""
    inputs = make_inputs(Shape("primes", 1, 67, 131, 4), torch.float16, 64, device)
    sinks = torch.tensor([-math.inf, -300.0, 300.0, 1e30], device=device)
    out, lse = attention(*inputs, sinks=sinks, return_lse=True)
    plain_out, plain_lse = attention(*inputs, return_lse=True)
    torch.testing.assert_close(out[:, :, :2], plain_out[:, :, :2])
    torch.testing.assert_close(lse[:, :2], plain_lse[:, :2])
    assert torch.equal(out[:, :, 2:], torch.zeros_like(out[:, :, 2:]))
    torch.testing.assert_close(lse[:, 2:], sinks[2:, None].expand(1, 2, 67))


# Gradients


def gradients(run, leaves, upstream, dtype):
    leaves = [x.detach().to(dtype).requires_grad_() for x in leaves]
    out, _ = run(*leaves)
    return torch.autograd.grad(out, leaves, upstream.to(dtype), materialize_grads=True)


def check_gradients(ours, reference, leaves):
    """`ours` and `reference` take (q, k, v, sinks), the latter a dtype as well. The sum over rows
    that a sink's gradient is leaves float32's rounding."""
    q, sinks = leaves[0], leaves[-1]
    upstream = torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).to(q)
    exact, rough = (
        gradients(lambda *x, to=to: reference(*x, dtype=to), leaves, upstream, to)
        for to in (torch.float64, q.dtype)
    )
    actual_leaves = [x.detach().requires_grad_() for x in leaves]
    out, _ = ours(*actual_leaves)
    actual = torch.autograd.grad(out, actual_leaves, upstream, materialize_grads=True)
    for name, gradient, right, half in zip(
        ("q", "k", "v", "sinks"), actual, exact, rough, strict=True
    ):
        assert gradient.dtype == (sinks if name == "sinks" else q).dtype
        error = (gradient - right).abs().max().item() if right.numel() else 0.0
        bound = tolerance(right, half) + 1e-5
        assert error <= bound, f"gradient of {name}: error {error:.3e}, bound {bound:.3e}"


@DTYPES
@pytest.mark.parametrize("of_q", [False, True], ids=["fp32_sinks", "sinks_as_q"])
@pytest.mark.parametrize("mask", [NO_MASK, CAUSAL, MASKS[5]], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients(shape, mask, of_q, dtype, device):
    sinks = make_sinks(shape.heads, dtype if of_q else torch.float32, device)
    check_gradients(
        lambda q, k, v, s: attention(q, k, v, sinks=s, return_lse=True, **mask.options),
        lambda q, k, v, s, dtype: attention_ref(q, k, v, sinks=s, dtype=dtype, **mask.options),
        (*make_inputs(shape, dtype, 32, device), sinks),
    )


@pytest.mark.parametrize("mask", [NO_MASK, CAUSAL], ids=str)
@pytest.mark.parametrize("packed", [*PACKED[1:-1], RAGGED], ids=str)
def test_gradients_of_packed_sequences(packed, mask, device):
    q, k, v, *lengths = make_packed(packed, torch.float16, 32, device)
    options = mask.options

    def ours(q, k, v, s):
        return attention_varlen(q, k, v, *lengths, sinks=s, return_lse=True, **options)

    def reference(q, k, v, s, dtype):
        return attention_varlen_ref(q, k, v, *lengths[:2], sinks=s, dtype=dtype, **options)

    check_gradients(ours, reference, (q, k, v, make_sinks(packed.heads, torch.float32, device)))


def test_gradients_of_sinks_alone_and_of_all_but_sinks(device):
    q, k, v = make_inputs(SHAPES[3], torch.float16, 16, device)
    sinks = make_sinks(6, torch.float32, device)
    every = [x.clone().requires_grad_() for x in (q, k, v, sinks)]
    attention(*every[:3], sinks=every[3]).sum().backward()
    alone = sinks.clone().requires_grad_()
    attention(q, k, v, sinks=alone).sum().backward()
    assert torch.equal(alone.grad, every[3].grad)
    others = [x.clone().requires_grad_() for x in (q, k, v)]
    attention(*others, sinks=sinks).sum().backward()
    for x, y in zip(others, every, strict=False):
        torch.testing.assert_close(x.grad, y.grad)


def test_gradients_of_sinks_have_the_same_bits_every_time(device):
    """Pitfall 19: other bits from run to run."""
    out, lse, grad_out = (
        torch.randn(size, device=device) for size in ((4, 600, 8, 64), (4, 8, 600), (4, 600, 8, 64))
    )
    arguments = (grad_out.half(), out.half(), lse, None, make_sinks(8, torch.float32, device))
    first = bwd_sinks(*arguments)
    assert all(torch.equal(first, bwd_sinks(*arguments)) for _ in range(5))


def test_second_derivatives_of_sinks_are_refused(device):
    q, k, v = make_inputs(SHAPES[0], torch.float16, 16, device)
    sinks = make_sinks(3, torch.float32, device).requires_grad_()
    out = attention(q.requires_grad_(), k, v, sinks=sinks)
    (first,) = torch.autograd.grad(out.sum(), sinks, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^pyflash: attention has no second derivatives"):
        first.sum().backward()


# What torch does to functions


@pytest.mark.parametrize("name", ["fwd", "fwd_varlen"])
def test_opcheck(name, device):
    if name == "fwd":
        shape = Shape("heads_first", 2, 31, 47, 4, "heads_first", heads_kv=2)
        inputs = make_inputs(shape, torch.float16, 16, device)
    else:
        inputs = make_packed(RAGGED, torch.float16, 16, device)
    q = inputs[0]
    inputs = [x.detach().requires_grad_() for x in inputs[:3]] + list(inputs[3:])
    sinks = make_sinks(q.shape[-2], torch.float32, device).requires_grad_()
    op = getattr(torch.ops.pyflash, name).default
    torch.library.opcheck(op, tuple(inputs), {"sinks": sinks, "causal": True})


def test_opcheck_of_the_gradient(device):
    q, k, v = make_inputs(SHAPES[3], torch.float16, 16, device)
    sinks = make_sinks(6, torch.float32, device)
    out, lse = attention(q, k, v, sinks=sinks, return_lse=True)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    arguments = (torch.randn_like(out), out, lse, torch.randn_like(lse), sinks)
    torch.library.opcheck(torch.ops.pyflash.bwd_sinks.default, arguments, test_utils=tests)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_without_a_graph_break(backend, device):
    """Pitfall 17: graph break under torch.compile."""
    q, k, v = make_inputs(SHAPES[3], torch.float16, 16, device)
    sinks = make_sinks(6, torch.float32, device)

    def model(q, k, v, sinks):
        out, lse = attention(q * 2, k, v, sinks=sinks + 1, causal=True, return_lse=True)
        return out + 1, lse

    def run(function):
        leaves = [x.detach().requires_grad_() for x in (q, k, v, sinks)]
        out, lse = function(*leaves)
        return out, lse, *torch.autograd.grad(out.float().square().sum(), leaves)

    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for x, y in zip(run(compiled), run(model), strict=True):
        torch.testing.assert_close(x, y)


def test_autocast_leaves_float32_sinks(device):
    q, k, v = (x.float() for x in make_inputs(SHAPES[3], torch.float16, 16, device))
    sinks = make_sinks(6, torch.float32, device) * 1.001
    with torch.autocast(device, dtype=torch.bfloat16):
        out = attention(q, k, v, sinks=sinks)
        other = attention(q, k, v, sinks=sinks.half())  # in neither dtype
    cast = [x.bfloat16() for x in (q, k, v)]
    assert torch.equal(out, attention(*cast, sinks=sinks))
    assert torch.equal(other, attention(*cast, sinks=sinks.half().float()))


def test_vmap_over_sinks_is_refused(device):
    q, k, v = make_inputs(SHAPES[3], torch.float16, 16, device)
    sinks = make_sinks(6, torch.float32, device)
    with pytest.raises(RuntimeError, match=r"^pyflash: attention does not support vmap"):
        torch.vmap(lambda s: attention(q, k, v, sinks=s))(sinks[None])


def test_select_with_sinks(device):
    shape = {"heads_q": 4, "heads_kv": 2, "seqlen_q": 64, "seqlen_k": 64, "d_head": 64}
    sinks = torch.zeros(4, device="meta")
    problem = Problem(
        batch=1, dtype=DType.FP16, device=device, options={"sinks": sinks, "causal": True}, **shape
    )
    assert pyflash.select(problem).config.d_head >= 64


# Refusals

REFUSED = {
    "of another length": (torch.zeros(3), "sinks has shape (3,): expected (6,), the heads of q"),
    "of rank 2": (torch.zeros(1, 6), "sinks has shape (1, 6): expected (6,), the heads of q"),
    "of another dtype": (
        torch.zeros(6, dtype=torch.bfloat16),
        "sinks is bfloat16: expected float32, or float16 as q",
    ),
    "not contiguous": (
        torch.zeros(12)[::2],
        "sinks has stride 2: expected 1, call .contiguous()",
    ),
    "elsewhere": (torch.zeros(6, device="meta"), "sinks is on meta: expected cpu, where q is"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    sinks, sentence = REFUSED[case]
    q, k, v = make_inputs(SHAPES[3], torch.float16, 16)
    with pytest.raises(ValueError, match=f"^pyflash: {re.escape(sentence)}$"):
        attention(q, k, v, sinks=sinks)
    *packed, max_q, max_k = make_packed(RAGGED, torch.float16, 16)
    with pytest.raises(ValueError, match=f"^pyflash: {re.escape(sentence)}$"):
        attention_varlen(*packed, max_q, max_k, sinks=sinks)
