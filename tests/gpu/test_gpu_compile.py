"""What torch asks of an op, on a GPU: opcheck, torch.compile, torch.export, autocast."""

import pytest
import torch
from support.problems import NON_CONTIGUOUS, Mask, Packed, Shape, make_inputs, make_packed

from pyflash import attention, attention_varlen

pytestmark = pytest.mark.gpu

DTYPE = torch.float16
CAUSAL = Mask("causal", causal=True)
RAGGED = Shape("ragged", 2, 131, 197, 3)
GQA = Shape("gqa", 2, 67, 131, 6, heads_kv=2)
PACKED = Packed("ragged", (113, 0, 67), (127, 9, 131), 4, 2)
SAMPLES = [
    *((shape, {}) for shape in (RAGGED, GQA, *NON_CONTIGUOUS)),
    (GQA, {"causal": True, "window_left": 20}),
    (GQA, {"softcap": 3.0, "softmax_scale": 0.2}),
    (GQA, {"num_splits": 3}),
    (Shape("decode", 2, 1, 257, 8, heads_kv=2), {}),
]


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()


def assert_equal(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)


# opcheck


@pytest.mark.parametrize(("shape", "options"), SAMPLES, ids=lambda x: str(x))
def test_opcheck(shape, options):
    """Pitfall 18: the fake kernel's strides differ from the real ones."""
    inputs = make_inputs(shape, DTYPE, 128, "cuda")
    torch.library.opcheck(torch.ops.pyflash.fwd.default, inputs, options)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"num_splits": 3}], ids=str)
def test_opcheck_of_packed_sequences(options):
    """Pitfall 18: the fake kernel's strides differ from the real ones."""
    arguments = make_packed(PACKED, DTYPE, 64, "cuda")
    torch.library.opcheck(torch.ops.pyflash.fwd_varlen.default, arguments, options)


def test_opcheck_with_gradients():
    inputs = [x.requires_grad_() for x in make_inputs(GQA, DTYPE, 64, "cuda")]
    torch.library.opcheck(torch.ops.pyflash.fwd.default, inputs, {"causal": True})


# torch.compile


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_without_a_graph_break(backend):
    """Pitfall 17: graph break under torch.compile."""

    def model(q, k, v):
        out, lse = attention(q * 2, k, v, causal=True, return_lse=True)
        return out + 1, lse

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for shape in (GQA, NON_CONTIGUOUS[0]):
        inputs = make_inputs(shape, DTYPE, 128, "cuda")
        assert_equal(compiled(*inputs), model(*inputs))


def test_packed_sequences_compile_without_a_graph_break():
    """Pitfall 17: graph break under torch.compile."""

    def model(q, k, v, *lengths):
        return attention_varlen(q * 2, k, v, *lengths, causal=True) + 1

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    arguments = make_packed(PACKED, DTYPE, 64, "cuda")
    assert_equal([compiled(*arguments)], [model(*arguments)])


def test_compiles_once_for_all_lengths():
    """Pitfall 17: graph break under torch.compile. Dynamic shapes too."""

    def model(q, k, v):
        return attention(q * 2, k, v, causal=True)

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    compiled(*make_inputs(Shape("first", 2, 40, 50, 6, heads_kv=3), DTYPE, 64, "cuda"))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seqlen_q, seqlen_k in ((33, 97), (128, 128), (513, 7)):
            shape = Shape("next", 3, seqlen_q, seqlen_k, 8, heads_kv=4)
            inputs = make_inputs(shape, DTYPE, 64, "cuda")
            assert torch.equal(compiled(*inputs), model(*inputs))


def test_compiles_once_for_all_packed_lengths():
    """Pitfall 17: graph break under torch.compile. Dynamic shapes too."""

    def model(*arguments):
        return attention_varlen(*arguments, causal=True)

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    compiled(*make_packed(PACKED, DTYPE, 64, "cuda"))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lengths in ((31, 64, 2), (5, 6, 300)):
            arguments = make_packed(Packed("next", lengths, lengths, 4, 2), DTYPE, 64, "cuda")
            assert torch.equal(compiled(*arguments), model(*arguments))


@pytest.mark.parametrize(
    ("backend", "dynamic"), [("aot_eager", False), ("aot_eager", True), ("inductor", False)]
)
def test_forward_and_backward_compile(backend, dynamic):
    """Pitfall 17: graph break under torch.compile. Training too."""

    def loss(q, k, v):
        return attention(q * 2, k, v, causal=True).float().square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend=backend, dynamic=dynamic)
    inputs = [x.requires_grad_() for x in make_inputs(GQA, DTYPE, 64, "cuda")]
    actual, expected = (torch.autograd.grad(f(*inputs), inputs) for f in (compiled, loss))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-2)


def test_forward_and_backward_of_packed_sequences_compile():
    def loss(q, k, v, *lengths):
        return attention_varlen(q * 2, k, v, *lengths, causal=True).float().square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    q, k, v, *lengths = make_packed(PACKED, DTYPE, 64, "cuda")
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    actual, expected = (torch.autograd.grad(f(*inputs, *lengths), inputs) for f in (compiled, loss))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-2)


def test_cuda_graphs_of_torch_compile():
    """Pitfall 6: CUDA graph capture breaks. mode="reduce-overhead" captures what it compiles."""

    def model(q, k, v):
        return attention(q * 2, k, v, causal=True) + 1

    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        inputs = make_inputs(GQA, DTYPE, 64, "cuda", seed)
        assert_equal([compiled(*inputs)], [model(*inputs)])


# torch.export


class Padded(torch.nn.Module):
    def forward(self, q, k, v):
        return attention(q, k, v, causal=True, window_left=50)


class Sequences(torch.nn.Module):
    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        return attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)


def test_export():
    inputs = make_inputs(GQA, DTYPE, 64, "cuda")
    program = torch.export.export(Padded(), inputs)
    assert "pyflash.fwd" in str(program.graph)
    assert torch.equal(program.module()(*inputs), Padded()(*inputs))


def test_export_with_lengths_left_open():
    inputs = make_inputs(GQA, DTYPE, 64, "cuda")
    batch, seqlen_q, seqlen_k = map(torch.export.Dim, ("batch", "seqlen_q", "seqlen_k"))
    kv = {0: batch, 1: seqlen_k}
    shapes = {"q": {0: batch, 1: seqlen_q}, "k": kv, "v": kv}
    program = torch.export.export(Padded(), inputs, dynamic_shapes=shapes)
    others = make_inputs(Shape("next", 3, 200, 77, 6, heads_kv=2), DTYPE, 64, "cuda")
    assert torch.equal(program.module()(*others), Padded()(*others))


def test_export_of_packed_sequences():
    arguments = make_packed(PACKED, DTYPE, 64, "cuda")
    program = torch.export.export(Sequences(), arguments)
    assert torch.equal(program.module()(*arguments), Sequences()(*arguments))


# Autocast


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_makes_16_bit_inputs(dtype):
    inputs = [x.float() for x in make_inputs(GQA, dtype, 64, "cuda")]
    with torch.autocast("cuda", dtype=dtype):
        out = attention(*inputs, causal=True)
    assert out.dtype == dtype
    assert torch.equal(out, attention(*(x.to(dtype) for x in inputs), causal=True))


def test_autocast_of_packed_sequences():
    q, k, v, *lengths = make_packed(PACKED, torch.bfloat16, 64, "cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = attention_varlen(q.float(), k.float(), v.float(), *lengths)
    assert torch.equal(out, attention_varlen(q, k, v, *lengths))
