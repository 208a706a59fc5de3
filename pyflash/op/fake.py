"""What the ops return under torch.compile and on the meta device: shapes, dtypes and strides.

What can be known to be wrong without data is refused with the sentences of
cute_kernels/bindings/*checks.cpp. Sizes, strides and lengths may be symbols: what would only add a
guard on them is left to the real run.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor

from pyflash.config import FlashForwardKernelConfig

_DTYPES = {torch.float16: "FP16", torch.bfloat16: "BF16"}
_MAX_D_HEAD = 256
_MAX_EXTENT = 1 << 29
_MAX_SPLITS = 128
_PADDED = ("batch", "seqlen", "heads", "d_head")
_PACKED = ("total", "heads", "d_head")


@torch.library.register_fake("pyflash::fwd")
def _fwd(
    q: Tensor, k: Tensor, v: Tensor, *, config: str = "", **options: Any
) -> tuple[Tensor, Tensor]:
    _check_tensors({"q": q, "k": k, "v": v}, {}, _PADDED)
    _check_batch_times_heads(q.shape[0], q)
    _check_memory({"q": q, "k": k, "v": v})
    _check_options(**options)
    _check_config(config, q)
    batch, seqlen_q, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((batch, heads, seqlen_q), dtype=torch.float32)


@torch.library.register_fake("pyflash::fwd_varlen")
def _fwd_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    config: str = "",
    **options: Any,
) -> tuple[Tensor, Tensor]:
    cu_seqlens = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    _check_tensors({"q": q, "k": k, "v": v}, cu_seqlens, _PACKED)
    for name, x in cu_seqlens.items():
        _check_cu_seqlens(name, x)
    _check(
        cu_seqlens_k.shape[0] == cu_seqlens_q.shape[0],
        f"cu_seqlens_k has shape {tuple(cu_seqlens_k.shape)}: expected "
        f"{tuple(cu_seqlens_q.shape)} as cu_seqlens_q",
    )
    batch = cu_seqlens_q.shape[0] - 1
    _check_max_seqlen("max_seqlen_q", max_seqlen_q, batch, "q", q)
    _check_max_seqlen("max_seqlen_k", max_seqlen_k, batch, "k", k)
    _check_batch_times_heads(batch, q)
    _check_memory({"q": q, "k": k, "v": v})
    _check_options(**options)
    _check_config(config, q)
    total_q, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((heads, total_q), dtype=torch.float32)


def _check_tensors(
    qkv: dict[str, Tensor], cu_seqlens: dict[str, Tensor], axes: tuple[str, ...]
) -> None:
    q, k, v = qkv.values()
    for name, x in {"k": k, "v": v, **cu_seqlens}.items():
        _check(x.device == q.device, f"{name} is on {x.device}: expected {q.device}, where q is")
    _check(q.dtype in _DTYPES, f"q is {_name(q.dtype)}: expected float16 or bfloat16")
    for name, x in {"k": k, "v": v}.items():
        _check(x.dtype == q.dtype, f"{name} is {_name(x.dtype)}: expected {_name(q.dtype)} as q")
    for name, x in qkv.items():
        _check(
            x.dim() == len(axes),
            f"{name} has shape {tuple(x.shape)}: expected {len(axes)} dimensions, "
            f"({', '.join(axes)})",
        )
    _check_shapes(q, k, v, axes)
    for name, x in qkv.items():
        for axis, extent in zip(axes[:-1], x.shape, strict=False):
            _check(
                not _known(extent) or extent <= _MAX_EXTENT,
                f"{name} has {axis} {extent}: expected at most {_MAX_EXTENT}",
            )


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, axes: tuple[str, ...]) -> None:
    d_head = q.shape[-1]
    _check(
        not _known(d_head) or (0 < d_head <= _MAX_D_HEAD and d_head % 8 == 0),
        f"q has d_head {d_head}: expected a multiple of 8 from 8 to {_MAX_D_HEAD}",
    )
    for axis, name in enumerate(axes):
        if name in ("batch", "d_head"):
            _check(
                k.shape[axis] == q.shape[axis],
                f"k has shape {tuple(k.shape)}: expected {name} {q.shape[axis]} as q",
            )
    heads, heads_kv = q.shape[-2], k.shape[-2]
    _check(
        heads == 0 or (heads_kv != 0 and heads % heads_kv == 0),
        f"k has shape {tuple(k.shape)}: expected a number of heads that divides the {heads} of q",
    )
    for axis, name in enumerate(axes):
        _check(
            v.shape[axis] == k.shape[axis],
            f"v has shape {tuple(v.shape)}: expected {name} {k.shape[axis]} as k",
        )


def _check_cu_seqlens(name: str, x: Tensor) -> None:
    _check(x.dtype == torch.int32, f"{name} is {_name(x.dtype)}: expected int32")
    _check(
        x.dim() == 1 and x.shape[0] != 0,
        f"{name} has shape {tuple(x.shape)}: expected (batch + 1,)",
    )
    if _known(*x.shape, *x.stride()):
        _check(
            x.shape[0] == 1 or x.stride(0) == 1,
            f"{name} has stride {x.stride(0)}: expected 1, call .contiguous()",
        )
        batch = x.shape[0] - 1
        _check(
            batch <= _MAX_EXTENT,
            f"{name} is for {batch} sequences: expected at most {_MAX_EXTENT}",
        )


def _check_max_seqlen(name: str, max_seqlen: int, batch: int, rows_of: str, x: Tensor) -> None:
    if _known(max_seqlen):
        _check(
            0 <= max_seqlen <= _MAX_EXTENT,
            f"{name} = {max_seqlen}: expected a number from 0 to {_MAX_EXTENT}",
        )
    rows = x.shape[0]
    if _known(max_seqlen, batch, rows):
        _check(
            batch * max_seqlen >= rows,
            f"{name} = {max_seqlen} for {batch} sequences: expected room for the {rows} rows of "
            f"{rows_of}",
        )


def _check_batch_times_heads(batch: int, q: Tensor) -> None:
    heads = q.shape[-2]
    if _known(batch, heads):
        _check(
            batch * heads <= _MAX_EXTENT,
            f"q has {heads} heads in {batch} batches: expected at most {_MAX_EXTENT} for batch "
            "times heads",
        )


def _check_memory(qkv: dict[str, Tensor]) -> None:
    for name, x in qkv.items():
        if not _known(*x.shape, *x.stride()):
            continue
        *strides, last = x.stride()
        _check(
            x.shape[-1] <= 1 or last == 1,
            f"{name} has stride {last} in its last dimension: expected 1, call .contiguous()",
        )
        axes = ("batch", "row", "head")[-len(strides) :]
        for axis, extent, stride in zip(axes, x.shape, strides, strict=False):
            _check(
                extent <= 1 or stride % 8 == 0,
                f"{name} has a {axis} stride of {stride} elements: expected a multiple of 8 "
                "(16 bytes), call .contiguous()",
            )


def _check_options(
    softmax_scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    num_splits: int = 0,
) -> None:
    if isinstance(softmax_scale, float):
        _check(
            0 < _to_float32(softmax_scale) < math.inf,
            f"softmax_scale = {softmax_scale:g}: expected a finite number above 0",
        )
    for name, window in (("window_left", window_left), ("window_right", window_right)):
        _check(window >= -1, f"{name} = {window}: expected a number of keys, or -1 for no limit")
    _check(
        not causal or window_right <= 0,
        f"causal = True sets window_right = 0, which came as {window_right}: expected -1 or 0",
    )
    if isinstance(softcap, float):
        _check(
            0 <= _to_float32(softcap) < math.inf,
            f"softcap = {softcap:g}: expected a finite number above 0, or 0 for no cap",
        )
    _check(
        0 <= num_splits <= _MAX_SPLITS,
        f"num_splits = {num_splits}: expected a number from 1 to {_MAX_SPLITS}, or 0 to have it "
        "chosen",
    )


def _check_config(text: str, q: Tensor) -> None:
    if not text:
        return
    config = FlashForwardKernelConfig.parse(text)
    _check(
        config.dtype.name == _DTYPES[q.dtype],
        f"config '{text}' is for {config.dtype.name}, q is {_DTYPES[q.dtype]}",
    )
    d_head = q.shape[-1]
    _check(
        not _known(d_head) or config.d_head >= d_head,
        f"config '{text}' is for d_head up to {config.d_head}, q has d_head {d_head}",
    )


def _check(condition: Any, sentence: str) -> None:
    torch._check(condition, lambda: f"pyflash: {sentence}")


def _known(*numbers: Any) -> bool:
    return all(isinstance(number, int) for number in numbers)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _to_float32(number: float) -> float:
    return ctypes.c_float(number).value
