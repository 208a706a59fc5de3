"""The kernels of op backward on a GPU."""

import pytest
import torch
from support.backward_cases import CASES, Case, expected, gradients, make
from support.gpu_kernels import (
    forbid_borrowed,
    n_that_differ,
    skip_without_kernels,
    skip_without_kernels_for,
)

from pyflash import Problem, attention, attention_varlen, select
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
    skip_without_kernels_for(case.d_head)
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


# Whose kernels run by default, on a Hopper.
BY_DEFAULT = {
    "plain": ({}, "sm90_bwd"),
    "window": ({"window_left": 30}, "sm90_bwd"),
    "chunk": ({"attention_chunk": 64}, "sm90_bwd"),
    "softcap": ({"softcap": 20.0}, "sm90_bwd"),
    "slopes": ({"alibi_slopes": torch.ones(8)}, "sm90_bwd"),
}


@pytest.mark.parametrize("name", BY_DEFAULT)
def test_whose_kernels_run_by_default(name):
    options, says = BY_DEFAULT[name]
    extents = dict(batch=2, heads_q=8, heads_kv=8, seqlen_q=256, seqlen_k=256)  # noqa: C408
    problem = Problem(**extents, d_head=128, dtype="BF16", options=options)
    assert says in select(problem).backward.partition(";")[0]


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


DETERMINISTIC = [
    Case(dtype, d_head, mask, "many_tiles", options=options)
    for dtype, d_head in ((torch.bfloat16, 128), (torch.float16, 64), (torch.bfloat16, 256))
    for mask, options in (
        ("full", {}),
        ("causal", {}),
        ("window", {}),
        ("causal_window", {}),
        ("causal", {"softcap": 15.0}),
        ("full", {"attention_chunk": 200}),
    )
]


@pytest.mark.parametrize("case", DETERMINISTIC, ids=str)
def test_deterministic_gradients_are_the_same_bits_every_time(forbid_others, deterministic, case):
    skip_without_kernels_for(case.d_head)
    qkv, grad_out = make(case, "cuda")
    first = gradients(case, qkv, grad_out)
    if not case.options.get("attention_chunk") and not case.options.get("softcap"):
        expected(case, qkv, grad_out).check(first)
    for _ in range(20):
        for a, b in zip(gradients(case, qkv, grad_out), first, strict=True):
            assert torch.equal(a, b)


# Heads are in groups of four; there are as many CTAs as most GPUs run at a time.
@pytest.mark.parametrize("mask", ["full", "causal", "window"])
@pytest.mark.parametrize(
    ("dtype", "d_head"),
    [(torch.bfloat16, 128), (torch.float16, 64), (torch.bfloat16, 192), (torch.float16, 256)],
    ids=str,
)
def test_a_thousand_deterministic_gradients_are_the_same_bits(
    forbid_others, deterministic, dtype, d_head, mask
):
    skip_without_kernels_for(d_head)
    case = Case(dtype, d_head, mask, "many_tiles")
    assert "sm90_bwd" in select(case.problem("cuda")).backward
    qkv, grad_out = make(case, "cuda")
    first = gradients(case, qkv, grad_out)
    expected(case, qkv, grad_out).check(first)
    assert n_that_differ(lambda: gradients(case, qkv, grad_out), first, 1000) == 0


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d_head", [64, 128, 192, 256])
def test_deterministic_gradients_of_packed_sequences(forbid_others, deterministic, d_head, causal):
    """More CTAs than run at a time, sequences of none to many blocks."""
    skip_without_kernels_for(d_head)
    torch.manual_seed(0)
    lengths = [0, 1, 65, 700, 128, 0, 2500, 37, 1000] * 3
    starts = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    total, longest = int(starts[-1]), max(lengths)
    q, k, v = (
        torch.randn(total, heads, d_head, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for heads in (8, 2, 2)
    )
    out = attention_varlen(q, k, v, starts, starts, longest, longest, causal=causal)
    upstream = torch.randn_like(out)

    def again():
        return torch.autograd.grad(out, (q, k, v), upstream, retain_graph=True)

    first = again()
    for _ in range(20):
        for a, b in zip(again(), first, strict=True):
            assert torch.equal(a, b)
    torch.use_deterministic_algorithms(False)
    for a, b in zip(again(), first, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def test_starts_that_do_not_ascend_end(forbid_others, deterministic):
    """Their gradients are wrong, but no CTA waits for a turn that never comes."""
    q, k, v = torch.randn(3, 900, 4, 64, dtype=torch.float16, device="cuda").unbind()
    right = torch.tensor([0, 300, 600, 900], device="cuda", dtype=torch.int32)
    out, lse = torch.ops.pyflash.fwd_varlen(q, k, v, right, right, 300, 300)
    for wrong in ([0, 700, 100, 900], [900, 500, 200, 0], [-5, 2000, 3, 1 << 30]):
        starts = torch.tensor(wrong, device="cuda", dtype=torch.int32)
        for packing in ((starts, right, 300, 300), (right, starts, 300, 300)):
            kernels.bwd(torch.ones_like(out), out, lse, q, k, v, packing=packing)
            torch.cuda.synchronize()


def test_torch_compile(forbid_others):
    qkv, grad_out = make(CASE, "cuda")
    leaves = [x.detach().requires_grad_() for x in qkv]
    out = torch.compile(attention, fullgraph=True)(*leaves, **CASE.all_options)
    expected(CASE, qkv, grad_out).check(torch.autograd.grad(out, leaves, grad_out))
