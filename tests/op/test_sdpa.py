"""`pyflash.sdpa` in the place of torch.nn.functional.scaled_dot_product_attention.

tests/gpu/test_gpu_sdpa.py runs the tests that take `device` on a GPU."""

import inspect
import itertools
import re

import pytest
import torch
import torch.nn.functional as F

import pyflash
from pyflash.op.reference import tolerance

DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])

# name -> (shape of query, shape of key and value, arguments)
CASES = {
    "full": ((2, 3, 67, 64), (2, 3, 131, 64), {}),
    "causal": ((2, 3, 131, 64), (2, 3, 131, 64), {"is_causal": True}),
    "scale": ((1, 2, 33, 128), (1, 2, 65, 128), {"scale": 0.3}),
    "grouped heads": ((2, 8, 67, 32), (2, 2, 131, 32), {"enable_gqa": True}),
    "causal, one key head": (
        (2, 6, 50, 40),
        (2, 1, 50, 40),
        {"is_causal": True, "enable_gqa": True},
    ),
    "one query": ((2, 8, 1, 128), (2, 2, 300, 128), {"enable_gqa": True}),
    "no batch": ((3, 67, 64), (3, 131, 64), {}),
    "no batch, grouped heads": ((8, 67, 64), (2, 67, 64), {"is_causal": True, "enable_gqa": True}),
    "no queries": ((2, 3, 0, 64), (2, 3, 7, 64), {}),
}


@pytest.fixture
def device() -> str:
    return "cpu"


def make_inputs(case: str, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """query, key and value as models have them: heads and rows are transposed in memory."""
    generator = torch.Generator().manual_seed(0)
    q_shape, k_shape, _ = CASES[case]

    def randn(*shape: int) -> torch.Tensor:
        *batch, heads, seqlen, d_head = shape
        x = torch.randn(*batch, seqlen, heads, d_head, generator=generator)
        return x.to(device, dtype).transpose(-2, -3)

    return [randn(*q_shape), randn(*k_shape), randn(*k_shape)]


def reference(inputs: list[torch.Tensor], **arguments) -> torch.Tensor:
    return F.scaled_dot_product_attention(*(x.float() for x in inputs), **arguments)


def test_the_signature_is_that_of_pytorch():
    parameters = inspect.signature(pyflash.sdpa).parameters
    added = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert added == ["config", "compile", "deterministic"]
    names = [name for name in parameters if name not in added]
    described = re.search(r"\((.*?)\)", F.scaled_dot_product_attention.__doc__, re.DOTALL)[1]
    assert names == re.findall(r"(\w+)(?:=[\w.]+)?(?:,|$)", described)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=["", "grouped"])
@pytest.mark.parametrize("batch", [(), (2,)], ids=["no batch", "batch"])
def test_causal_attention_is_that_of_pytorch_or_refused(batch, heads, device):
    """PyTorch's mask is top-left aligned, which is bottom-right aligned for as many keys alone."""
    heads_q, heads_kv = heads
    for seqlen_q, seqlen_k in itertools.product((0, 1, 2, 33, 64, 65), repeat=2):
        q, k, v = (
            torch.randn(*batch, h, n, 64, device=device, dtype=torch.float16)
            for h, n in ((heads_q, seqlen_q), (heads_kv, seqlen_k), (heads_kv, seqlen_k))
        )
        arguments = {"is_causal": True, "enable_gqa": heads_q != heads_kv}
        if seqlen_q != seqlen_k:
            says = f"is_causal with {seqlen_q} queries and {seqlen_k} keys: expected as many"
            with pytest.raises(ValueError, match=says):
                pyflash.sdpa(q, k, v, **arguments)
            continue
        out, ref = pyflash.sdpa(q, k, v, **arguments), reference([q, k, v], **arguments)
        pt16 = F.scaled_dot_product_attention(q, k, v, **arguments)
        assert out.shape == ref.shape
        if out.numel():
            assert (out - ref).abs().max().item() <= tolerance(ref, pt16)


@DTYPES
@pytest.mark.parametrize("case", CASES)
def test_gives_what_pytorch_gives(case, dtype, device):
    inputs = make_inputs(case, dtype, device)
    arguments = CASES[case][2]
    ref = reference(inputs, **arguments)
    bound = tolerance(ref, F.scaled_dot_product_attention(*inputs, **arguments))
    out = pyflash.sdpa(*inputs, **arguments)
    assert out.shape == ref.shape
    assert out.dtype == dtype
    if out.numel():
        assert (out - ref).abs().max().item() <= bound


def test_copies_nothing(device):
    """The result is a transposed view, and transposed inputs are accepted as they are."""
    inputs = make_inputs("full", torch.float16, device)
    assert not inputs[0].is_contiguous()
    out = pyflash.sdpa(*inputs)
    assert out.transpose(1, 2).is_contiguous()
    direct = pyflash.attention(*(x.transpose(1, 2) for x in inputs))
    assert torch.equal(out.transpose(1, 2), direct)


@DTYPES
@pytest.mark.parametrize("case", ["full", "causal", "grouped heads", "no batch"])
def test_gradients(case, dtype, device):
    inputs = make_inputs(case, dtype, device)
    arguments = CASES[case][2]
    d_out = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1)).to(device)

    def gradients(function, of_dtype):
        leaves = [x.to(of_dtype).detach().requires_grad_() for x in inputs]
        function(*leaves, **arguments).backward(d_out.to(of_dtype))
        return [x.grad for x in leaves]

    pytorch = F.scaled_dot_product_attention
    refs = gradients(pytorch, torch.float32)
    pt16s = gradients(pytorch, dtype)
    for name, ref, pt16, actual in zip(
        "qkv", refs, pt16s, gradients(pyflash.sdpa, dtype), strict=True
    ):
        error = (actual - ref).abs().max().item()
        assert error <= tolerance(ref, pt16), f"gradient of {name}"


