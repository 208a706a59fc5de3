"""What both implementations share: what is saved, the gradients from it, casts and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch._ops import OpOverload

from pyflash.op import backward
from pyflash.op.options import TENSORS, backward_options

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
    forward: Forward,
    results: tuple[Tensor, Tensor],
    tensors: tuple[Tensor | None, ...],
    inputs: tuple[Any, ...],
    options: Mapping[str, Any],
) -> None:
    """Keeps in ctx what `gradients` needs. tensors: the options of `TENSORS`."""
    out, lse = results
    if not backward.lse_has_gradient(inputs, options):
        ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(out, lse, *tensors, *inputs[:5])
    ctx.lengths = inputs[5:]
    ctx.forward = forward
    ctx.options = backward_options(options)


def gradients(
    ctx: Any,
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    needed: tuple[bool, ...],
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> list[Tensor | None]:
    """The gradients of (*tensors, *inputs); None for those that are not needed. around: of the ops,
    and not of what unpacks saved tensors, which may run the forward pass again."""
    results: list[Tensor | None] = [None] * len(needed)
    if grad_out is None and grad_lse is None:
        return results
    n = len(TENSORS)
    out, lse, *saved = ctx.saved_tensors
    of_out = (torch.zeros_like(out) if grad_out is None else grad_out, out, lse, grad_lse)
    with around():
        results[:n] = backward.of_tensors(of_out, saved[:n], needed[:n])
        if any(needed[n : n + 3]):
            tensors = dict(zip(TENSORS, saved[:n], strict=True))
            arguments = backward.arguments_of(of_out, (*saved[n:], *ctx.lengths), tensors)
            results[n : n + 3] = ctx.forward.backward(*arguments, **ctx.options)
    return [x if n else None for x, n in zip(results, needed, strict=True)]


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
