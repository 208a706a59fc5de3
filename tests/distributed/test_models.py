"""A model of two layers whose sequence is spread over ranks, beside one process: with the attention
of this package, and within `context_parallel`."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import results
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel as torch_context_parallel

from pyflash import distributed
from pyflash.op.reference import tolerance

WIDTH, HEADS, D_HEAD, SEQLEN = 64, 4, 16, 48


class Layer(nn.Module):
    def __init__(self, attend) -> None:
        super().__init__()
        self.attend = attend
        self.qkv = nn.Linear(WIDTH, 3 * HEADS * D_HEAD, bias=False)
        self.o = nn.Linear(HEADS * D_HEAD, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, HEADS, D_HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.o(self.attend(*qkv).transpose(1, 2).flatten(-2))
        return x + self.mlp(x)


def math_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(batch, heads, seqlen, d_head), the formula in the dtype of q."""
    scores = q @ k.mT / D_HEAD**0.5
    masked = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(masked, -torch.inf).softmax(-1) @ v


def ring(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return distributed.ring_attention(q, k, v, causal=True).transpose(1, 2)


def all_to_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return distributed.all_to_all_attention(q, k, v, causal=True).transpose(1, 2)


def causal_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def two_layers(attend) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Layer(attend), Layer(attend))


def train(model: nn.Module, x: Tensor, weights: Tensor) -> dict[str, Tensor]:
    out = model(x)
    (out * weights).sum().backward()
    return {"out": out.detach()} | {n: p.grad for n, p in model.named_parameters()}


def check(actual: dict[str, Tensor], x: Tensor, weights: Tensor) -> None:
    exact = train(two_layers(math_attention).double(), x.double(), weights.double())
    in_16_bits = train(two_layers(math_attention).to(x.dtype), x, weights)
    for name, value in actual.items():
        error = (value.double() - exact[name]).abs().max().item()
        assert error <= tolerance(exact[name], in_16_bits[name]), (name, error)


def summed(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of parameters, of all ranks."""
    for name, gradient in found.items():
        if name != "out":
            found[name] = gradient.float()
            dist.all_reduce(found[name])
    return found


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return tuple(torch.randn(2, SEQLEN, WIDTH).bfloat16() for _ in range(2))


def train_on_slices(rank: int) -> None:
    x, weights = inputs()
    for attend in (ring, all_to_all):
        mine = [distributed.shard(tensor) for tensor in (x, weights)]
        found = summed(train(two_layers(attend).to(x.dtype), *mine))
        found["out"] = distributed.unshard(found["out"])
        if rank == 0:
            check(found, x, weights)


def test_forward_and_backward_of_two_layers():
    results(2, train_on_slices)


def train_in_context(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
    x, weights = whole = inputs()
    buffers = [tensor.clone() for tensor in whole]
    original = F.scaled_dot_product_attention
    with distributed.context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1]):
        assert buffers[0].shape[1] == SEQLEN // 2
        found = summed(train(two_layers(causal_sdpa).to(x.dtype), *buffers))
        found["out"] = distributed.unshard(found["out"], group=mesh)
    assert F.scaled_dot_product_attention is original
    assert all(torch.equal(a, b) for a, b in zip(buffers, whole, strict=True))
    if rank == 0:
        check(found, x, weights)

    # PyTorch's entry shards buffers the same way, so a model that calls this package runs in it.
    buffers = [tensor.clone() for tensor in whole]
    with torch_context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1]):
        found = summed(train(two_layers(ring).to(x.dtype), *buffers))
        found["out"] = distributed.unshard(found["out"], group=mesh)
    if rank == 0:
        check(found, x, weights)

    with (
        pytest.raises(ValueError, match="buffer 0 has 6 rows in dimension 1: expected a multiple"),
        distributed.context_parallel(mesh, buffers=[x[:, :6]], buffer_seq_dims=[1]),
    ):
        pass
    with pytest.raises(ValueError, match="attn_mask and dropout_p"):
        distributed.sdpa(x, x, x, dropout_p=0.5)


def test_context_parallel():
    results(2, train_in_context)
