"""Gradients on a Hopper GPU by cuDNN's attention backward, as PyTorch wraps it.

Like the flash backward it recomputes P = exp(S - lse) from the given lse. Its kernels are built
when a shape first comes, and kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyflash.op.options import AttentionOptions

MAX_D_HEAD = 128
# The architecture (major) on which it was measured to be the faster one.
MEASURED_ON = 9
_FULL, _CAUSAL = (-1, -1), (-1, 0)
_backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward


def refusal(
    device: torch.device,
    seqlen_q: int,
    seqlen_k: int,
    d_head: int,
    windows: tuple[int, int],
    packed: bool = False,
) -> str | None:
    """Why the flash backward is used instead, as half a sentence; None: it is not."""
    if packed:
        return "sequences are packed"
    if d_head > MAX_D_HEAD:
        return f"d_head is {d_head}, more than {MAX_D_HEAD}"
    if windows not in (_FULL, _CAUSAL):
        return "a window is neither full nor causal"
    if windows == _CAUSAL and seqlen_q != seqlen_k:
        return "cuDNN aligns a causal mask with the first key, and q and k differ in length"
    if min(seqlen_q, seqlen_k) < 2:
        return "q or k has fewer than two rows"
    if torch.are_deterministic_algorithms_enabled():
        return "torch.use_deterministic_algorithms is on, and cuDNN's dq is not deterministic"
    if not torch.backends.cuda.cudnn_sdp_enabled():
        return "torch.backends.cuda.enable_cudnn_sdp is off"
    if not torch.backends.cudnn.is_available():
        return "this torch has no cuDNN"
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != MEASURED_ON:
        return "the GPU is not a Hopper"
    return None


def bwd(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    windows: tuple[int, int],
    options: AttentionOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, (batch, seqlen, heads, d_head); `refusal` is None."""
    grad_out, out, q, k, v = (_aligned(x).transpose(1, 2) for x in (grad_out, out, q, k, v))
    unused = lse.new_zeros((), dtype=torch.int64)  # the state of dropout
    gradients = _backward(
        grad_out,
        q,
        k,
        v,
        out,
        lse.unsqueeze(-1).contiguous(),
        unused,
        unused,
        None,  # attn_bias
        None,  # cum_seq_q
        None,  # cum_seq_k
        q.shape[2],
        k.shape[2],
        0.0,  # dropout_p
        windows == _CAUSAL,
        scale=options.get("softmax_scale"),
    )
    return tuple(gradient.transpose(1, 2) for gradient in gradients)


def _aligned(x: Tensor) -> Tensor:
    """x, or a copy where cuDNN could not read it: rows of 16-byte vectors, none of them shared."""
    vector = 16 // x.element_size()
    *strides, last = x.stride()
    readable = last == 1 and x.data_ptr() % 16 == 0
    readable = readable and all(s > 0 and s % vector == 0 for s in strides)
    return x if readable else x.clone(memory_format=torch.contiguous_format)
