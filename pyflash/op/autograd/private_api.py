"""Autograd and autocast of the ops by private parts of torch: a Python call and a few attribute
reads on top of the op itself. The only file that needs private parts of torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pyflash.op.answers import Answers, answers_about, state
from pyflash.op.autograd.formulas import FORWARD_MODE, Forward, cast, gradients, refusal, save
from pyflash.op.backward import (
    kernels,
    lse_has_gradient,
    refuse_gradients_of_tensors,
    refuse_what_nothing_serves,
    runs_own,
)
from pyflash.op.options import TENSORS, tensors_of

_C = torch._C
is_grad_enabled = _C.is_grad_enabled
# NOTE: torch.autograd.Function would hand a call under torch.func.grad to functorch, in whose
# interpreter a kernel already is; this class does what the kernels of torch's own ops do.
_Function = getattr(torch.autograd.function, "_SingleLevelFunction", torch.autograd.Function)

_NEEDED = (
    "autograd.function._SingleLevelFunction",
    "autograd.forward_ad._current_level",
    "autograd.forward_ad._set_fwd_grad_enabled",
    "_functorch.utils.enable_single_level_autograd_function",
    "_C._after_autograd_keyset",
    "_C._any_requires_grad",
    "_C._len_torch_dispatch_stack",
    "_C._are_functorch_transforms_active",
    "_C._AutoDispatchBelowAutograd",
    "_C._ExcludeDispatchKeyGuard",
    "_C.DispatchKeySet",
    "_C.DispatchKey.AutocastCPU",
    "_C.DispatchKey.AutocastCUDA",
    "ops.pyflash.fwd.default._handle.redispatch_boxed",
)


def is_available() -> bool:
    """Whether this torch has everything that this file uses."""
    for path in _NEEDED:
        value: Any = torch
        for name in path.split("."):
            if not hasattr(value, name):
                return False
            value = getattr(value, name)
    return True


def register_forward(library: torch.library.Library, forward: Forward) -> None:
    below = forward.op._handle.redispatch_boxed
    after_autograd = _C._after_autograd_keyset
    no_tensors = tensors_of({})

    # NOTE: every call of the op comes through here, so what it does costs.
    def kernel(
        keyset: Any, q: Tensor, k: Tensor, v: Tensor, *packing: Any, **options: Any
    ) -> tuple[Tensor, ...]:
        tensors = tensors_of(options) if options else no_tensors
        recorded = is_grad_enabled() and (
            q.requires_grad
            or k.requires_grad
            or v.requires_grad
            or (tensors is not no_tensors and _require_grad(tensors))
        )
        if not recorded and forward_ad._current_level < 0:
            return below(keyset & after_autograd, q, k, v, *packing, **options)
        answers = answers_about(q, k, packing, options)
        if recorded:
            if options:
                refuse_gradients_of_tensors(options)
            refuse_what_nothing_serves.among(answers, q, k, packing, options)
        has_tensors = any(x is not None for x in tensors)
        call = _Recorded(below, keyset & after_autograd, forward, options, has_tensors, answers)
        inputs = (q, k, v, *packing, *tensors) if has_tensors else (q, k, v, *packing)
        return _apply(_Attention, call, *inputs)

    library.impl(forward.name, kernel, "Autograd", with_keyset=True)


def below_autograd() -> AbstractContextManager[Any]:
    """For a call of an op that nothing has to be recorded of: it does not pass the op's kernels of
    autograd, where none of torch's transforms, and no graph that is being traced, needs them."""
    if (
        torch.compiler.is_compiling()
        or _C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    ):
        return nullcontext()
    return _C._AutoDispatchBelowAutograd()


def register_backward(
    library: torch.library.Library, name: str, refuse: Callable[..., Any]
) -> None:
    below = getattr(torch.ops.pyflash, name).default._handle.redispatch_boxed

    def kernel(keyset: Any, *inputs: Any, **options: Any) -> Any:
        keyset = keyset & _C._after_autograd_keyset
        recorded = _C.is_grad_enabled() and _C._any_requires_grad(*inputs)
        if recorded or forward_ad._current_level >= 0:
            return _apply(_Gradients, _Below(below, keyset), refuse, options, *inputs)
        return below(keyset, *inputs, **options)

    library.impl(name, kernel, "Autograd", with_keyset=True)


