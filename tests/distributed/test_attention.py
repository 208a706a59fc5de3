"""Ring and all-to-all attention beside one process, and beside the formula in fp64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from ranks import results
from torch import Tensor

import pyflash
from pyflash import distributed
from pyflash.distributed.exchange import Ring
from pyflash.distributed.merge import Merged, with_logits
from pyflash.distributed.model import METHODS
from pyflash.op.reference import attention_ref, attention_varlen_ref, tolerance

D_HEAD = 32


@dataclass(frozen=True)
class Case:
    heads: int
    heads_kv: int
    options: dict
    layout: str = "zigzag"
    seqlens: tuple[int, int] = (96, 96)  # of q and k; 96 has chunks for 2, 3 and 4 ranks
    dtype: torch.dtype = torch.float16
    sinks: bool = False
    batch: int = 2


CASES = [
    Case(12, 12, {}),
    Case(12, 12, {"causal": True}),
    Case(12, 12, {"causal": True}, layout="contiguous", dtype=torch.bfloat16),
    Case(12, 1, {"causal": True, "softmax_scale": 0.3}),
    Case(12, 2, {"causal": True, "window_left": 20}),
    Case(12, 2, {"causal": True, "window_left": 20}, layout="contiguous"),
    Case(12, 4, {"window_left": 7, "window_right": 50}),
    Case(12, 12, {"causal": True, "softcap": 2.0}),
    Case(12, 12, {"causal": True}, seqlens=(48, 96)),
    Case(12, 12, {"causal": True}, seqlens=(96, 48)),  # rows with nothing to attend
    Case(12, 1, {"causal": True, "window_left": 9}, sinks=True, batch=1),
]


@dataclass(frozen=True)
class PackedCase:
    seqlens_q: tuple[int, ...]
    seqlens_k: tuple[int, ...]
    heads_kv: int
    options: dict
    layout: str = "zigzag"


PACKED = [
    PackedCase((37, 96, 5, 0, 64), (37, 96, 5, 0, 64), 12, {"causal": True}),
    PackedCase((37, 96, 5, 0, 64), (37, 96, 5, 0, 64), 12, {}, layout="contiguous"),
    PackedCase((37, 96, 50), (37, 96, 50), 6, {"causal": True, "window_left": 20}),
    PackedCase((33, 9), (70, 2), 1, {"window_left": 11, "window_right": 3}),
    PackedCase((1, 0, 2), (1, 0, 2), 12, {"causal": True}),  # fewer rows than chunks
]


def randn(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randn(*shape).to(dtype)


def reference(attend, q, k, v, grad_out, sinks, **options) -> dict[str, Tensor]:
    """out, lse and gradients of the formula in fp64 and in the 16-bit type."""
    found = {}
    for dtype in (torch.float64, q.dtype):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        out, lse = attend(*leaves, dtype=dtype, **options)
        if sinks is not None:
            share = torch.sigmoid(lse - sinks.to(dtype)[:, None]).nan_to_num(nan=0.0)
            out, lse = out * share.mT[..., None], torch.logaddexp(lse, sinks.to(dtype)[:, None])
        gradients = torch.autograd.grad(out, leaves, grad_out.to(dtype))
        tensors = (out.detach(), lse.detach(), *(x.nan_to_num(nan=0.0) for x in gradients))
        found[dtype] = dict(zip(("out", "lse", "dq", "dk", "dv"), tensors, strict=True))
    return found


def check(actual: dict[str, Tensor], found: dict[torch.dtype, dict[str, Tensor]], where) -> None:
    exact, in_16_bits = found[torch.float64], next(x for t, x in found.items() if t.itemsize == 2)
    for name, x in actual.items():
        assert x.shape == exact[name].shape, (where, name)
        if name == "lse":
            torch.testing.assert_close(x.double(), exact[name], rtol=1e-4, atol=1e-4)
            continue
        error = (x.double() - exact[name]).abs().max().item() if x.numel() else 0.0
        assert error <= tolerance(exact[name], in_16_bits[name]), (where, name, error)


def distributed_results(q, k, v, grad_out, cu_seqlens=(None, None), **options):
    """What `reference` gives, gathered from all ranks, or why the call was refused."""
    layout = options["layout"]
    dim = 1 if cu_seqlens[0] is None else 0
    of_q, of_k = ({"dim": dim, "layout": layout, "cu_seqlens": x} for x in cu_seqlens)
    q, k, v = (
        distributed.shard(x, **how).requires_grad_() for x, how in ((q, of_q), (k, of_k), (v, of_k))
    )
    out, lse = distributed.attention(
        q, k, v, cu_seqlens_q=cu_seqlens[0], cu_seqlens_k=cu_seqlens[1], return_lse=True, **options
    )
    assert out.is_contiguous()
    assert out.dtype == q.dtype
    assert lse.dtype == torch.float32
    out.backward(distributed.shard(grad_out, **of_q))
    gather = distributed.unshard
    return {
        "out": gather(out, **of_q),
        "lse": gather(lse, **(of_q | {"dim": -1})),
        "dq": gather(q.grad, **of_q),
        "dk": gather(k.grad, **of_k),
        "dv": gather(v.grad, **of_k),
    }


def attend_in_all_cases(rank: int, n_ranks: int) -> None:
    torch.manual_seed(0)
    for case in CASES:
        (seqlen_q, seqlen_k), dtype = case.seqlens, case.dtype
        q = randn(case.batch, seqlen_q, case.heads, D_HEAD, dtype=dtype)
        k, v = (randn(case.batch, seqlen_k, case.heads_kv, D_HEAD, dtype=dtype) for _ in range(2))
        grad_out = randn(*q.shape, dtype=dtype)
        sinks = torch.randn(case.heads) if case.sinks else None
        found = (
            reference(attention_ref, q, k, v, grad_out, sinks, **case.options) if rank == 0 else {}
        )
        for method in METHODS:
            mine = sinks.clone().requires_grad_() if case.sinks else None
            options = case.options | {"layout": case.layout, "method": method, "sinks": mine}
            actual = distributed_results(q, k, v, grad_out, **options)
            if case.sinks:
                dist.all_reduce(mine.grad)
            if rank == 0:
                check(actual, found, (case, method))
            if case.sinks and rank == 0:
                exact = found[torch.float64]
                delta = (grad_out.double() * exact["out"]).sum(-1)
                expected = -(torch.exp(sinks.double() - exact["lse"].mT) * delta).sum((0, 1))
                torch.testing.assert_close(mine.grad.double(), expected, rtol=1e-2, atol=1e-2)


def attend_in_all_packed_cases(rank: int, n_ranks: int) -> None:
    torch.manual_seed(0)
    for case in PACKED:
        q = randn(sum(case.seqlens_q), 12, D_HEAD)
        k, v = (randn(sum(case.seqlens_k), case.heads_kv, D_HEAD) for _ in range(2))
        cu_seqlens = tuple(
            torch.tensor([0, *seqlens]).cumsum(0, dtype=torch.int32)
            for seqlens in (case.seqlens_q, case.seqlens_k)
        )
        grad_out = randn(*q.shape)

        def attend(q, k, v, *, cu_seqlens=cu_seqlens, **options):
            return attention_varlen_ref(q, k, v, *cu_seqlens, **options)

        found = reference(attend, q, k, v, grad_out, None, **case.options) if rank == 0 else {}
        for method in METHODS:
            options = case.options | {"layout": case.layout, "method": method}
            actual = distributed_results(q, k, v, grad_out, cu_seqlens, **options)
            if rank == 0:
                check(actual, found, (case, method))


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_padded(n_ranks):
    results(n_ranks, attend_in_all_cases, n_ranks)


@pytest.mark.parametrize("n_ranks", [3])
def test_packed(n_ranks):
    results(n_ranks, attend_in_all_packed_cases, n_ranks)


def attend_twice(rank: int) -> None:
    """On a subgroup, a mesh, and beside one process."""
    torch.manual_seed(0)
    q, k, v = (randn(1, 64, 4, D_HEAD) for _ in range(3))
    some = dist.new_group([1, 2])
    if rank != 0:
        mine = [distributed.shard(x, group=some) for x in (q, k, v)]
        first = distributed.ring_attention(*mine, group=some, causal=True)
        second = distributed.ring_attention(*mine, group=some, causal=True)
        assert torch.equal(first, second)
        whole = distributed.unshard(first, group=some)
        torch.testing.assert_close(
            whole, pyflash.attention(q, k, v, causal=True), rtol=0, atol=2e-3
        )
        whole = distributed.all_to_all_attention(*mine, group=some, causal=True)
        whole = distributed.unshard(whole, group=some)
        assert torch.equal(whole, pyflash.attention(q, k, v, causal=True))
    with torch.autocast("cpu", torch.bfloat16):
        out = distributed.ring_attention(*(distributed.shard(x[:, :60]) for x in (q, k, v)))
    assert out.dtype == torch.bfloat16
    alone = dist.new_group([rank], use_local_synchronization=True)
    for method in METHODS:
        out = distributed.attention(q, k, v, group=alone, causal=True, method=method)
        torch.testing.assert_close(out, pyflash.attention(q, k, v, causal=True), rtol=0, atol=1e-3)


def test_subgroups_and_repeated_calls():
    results(3, attend_twice)


def count_transfers(rank: int) -> list[int]:
    counts = []
    send = Ring.send

    def counted(self, *arguments):
        counts[-1] += 1
        return send(self, *arguments)

    Ring.send = counted
    q, k, v = (randn(1, 16, 2, D_HEAD) for _ in range(3))
    for options in ({}, {"causal": True}, {"causal": True, "window_left": 10}):
        counts.append(0)
        distributed.ring_attention(q, k, v, layout="contiguous", **options)
    return counts


def test_windows_skip_transfers():
    assert results(4, count_transfers) == [[3, 3, 1]] * 4


def test_merged_parts_of_the_keys_are_attention_over_all():
    torch.manual_seed(0)
    q, k, v = (randn(2, n, 3, D_HEAD) for n in (40, 60, 60))
    merged = Merged(q)
    everything = slice(0, 40)
    merged.add(everything, *attention_ref(q, k[:, :0], v[:, :0]))  # no keys
    for keys in (slice(0, 13), slice(13, 14), slice(14, 60)):
        out, lse = attention_ref(q, k[:, keys], v[:, keys])
        merged.add(everything, out, lse)
    out, lse = attention_ref(q, k, v)
    torch.testing.assert_close(merged.out, out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(merged.lse, lse, rtol=1e-5, atol=1e-5)


def test_sinks_of_rows_with_nothing_to_attend():
    nothing = (torch.zeros(1, 2, 3, 8), torch.full((1, 3, 2), -torch.inf))
    out, lse = with_logits(*nothing, {"sinks": torch.ones(3)})
    assert torch.equal(out, torch.zeros(1, 2, 3, 8))
    assert torch.equal(lse, torch.ones(1, 3, 2))
