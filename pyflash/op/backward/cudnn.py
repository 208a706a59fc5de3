"""Gradients on a Hopper GPU by cuDNN's attention backward, as PyTorch wraps it.

Like the flash backward it recomputes P = exp(S - lse) from the given lse. Its kernels are built
when a shape first comes, and kept as plans.

PyTorch looks plans up by q, k, v and the other arguments but out and its gradient, although a plan
holds the strides of these two as well. A plan made by another caller may have other ones, and then
gradients are wrong. Two measures make pyflash's plans its own, and all of one kind:
- dropout_p is -0.0, which means 0, but is told apart from 0.0: PyTorch compares the arguments as
  bytes.
- out and its gradient get strides that follow from those of q.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from pyflash.op.options import AttentionOptions, softmax_scale_of, windows_of

MAX_D_HEAD = 128
MAX_HEADS = 65535
# The architecture (major) on which it is the faster one.
MEASURED_ON = 9
# The versions of torch on which plans were seen to be kept apart.
TESTED_TORCH = ("2.11",)
# cuDNN rounds scale * dS to fp16, whose least number is 6e-8. The flash backward scales in float32.
MIN_SCALE_FP16 = 1 / 32
_OWN_PLANS = -0.0  # dropout_p
_FULL, _CAUSAL = (-1, -1), (-1, 0)
_backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward


def refusal(
    device: torch.device,
    dtype: torch.dtype,
    seqlen_q: int,
    seqlen_k: int,
    d_head: int,
    options: AttentionOptions,
    packed: bool = False,
) -> str | None:
    """Why the flash backward runs instead, as a clause; None: cuDNN's runs."""
    windows = windows_of(options, seqlen_q, seqlen_k)
    scale = softmax_scale_of(options, d_head)
    if packed:
        return "sequences are packed"
    if d_head > MAX_D_HEAD:
        return f"d_head is {d_head}, more than {MAX_D_HEAD}"
    if options.get("attention_chunk"):
        return "attention_chunk is set"
    if windows not in (_FULL, _CAUSAL):
        return "a window is neither full nor causal"
    if windows == _CAUSAL and seqlen_q != seqlen_k:
        return "cuDNN aligns a causal mask with the first key, and q and k differ in length"
    if min(seqlen_q, seqlen_k) < 2:
        return "q or k has fewer than two rows"
    if dtype == torch.float16 and scale < MIN_SCALE_FP16:
        return f"cuDNN rounds in fp16 what softmax_scale = {scale:g} makes too small for it"
    return _refusal_here(device)


def _refusal_here(device: torch.device) -> str | None:
    """As `refusal`, whatever the problem is."""
    if torch.are_deterministic_algorithms_enabled():
        return "torch.use_deterministic_algorithms is on, and cuDNN's dq is not deterministic"
    if not torch.backends.cuda.cudnn_sdp_enabled():
        return "torch.backends.cuda.enable_cudnn_sdp is off"
    if not torch.backends.cudnn.is_available():
        return "this torch has no cuDNN"
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != MEASURED_ON:
        return "the GPU is not a Hopper"
    if ".".join(torch.__version__.split(".")[:2]) not in TESTED_TORCH:
        return f"cuDNN's plans are kept apart in torch {', '.join(TESTED_TORCH)} alone"
    return None


def bwd(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: AttentionOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, (batch, seqlen, heads, d_head); `refusal` is None."""
    q, k, v = (readable(x).transpose(1, 2) for x in (q, k, v))
    grad_out, out = (_laid_out_like(q, x.transpose(1, 2)) for x in (grad_out, out))
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
        _OWN_PLANS,
        windows_of(options, q.shape[2], k.shape[2]) == _CAUSAL,
        scale=options.get("softmax_scale"),
    )
    return tuple(gradient.transpose(1, 2) for gradient in gradients)


def readable(x: Tensor) -> Tensor:
    """x, or a copy where cuDNN or TMA could not read it: rows of 16-byte vectors, none of them
    shared."""
    if x.data_ptr() % 16 == 0 and _has_vectors(x.stride(), 16 // x.element_size()):
        return x
    return x.clone(memory_format=torch.contiguous_format)


@functools.lru_cache(4096)
def _has_vectors(strides: tuple[int, ...], vector: int) -> bool:
    *others, last = strides
    return last == 1 and all(s > 0 and s % vector == 0 for s in others)


def _laid_out_like(q: Tensor, x: Tensor) -> Tensor:
    """x, or a copy of it, with the strides of torch.empty_like(q)."""
    strides = torch.empty_like(q, device="meta").stride()
    same = all(n == 1 or a == b for n, a, b in zip(x.shape, x.stride(), strides, strict=True))
    if same and x.data_ptr() % 16 == 0:
        return x.as_strided(x.shape, strides)
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)
