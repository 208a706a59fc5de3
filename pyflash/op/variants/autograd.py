"""`torch.ops.pyflash.fwd_variant` in torch: shapes, autograd, autocast, and its gradients: by the
formula, `bwd_variant`, and by kernels on a GPU, `bwd_variant_kernels`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyflash.op.autograd import above_autograd, autocast
from pyflash.op.autograd.formulas import SECOND_DERIVATIVES, VMAP, Forward, refusal
from pyflash.op.fake import check_forward
from pyflash.op.options import OPTIONS, TENSORS
from pyflash.op.variants.arguments import Captured, keeps_promises, summed_of
from pyflash.op.variants.kernels import bwd_variant_kernels
from pyflash.op.variants.reference import gradients as gradients_of_formula

_OP = torch.ops.pyflash.fwd_variant.default
_NAMES = [argument.name for argument in _OP._schema.arguments]
# The config of kernels that compute gradients, or "" for the formula.
_CONFIG = "backward"
_INPUTS = [name for name in _NAMES[: _NAMES.index(next(iter(OPTIONS)))] if name != _CONFIG]
_PACKING = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
# The options on which gradients, or the kernels that compute them, depend.
_IN_BACKWARD = [
    name
    for name in _NAMES
    if name in OPTIONS and (OPTIONS[name].in_backward or not OPTIONS[name].chooses)
]
# Those of them that are tensors with gradients.
_DIFFERENTIABLE = [name for name in _IN_BACKWARD if name in TENSORS and OPTIONS[name].gradient]


def _fake(*inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
    given = dict(zip(_NAMES, inputs, strict=False)) | options
    q, packed = given["q"], given.get("cu_seqlens_q") is not None
    own = {name: given[name] for name in OPTIONS if name in given}
    check_forward(q, given["k"], given["v"], packed, **own)
    *batch, rows, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((*batch, heads, rows), dtype=torch.float32)


def _backward(*arguments: Any) -> list[Tensor]:
    grad_out, *inputs = arguments
    given = dict(zip([*_INPUTS, *_IN_BACKWARD], inputs, strict=True))
    captured = Captured(given["text"], given["tensors"], given["reals"], given["integers"])
    of_formula = [name for name in _IN_BACKWARD if not OPTIONS[name].chooses]
    options = {name: given[name] for name in of_formula if given[name] is not None}
    differentiable = [name for name in _DIFFERENTIABLE if name in options]
    cu_seqlens = given["cu_seqlens_q"], given["cu_seqlens_k"]
    inputs = [given[name] for name in ("q", "k", "v")]
    found = above_autograd(
        grad_out,
        lambda: gradients_of_formula(
            grad_out, inputs, captured, cu_seqlens, differentiable, **options
        ),
    )
    # Graphs expect the layouts of the fake.
    return [out.copy_(dx) for out, dx in zip(_fake_backward(*arguments), found, strict=True)]


def _fake_backward(*arguments: Any) -> list[Tensor]:
    given = dict(zip([*_INPUTS, *_IN_BACKWARD], arguments[1:], strict=True))
    options = [given[name] for name in _DIFFERENTIABLE if given[name] is not None]
    wanted = [given["q"], given["k"], given["v"], *options, *given["tensors"]]
    return [torch.empty_like(x) for x in wanted]


def _backward_kernels(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    config: str,
    summed: Sequence[int],
    *arguments: Any,
) -> list[Tensor]:
    given = dict(zip([*_INPUTS, *_IN_BACKWARD], arguments, strict=True))
    captured = Captured(given["text"], given["tensors"], given["reals"], given["integers"])
    options = {name: given[name] for name in _IN_BACKWARD if given[name] is not None}
    packing = [given[name] for name in _PACKING]
    return bwd_variant_kernels(
        grad_out, out, lse, given["q"], given["k"], given["v"], captured,
        packing if packing[0] is not None else (), config, summed, given["promise"], **options,
    )  # fmt: skip


def _fake_backward_kernels(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    config: str,
    summed: Sequence[int],
    *arguments: Any,
) -> list[Tensor]:
    tensors = arguments[_INPUTS.index("tensors")]
    wanted = [*arguments[:3], *(tensors[place] for place in summed)]
    return [torch.empty_like(x) for x in wanted]


def _setup(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    given = dict(zip(_NAMES, inputs, strict=True))
    ctx.config = given[_CONFIG]
    kept = {name: given[name] for name in (*_INPUTS, *_IN_BACKWARD)}
    tensors = [x for x in kept.values() if isinstance(x, Tensor)]
    ctx.n_single = len(tensors)
    results = output if ctx.config else ()
    ctx.save_for_backward(*results, *tensors, *kept.pop("tensors"))
    ctx.others = {name: x for name, x in kept.items() if not isinstance(x, Tensor)}


def _gradients(ctx: Any, grad_out: Tensor, _: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    results, saved = (saved[:2], saved[2:]) if ctx.config else ((), saved)
    single = iter(saved[: ctx.n_single])
    captured = list(saved[ctx.n_single :])
    known = {"tensors": captured, **ctx.others}
    kept = {
        name: known[name] if name in known else next(single) for name in (*_INPUTS, *_IN_BACKWARD)
    }
    names = ["q", "k", "v", *(name for name in _DIFFERENTIABLE if kept[name] is not None)]
    if ctx.config:
        found = _by_kernels(ctx, grad_out, results, kept)
    else:
        found = iter(torch.ops.pyflash.bwd_variant(grad_out, *kept.values()))
    gradients: dict[str, Any] = {name: next(found) for name in names}
    rest = zip(captured, found, strict=True)
    gradients["tensors"] = [dx if x.is_floating_point() else None for x, dx in rest]
    # NOTE: torch takes an empty list for one of tensors, and leaves out the last arguments that are
    # at their defaults.
    gradients |= {name: [] for name in ("reals", "integers") if not kept[name]}
    return tuple(gradients.get(name) for name in _NAMES[: len(ctx.needs_input_grad)])


def _by_kernels(
    ctx: Any, grad_out: Tensor, results: Sequence[Tensor], kept: Mapping[str, Any]
) -> Iterator[Tensor | None]:
    """In the order of `bwd_variant`; of options and captured tensors that are not needed, None."""
    tensors, needed_of = kept["tensors"], ctx.needs_input_grad[_NAMES.index("tensors")]
    summed = summed_of(Captured(kept["text"], tensors, [], []), needed_of)
    arguments = {**kept, "promise": kept["promise"] if keeps_promises(kept["q"]) else None}
    dq, dk, dv, *sums = torch.ops.pyflash.bwd_variant_kernels(
        grad_out, *results, ctx.config, summed, *arguments.values()
    )
    yield from (dq, dk, dv)
    for name in _DIFFERENTIABLE:
        if kept[name] is not None:
            needed = ctx.needs_input_grad[_NAMES.index(name)]
            op = getattr(torch.ops.pyflash, str(OPTIONS[name].gradient))
            yield op(grad_out, *results, None, kept[name]) if needed else None
    of_place = dict(zip(summed, sums, strict=True))
    for place, (x, needed) in enumerate(zip(tensors, needed_of, strict=True)):
        yield of_place[place] if place in of_place else torch.zeros_like(x) if needed else None


def _schema(name: str, first: str, results: str) -> str:
    """Takes the arguments of the forward pass, without the options that it does not use."""
    arguments = str(_OP._schema).partition("(")[2].partition(") -> ")[0].split(", ")
    taken = [a.partition("=")[0] for a in arguments]
    kept = [a for a in taken if a.split(" ")[-1] in {*_INPUTS, *_IN_BACKWARD}]
    return f"{name}({first}, {', '.join(kept)}) -> {results}"


_library = torch.library.Library("pyflash", "FRAGMENT")
for _name, _first, _results, _impl, _keys, _of_fakes in (
    ("bwd_variant", "Tensor grad_out", "Tensor[]",
     _backward, "CompositeExplicitAutograd", _fake_backward),
    ("bwd_variant_kernels", "Tensor grad_out, Tensor out, Tensor lse, str config, int[] summed",
     "Tensor[]", _backward_kernels, "CUDA", _fake_backward_kernels),
):  # fmt: skip
    _library.define(_schema(_name, _first, _results), tags=torch.Tag.pt2_compliant_tag)
    _library.impl(_name, _impl, _keys)
    torch.library.register_fake(f"pyflash::{_name}", _of_fakes, lib=_library)
    torch.library.register_autograd(f"pyflash::{_name}", refusal(SECOND_DERIVATIVES), lib=_library)
torch.library.register_fake("pyflash::fwd_variant", _fake, lib=_library)
torch.library.register_autograd(
    "pyflash::fwd_variant", _gradients, setup_context=_setup, lib=_library
)
for _device_type, _key in (("cuda", "AutocastCUDA"), ("cpu", "AutocastCPU")):
    _forward = Forward("fwd_variant", _OP, torch.ops.pyflash.bwd_variant.default)
    _library.impl("fwd_variant", autocast(_forward, _device_type, _key), _key)
_library.impl("fwd_variant", refusal(VMAP), "FuncTorchBatched")
