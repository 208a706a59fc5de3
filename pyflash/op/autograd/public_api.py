"""Autograd and autocast of the ops by the public torch.library.

register_autograd takes no op with keyword-only tensors, so a call that is recorded goes through an
op of its own, whose first argument is sinks: `torch.ops.pyflash.recorded_fwd`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pyflash.op.autograd.formulas import FORWARD_MODE, Forward, cast, gradients, save
from pyflash.op.backward import refuse_what_has_no_gradients


def register_forward(library: torch.library.Library, forward: Forward) -> None:
    name = f"recorded_{forward.name}"
    library.define(_schema_of_recorded(forward), tags=torch.Tag.pt2_compliant_tag)

    def below(sinks: Tensor | None, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
        return forward.op(*inputs, **options | ({} if sinks is None else {"sinks": sinks}))

    library.impl(name, below, "CompositeExplicitAutograd")
    recorded = getattr(torch.ops.pyflash, name).default

    def kernel(*inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
        sinks = options.pop("sinks", None)
        tensors = [x for x in (sinks, *inputs) if isinstance(x, Tensor)]
        _refuse_forward_mode(tensors)
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            refuse_what_has_no_gradients(inputs[0], inputs[3:], options)
        return recorded(sinks, *inputs, **options)

    def setup(
        ctx: Any,
        inputs: tuple[Any, ...],
        keyword_only_inputs: Mapping[str, Any],
        output: tuple[Tensor, Tensor],
    ) -> None:
        sinks, *others = inputs
        save(ctx, forward, output, sinks, tuple(others), keyword_only_inputs)

    def backward(ctx: Any, grad_out: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        return tuple(gradients(ctx, grad_out, ctx.needs_input_grad))

    torch.library.register_autograd(f"pyflash::{name}", backward, setup_context=setup, lib=library)
    library.impl(forward.name, kernel, "Autograd")


def register_backward(
    library: torch.library.Library, name: str, refuse: Callable[..., Any]
) -> None:
    torch.library.register_autograd(f"pyflash::{name}", refuse, lib=library)


def autocast(forward: Forward, device_type: str, key: str) -> Callable[..., tuple[Tensor, ...]]:
    def kernel(*inputs: Any, **options: Any) -> tuple[Tensor, ...]:
        sinks, *inputs = cast(inputs, options.get("sinks"), device_type)
        if sinks is not None:
            options["sinks"] = sinks
        with torch.autocast(device_type, enabled=False):
            return forward.op(*inputs, **options)

    return kernel


def _schema_of_recorded(forward: Forward) -> str:
    schema = str(forward.op._schema).partition("::")[2]
    schema = schema.replace(", Tensor? sinks=None", "").replace(f"{forward.name}(", "(", 1)
    return f"recorded_{forward.name}{schema.replace('(', '(Tensor? sinks, ', 1)}"


def _refuse_forward_mode(tensors: list[Tensor]) -> None:
    for x in tensors:
        if forward_ad.unpack_dual(x).tangent is not None:
            raise RuntimeError(FORWARD_MODE)
