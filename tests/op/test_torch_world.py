"""The ops among what torch does to functions: opcheck, autocast, vmap, DLPack."""

import pytest
import torch
from support.problems import EMPTY, NON_CONTIGUOUS, Packed, Shape, make_inputs, make_packed
from torch.utils import dlpack

from pyflash import attention, attention_varlen
from pyflash.op.autograd import TORCH_API
from pyflash.op.reference import expect

fwd, fwd_varlen = torch.ops.pyflash.fwd, torch.ops.pyflash.fwd_varlen
RAGGED = Shape("ragged", 2, 37, 71, 3)
GQA = Shape("gqa", 2, 37, 71, 6, heads_kv=2)
PACKED = Packed("ragged", (31, 0, 67), (27, 9, 41), 4, 2)
CONFIG = "(FP16, 64, 64, 32, 4): async+load_0_0_0_tiles"
EVERY_OPTION = {
    "softmax_scale": 0.2,
    "causal": True,
    "window_left": 20,
    "window_right": 0,
    "softcap": 3.0,
    "config": CONFIG,
    "num_splits": 3,
}


def leaves_of(shape, d_head=16):
    return [x.detach().requires_grad_() for x in make_inputs(shape, torch.float16, d_head)]


def packed_leaves_of(packed, d_head=16):
    q, k, v, *lengths = make_packed(packed, torch.float16, d_head)
    return [x.detach().requires_grad_() for x in (q, k, v)], lengths


# opcheck: schema, fake kernels with the strides of the real ones, autograd, AOTAutograd.


@pytest.mark.parametrize("shape", [RAGGED, GQA, *NON_CONTIGUOUS, *EMPTY], ids=str)
def test_opcheck(shape):
    """Pitfall 18: the fake kernel's strides differ from the real ones."""
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    inputs = make_inputs(shape, torch.float16, 16)
    torch.library.opcheck(fwd.default, inputs, test_utils=tests)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (GQA, {"causal": True}),
        (Shape("heads_first", 2, 31, 47, 4, "heads_first", heads_kv=2), EVERY_OPTION),
    ],
    ids=["gqa", "every_option"],
)
def test_opcheck_with_gradients(shape, options):
    torch.library.opcheck(fwd.default, leaves_of(shape), options)


@pytest.mark.parametrize("options", [{}, EVERY_OPTION], ids=["plain", "every_option"])
def test_opcheck_of_packed_sequences(options):
    leaves, lengths = packed_leaves_of(PACKED)
    torch.library.opcheck(fwd_varlen.default, (*leaves, *lengths), options)


def test_opcheck_of_gradients():
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    inputs = make_inputs(NON_CONTIGUOUS[3], torch.float16, 16)
    out, lse = attention(*inputs, causal=True, return_lse=True)
    arguments = (torch.randn_like(out), out, lse, torch.randn_like(lse), None, None, *inputs)
    bwd = torch.ops.pyflash.bwd.default
    torch.library.opcheck(bwd, arguments, {"causal": True}, test_utils=tests)
    packed = make_packed(PACKED, torch.float16, 16)
    out, lse = attention_varlen(*packed, return_lse=True)
    bwd_varlen = torch.ops.pyflash.bwd_varlen.default
    arguments = (torch.randn_like(out), out, lse, None, None, None, *packed)
    torch.library.opcheck(bwd_varlen, arguments, test_utils=tests)


@pytest.mark.parametrize("shape", [GQA, *NON_CONTIGUOUS], ids=str)
def test_meta_has_the_shapes_and_strides_of_the_real_outputs(shape):
    """Pitfall 18: the fake kernel's strides differ from the real ones."""
    inputs = make_inputs(shape, torch.bfloat16, 64)
    real, meta = fwd(*inputs), fwd(*(x.to("meta") for x in inputs))
    for a, b in zip(real, meta, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


# Autocast


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_casts_to_its_dtype(dtype):
    inputs = [x.float() for x in make_inputs(GQA, torch.float16, 16)]
    mixed = (inputs[0], inputs[1].half(), inputs[2].bfloat16())
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(attention(*inputs), attention(*(x.to(dtype) for x in inputs)))
        assert torch.equal(attention(*mixed), attention(*(x.to(dtype) for x in mixed)))
        packed, lengths = packed_leaves_of(PACKED)
        assert attention_varlen(*(x.float() for x in packed), *lengths).dtype == dtype
        with pytest.raises(ValueError, match="q is float64"):
            attention(*(x.double() for x in inputs))
        with torch.autocast("cpu", enabled=False), pytest.raises(ValueError, match="float32"):
            attention(*inputs)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_under_autocast_have_the_dtype_of_the_inputs(compiled):
    leaves = [x.float().detach().requires_grad_() for x in make_inputs(GQA, torch.float16, 16)]
    function = torch.compile(attention, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = (function if compiled else attention)(*leaves)
    out.sum().backward()
    cast = [x.detach().bfloat16().requires_grad_() for x in leaves]
    attention(*cast).sum().backward()
    for x, y in zip(leaves, cast, strict=True):
        assert torch.equal(x.grad, y.grad.float())


# vmap


def test_vmap_is_refused():
    q, k, v = make_inputs(GQA, torch.float16, 16)
    sentence = "^pyflash: attention does not support vmap: fold the mapped dimension into"
    with pytest.raises(RuntimeError, match=sentence):
        torch.vmap(attention)(*(x[None] for x in (q, k, v)))
    if TORCH_API == "private":
        with pytest.raises(RuntimeError, match=sentence):
            torch.vmap(torch.func.grad(lambda q: attention(q, k, v).sum()))(q[None])
    packed = make_packed(PACKED, torch.float16, 16)
    with pytest.raises(RuntimeError, match=sentence):
        torch.vmap(lambda q: attention_varlen(q, *packed[1:]))(packed[0][None])
    # What is not mapped may be attended.
    mapped = torch.vmap(lambda x: x + attention(q, k, v))(q[None])
    assert torch.equal(mapped[0], q + attention(q, k, v))


# Tensors made elsewhere


def test_tensors_made_by_dlpack_and_numpy():
    inputs = make_inputs(GQA, torch.float16, 16)
    expected = expect(*inputs)
    expected.check(attention(*(dlpack.from_dlpack(dlpack.to_dlpack(x)) for x in inputs)))
    expected.check(attention(*(torch.from_numpy(x.numpy()) for x in inputs)))
    out = attention(*inputs)
    assert torch.equal(dlpack.from_dlpack(out), out)


def test_numpy_memory_that_is_not_aligned_is_refused():
    """Pitfall 14: 16-byte alignment, strides of dimensions of size 1."""
    memory = torch.zeros(2 * 5 * 16 + 1, dtype=torch.float16).numpy()[1:]
    x = torch.from_numpy(memory).view(1, 5, 2, 16)
    with pytest.raises(ValueError, match="q starts 2 bytes after a multiple of 16 bytes"):
        attention(x, x, x)
