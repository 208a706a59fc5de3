"""Attention, the Python face of `torch.ops.pyflash.fwd` and `torch.ops.pyflash.fwd_varlen`.

Their CUDA and CPU implementations are in cute_kernels/bindings/; what they are under autograd,
autocast and vmap is in pyflash/transforms.py, under torch.compile in pyflash/fake.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyflash.config import FlashForwardKernelConfig
from pyflash.op import library  # noqa: F401  (registers torch.ops.pyflash)


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
    num_splits: int = 0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(softmax_scale * q k^T) v, for each batch and head, over the keys not masked.

    q is (batch, seqlen_q, heads, d_head), k and v are (batch, seqlen_k, heads_kv, d_head), all
    float16 or all bfloat16, all on one CUDA device or on the CPU. d_head is a multiple of 8 up to
    256. heads is a multiple of heads_kv: head h of q attends head h // (heads // heads_kv) of k and
    v. Only the last dimension must be contiguous; the other strides and the addresses must be
    multiples of 16 bytes.

    - softmax_scale: default 1 / sqrt(d_head).
    - window_left, window_right: query i attends key j if
      -window_left <= j - (i + seqlen_k - seqlen_q) <= window_right; -1: no limit on that side. So
      the last query is aligned with the last key ("bottom-right"), whatever the lengths.
    - causal: window_right = 0.
    - softcap: scores s become softcap * tanh(s / softcap) before the softmax; 0: they do not.
    - config: the kernel to run, or its short form; "" takes the best known for this problem
      (`pyflash.select` tells which and why). A config that is named is used or refused; its d_head
      may be larger than that of q. On the CPU it decides block sizes and softmax, and need not be
      built.
    - num_splits: how many CTAs share the keys of each block of queries, up to 128; 0 chooses. The
      result of the same call is always the same, that of different numbers differs by rounding. On
      the CPU one pass computes all.

    Returns out, (batch, seqlen_q, heads, d_head), contiguous, in the dtype of q; with `return_lse`
    also lse = ln(sum(exp(s))) of the scores s, scaled and capped, over the keys attended,
    (batch, heads, seqlen_q), float32, contiguous. A row with nothing to attend has out = 0 and
    lse = -inf.

    out has gradients with respect to q, k and v, first derivatives only; lse has none. On a GPU
    they are PyTorch's flash backward, whose sums are in the same order every time only under
    `torch.use_deterministic_algorithms(True)`; with softcap there are none. Forward-mode
    derivatives and vmap are refused. Under `torch.autocast` q, k and v are cast to its dtype.

    Raises RuntimeError that names the argument, what was expected and what came.
    """
    out, lse = torch.ops.pyflash.fwd(
        q,
        k,
        v,
        **_given(
            softmax_scale=softmax_scale,
            causal=causal,
            window_left=window_left,
            window_right=window_right,
            softcap=softcap,
            config=_short_form(config),
            num_splits=num_splits,
        ),
    )
    return (out, lse) if return_lse else out


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    config: FlashForwardKernelConfig | str = "",
    num_splits: int = 0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention` of sequences of different lengths, packed one after the other without padding.

    q is (total_q, heads, d_head), k and v are (total_k, heads_kv, d_head). cu_seqlens_q and
    cu_seqlens_k are (batch + 1), int32, contiguous, on the device of q: the rows of sequence b of q
    are [cu_seqlens_q[b], cu_seqlens_q[b + 1]), those of k and v the like. They ascend from 0 to
    total_q and total_k; sequences of length 0 are fine. max_seqlen_q and max_seqlen_k are at least
    the largest lengths, and best no more: they size the grid. Windows are aligned with the end of
    each sequence. The other arguments are those of `attention`.

    The values of cu_seqlens are checked on the CPU. On a GPU they are not, for that would wait for
    the device: wrong ones lead to wrong rows, and rows past max_seqlen are not written, neither of
    out and lse nor of gradients, but nothing outside of the tensors is read or written.

    Returns out, (total_q, heads, d_head), contiguous, in the dtype of q; with `return_lse` also
    lse, (heads, total_q), float32, contiguous.

    Raises RuntimeError that names the argument, what was expected and what came.
    """
    out, lse = torch.ops.pyflash.fwd_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        **_given(
            softmax_scale=softmax_scale,
            causal=causal,
            window_left=window_left,
            window_right=window_right,
            softcap=softcap,
            config=_short_form(config),
            num_splits=num_splits,
        ),
    )
    return (out, lse) if return_lse else out


_DEFAULTS = {
    argument.name: argument.default_value
    for argument in torch.ops.pyflash.fwd.default._schema.arguments
    if argument.kwarg_only
}


def _given(**options: Any) -> dict[str, Any]:
    """The options that are not the ops' defaults: torch takes 0.6 us for each that is passed."""
    return {name: value for name, value in options.items() if value != _DEFAULTS[name]}


def _short_form(config: FlashForwardKernelConfig | str) -> str:
    if isinstance(config, FlashForwardKernelConfig):
        return config.canonical().short_form()
    return config
