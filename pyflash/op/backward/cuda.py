"""Gradients on a GPU: by the kernels that choice.py names.

They recompute P = exp(S - lse) from the given lse, so sinks, which are in lse, need nothing more;
rowsum(dO * O) is the same with and without them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyflash.op.answers import kept
from pyflash.op.backward import cudnn, kernels
from pyflash.op.backward.choice import SWITCH, By, Choice, choose, is_measured, switch_is_on
from pyflash.op.options import AttentionOptions, windows_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

# PyTorch's kernels have one block in grid.y per sequence and one in grid.z per head.
MAX_GRID = 65535


def bwd(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    grad_lse: Tensor | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]:
    if _is_empty(q, k, ()):
        return tuple(torch.zeros_like(x) for x in (q, k, v))
    chosen = _chosen(q, k, (), options, grad_lse is not None, *_switches())
    if chosen.by is By.OWN:
        return kernels.bwd(grad_out, out, lse, q, k, v, grad_lse=grad_lse, **options)
    _refuse_to_borrow(grad_lse, options, chosen)
    return _borrowed(grad_out, out, lse, q, k, v, **options)


def always_runs_own(
    q: Tensor, k: Tensor, packing: Sequence[Any], options: Mapping[str, Any]
) -> bool:
    """Whether `bwd` runs own kernels, with a gradient of lse and without, and whatever the
    environment says. packing: the positional arguments of `fwd_varlen` after v, or ()."""
    if _is_empty(q, k, packing):
        return False
    chosen = choose(q.device, kernels.problem_of(q, k, packing, options))
    return chosen.by is By.OWN and is_measured(chosen.config)


def _is_empty(q: Tensor, k: Tensor, packing: Sequence[Any]) -> bool:
    return q.numel() == 0 or k.numel() == 0 or 0 in packing[2:]


@kept
def _chosen(
    q: Tensor,
    k: Tensor,
    packing: Sequence[Any],
    options: AttentionOptions,
    gradient_of_lse: bool,
    *_: Any,
) -> Choice:
    return choose(q.device, kernels.problem_of(q, k, packing, options), gradient_of_lse)


def _switches() -> tuple[Any, ...]:
    """What `choose` follows from beside its arguments and the `state` of answers."""
    return os.environ.get(SWITCH), torch.backends.cuda.cudnn_sdp_enabled()


def _refuse_to_borrow(grad_lse: Tensor | None, options: AttentionOptions, chosen: Choice) -> None:
    if options.get("deterministic") and not switch_is_on():
        raise RuntimeError(
            "pyflash: deterministic is True, and PyTorch's backward runs here, which sums in one "
            f"order only under the switch (no kernel of pyflash: {chosen.own}): expected "
            "torch.use_deterministic_algorithms(True) in the backward pass, too"
        )
    if grad_lse is not None:
        raise RuntimeError(
            "pyflash: lse has no gradient here, because PyTorch's backward runs, which takes none "
            f"(no kernel of pyflash: {chosen.own}): expected lse.detach() in what is differentiated"
        )


def _borrowed(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]:
    """`bwd` by PyTorch's kernels."""
    batch, seqlen_q = q.shape[:2]
    seqlen_k = k.shape[1]
    if batch > MAX_GRID:
        gradients = tuple(torch.empty_like(x) for x in (q, k, v))
        for i in range(0, batch, MAX_GRID):
            part = slice(i, i + MAX_GRID)
            parts = _borrowed(*(x[part] for x in (grad_out, out, lse, q, k, v)), **options)
            for whole, values in zip(gradients, parts, strict=True):
                whole[part] = values
        return gradients
    if cudnn.refusal(q.device, q.dtype, seqlen_q, seqlen_k, q.shape[-1], options) is None:
        return cudnn.bwd(grad_out, out, lse, q, k, v, options)
    left, right = windows = windows_of(options, seqlen_q, seqlen_k)
    if options.get("attention_chunk"):
        return _bwd_packed(grad_out, out, lse, q, k, v, **options)
    if seqlen_q > seqlen_k + 1 and (right >= seqlen_k or (left >= 0 and right < 0)):
        # PyTorch replaces a right window of seqlen_k or more, and a missing one beside a left
        # window, by seqlen_k, which masks keys here. For packed sequences it uses max_seqlen_k.
        return _bwd_packed(grad_out, out, lse, q, k, v, **options)
    sequences = (None, None, seqlen_q, seqlen_k)
    return _flash_backward(grad_out, out, lse, (q, k, v), sequences, windows, options)


