"""Autograd and autocast of the ops by the public torch.library.

register_autograd takes no op with keyword-only tensors, so a call that is recorded goes through an
op of its own, whose first arguments are these: `torch.ops.pyflash.recorded_fwd`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd import forward_ad

from pyflash.op.autograd.formulas import FORWARD_MODE, Forward, cast, gradients, save
from pyflash.op.backward import lse_has_gradient, refuse_what_has_no_gradients
from pyflash.op.errors import call
from pyflash.op.options import TENSORS, backward_options, tensors_of


def is_seen_by_nobody(x: Tensor | None) -> bool:
    """As that of private_api, where it cannot be known."""
    return False


def call_op(
    op: OpOverload,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    others: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    """As that of private_api; there is no way past autograd."""
    return call(op, q, k, v, *others, **options)


def above_autograd(x: Tensor, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
    """As that of private_api, in a thread of its own. Raises RuntimeError on a GPU, where that
    thread would wait for the one that runs the backward passes of the GPU."""
    if x.is_cuda:
        raise RuntimeError(
            "pyflash: gradients by the formula on a GPU need private parts of torch, which this "
            "version lacks or PYFLASH_TORCH_API=public leaves out: expected backward='', by "
            "kernels, or another version of torch without that variable"
        )
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(compute).result()


def register_forward(library: torch.library.Library, forward: Forward) -> None:
    name = f"recorded_{forward.name}"
    library.define(_schema_of_recorded(forward), tags=torch.Tag.pt2_compliant_tag)

    n = len(TENSORS)

    def below(*tensors_and_inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
        tensors = zip(TENSORS, tensors_and_inputs[:n], strict=True)
        per_head = {name: x for name, x in tensors if x is not None}
        return forward.op(*tensors_and_inputs[n:], **options, **per_head)

    library.impl(name, below, "CompositeExplicitAutograd")
    recorded = getattr(torch.ops.pyflash, name).default

    def kernel(*inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
        per_head = tensors_of(options)
        tensors = [x for x in (*per_head, *inputs) if isinstance(x, Tensor)]
        _refuse_forward_mode(tensors)
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            refuse_what_has_no_gradients(*inputs[:2], inputs[3:], options)
        others = {name: value for name, value in options.items() if name not in TENSORS}
        return recorded(*per_head, *inputs, **others)

    def setup(
        ctx: Any,
        inputs: tuple[Any, ...],
        keyword_only_inputs: Mapping[str, Any],
        output: tuple[Tensor, Tensor],
    ) -> None:
        has_gradient = lse_has_gradient(*inputs[n : n + 2], inputs[n + 3 :], keyword_only_inputs)
        options = backward_options(keyword_only_inputs)
        save(ctx, output, inputs[:n], inputs[n:], has_gradient, options)

    def backward(
        ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad
        saved = () if grad_out is None and grad_lse is None else ctx.saved_tensors
        of_inputs, of_tensors = gradients(
            ctx, saved, forward.backward, grad_out, grad_lse, needed[n:], needed[:n]
        )
        return (*of_tensors, *of_inputs)

    torch.library.register_autograd(f"pyflash::{name}", backward, setup_context=setup, lib=library)
    library.impl(forward.name, kernel, "Autograd")


def register_backward(
    library: torch.library.Library, name: str, refuse: Callable[..., Any]
) -> None:
    torch.library.register_autograd(f"pyflash::{name}", refuse, lib=library)


def autocast(forward: Forward, device_type: str, key: str) -> Callable[..., tuple[Tensor, ...]]:
    def kernel(*inputs: Any, **options: Any) -> tuple[Tensor, ...]:
        inputs, options = cast(inputs, options, device_type)
        with torch.autocast(device_type, enabled=False):
            return forward.op(*inputs, **options)

    return kernel


def _schema_of_recorded(forward: Forward) -> str:
    schema = str(forward.op._schema).partition("::")[2]
    for name in TENSORS:
        schema = schema.replace(f", Tensor? {name}=None", "")
    tensors = "".join(f"Tensor? {name}, " for name in TENSORS)
    return f"recorded_{schema.replace('(', f'({tensors}', 1)}"


def _refuse_forward_mode(tensors: list[Tensor]) -> None:
    for x in tensors:
        if forward_ad.unpack_dual(x).tangent is not None:
            raise RuntimeError(FORWARD_MODE)
