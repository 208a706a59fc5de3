"""The gradients of attention: `torch.ops.pyflash.bwd`, `bwd_varlen` and `bwd_sinks`.

`bwd` and `bwd_varlen` map the gradients of out and lse, the latter None for zeros, to those of q,
k and v, given out and lse of the forward pass; the other arguments are those of the forward pass.
Gradients have the strides of torch.empty_like. cuda.py has the implementations for GPUs, cpu.py
those for the CPU. `bwd_sinks` is the same everywhere, padded and packed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyflash.op.answers import kept
from pyflash.op.backward import cpu, cuda, kernels
from pyflash.op.backward.choice import PLACES, without_gradients
from pyflash.op.options import (
    BACKWARD_TENSORS,
    DEFAULTS,
    OPTIONS,
    OWN_KERNELS,
    TENSORS,
    given,
)

# What else, where PyTorch's kernels compute gradients, has the effect of an option.
_INSTEAD = {"deterministic": ", or torch.use_deterministic_algorithms(True)"}


def refuse_what_has_no_gradients(
    q: Tensor, k: Tensor | None, packing: Sequence[Any], options: Mapping[str, Any]
) -> None:
    """Raises RuntimeError for a forward pass that can run but whose backward pass cannot.

    k: None where pyflash's own kernels of op backward are not asked. packing: the positional
    arguments of `fwd_varlen` after v, or ().
    """
    refuse_gradients_of_tensors(options)
    refuse_what_nothing_serves(q, k, packing, options)


@kept
def refuse_what_nothing_serves(
    q: Tensor, k: Tensor | None, packing: Sequence[Any], options: Mapping[str, Any]
) -> None:
    device_type = q.device.type
    lacking = without_gradients(options, device_type)
    too_many = _refusal_of_borrowed_grids(q, packing) if device_type == "cuda" else None
    if not lacking and not too_many:
        return
    own = ""
    if k is not None and device_type == "cuda" and not without_gradients(options, OWN_KERNELS):
        reason = kernels.refusal(q, k, packing, options)
        if not reason:
            return
        own = f"; or a call that a kernel of op backward takes (none does: {reason})"
    for name, value in lacking.items():
        is_tensor, default = name in TENSORS, DEFAULTS[name]
        said = name if is_tensor else f"{name} = {_number(value)}"
        instead = _INSTEAD.get(name, "")
        raise RuntimeError(
            f"pyflash: {said} has no gradients on {PLACES[device_type]}: expected "
            f"{default if is_tensor else _number(default)}{instead}, or tensors that do not "
            f"require gradients{own}"
        )
    raise RuntimeError(f"pyflash: {too_many}{own}")


def _refusal_of_borrowed_grids(q: Tensor, packing: Sequence[Any]) -> str | None:
    heads = q.shape[-2]
    sequences = packing[0].shape[0] - 1 if packing else 0
    at_most = f"expected at most {cuda.MAX_GRID} where gradients are required"
    if isinstance(heads, int) and heads > cuda.MAX_GRID:
        return f"q has heads {heads}: {at_most}"
    if isinstance(sequences, int) and sequences > cuda.MAX_GRID:
        return f"cu_seqlens_q is for {sequences} sequences: {at_most}"
    return None


def refuse_gradients_of_tensors(options: Mapping[str, Any]) -> None:
    for name in TENSORS:
        x = options.get(name)
        if x is not None and x.requires_grad and not OPTIONS[name].gradient:
            raise RuntimeError(
                f"pyflash: {name} requires gradients, and has none: expected a tensor that does "
                "not, as .detach() makes one"
            )


# grad_out, out, lse, grad_lse.
Results = tuple[Tensor, Tensor, Tensor, Tensor | None]


@kept
def lse_has_gradient(
    q: Tensor, k: Tensor, packing: Sequence[Any], options: Mapping[str, Any]
) -> bool:
    """Whether the backward pass of a call takes a gradient of lse: on the CPU, and where pyflash's
    own kernels run it. packing: the positional arguments of `fwd_varlen` after v, or ()."""
    device_type = q.device.type
    return device_type == "cpu" or (device_type == "cuda" and kernels.takes(q, k, packing, options))


@kept
def runs_own(q: Tensor, k: Tensor, packing: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether `bwd` and `bwd_varlen` do nothing but `kernels.bwd` for a call, with a gradient of
    lse and without. packing: as for `lse_has_gradient`."""
    device_type = q.device.type
    if device_type == "cuda":
        return cuda.always_runs_own(q, k, packing, options)
    return device_type == "cpu"


