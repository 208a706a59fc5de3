"""The gradients of attention: `torch.ops.pyflash.bwd` and `torch.ops.pyflash.bwd_varlen`.

From the gradient of out to those of q, k and v, with out and lse as the forward pass returned them.
The other arguments are those of the forward pass. Gradients lie in memory as torch.empty_like puts
them. cuda.py has the implementations for GPUs, cpu.py those for the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyflash.op.backward import cpu, cuda

_OPTIONS = (
    "float? softmax_scale=None, bool causal=False, int window_left=-1, int window_right=-1, "
    "float softcap=0.0"
)
_SCHEMAS = (
    f"bwd(Tensor grad_out, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, *, {_OPTIONS}) "
    "-> (Tensor dq, Tensor dk, Tensor dv)",
    "bwd_varlen(Tensor grad_out, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, "
    "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, *, "
    f"{_OPTIONS}) -> (Tensor dq, Tensor dk, Tensor dv)",
)


def refuse_what_has_no_gradients(q: Tensor, cu_seqlens_q: Tensor | None, softcap: float) -> None:
    """Raises RuntimeError for a forward pass that can run, but whose backward pass could not."""
    if q.device.type != "cuda":
        return
    heads = q.shape[-2]
    sequences = cu_seqlens_q.shape[0] - 1 if cu_seqlens_q is not None else 0
    at_most = f"expected at most {cuda.MAX_GRID} where gradients are required"
    if softcap:
        raise RuntimeError(
            f"pyflash: softcap = {softcap:g} has no gradients on a GPU: expected 0, or tensors "
            "that do not require gradients"
        )
    if isinstance(heads, int) and heads > cuda.MAX_GRID:
        raise RuntimeError(f"pyflash: q has heads {heads}: {at_most}")
    if isinstance(sequences, int) and sequences > cuda.MAX_GRID:
        raise RuntimeError(f"pyflash: cu_seqlens_q is for {sequences} sequences: {at_most}")


def _fake(
    grad_out: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


_library = torch.library.Library("pyflash", "FRAGMENT")
for _schema in _SCHEMAS:
    _name = _schema.partition("(")[0]
    _library.define(_schema, tags=torch.Tag.pt2_compliant_tag)
    _library.impl(_name, getattr(cuda, _name), "CUDA")
    _library.impl(_name, getattr(cpu, _name), "CPU")
    torch.library.register_fake(f"pyflash::{_name}", _fake, lib=_library)
