"""`torch.ops.pyflash.fwd_variant` in torch: shapes, autograd, autocast, and `bwd_variant`, its
gradients by the formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from pyflash.op.autograd import autocast
from pyflash.op.autograd.formulas import SECOND_DERIVATIVES, VMAP, Forward, refusal
from pyflash.op.fake import check_forward
from pyflash.op.options import OPTIONS, TENSORS
from pyflash.op.variants.arguments import Captured
from pyflash.op.variants.reference import gradients

_OP = torch.ops.pyflash.fwd_variant.default
_NAMES = [argument.name for argument in _OP._schema.arguments]
_INPUTS = _NAMES[: _NAMES.index(next(iter(OPTIONS)))]
# The options on which gradients depend.
_IN_BACKWARD = [name for name in _NAMES if name in OPTIONS and not OPTIONS[name].chooses]
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
    options = {name: given[name] for name in _IN_BACKWARD if given[name] is not None}
    differentiable = [name for name in _DIFFERENTIABLE if name in options]
    cu_seqlens = given["cu_seqlens_q"], given["cu_seqlens_k"]
    inputs = [given[name] for name in ("q", "k", "v")]
    return _above_autograd(
        grad_out,
        lambda: gradients(grad_out, inputs, captured, cu_seqlens, differentiable, **options),
    )


def _above_autograd(x: Tensor, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
    """In a thread of its own: within the kernel of an op torch records nothing, and has no public
    way to change that. Where x is, and in this thread's stream."""
    if not x.is_cuda:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(compute).result()
    stream = torch.cuda.current_stream(x.device)

    def on_stream() -> list[Tensor]:
        with torch.cuda.stream(stream):
            return compute()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(on_stream).result()


def _fake_backward(*arguments: Any) -> list[Tensor]:
    given = dict(zip([*_INPUTS, *_IN_BACKWARD], arguments[1:], strict=True))
    options = [given[name] for name in _DIFFERENTIABLE if given[name] is not None]
    wanted = [given["q"], given["k"], given["v"], *options, *given["tensors"]]
    return [torch.empty_like(x) for x in wanted]


def _setup(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    given = dict(zip(_NAMES, inputs, strict=True))
    kept = {name: given[name] for name in (*_INPUTS, *_IN_BACKWARD)}
    tensors = [x for x in kept.values() if isinstance(x, Tensor)]
    ctx.n_single = len(tensors)
    ctx.save_for_backward(*tensors, *kept.pop("tensors"))
    ctx.others = {name: x for name, x in kept.items() if not isinstance(x, Tensor)}


def _gradients(ctx: Any, grad_out: Tensor, _: Any) -> tuple[Any, ...]:
    single = iter(ctx.saved_tensors[: ctx.n_single])
    captured = list(ctx.saved_tensors[ctx.n_single :])
    known = {"tensors": captured, **ctx.others}
    kept = {
        name: known[name] if name in known else next(single) for name in (*_INPUTS, *_IN_BACKWARD)
    }
    found = iter(torch.ops.pyflash.bwd_variant(grad_out, *kept.values()))
    names = ["q", "k", "v", *(name for name in _DIFFERENTIABLE if kept[name] is not None)]
    results: dict[str, Any] = {name: next(found) for name in names}
    rest = zip(captured, found, strict=True)
    results["tensors"] = [dx if x.is_floating_point() else None for x, dx in rest]
    # NOTE: torch takes an empty list for one of tensors, and leaves out the last arguments that are
    # at their defaults.
    results |= {name: [] for name in ("reals", "integers") if not kept[name]}
    return tuple(results.get(name) for name in _NAMES[: len(ctx.needs_input_grad)])


def _schema() -> str:
    """Takes the arguments of the forward pass, without the options that it does not use."""
    arguments = str(_OP._schema).partition("(")[2].partition(") -> ")[0].split(", ")
    taken = [a.partition("=")[0] for a in arguments]
    kept = [a for a in taken if a.split(" ")[-1] in {*_INPUTS, *_IN_BACKWARD}]
    return f"bwd_variant(Tensor grad_out, {', '.join(kept)}) -> Tensor[]"


_library = torch.library.Library("pyflash", "FRAGMENT")
_library.define(_schema(), tags=torch.Tag.pt2_compliant_tag)
_library.impl("bwd_variant", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("pyflash::bwd_variant", _fake_backward, lib=_library)
torch.library.register_autograd("pyflash::bwd_variant", refusal(SECOND_DERIVATIVES), lib=_library)
torch.library.register_fake("pyflash::fwd_variant", _fake, lib=_library)
torch.library.register_autograd(
    "pyflash::fwd_variant", _gradients, setup_context=_setup, lib=_library
)
for _device_type, _key in (("cuda", "AutocastCUDA"), ("cpu", "AutocastCPU")):
    _forward = Forward("fwd_variant", _OP, torch.ops.pyflash.bwd_variant.default)
    _library.impl("fwd_variant", autocast(_forward, _device_type, _key), _key)
_library.impl("fwd_variant", refusal(VMAP), "FuncTorchBatched")
