"""The gradients of attention: `torch.ops.pyflash.bwd`, `bwd_varlen` and `bwd_sinks`.

`bwd` and `bwd_varlen` map the gradient of out to those of q, k and v, given out and lse of the
forward pass; the other arguments are those of the forward pass. Gradients have the strides of
torch.empty_like. cuda.py has the implementations for GPUs, cpu.py those for the CPU. `bwd_sinks` is
the same everywhere, padded and packed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyflash.op.backward import cpu, cuda
from pyflash.op.options import OPTIONS


def refuse_what_has_no_gradients(
    q: Tensor, packing: Sequence[Any], options: Mapping[str, Any]
) -> None:
    """Raises RuntimeError for a forward pass that can run but whose backward pass cannot.

    packing: the positional arguments of `fwd_varlen` after v, or ().
    """
    if q.device.type != "cuda":
        return
    heads = q.shape[-2]
    sequences = packing[0].shape[0] - 1 if packing else 0
    at_most = f"expected at most {cuda.MAX_GRID} where gradients are required"
    softcap = options.get("softcap", 0.0)
    if softcap:
        raise RuntimeError(
            f"pyflash: softcap = {softcap:g} has no gradients on a GPU: expected 0, or tensors "
            "that do not require gradients"
        )
    if isinstance(heads, int) and heads > cuda.MAX_GRID:
        raise RuntimeError(f"pyflash: q has heads {heads}: {at_most}")
    if isinstance(sequences, int) and sequences > cuda.MAX_GRID:
        raise RuntimeError(f"pyflash: cu_seqlens_q is for {sequences} sequences: {at_most}")


def bwd_sinks(grad_out: Tensor, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """(heads,), -sum(exp(sink - lse) * rowsum(dO * O)) over batch and rows, in fp32. The first
    factor is the sink's share of a row's softmax."""
    delta = (grad_out.float() * out.float()).sum(-1)  # (..., rows, heads)
    lse = lse.transpose(-1, -2)
    share = torch.exp(sinks.float() - lse)
    share = share.masked_fill(lse == -math.inf, 0)  # nothing attended, and a sink of -inf
    return -(share * delta).flatten(0, -2).sum(0).to(sinks.dtype)


def _fake(
    grad_out: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _fake_sinks(grad_out: Tensor, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    return sinks.new_empty(sinks.shape)


def _schema(name: str, forward: torch._ops.OpOverload) -> str:
    """Takes the arguments of the forward pass, but for the options that it has no use for."""
    arguments = str(forward._schema).partition("(")[2].partition(") -> ")[0].split(", ")

    def is_taken(argument: str) -> bool:
        option = OPTIONS.get(argument.partition("=")[0].split(" ")[-1])
        return option is None or option.in_backward

    return (
        f"{name}(Tensor grad_out, Tensor out, Tensor lse, {', '.join(filter(is_taken, arguments))})"
        " -> (Tensor dq, Tensor dk, Tensor dv)"
    )


_library = torch.library.Library("pyflash", "FRAGMENT")
for _name, _forward in (
    ("bwd", torch.ops.pyflash.fwd.default),
    ("bwd_varlen", torch.ops.pyflash.fwd_varlen.default),
):
    _library.define(_schema(_name, _forward), tags=torch.Tag.pt2_compliant_tag)
    _library.impl(_name, getattr(cuda, _name), "CUDA")
    _library.impl(_name, getattr(cpu, _name), "CPU")
    torch.library.register_fake(f"pyflash::{_name}", _fake, lib=_library)
_library.define(
    "bwd_sinks(Tensor grad_out, Tensor out, Tensor lse, Tensor sinks) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)
_library.impl("bwd_sinks", bwd_sinks, "CUDA")
_library.impl("bwd_sinks", bwd_sinks, "CPU")
torch.library.register_fake("pyflash::bwd_sinks", _fake_sinks, lib=_library)
