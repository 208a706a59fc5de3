"""Attention, the Python face of `torch.ops.pyflash.fwd`, and what the op is under torch.compile.

The op's CUDA and CPU implementations are in cute_kernels/bindings/.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyflash import library  # noqa: F401  (registers torch.ops.pyflash)
from pyflash.config import FlashForwardKernelConfig

_DTYPES = {torch.float16: "FP16", torch.bfloat16: "BF16"}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    config: FlashForwardKernelConfig | str = "",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(softmax_scale * q k^T) v, for each batch and head.

    q is (batch, seqlen_q, heads, d_head), k and v are (batch, seqlen_k, heads, d_head), all float16
    or all bfloat16, all on one CUDA device or on the CPU. Only the last dimension must be
    contiguous; the other strides and the addresses must be multiples of 16 bytes.

    - softmax_scale: default 1 / sqrt(d_head).
    - causal, window_left, window_right, softcap: nothing but the defaults is supported yet.
    - config: the kernel to run, or its short form; "" takes the best known for this problem
      (`pyflash.select` tells which and why). A config that is named is used or refused. On the CPU
      it decides block sizes and softmax, and need not be built.

    Returns out, (batch, seqlen_q, heads, d_head), contiguous, in the dtype of q; with `return_lse`
    also lse = ln(sum(exp(softmax_scale * q k^T))), (batch, heads, seqlen_q), float32. A row with
    nothing to attend (seqlen_k = 0) has out = 0 and lse = -inf.

    Raises RuntimeError that names the argument, what was expected and what came.
    """
    if isinstance(config, FlashForwardKernelConfig):
        config = config.canonical().short_form()
    out, lse = torch.ops.pyflash.fwd(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        causal=causal,
        window_left=window_left,
        window_right=window_right,
        softcap=softcap,
        config=config,
    )
    return (out, lse) if return_lse else out


@torch.library.register_fake("pyflash::fwd")
def _fwd_meta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    config: str = "",
) -> tuple[Tensor, Tensor]:
    """Shapes, dtypes and strides of the results. Refuses what can be known to be wrong without
    data, with the sentences of checks.cpp; symbolic strides are left to the real run."""
    _check_tensors(q, k, v)
    _check(not causal, "causal = True is not supported yet: expected False")
    for name, window in (("window_left", window_left), ("window_right", window_right)):
        _check(window == -1, f"{name} = {window} is not supported yet: expected -1, no window")
    _check(softcap == 0, f"softcap = {softcap:g} is not supported yet: expected 0, no cap")
    if isinstance(softmax_scale, float):
        _check(
            0 < softmax_scale < float("inf"),
            f"softmax_scale = {softmax_scale:g}: expected a finite number above 0",
        )
    if config:
        _check_config(config, q)
    batch, seqlen_q, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((batch, heads, seqlen_q), dtype=torch.float32)


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in (("k", k), ("v", v)):
        _check(
            tensor.device == q.device,
            f"{name} is on {tensor.device}: expected {q.device}, where q is",
        )
    _check(q.dtype in _DTYPES, f"q is {_name(q.dtype)}: expected float16 or bfloat16")
    for name, tensor in (("k", k), ("v", v)):
        _check(
            tensor.dtype == q.dtype,
            f"{name} is {_name(tensor.dtype)}: expected {_name(q.dtype)} as q",
        )
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check(
            tensor.dim() == 4,
            f"{name} has shape {tuple(tensor.shape)}: expected 4 dimensions, "
            "(batch, seqlen, heads, d_head)",
        )
    gqa = "; fewer heads of k and v than of q are not supported yet"
    for axis, name in ((0, "batch"), (2, "heads"), (3, "d_head")):
        _check(
            k.shape[axis] == q.shape[axis],
            f"k has shape {tuple(k.shape)}: expected {name} {q.shape[axis]} as q"
            + (gqa if axis == 2 else ""),
        )
    for axis, name in enumerate(("batch", "seqlen", "heads", "d_head")):
        _check(
            v.shape[axis] == k.shape[axis],
            f"v has shape {tuple(v.shape)}: expected {name} {k.shape[axis]} as k",
        )
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_strides(name, tensor)


def _check_strides(name: str, tensor: Tensor) -> None:
    if not all(isinstance(number, int) for number in (*tensor.shape, *tensor.stride())):
        return
    *strides, last = tensor.stride()
    _check(
        tensor.shape[-1] <= 1 or last == 1,
        f"{name} has stride {last} in its last dimension: expected 1, call .contiguous()",
    )
    for axis, extent, stride in zip(("batch", "row", "head"), tensor.shape, strides, strict=False):
        _check(
            extent <= 1 or stride % 8 == 0,
            f"{name} has a {axis} stride of {stride} elements: expected a multiple of 8 "
            "(16 bytes), call .contiguous()",
        )


def _check_config(text: str, q: Tensor) -> None:
    config = FlashForwardKernelConfig.parse(text)
    _check(
        config.dtype.name == _DTYPES[q.dtype],
        f"config '{text}' is for {config.dtype.name}, q is {_DTYPES[q.dtype]}",
    )
    _check(
        config.d_head == q.shape[-1],
        f"config '{text}' is for d_head {config.d_head}, q has d_head {q.shape[-1]}",
    )


def _check(condition: Any, sentence: str) -> None:
    torch._check(condition, lambda: f"pyflash: {sentence}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _no_backward(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError(
        "pyflash: the backward pass is not supported yet: call attention under torch.no_grad(), or "
        "with tensors that do not require gradients"
    )


torch.library.register_autograd("pyflash::fwd", _no_backward)
