"""Autograd and autocast of the ops by private parts of torch: a Python call and a few attribute
reads on top of the op itself. The only file that needs private parts of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd import forward_ad

from pyflash.op.answers import answers_about, state
from pyflash.op.autograd.formulas import FORWARD_MODE, Forward, cast, gradients, refusal, save
from pyflash.op.backward import (
    kernels,
    lse_has_gradient,
    refuse_gradients_of_tensors,
    refuse_what_nothing_serves,
    runs_own,
)
from pyflash.op.errors import call, run
from pyflash.op.options import TENSORS, backward_options, tensors_of

_C = torch._C
is_grad_enabled = _C.is_grad_enabled
# NOTE: torch.autograd.Function would hand a call under torch.func.grad to functorch, in whose
# interpreter a kernel already is; this class does what the kernels of torch's own ops do.
_Function = getattr(torch.autograd.function, "_SingleLevelFunction", torch.autograd.Function)
# NOTE: a call of an op by its name takes longer by a microsecond.
_run_backward = getattr(torch.ops.pyflash.run_backward.default, "_op", None)
_TENSORS = frozenset(TENSORS)
# The question whether lse has a gradient, and which options the backward pass takes.
_IN_BACKWARD = "in backward"

_NEEDED = (
    "autograd.function._SingleLevelFunction",
    "autograd.forward_ad._current_level",
    "autograd.forward_ad._set_fwd_grad_enabled",
    "_functorch.utils.enable_single_level_autograd_function",
    "_C._after_autograd_keyset",
    "_C._any_requires_grad",
    "_C._are_functorch_transforms_active",
    "_C._AutoDispatchBelowAutograd",
    "_C._ExcludeDispatchKeyGuard",
    "_C._ForceDispatchKeyGuard",
    "_C._dispatch_tls_local_exclude_set",
    "_C._dispatch_tls_local_include_set",
    "_C._len_torch_dispatch_stack",
    "_C._len_torch_function_stack",
    "_C.DispatchKeySet",
    "_C.DispatchKey.ADInplaceOrView",
    "_C.DispatchKey.AutocastCPU",
    "_C.DispatchKey.AutocastCUDA",
    "_C.DispatchKey.AutogradCPU",
    "_C.DispatchKey.AutogradCUDA",
    "_C.DispatchKey.AutogradOther",
    "ops.pyflash.fwd.default._handle.redispatch_boxed",
    "ops.pyflash.fwd.default._op",
    "ops.pyflash.run_backward.default._op",
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

    # NOTE: every call of the op comes through here, so what it does costs.
    def kernel(
        keyset: Any, q: Tensor, k: Tensor, v: Tensor, *packing: Any, **options: Any
    ) -> tuple[Tensor, ...]:
        tensors = () if _TENSORS.isdisjoint(options) else tensors_of(options)
        recorded = is_grad_enabled() and (
            q.requires_grad
            or k.requires_grad
            or v.requires_grad
            or (tensors and _require_grad(tensors))
        )
        keyset = keyset & after_autograd
        if not recorded and forward_ad._current_level < 0:
            return below(keyset, q, k, v, *packing, **options)
        answers = answers_about(q, k, packing, options)
        if recorded:
            if tensors:
                refuse_gradients_of_tensors(options)
            if refuse_what_nothing_serves not in answers:
                refuse_what_nothing_serves.among(answers, q, k, packing, options)
        told = (below, keyset, forward, options, tensors, answers)
        return _apply(_Attention, told, q, k, v, *packing, *tensors)

    library.impl(forward.name, kernel, "Autograd", with_keyset=True)


def call_op(
    op: OpOverload,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    others: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    """What an op of attention returns, `errors.call` of it. others: its positional arguments behind
    v. The call does not pass the op's kernel of autograd, which is Python, where nothing is
    recorded and nobody looks."""
    recorded = is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or not _TENSORS.isdisjoint(options)  # which may require gradients
    )
    if recorded or not (type(k) is type(v) is Tensor and is_seen_by_nobody(q)):
        return call(op, q, k, v, *others, **options)
    with _C._AutoDispatchBelowAutograd():
        return call(op._op, q, k, v, *others, **options)


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


def above_autograd(x: Tensor, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
    """For the kernel of an op, in which torch records nothing: computes what needs gradients of its
    own, whatever autocast and hooks of saved tensors are around the op. x: where it runs."""
    # NOTE: not in another thread, whose gradients on a GPU would wait for the thread that runs the
    # backward passes of that GPU, which is this one.
    with (
        torch.autocast(x.device.type, enabled=False),
        torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged),
    ):
        excluded = _C._dispatch_tls_local_exclude_set()
        for key in ("AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView"):
            excluded = excluded - _C.DispatchKeySet(getattr(_C.DispatchKey, key))
        with _C._ForceDispatchKeyGuard(_C._dispatch_tls_local_include_set(), excluded):
            return compute()


def _unchanged(x: Tensor) -> Tensor:
    return x


def register_backward(
    library: torch.library.Library, name: str, refuse: Callable[..., Any]
) -> None:
    below = getattr(torch.ops.pyflash, name).default._handle.redispatch_boxed

    def kernel(keyset: Any, *inputs: Any, **options: Any) -> Any:
        keyset = keyset & _C._after_autograd_keyset
        recorded = _C.is_grad_enabled() and _C._any_requires_grad(*inputs)
        if recorded or forward_ad._current_level >= 0:
            return _apply(_Gradients, (below, keyset), refuse, options, *inputs)
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


def _run(below: Callable[..., Any], keyset: Any, inputs: Sequence[Any], options: Any) -> Any:
    """The kernels of an op below autograd, for the forward pass of a function."""
    if not _C._are_functorch_transforms_active():
        return below(keyset, *inputs, **options)
    # Not recorded here, but by the next level of torch.func.
    with (
        _C._AutoDispatchBelowAutograd(),
        torch.enable_grad(),
        forward_ad._set_fwd_grad_enabled(True),
    ):
        return below(keyset, *inputs, **options)


def _apply(function: type[_Function], *arguments: Any) -> Any:
    if not _C._are_functorch_transforms_active():
        return function.apply(*arguments)
    with torch._functorch.utils.enable_single_level_autograd_function():
        return function.apply(*arguments)


class _Attention(_Function):
    @staticmethod
    def forward(ctx: Any, told: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, ...]:
        below, keyset, forward, options, tensors, answers = told
        if tensors:
            # NOTE: under torch.func those among the arguments are unwrapped, those in options are
            # not.
            n = len(inputs) - len(tensors)
            inputs, tensors = inputs[:n], inputs[n:]
            named = {k: x for k, x in zip(TENSORS, tensors, strict=True) if x is not None}
            options = {**options, **named}
        results = _run(below, keyset, inputs, options)
        known = answers.get(_IN_BACKWARD)
        if known is None:
            q, k, _, *packing = inputs
            has_gradient = lse_has_gradient.among(answers, q, k, packing, options)
            known = answers[_IN_BACKWARD] = (has_gradient, backward_options(options))
        save(ctx, results, tensors, inputs, *known)
        ctx.forward, ctx.answers = forward, answers
        return results

    @staticmethod
    def backward(
        ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        # NOTE: unpacking may run the forward pass again, which has to be recorded.
        saved = () if grad_out is None and grad_lse is None else ctx.saved_tensors
        if not is_grad_enabled() and is_seen_by_nobody(grad_out):
            found = _by_own_kernels(ctx, saved, grad_out, grad_lse)
            if found:
                return (None, *found, None, None, None, None) if ctx.lengths else (None, *found)
        needed = ctx.needs_input_grad
        n = len(needed) - ctx.n_tensors
        with nullcontext() if is_grad_enabled() else below_autograd():
            of_inputs, of_tensors = gradients(
                ctx, saved, ctx.forward.backward, grad_out, grad_lse, needed[1:n], needed[n:]
            )
        return (None, *of_inputs, *of_tensors)

    jvp = staticmethod(refusal(FORWARD_MODE))


def is_seen_by_nobody(x: Tensor | None) -> bool:
    """Whether nobody looks at which ops run on a tensor: no graph is traced, and no mode, transform
    or subclass of torch's is there."""
    return (
        type(x) is Tensor
        and not torch.compiler.is_compiling()
        and not _C._are_functorch_transforms_active()
        and not _C._len_torch_dispatch_stack()
        and not _C._len_torch_function_stack()
        and forward_ad._current_level < 0
    )


def _by_own_kernels(
    ctx: Any, saved: Sequence[Any], grad_out: Tensor | None, grad_lse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """`kernels.bwd`, if that is all that the backward pass does, as it is in most: what is asked
    elsewhere of each call was asked before."""
    answers = ctx.answers
    if ctx.n_tensors or answers.follow_from != state():
        return None
    out, lse, q, k, v, *packing = saved
    packing += ctx.lengths
    runs = answers.get(runs_own)
    if runs is None:
        runs = runs_own.among(answers, q, k, packing, ctx.options)
    if not runs:
        return None
    return run(
        _run_backward,
        *(grad_out, out, lse, grad_lse, q, k, v),
        *(packing or kernels.PADDED),
        **kernels.with_determinism(ctx.options),
    )


class _Gradients(_Function):
    @staticmethod
    def forward(
        ctx: Any, below: Any, refuse: Callable[..., Any], options: dict[str, Any], *inputs: Any
    ) -> Any:
        ctx.refuse = refuse
        return _run(*below, inputs, options)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return ctx.refuse()

    jvp = staticmethod(refusal(FORWARD_MODE))
