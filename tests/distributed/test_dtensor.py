"""Tensor-parallel and data-parallel models run the ops on their shards."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from ranks import results
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import pyflash
from pyflash import distributed

D_HEAD = 16


class SelfAttention(nn.Module):
    def __init__(self, heads: int, heads_kv: int, width: int = 32) -> None:
        super().__init__()
        self.q = nn.Linear(width, heads * D_HEAD, bias=False)
        self.k = nn.Linear(width, heads_kv * D_HEAD, bias=False)
        self.v = nn.Linear(width, heads_kv * D_HEAD, bias=False)
        self.o = nn.Linear(heads * D_HEAD, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, D_HEAD)) for f in (self.q, self.k, self.v))
        return self.o(pyflash.attention(q, k, v, causal=True).flatten(-2))


def run_tensor_parallel_model(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model, x = SelfAttention(4, 2).bfloat16(), torch.randn(2, 24, 32).bfloat16()
    expected = model(x)
    expected.float().square().sum().backward()
    parallel = copy.deepcopy(model)
    parallel.zero_grad()
    columns = ColwiseParallel(use_local_output=False)
    plan = {"q": columns, "k": columns, "v": columns, "o": RowwiseParallel()}
    parallelize_module(parallel, mesh, plan)
    for forward in (parallel, torch.compile(parallel, fullgraph=True, backend="aot_eager")):
        parallel.zero_grad()
        out = forward(x)
        out.float().square().sum().backward()
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
        for name, weight in parallel.named_parameters():
            expected_grad = model.get_parameter(name).grad
            torch.testing.assert_close(
                weight.grad.full_tensor(), expected_grad, rtol=5e-2, atol=5e-2
            )


def test_parallelize_module():
    results(2, run_tensor_parallel_model)


# Placements of q and of k and v on a mesh of (2, 2); heads of k and v, of 4 of q; those of out.
SHARDED: list[tuple[tuple[Placement, ...], tuple[Placement, ...], int, tuple[Placement, ...]]] = [
    ((Replicate(), Replicate()), (Replicate(), Replicate()), 2, (Replicate(), Replicate())),
    ((Shard(0), Shard(2)), (Shard(0), Shard(2)), 2, (Shard(0), Shard(2))),
    ((Shard(0), Shard(2)), (Shard(0), Replicate()), 4, (Shard(0), Shard(2))),
    ((Shard(0), Shard(2)), (Shard(0), Replicate()), 1, (Shard(0), Shard(2))),
    ((Shard(2), Shard(2)), (Shard(2), Shard(2)), 4, (Shard(2), Shard(2))),
    ((Shard(2), Shard(2)), (Replicate(), Replicate()), 1, (Shard(2), Shard(2))),
]


def attend_sharded(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    for of_q, of_kv, heads_kv, of_out in SHARDED:
        q, grad_out = (torch.randn(4, 12, 4, D_HEAD).half() for _ in range(2))
        k, v = (torch.randn(4, 12, heads_kv, D_HEAD).half() for _ in range(2))
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        expected, expected_lse = pyflash.attention(*leaves, causal=True, return_lse=True)
        expected.backward(grad_out)
        inputs = [
            distribute_tensor(x, mesh, placements).requires_grad_()
            for x, placements in ((q, of_q), (k, of_kv), (v, of_kv))
        ]
        with CommDebugMode() as sent:
            out, lse = pyflash.attention(*inputs, causal=True, return_lse=True)
            out.backward(distribute_tensor(grad_out, mesh, of_out, src_data_rank=None))
        assert sent.get_total_counts() == 0
        assert out.placements == of_out
        torch.testing.assert_close(out.full_tensor(), expected, rtol=0, atol=1e-3)
        torch.testing.assert_close(lse.full_tensor(), expected_lse, rtol=0, atol=1e-4)
        for x, leaf in zip(inputs, leaves, strict=True):
            torch.testing.assert_close(x.grad.full_tensor(), leaf.grad, rtol=1e-2, atol=1e-2)


def test_shards_are_attended_without_communication():
    results(4, attend_sharded)


def attend_packed_and_refused(rank: int) -> list[str]:
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    q, k = torch.randn(30, 4, D_HEAD).half(), torch.randn(30, 2, D_HEAD).half()
    cu_seqlens = torch.tensor([0, 11, 30], dtype=torch.int32)
    leaves = [x.clone().requires_grad_() for x in (q, k)]
    expected = pyflash.attention_varlen(*leaves, leaves[1], cu_seqlens, cu_seqlens, 19, 19)
    expected.backward(q)
    lengths = distribute_tensor(cu_seqlens, mesh, [Replicate()])
    inputs = [distribute_tensor(x, mesh, [Shard(1)]).requires_grad_() for x in (q, k)]
    out = pyflash.attention_varlen(*inputs, inputs[1], lengths, lengths, 19, 19)
    out.backward(distribute_tensor(q, mesh, [Shard(1)]))
    assert out.placements == (Shard(1),)
    torch.testing.assert_close(out.full_tensor(), expected, rtol=0, atol=0)
    for x, leaf in zip(inputs, leaves, strict=True):
        torch.testing.assert_close(x.grad.full_tensor(), leaf.grad, rtol=0, atol=0)

    # Heads of k and v that are fewer than ranks.
    k = torch.randn(2, 30, 1, D_HEAD).half()
    q = torch.randn(2, 30, 4, D_HEAD).half()
    repeated = distributed.repeat_kv_heads(distribute_tensor(k, mesh, [Replicate()]), 2)
    out = pyflash.attention(distribute_tensor(q, mesh, [Shard(2)]), repeated, repeated)
    assert out.placements == (Shard(2),)
    torch.testing.assert_close(out.full_tensor(), pyflash.attention(q, k, k), rtol=0, atol=0)

    sentences = []
    for of_q, of_k, heads_kv, _ in REFUSED:
        q, k = torch.randn(2, 30, 6, D_HEAD).half(), torch.randn(2, 30, heads_kv, D_HEAD).half()
        q, k = distribute_tensor(q, mesh, [of_q]), distribute_tensor(k, mesh, [of_k])
        with pytest.raises(RuntimeError) as refusal:
            pyflash.attention(q, k, k)
        sentences.append(str(refusal.value))
    packed = distribute_tensor(torch.randn(30, 4, D_HEAD).half(), mesh, [Shard(0)])
    with pytest.raises(RuntimeError, match="q is sharded by rows"):
        pyflash.attention_varlen(packed, packed, packed, lengths, lengths, 19, 19)
    dist.barrier()
    return sentences


REFUSED = [
    (Shard(1), Shard(1), 6, "q is sharded by rows (Shard(1)): expected batch or heads"),
    (Shard(0), Shard(1), 6, "k is sharded by rows (Shard(1)): expected batch or heads"),
    (Shard(3), Shard(3), 6, "q is sharded by d_head (Shard(3)): expected batch or heads"),
    (Shard(2), Replicate(), 3, "k and v have 3 heads, to be sharded over 2 ranks as q is"),
]


def test_packed_sequences_and_refusals():
    for sentences in results(2, attend_packed_and_refused):
        for sentence, (*_, expected) in zip(sentences, REFUSED, strict=True):
            assert sentence.startswith(f"pyflash: {expected}")


def attend_partial(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    q = torch.ones(2, 8, 2, D_HEAD).half()
    partial = DTensor.from_local(q / 2, mesh, [Partial()])
    out = pyflash.attention(partial, partial, partial)
    torch.testing.assert_close(out.full_tensor(), pyflash.attention(q, q, q), rtol=0, atol=0)


def test_partial_sums_are_summed_first():
    results(2, attend_partial)


def test_repeated_heads():
    k = torch.randn(2, 5, 2, D_HEAD)
    assert distributed.repeat_kv_heads(k, 2) is k
    assert torch.equal(distributed.repeat_kv_heads(k, 4), k.repeat_interleave(2, dim=2))
    with pytest.raises(ValueError, match="2 heads cannot be repeated for 3 ranks"):
        distributed.repeat_kv_heads(k, 3)