@pytest.mark.parametrize("case", ["full", "causal", "grouped heads", "no batch"])
def test_compiles_without_a_graph_break(case, device):
    inputs = make_inputs(case, torch.float16, device)
    arguments = CASES[case][2]

    def model(q, k, v):
        return pyflash.sdpa(q * 2, k, v, **arguments) + 1

    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), model(*inputs))


def test_compiles_with_gradients(device):
    inputs = make_inputs("causal", torch.float16, device)

    def gradients(function):
        leaves = [x.detach().requires_grad_() for x in inputs]
        function(*leaves, is_causal=True).sum().backward()
        return [x.grad for x in leaves]

    torch.compiler.reset()
    compiled = torch.compile(pyflash.sdpa, fullgraph=True, backend="aot_eager")
    for actual, eager in zip(gradients(compiled), gradients(pyflash.sdpa), strict=True):
        torch.testing.assert_close(actual, eager)


def test_in_the_place_of_pytorchs_function(monkeypatch, device):
    """A layer of PyTorch calls it when it is put into torch.nn.functional."""
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(256, 4, batch_first=True)
    x = torch.randn(2, 50, 256).half()
    layer, x = layer.to(device, torch.float16), x.to(device)
    calls = []

    def counted(*arguments, **options):
        calls.append(None)
        return pyflash.sdpa(*arguments, **options)

    ref = layer.float()(x.float(), x.float(), x.float(), need_weights=False)[0]
    pt16 = layer.half()(x, x, x, need_weights=False)[0]
    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    out = layer(x, x, x, need_weights=False)[0]
    assert len(calls) == 1
    assert (out - ref).abs().max().item() <= tolerance(ref, pt16)


# Refusals.


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


X = half(2, 4, 33, 64)
REFUSED = {
    "a mask": (
        (X, X, X, half(33, 33)),
        {},
        "attn_mask has shape (33, 33): expected None; use is_causal, the windows of "
        "pyflash.attention, or, for padded batches, pyflash.attention_varlen",
    ),
    "a batch to broadcast": (
        (X, X[:1], X[:1]),
        {},
        "key has shape (1, 4, 33, 64): expected batch 2 as query",
    ),
    "another length of value": (
        (X, X, half(2, 4, 50, 64)),
        {},
        "value has shape (2, 4, 50, 64): expected seqlen 33 as key",
    ),
    "other heads of value": (
        (X, X, half(2, 2, 33, 64)),
        {"enable_gqa": True},
        "value has shape (2, 2, 33, 64): expected heads 4 as key",
    ),
    "heads that do not divide": (
        (X, half(2, 3, 33, 64), half(2, 3, 33, 64)),
        {"enable_gqa": True},
        "key has shape (2, 3, 33, 64): expected a number of heads that divides the 4 of query",
    ),
    "causal with more keys than queries": (
        (X, half(2, 4, 50, 64), half(2, 4, 50, 64)),
        {"is_causal": True},
        "is_causal with 33 queries and 50 keys: expected as many, because PyTorch's causal mask is "
        "top-left aligned and that of pyflash bottom-right; for the latter call "
        "pyflash.attention(..., causal=True)",
    ),
    "grouped heads without enable_gqa": (
        (X, half(2, 2, 33, 64), half(2, 2, 33, 64)),
        {},
        "key has 2 heads and query has 4: expected as many, or enable_gqa=True",
    ),
    "another d_head of value": (
        (X, X, half(2, 4, 33, 128)),
        {},
        "value has shape (2, 4, 33, 128): expected d_head 64 as query",
    ),
    "rank 5": (
        (half(1, 2, 4, 33, 64), X, X),
        {},
        "query has shape (1, 2, 4, 33, 64): expected 4 dimensions, (batch, heads, seqlen, d_head), "
        "or 3, (heads, seqlen, d_head)",
    ),
    "ranks that differ": (
        (X, half(4, 33, 64), half(4, 33, 64)),
        {},
        "key has shape (4, 33, 64): expected as many dimensions as query, (batch, heads, seqlen, "
        "d_head), or 3, (heads, seqlen, d_head)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_what_it_does_not_do(case):
    tensors, options, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=f"^pyflash.sdpa: {re.escape(sentence)}$"):
        pyflash.sdpa(*tensors, **options)


@pytest.mark.parametrize(
    ("tensors", "options", "sentence"),
    [
        ((X, X, X), {"scale": torch.tensor(0.1)}, "scale is a tensor: expected a number"),
        ((X, X, X), {"attn_mask": [[True]]}, "attn_mask is list: expected None"),
        (([1.0], X, X), {}, "query is list: expected a tensor"),
        ((X, X, None), {}, "value is NoneType: expected a tensor"),
    ],
)
def test_refuses_wrong_types(tensors, options, sentence):
    with pytest.raises(TypeError, match=f"^pyflash.sdpa: {sentence}"):
        pyflash.sdpa(*tensors, **options)


def test_float32_is_refused():
    x = torch.zeros(1, 2, 5, 64)
    with pytest.raises(ValueError, match="q is float32: expected float16 or bfloat16"):
        pyflash.sdpa(x, x, x)