def _bwd_packed(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]:
    """`_borrowed` through `_borrowed_packed`."""
    batch = len(q)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    packed = _borrowed_packed(
        grad_out.flatten(0, 1),
        out.flatten(0, 1),
        lse.transpose(0, 1).flatten(1, 2),
        *(x.flatten(0, 1) for x in (q, k, v)),
        starts * seqlen_q,
        starts * seqlen_k,
        seqlen_q,
        seqlen_k,
        **options,
    )
    gradients = tuple(torch.empty_like(x) for x in (q, k, v))
    for gradient, values in zip(gradients, packed, strict=True):
        gradient.copy_(values.unflatten(0, (batch, -1)))
    return gradients


def bwd_varlen(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    grad_lse: Tensor | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]:
    packing = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    if _is_empty(q, k, packing):
        return tuple(torch.zeros_like(x) for x in (q, k, v))
    chosen = _chosen(q, k, packing, options, grad_lse is not None, *_switches())
    if chosen.by is By.OWN:
        return kernels.bwd(
            grad_out, out, lse, q, k, v, packing=packing, grad_lse=grad_lse, **options
        )
    _refuse_to_borrow(grad_lse, options, chosen)
    return _borrowed_packed(grad_out, out, lse, q, k, v, *packing, **options)


def _borrowed_packed(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]:
    """`bwd_varlen` by PyTorch's kernels."""
    if chunk := options.get("attention_chunk"):
        cu_seqlens_q, cu_seqlens_k = _chunks(cu_seqlens_q, cu_seqlens_k, max_seqlen_k, chunk)
    windows = windows_of(options, max_seqlen_q, max_seqlen_k)
    if windows not in ((-1, -1), (-1, 0)):
        max_seqlen_k = max(max_seqlen_q, max_seqlen_k)  # see bwd; else it only sizes the grid
    # With wrong values gradients are wrong, but no access leaves the tensors.
    cu_seqlens_q, cu_seqlens_k = cu_seqlens_q.clamp(0, len(q)), cu_seqlens_k.clamp(0, len(k))
    sequences = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _flash_backward(grad_out, out, lse, (q, k, v), sequences, windows, options)


def _chunks(
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_k: int, chunk: int
) -> tuple[Tensor, Tensor]:
    """cu_seqlens of the chunks as sequences of their own: no query attends keys of another chunk,
    and the last query of a chunk is aligned with its last key. A sequence's first part are the
    queries that are aligned with no key, and no keys."""
    n_chunks = -(-max_seqlen_k // chunk)
    first_key = torch.arange(n_chunks, device=cu_seqlens_k.device) * chunk
    (start_q, end_q), (start_k, end_k) = (
        (x[:-1, None].long(), x[1:, None].long()) for x in (cu_seqlens_q, cu_seqlens_k)
    )
    offset = (end_k - start_k) - (end_q - start_q)
    of_chunks = (start_q + first_key - offset).clamp(start_q, end_q)
    starts_q = torch.cat([start_q, of_chunks], 1)
    starts_k = torch.cat([start_k, torch.minimum(start_k + first_key, end_k)], 1)
    return tuple(
        torch.cat([starts.flatten(), whole[-1:].long()]).int()
        for starts, whole in ((starts_q, cu_seqlens_q), (starts_k, cu_seqlens_k))
    )


def _flash_backward(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    qkv: tuple[Tensor, Tensor, Tensor],
    sequences: tuple[Tensor | None, Tensor | None, int, int],
    windows: tuple[int, int],
    options: AttentionOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    q = qkv[0]
    grad_out = grad_out.contiguous()
    if grad_out.data_ptr() % 16:
        grad_out = grad_out.clone()
    rng_state = torch.empty(2, dtype=torch.uint64, device=q.device)  # of dropout, unused
    return torch.ops.aten._flash_attention_backward(
        grad_out,
        *qkv,
        out.contiguous(),
        # PyTorch has lse = inf in a row with nothing to attend, so that P = exp(S - lse) = 0.
        lse.nan_to_num(nan=math.nan, posinf=math.inf, neginf=math.inf).contiguous(),
        *sequences,
        0.0,
        windows == (-1, 0),
        rng_state,
        rng_state,
        scale=options.get("softmax_scale"),
        window_size_left=windows[0],
        window_size_right=windows[1],
    )
