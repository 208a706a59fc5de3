"""Gradients of the SM90 family where the sums of dQ of all heads would take more memory than they
may: slices of heads, each a problem of its own, run one after another in the same memory, or two at
a time in two streams, each in memory of its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from support.gpu_kernels import skip_without_kernels_for, with_workspace
from support.graphs import captured
from torch import Tensor

from pyflash.op.backward import kernels

pytestmark = pytest.mark.gpu

MIB = 1 << 20
HEADS_AT_A_TIME = 3  # of K and V


class Case(NamedTuple):
    batch: int
    seqlen_q: int
    seqlen_k: int
    heads: int
    heads_kv: int
    d_head: int = 128
    lengths: tuple[int, ...] = ()  # of packed sequences
    options: Mapping[str, Any] = MappingProxyType({})
    heads_first: bool = False

    @property
    def bytes_of_sums(self) -> int:
        rows = sum(self.lengths) or self.batch * self.seqlen_q
        return 4 * self.d_head * rows * self.heads


LENGTHS = (700, 3, 1500, 0, 2900, 1000)
SHAPES = {
    "batches": Case(20, 500, 600, 24, 24),
    "one_long": Case(1, 7000, 7000, 24, 24),
    "one_long_groups": Case(1, 7000, 7000, 24, 12),
    "heads_first": Case(20, 500, 400, 24, 24, heads_first=True),
    "groups": Case(20, 500, 600, 24, 12),
    "packed": Case(1, 0, 0, 48, 48, lengths=LENGTHS),
    "packed_groups": Case(1, 0, 0, 48, 24, lengths=LENGTHS),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_left": 200, "window_right": 0},  # short in 7000 queries
    "slopes": {"causal": True, "alibi_slopes": True},
    "softcap": {"softcap": 5.0},
}


def case_of(shape: str, d_head: int, options: str) -> Case:
    """With as many heads as take the memory that those of d_head 128 take."""
    case = SHAPES[shape]
    group = case.heads // case.heads_kv
    heads_kv = -(-case.heads_kv * 128 // d_head // HEADS_AT_A_TIME) * HEADS_AT_A_TIME
    return case._replace(
        heads=heads_kv * group, heads_kv=heads_kv, d_head=d_head, options=OPTIONS[options]
    )


class Call(NamedTuple):
    tensors: list[Tensor]  # grad_out, q, k, v
    packing: tuple[Any, ...]
    options: dict[str, Any]

    def forward(self) -> tuple[Tensor, Tensor]:
        run = torch.ops.pyflash.fwd_varlen if self.packing else torch.ops.pyflash.fwd
        return run(*self.tensors[1:], *self.packing, **self.options)

    def gradients(self, results: tuple[Tensor, Tensor], in_order: bool) -> tuple[Tensor, ...]:
        grad_out, *qkv = self.tensors
        return kernels.bwd(
            grad_out, *results, *qkv, packing=self.packing, deterministic=in_order, **self.options
        )

    def of_heads(self, begin: int, end: int) -> Call:
        """That of some heads of K and V."""
        group = self.tensors[1].shape[-2] // self.tensors[2].shape[-2]
        of_q, of_kv = slice(begin * group, end * group), slice(begin, end)
        places = (of_q, of_q, of_kv, of_kv)
        tensors = [x[..., at, :] for x, at in zip(self.tensors, places, strict=True)]
        options = dict(self.options)
        if "alibi_slopes" in options:
            options["alibi_slopes"] = options["alibi_slopes"][of_q]
        return Call(tensors, self.packing, options)


def make(case: Case, dtype: torch.dtype = torch.bfloat16) -> Call:
    torch.manual_seed(1)

    def rows(n: int, heads: int) -> Tensor:
        leading = (sum(case.lengths),) if case.lengths else (case.batch, n)
        x = torch.randn(*leading, heads, case.d_head, dtype=dtype, device="cuda")
        return x.transpose(-3, -2).contiguous().transpose(-3, -2) if case.heads_first else x

    options = dict(case.options)
    if "alibi_slopes" in options:
        options["alibi_slopes"] = torch.rand(case.heads, device="cuda")
    packing: tuple[Any, ...] = ()
    if case.lengths:
        starts = torch.tensor([0, *case.lengths], device="cuda").cumsum(0).int()
        packing = (starts, starts, max(case.lengths), max(case.lengths))
    tensors = [
        rows(case.seqlen_q, case.heads), rows(case.seqlen_q, case.heads),
        rows(case.seqlen_k, case.heads_kv), rows(case.seqlen_k, case.heads_kv),
    ]  # fmt: skip
    return Call(tensors, packing, options)


@pytest.mark.parametrize("in_order", [True, False], ids=["in_order", "any_order"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_slices_give_what_calls_of_fewer_heads_give(
    dtype: torch.dtype, d_head: int, shape: str, options: str, in_order: bool
) -> None:
    case = case_of(shape, d_head, options)
    skip_without_kernels_for(case.d_head)
    is_long_beside_window = options == "window" and case.batch == 1
    if not in_order and not case.lengths and not is_long_beside_window:
        pytest.skip("heads share their memory then")
    assert case.bytes_of_sums > 64 * MIB
    call = make(case, dtype)
    out, lse = call.forward()
    whole = call.gradients((out, lse), in_order)
    group = case.heads // case.heads_kv
    for begin in range(0, case.heads_kv, HEADS_AT_A_TIME):
        end = begin + HEADS_AT_A_TIME
        of_q = slice(begin * group, end * group)
        of_lse = lse[of_q] if case.lengths else lse[:, of_q]
        part = call.of_heads(begin, end)
        expected = part.gradients((out[..., of_q, :], of_lse.contiguous()), in_order)
        places = (of_q, slice(begin, end), slice(begin, end))
        for found, wanted, at in zip(whole, expected, places, strict=True):
            if in_order and group == 1:  # CTAs that are a cluster add in an order of their own
                assert torch.equal(found[..., at, :], wanted)
            else:
                difference = (found[..., at, :].float() - wanted.float()).norm()
                assert difference < 0.01 * wanted.float().norm()


@pytest.mark.parametrize("shape", [x for x in SHAPES if "groups" not in x])  # one slice
@pytest.mark.parametrize("d_head", [64, 128, 256])
def test_sums_take_64_mb(d_head: int, shape: str) -> None:
    case = case_of(shape, d_head, "causal")
    skip_without_kernels_for(case.d_head)
    call = make(case)
    results = call.forward()
    _, taken = with_workspace(lambda: call.gradients(results, True))
    # Beside the sums: lse and delta of each row, turns, padding.
    assert 0 < taken < 70 * MIB < case.bytes_of_sums


def test_in_a_graph_slices_give_the_bits_of_a_call() -> None:
    case = case_of("batches", 128, "causal")
    skip_without_kernels_for(case.d_head)
    call = make(case)
    results = call.forward()
    expected = [x.clone() for x in call.gradients(results, True)]
    graph, found = captured(lambda: call.gradients(results, True))
    for x in call.tensors:
        x.copy_(x.flip(0))
    graph.replay()
    assert not any(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    for x in call.tensors:
        x.copy_(x.flip(0))
    for _ in range(3):
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_call_beside_a_capture_of_the_same_thread_is_no_part_of_its_graph() -> None:
    case = case_of("batches", 128, "plain")
    skip_without_kernels_for(case.d_head)
    call, other = make(case), make(case)
    results = call.forward()
    expected = call.gradients(results, True)
    torch.cuda.synchronize()
    graph, beside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        in_graph = other.gradients(results, True)
        with torch.cuda.stream(beside):
            found = call.gradients(results, True)
    beside.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(in_graph, expected, strict=True))


def test_what_comes_before_and_behind_slices_is_in_order() -> None:
    """Tensors are written just before the call, and its gradients are read just behind it."""
    case = case_of("one_long", 64, "plain")
    skip_without_kernels_for(case.d_head)
    call = make(case)
    results = call.forward()
    expected = [x.clone() for x in call.gradients(results, True)]
    kept = [x.clone() for x in call.tensors]
    for _ in range(5):
        for x in call.tensors:
            x.zero_()
        torch.cuda._sleep(2_000_000)
        for x, y in zip(call.tensors, kept, strict=True):
            x.copy_(y)
        found = call.gradients(results, True)
        copies = [x.clone() for x in found]
        for x in found:
            x.zero_()
        assert all(torch.equal(a, b) for a, b in zip(copies, expected, strict=True))
