"""The kernels of op backward on a GPU. They are not built by default, but by `pyflash build --set
backward`."""

import pytest
import torch
from support.backward_cases import CASES, Case, expected, gradients, make
from support.gpu_kernels import forbid_borrowed, skip_without_kernels

from pyflash import attention, select
from pyflash.op.backward import kernels

pytestmark = pytest.mark.gpu

CASE = Case(torch.bfloat16, 128, "causal", "gqa")
NARROW = Case(torch.float16, 64, "window", "ragged")


@pytest.fixture(autouse=True, scope="module")
def _kernels_are_built():
    skip_without_kernels()


@pytest.fixture
def forbid_others(monkeypatch):
    forbid_borrowed(monkeypatch)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients(forbid_others, case):
    assert "sm90_bwd" in select(case.problem("cuda")).backward
    qkv, grad_out = make(case, "cuda")
    expected(case, qkv, grad_out).check(gradients(case, qkv, grad_out))


@pytest.mark.parametrize("case", [CASE, NARROW], ids=str)
def test_two_calls_agree(forbid_others, case):
    """But for the order of sums: dk and dv have none."""
    qkv, grad_out = make(case, "cuda")
    first, second = (gradients(case, qkv, grad_out) for _ in range(2))
    assert torch.equal(first[1], second[1])
    assert torch.equal(first[2], second[2])
    torch.testing.assert_close(first[0], second[0], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("case", [CASE, NARROW], ids=str)
def test_strides_of_gradients_are_those_of_empty_like(forbid_others, case):
    qkv, grad_out = make(case, "cuda")
    for x, gradient in zip(qkv, gradients(case, qkv, grad_out), strict=True):
        assert gradient.stride() == torch.empty_like(x).stride()


@pytest.mark.parametrize("case", [CASE, NARROW], ids=str)
def test_memory_that_held_nan(forbid_others, case):
    """The workspace is whatever torch's allocator hands out."""
    torch.full((64 << 20,), torch.nan, device="cuda")
    qkv, grad_out = make(case, "cuda")
    expected(case, qkv, grad_out).check(gradients(case, qkv, grad_out))


@pytest.mark.parametrize("case", [CASE, NARROW], ids=str)
def test_a_cuda_graph(forbid_others, case):
    qkv, grad_out = make(case, "cuda")
    with torch.no_grad():
        out, lse = torch.ops.pyflash.fwd(*qkv, **case.all_options)
    inputs = (grad_out, out, lse, *qkv)
    kernels.bwd(*inputs, **case.all_options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernels.bwd(*inputs, **case.all_options)
    for _ in range(3):
        for x in captured:
            x.fill_(torch.nan)
        graph.replay()
        expected(case, qkv, grad_out).check(captured)


@pytest.mark.parametrize("case", [CASE, NARROW], ids=str)
def test_a_second_stream(forbid_others, case):
    qkv, grad_out = make(case, "cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = gradients(case, qkv, grad_out)
    torch.cuda.current_stream().wait_stream(stream)
    expected(case, qkv, grad_out).check(found)


def test_sinks_are_in_lse(forbid_others):
    qkv, grad_out = make(CASE, "cuda")
    sinks = torch.randn(qkv[0].shape[2], device="cuda")
    case = Case(CASE.dtype, CASE.d_head, CASE.mask, CASE.size, options={"sinks": sinks})
    expected(case, qkv, grad_out).check(gradients(case, qkv, grad_out))


def test_what_they_do_not_take_is_borrowed():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert "use_deterministic_algorithms is on" in select(CASE.problem("cuda")).backward
        qkv, grad_out = make(CASE, "cuda")
        expected(CASE, qkv, grad_out).check(gradients(CASE, qkv, grad_out))
    finally:
        torch.use_deterministic_algorithms(False)


def test_torch_compile(forbid_others):
    qkv, grad_out = make(CASE, "cuda")
    leaves = [x.detach().requires_grad_() for x in qkv]
    out = torch.compile(attention, fullgraph=True)(*leaves, **CASE.all_options)
    expected(CASE, qkv, grad_out).check(torch.autograd.grad(out, leaves, grad_out))