def arguments_of(
    results: Results, inputs: Sequence[Any], tensors: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The positional arguments of `bwd` and `bwd_varlen`: the results of the forward pass and their
    gradients, the tensors among the options, and what is positional in the forward pass."""
    return (*results, *[tensors.get(name) for name in BACKWARD_TENSORS], *inputs)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def of_tensors(
    results: Results,
    tensors: Sequence[Tensor | None],
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of the options of `TENSORS` that are needed."""
    return [
        getattr(torch.ops.pyflash, OPTIONS[name].gradient)(*results, x) if is_needed else None
        for name, x, is_needed in zip(TENSORS, tensors, needed, strict=True)
    ]


def bwd_sinks(
    grad_out: Tensor, out: Tensor, lse: Tensor, grad_lse: Tensor | None, sinks: Tensor
) -> Tensor:
    """(heads,), -sum(exp(sink - lse) * (rowsum(dO * O) - dlse)) over batch and rows, in fp32. The
    first factor is the sink's share of a row's softmax."""
    delta = (grad_out.float() * out.float()).sum(-1)  # (..., rows, heads)
    if grad_lse is not None:
        delta -= grad_lse.transpose(-1, -2)
    lse = lse.transpose(-1, -2)
    parts = torch.exp(sinks.float() - lse) * delta
    parts = parts.masked_fill(lse == -math.inf, 0)  # nothing attended, and a sink of -inf
    return -parts.flatten(0, -2).sum(0).to(sinks.dtype)


def _with_named_tensors(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The implementation of the op for a function that takes the options' tensors by name."""
    n = len(BACKWARD_TENSORS)

    def call(
        grad_out: Tensor,
        out: Tensor,
        lse: Tensor,
        grad_lse: Tensor | None,
        *others: Any,
        **options: Any,
    ) -> Any:
        tensors = given(dict(zip(BACKWARD_TENSORS, others[:n], strict=True)))
        results = (grad_out, out, lse)
        return backward(*results, *others[n:], grad_lse=grad_lse, **tensors, **options)

    return call


def _fake(
    grad_out: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _fake_sinks(
    grad_out: Tensor, out: Tensor, lse: Tensor, grad_lse: Tensor | None, sinks: Tensor
) -> Tensor:
    return sinks.new_empty(sinks.shape)


_RESULTS = "Tensor grad_out, Tensor out, Tensor lse, Tensor? grad_lse"


def _schema(name: str, forward: torch._ops.OpOverload) -> str:
    """Takes the arguments of the forward pass, without the options that it does not use. Tensors
    are positional, because torch's public autograd requires that."""
    arguments = str(forward._schema).partition("(")[2].partition(") -> ")[0].split(", ")

    def is_taken(argument: str) -> bool:
        option = argument.partition("=")[0].split(" ")[-1]
        return option not in OPTIONS or (OPTIONS[option].in_backward and option not in TENSORS)

    tensors = [f"Tensor? {tensor}" for tensor in BACKWARD_TENSORS]
    taken = ", ".join((_RESULTS, *tensors, *filter(is_taken, arguments)))
    return f"{name}({taken}) -> (Tensor dq, Tensor dk, Tensor dv)"


_library = torch.library.Library("pyflash", "FRAGMENT")
for _name, _forward in (
    ("bwd", torch.ops.pyflash.fwd.default),
    ("bwd_varlen", torch.ops.pyflash.fwd_varlen.default),
):
    _library.define(_schema(_name, _forward), tags=torch.Tag.pt2_compliant_tag)
    _library.impl(_name, _with_named_tensors(getattr(cuda, _name)), "CUDA")
    _library.impl(_name, _with_named_tensors(getattr(cpu, _name)), "CPU")
    torch.library.register_fake(f"pyflash::{_name}", _with_named_tensors(_fake), lib=_library)
_library.define(
    f"bwd_sinks({_RESULTS}, Tensor sinks) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)
_library.impl("bwd_sinks", bwd_sinks, "CUDA")
_library.impl("bwd_sinks", bwd_sinks, "CPU")
torch.library.register_fake("pyflash::bwd_sinks", _fake_sinks, lib=_library)
