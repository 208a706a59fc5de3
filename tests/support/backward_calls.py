"""Calls of attention whose passes are timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import pyflash
from pyflash.config.sm80_backward.sets import RANKED
from pyflash.op.backward import kernels

WIDTH = 2048  # columns of all heads
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
Run = Callable[[], Any]


@dataclass(frozen=True)
class Call:
    tensors: tuple[Tensor, ...]  # q, k, v, (batch, seqlen, heads, d_head), and grad_out
    options: dict[str, Any]
    lengths: tuple[int, ...] = ()  # of packed sequences

    def with_options(self, **options: Any) -> Call:
        return dataclasses.replace(self, options=self.options | options)

    @cached_property
    def packing(self) -> tuple[Any, ...]:
        if not self.lengths:
            return ()
        starts = torch.tensor([0, *self.lengths], device=self.tensors[0].device).cumsum(0).int()
        return (starts, starts, max(self.lengths), max(self.lengths))

    @property
    def flops(self) -> int:
        """Of the backward pass: five products for each pair that is attended."""
        q = self.tensors[0]
        n, batch = q.shape[-3], 1 if self.lengths else q.shape[0]
        count = sum(pairs(x, self.options) for x in self.lengths or [n])
        return 10 * q.shape[-1] * q.shape[-2] * count * batch

    def attention(self, *qkv: Tensor) -> Tensor:
        run = pyflash.attention_varlen if self.lengths else pyflash.attention
        return run(*qkv, *self.packing, **self.options)

    def peer(self, backend: SDPBackend, *qkv: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in qkv)
        with sdpa_kernel(backend):
            causal = self.options.get("causal", False)
            out = scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=q.shape[1] > k.shape[1]
            )
        return out.transpose(1, 2)

    def run(self, who: str, what: str = "backward") -> Run:
        """forward, backward alone, or both, of "own", "flash" or "cudnn", by autograd."""
        qkv = [x.detach().requires_grad_(what != "forward") for x in self.tensors[:3]]
        grad_out = self.tensors[3]

        def forward() -> Tensor:
            return self.attention(*qkv) if who == "own" else self.peer(BACKENDS[who], *qkv)

        if what == "forward":
            return forward
        if what == "both":
            return lambda: torch.autograd.grad(forward(), qkv, grad_out)
        out = forward()
        return lambda: torch.autograd.grad(out, qkv, grad_out, retain_graph=True)

    def own(self, **extra: Any) -> Run:
        """The backward alone, without autograd. extra: config, deterministic."""
        q, k, v, grad_out = self.tensors
        forward = torch.ops.pyflash.fwd_varlen if self.lengths else torch.ops.pyflash.fwd
        out, lse = forward(q, k, v, *self.packing, **self.options)
        options = self.options | extra
        return lambda: kernels.bwd(grad_out, out, lse, q, k, v, packing=self.packing, **options)


def made(
    tokens: int,
    seqlen: int,
    d_head: int,
    *,
    heads: int = 0,
    group: int = 1,
    lengths: list[int] | None = None,
    device: str = "cuda",
    **options: Any,
) -> Call:
    """Normal random numbers in bf16: tokens / seqlen sequences, or packed ones of `lengths`."""
    heads = heads or max(1, WIDTH // d_head // group) * group
    leading = (sum(lengths),) if lengths else (tokens // seqlen, seqlen)
    tensors = tuple(
        torch.randn(*leading, n, d_head, dtype=torch.bfloat16, device=device)
        for n in (heads, heads // group, heads // group, heads)
    )
    return Call(tensors, options, tuple(lengths or ()))


def pairs(n: int, options: dict[str, Any]) -> int:
    """Query and key pairs that are attended, of n queries and keys: all, causal or a window."""
    if not options.get("causal"):
        return n * n
    most = min(n, options.get("window_left", n) + 1)  # keys of a query
    return most * (most + 1) // 2 + (n - most) * most


def config_of_sm80(call: Call) -> str:
    """The fastest of the SM80 family's that is built for the call's d_head and takes it."""
    q, k = call.tensors[:2]
    problem = kernels.problem_of(q, k, call.packing, call.options)
    built = {str(config) for config in pyflash.built_configs("backward")}
    for config in RANKED:
        asked = {**problem, "config": str(config)}
        if (
            config.d_head == q.shape[-1]
            and str(config) in built
            and kernels.choice(q.device, asked)[0]
        ):
            return str(config)
    raise RuntimeError("no config of the SM80 family is built that takes this call")
