"""The ops under what torch does to functions: autograd, autocast, vmap, forward-mode derivatives.

Registered with a kernel for each dispatch key, because torch.library.register_autograd makes every
call slower, those that need no gradients too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pyflash.op.backward import refuse_what_has_no_gradients

_C = torch._C
_SECOND_DERIVATIVES = (
    "pyflash: attention has no second derivatives: call backward without create_graph = True, or "
    "attend with torch.nn.functional.scaled_dot_product_attention under its math backend"
)
_FORWARD_MODE = (
    "pyflash: attention has no forward-mode derivatives (jvp): use reverse mode, or "
    "torch.nn.functional.scaled_dot_product_attention under its math backend"
)
_VMAP = (
    "pyflash: attention cannot be called under vmap: fold the mapped dimension into the batch, "
    "x.flatten(0, 1), and unflatten the result"
)


def _refuse(sentence: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(sentence)

    return refuse


# Autograd. An op's inputs are its positional arguments, with q, k and v first.
#
# NOTE: torch.autograd.Function would hand a call under torch.func.grad to functorch, in whose
# interpreter a kernel already is; this one does what the kernels of torch's own ops do.
_Function = torch.autograd.function._SingleLevelFunction
_in_torch_func = _C._are_functorch_transforms_active


def _apply(function: type[_Function], *arguments: Any) -> tuple[Tensor, ...]:
    if not _in_torch_func():
        return function.apply(*arguments)
    with torch._functorch.utils.enable_single_level_autograd_function():
        return function.apply(*arguments)


@dataclass(slots=True)
class _Call:
    """A call from a function's forward pass: of what is below autograd, with these options."""

    below: Callable[..., tuple[Tensor, ...]]
    keyset: Any
    options: dict[str, Any]

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        if not _in_torch_func():
            return self.below(self.keyset, *inputs, **self.options)
        # Not recorded here, but by the next level of torch.func.
        with (
            _C._AutoDispatchBelowAutograd(),
            torch.enable_grad(),
            forward_ad._set_fwd_grad_enabled(True),
        ):
            return self.below(self.keyset, *inputs, **self.options)


class _Attention(_Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, backward: Any, *inputs: Any) -> tuple[Tensor, ...]:
        out, lse = call(*inputs)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(out, lse, *inputs[:5])
        ctx.lengths = inputs[5:]
        ctx.backward = backward
        ctx.options = {
            name: value
            for name, value in call.options.items()
            if name not in ("config", "num_splits")
        }
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        gradients: tuple[Tensor | None, ...] = (None, None, None)
        if grad_out is not None:
            gradients = ctx.backward(grad_out, *ctx.saved_tensors, *ctx.lengths, **ctx.options)
        gradients += (None,) * (len(needed) - 3)
        return (None, None, *(x if n else None for x, n in zip(gradients, needed, strict=True)))

    jvp = staticmethod(_refuse(_FORWARD_MODE))


class _Gradients(_Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Any) -> tuple[Tensor, ...]:
        return call(*inputs)

    backward = staticmethod(_refuse(_SECOND_DERIVATIVES))
    jvp = staticmethod(_refuse(_FORWARD_MODE))


def _autograd_of_forward(name: str, backward_name: str) -> Callable[..., tuple[Tensor, ...]]:
    below = _redispatch(name)
    backward = getattr(torch.ops.pyflash, backward_name).default
    is_grad_enabled, after_autograd = _C.is_grad_enabled, _C._after_autograd_keyset

    # NOTE: every call of the op comes through here, so what it does costs.
    def kernel(
        keyset: Any, q: Tensor, k: Tensor, v: Tensor, *packing: Any, **options: Any
    ) -> tuple[Tensor, ...]:
        recorded = is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        if recorded:
            cu_seqlens_q = packing[0] if packing else None
            refuse_what_has_no_gradients(q, cu_seqlens_q, options.get("softcap", 0.0))
        if recorded or forward_ad._current_level >= 0:
            call = _Call(below, keyset & after_autograd, options)
            return _apply(_Attention, call, backward, q, k, v, *packing)
        return below(keyset & after_autograd, q, k, v, *packing, **options)

    return kernel


def _autograd_of_backward(name: str) -> Callable[..., tuple[Tensor, ...]]:
    below = _redispatch(name)

    def kernel(keyset: Any, *inputs: Any, **options: Any) -> tuple[Tensor, ...]:
        call = _Call(below, keyset & _C._after_autograd_keyset, options)
        recorded = _C.is_grad_enabled() and _C._any_requires_grad(*inputs)
        if recorded or forward_ad._current_level >= 0:
            return _apply(_Gradients, call, *inputs)
        return below(call.keyset, *inputs, **options)

    return kernel


def _redispatch(name: str) -> Callable[..., tuple[Tensor, ...]]:
    """OpOverload.redispatch of torch.ops.pyflash.<name>, but for a Python call."""
    return getattr(torch.ops.pyflash, name).default._handle.redispatch_boxed


# Autocast


def _autocast(name: str, device_type: str, key: str) -> Callable[..., tuple[Tensor, ...]]:
    """Casts q, k and v as torch casts those of scaled_dot_product_attention."""
    op = getattr(torch.ops.pyflash, name).default
    excluded = _C.DispatchKeySet(getattr(_C.DispatchKey, key))

    def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
        eligible = x.is_floating_point() and x.dtype != torch.float64
        return x.to(dtype) if eligible and x.device.type == device_type else x

    def kernel(*inputs: Any, **options: Any) -> tuple[Tensor, ...]:
        dtype = torch.get_autocast_dtype(device_type)
        qkv = (cast(x, dtype) for x in inputs[:3])
        with _C._ExcludeDispatchKeyGuard(excluded):
            return op(*qkv, *inputs[3:], **options)

    return kernel


_library = torch.library.Library("pyflash", "IMPL")
for _name, _backward_name in (("fwd", "bwd"), ("fwd_varlen", "bwd_varlen")):
    _forward_kernel = _autograd_of_forward(_name, _backward_name)
    _library.impl(_name, _forward_kernel, "Autograd", with_keyset=True)
    _backward_kernel = _autograd_of_backward(_backward_name)
    _library.impl(_backward_name, _backward_kernel, "Autograd", with_keyset=True)
    for _device_type, _key in (("cuda", "AutocastCUDA"), ("cpu", "AutocastCPU")):
        _library.impl(_name, _autocast(_name, _device_type, _key), _key)
    for _any_name in (_name, _backward_name):
        _library.impl(_any_name, _refuse(_VMAP), "FuncTorchBatched")
