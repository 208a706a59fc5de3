"""A call of attention with a variant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyflash.config.words import shown
from pyflash.op.autograd import call_op
from pyflash.op.backward.choice import switch_is_on
from pyflash.op.errors import NO_GRADIENTS_OVER_PAGES, call
from pyflash.op.on_demand import is_asked
from pyflash.op.variants.arguments import Captured, captured_of, promise_of
from pyflash.op.variants.gradients import REFERENCE, config_for
from pyflash.op.variants.jit import ensure_built, ensure_paged_built
from pyflash.variant import Bound, Variant

_NO_PACKING = (None,) * 4
_OP = torch.ops.pyflash.fwd_variant.default
_PAGED_OP = torch.ops.pyflash.fwd_paged_variant.default


def with_variant(
    inputs: tuple[Tensor, Tensor, Tensor],
    packing: tuple[Any, ...],
    variant: Variant | Bound | str,
    values: Mapping[str, Any] | None,
    backward: str,
    arguments: dict[str, Any],
    return_lse: bool,
    compile: bool,
) -> Any:
    """`attention`, or `attention_varlen` with its packing, whose options are the op's arguments."""
    if backward not in ("", REFERENCE):
        raise ValueError(f"pyflash: backward is {shown(backward)}: expected {REFERENCE!r} or ''")
    captured, q = captured_of(variant, values), inputs[0]
    compiles = is_asked(q, compile)
    if compiles:
        ensure_built(captured.text, arguments, q, inputs[1], packing)
    others = (*captured, *(packing or _NO_PACKING))
    promise = promise_of(variant, captured, q)
    if torch.is_grad_enabled() and _require_gradients(inputs, captured, arguments):
        config = ""  # of kernels of gradients; "": the formula
        if q.device.type == "cpu" or backward == REFERENCE:
            _refuse_sums_in_any_order(inputs, captured, arguments)
        else:
            config = config_for(q, captured, packing, arguments, compiles)
        out, lse = call(_OP, *inputs, *others, config, promise, **arguments)
    else:
        out, lse = call_op(_OP, *inputs, (*others, "", promise), arguments)
    return (out, lse) if return_lse else out


def paged_with_variant(
    inputs: tuple[Tensor, Tensor, Tensor],
    pages: tuple[Tensor, Tensor],
    packing: tuple[Tensor | None, int | None],
    variant: Variant | Bound | str,
    values: Mapping[str, Any] | None,
    arguments: dict[str, Any],
    compile: bool,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of `attention_paged`. inputs: q and the caches; pages: block_table and seqlens_k;
    packing: cu_seqlens_q and max_seqlen_q."""
    captured = captured_of(variant, values)
    if torch.is_grad_enabled() and _require_gradients(inputs, captured, arguments):
        raise RuntimeError(NO_GRADIENTS_OVER_PAGES)
    if is_asked(inputs[0], compile):
        ensure_paged_built(captured.text, arguments, *inputs[:2], pages[0], packing[1])
    found: tuple[Tensor, Tensor] = call_op(
        _PAGED_OP, *inputs, (*pages, *captured, *packing), arguments
    )
    return found


def refuse_values(values: Mapping[str, Any] | None, backward: str) -> None:
    """Raises ValueError for what goes with a variant and came without one."""
    for name, given in (("tensors", values is not None), ("backward", backward != "")):
        if given:
            raise ValueError(f"pyflash: {name} came without variant: expected both, or neither")


def _refuse_sums_in_any_order(
    inputs: tuple[Tensor, ...], captured: Captured, arguments: Mapping[str, Any]
) -> None:
    """On a GPU PyTorch chooses how products are summed; gradients of what a variant captures are
    sums in any order on the CPU, too."""
    if not arguments.get("deterministic") or switch_is_on():
        return
    summed = captured.tensors if inputs[0].device.type == "cpu" else (*inputs, *captured.tensors)
    if any(x.requires_grad for x in summed):
        raise RuntimeError(
            "pyflash: deterministic came with a variant, whose gradients PyTorch sums in any order "
            "here: expected torch.use_deterministic_algorithms(True), or tensors that do not "
            "require gradients"
        )


def _require_gradients(
    inputs: tuple[Tensor, ...], captured: Captured, arguments: Mapping[str, Any]
) -> bool:
    # NOTE: every call comes through here, so what it does costs.
    for tensors in (inputs, captured.tensors, arguments.values()):
        for x in tensors:
            if isinstance(x, Tensor) and x.requires_grad:
                return True
    return False
