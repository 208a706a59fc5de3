"""What both implementations share: what is saved, the gradients from it, casts and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch._ops import OpOverload

from pyflash.op import backward
from pyflash.op.options import TENSORS

SECOND_DERIVATIVES = (
    "pyflash: attention has no second derivatives: call backward without create_graph = True, or "
    "use torch.nn.functional.scaled_dot_product_attention with its math backend"
)
FORWARD_MODE = (
    "pyflash: attention has no forward-mode derivatives (jvp): use reverse mode, or "
    "torch.nn.functional.scaled_dot_product_attention with its math backend"
)
VMAP = (
    "pyflash: attention does not support vmap: fold the mapped dimension into the batch, "
    "x.flatten(0, 1), and unflatten the result"
)


class Forward(NamedTuple):
    """An op with gradients. Its positional arguments are its inputs: q, k, v and, if packed,
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k."""

    name: str
    op: OpOverload
    backward: OpOverload


_OPS = torch.ops.pyflash
FORWARDS = (
    Forward("fwd", _OPS.fwd.default, _OPS.bwd.default),
    Forward("fwd_varlen", _OPS.fwd_varlen.default, _OPS.bwd_varlen.default),
)


def save(
    ctx: Any,
    results: tuple[Tensor, Tensor],
    tensors: tuple[Tensor | None, ...],
    inputs: tuple[Any, ...],
    lse_has_gradient: bool,
    options: Mapping[str, Any],
) -> None:
    """Keeps in ctx what `gradients` needs. tensors: the options of `TENSORS`, or () for none;
    options: those of the backward pass."""
    out, lse = results
    if not lse_has_gradient:
        ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(out, lse, *inputs[:5], *tensors)
    ctx.n_tensors = len(tensors)
    ctx.lengths = inputs[5:]
    ctx.options = options


def gradients(
    ctx: Any,
    saved: tuple[Any, ...],
    op: OpOverload,
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    needed: Sequence[bool],
    needed_tensors: Sequence[bool],
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The gradients of the inputs and the tensors of `save`; None for those that are not needed.
    saved: what ctx saved, or () where no gradient is given. op: the backward of the forward."""
    of_inputs: list[Tensor | None] = [None] * len(needed)
    of_tensors: list[Tensor | None] = [None] * len(needed_tensors)
    if not saved:
        return of_inputs, of_tensors
    n = len(saved) - ctx.n_tensors
    out, lse, *inputs = saved[:n]
    tensors = saved[n:]
    results = (torch.zeros_like(out) if grad_out is None else grad_out, out, lse, grad_lse)
    if any(needed_tensors):
        of_tensors = backward.of_tensors(results, tensors, needed_tensors)
    if any(needed[:3]):
        named = dict(zip(TENSORS, tensors, strict=True)) if tensors else {}
        arguments = backward.arguments_of(results, (*inputs, *ctx.lengths), named)
        found = zip(op(*arguments, **ctx.options), needed[:3], strict=True)
        of_inputs[:3] = [x if is_needed else None for x, is_needed in found]
    return of_inputs, of_tensors


def cast(
    inputs: tuple[Any, ...], options: Mapping[str, Any], device_type: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs and options as autocast hands them on: q, k and v are cast as torch casts those of
    scaled_dot_product_attention, the options' tensors to float32 unless they have the dtype
    already."""
    dtype = torch.get_autocast_dtype(device_type)

    def eligible(x: Tensor) -> bool:
        floating = x.is_floating_point() and x.dtype != torch.float64
        return floating and x.device.type == device_type

    per_head = {
        name: x.float()
        for name in TENSORS
        if (x := options.get(name)) is not None and x.dtype != dtype and eligible(x)
    }
    qkv = (x.to(dtype) if eligible(x) else x for x in inputs[:3])
    return (*qkv, *inputs[3:]), {**options, **per_head}


def refusal(sentence: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(sentence)

    return refuse