def autocast(forward: Forward, device_type: str, key: str) -> Callable[..., tuple[Tensor, ...]]:
    excluded = _C.DispatchKeySet(getattr(_C.DispatchKey, key))

    def kernel(*inputs: Any, **options: Any) -> tuple[Tensor, ...]:
        inputs, options = cast(inputs, options, device_type)
        with _C._ExcludeDispatchKeyGuard(excluded):
            return forward.op(*inputs, **options)

    return kernel


def _require_grad(tensors: tuple[Tensor | None, ...]) -> bool:
    return any(x is not None and x.requires_grad for x in tensors)


class _Below:
    """The kernels of an op below autograd, for the forward pass of a function."""

    __slots__ = ("call", "keyset")

    def __init__(self, call: Callable[..., Any], keyset: Any) -> None:
        self.call, self.keyset = call, keyset

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if not _C._are_functorch_transforms_active():
            return self.call(self.keyset, *inputs, **options)
        # Not recorded here, but by the next level of torch.func.
        with (
            _C._AutoDispatchBelowAutograd(),
            torch.enable_grad(),
            forward_ad._set_fwd_grad_enabled(True),
        ):
            return self.call(self.keyset, *inputs, **options)


def _apply(function: type[_Function], *arguments: Any) -> Any:
    if not _C._are_functorch_transforms_active():
        return function.apply(*arguments)
    with torch._functorch.utils.enable_single_level_autograd_function():
        return function.apply(*arguments)


class _Recorded(_Below):
    """A call of attention."""

    __slots__ = ("answers", "forward", "has_tensors", "options")

    def __init__(
        self,
        call: Callable[..., Any],
        keyset: Any,
        forward: Forward,
        options: dict[str, Any],
        has_tensors: bool,
        answers: Answers,
    ) -> None:
        super().__init__(call, keyset)
        self.forward, self.options, self.has_tensors = forward, options, has_tensors
        self.answers = answers


class _Attention(_Function):
    @staticmethod
    def forward(ctx: Any, call: _Recorded, *inputs: Any) -> tuple[Tensor, ...]:
        options, tensors = call.options, ()
        if call.has_tensors:
            n = len(inputs) - len(TENSORS)
            inputs, tensors = inputs[:n], inputs[n:]
            # NOTE: under torch.func those among the arguments are unwrapped, those in options are
            # not.
            named = {k: x for k, x in zip(TENSORS, tensors, strict=True) if x is not None}
            options = {**options, **named}
        results = call(*inputs, **options)
        q, k, _, *packing = inputs
        has_gradient = lse_has_gradient.among(call.answers, q, k, packing, options)
        save(ctx, results, tensors, inputs, options, has_gradient)
        ctx.call = call
        return results

    @staticmethod
    def backward(
        ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        call = ctx.call
        saved = ctx.saved_tensors  # NOTE: may run the forward pass again, which is recorded
        if not ctx.n_tensors and _is_plain(grad_out) and call.answers.follow_from == state():
            out, lse, q, k, v, *packing = saved
            packing += ctx.lengths
            if runs_own.among(call.answers, q, k, packing, call.options):
                found = kernels.bwd(
                    grad_out, out, lse, q, k, v, packing=packing, grad_lse=grad_lse, **ctx.options
                )
                return (None, *found, *[None] * len(packing))
        needed = ctx.needs_input_grad
        n = len(needed) - ctx.n_tensors
        with nullcontext() if is_grad_enabled() else below_autograd():
            of_inputs, of_tensors = gradients(
                ctx, saved, call.forward.backward, grad_out, grad_lse, needed[1:n], needed[n:]
            )
        return (None, *of_inputs, *of_tensors)

    jvp = staticmethod(refusal(FORWARD_MODE))


def _is_plain(grad_out: Tensor | None) -> bool:
    """Whether nobody but autograd looks at the op of a backward pass: no graph is recorded or
    traced, and no transform, mode or subclass of torch's is there."""
    return (
        type(grad_out) is Tensor
        and not is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not _C._are_functorch_transforms_active()
        and not _C._len_torch_dispatch_stack()
        and forward_ad._current_level < 0
    )


class _Gradients(_Function):
    @staticmethod
    def forward(
        ctx: Any, below: _Below, refuse: Callable[..., Any], options: dict[str, Any], *inputs: Any
    ) -> Any:
        ctx.refuse = refuse
        return below(*inputs, **options)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return ctx.refuse()

    jvp = staticmethod(refusal(FORWARD_MODE))
