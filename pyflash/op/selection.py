"""Which config runs a problem when none is named, with how many splits of the keys, and why. The
rules are in cute_kernels/host/select.h and splits.h; this asks them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pyflash.config import DType, FlashForwardKernelConfig
from pyflash.op import ops  # noqa: F401  (registers torch.ops.pyflash)

TORCH_DTYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is asked of attention. Windows count keys, -1: no limit; softcap 0: none; device as
    torch names it. With packed sequences, those of `attention_varlen`, batch is their number and
    seqlen_q and seqlen_k are max_seqlen_q and max_seqlen_k."""

    batch: int
    heads_q: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int
    d_head: int
    dtype: DType
    causal: bool = False
    window_left: int = -1
    window_right: int = -1
    softcap: float = 0.0
    packed: bool = False
    device: str = "cuda"


@dataclass(frozen=True, slots=True)
class Selection:
    config: FlashForwardKernelConfig
    num_splits: int  # 1: the keys in one pass
    reason: str


def select(problem: Problem) -> Selection:
    """The config and the splits that `attention` would run with config = "" and num_splits = 0, and
    the reason in a sentence.

    Raises RuntimeError where `attention` would refuse the problem.
    """
    _refuse_what_attention_refuses(problem)
    device = torch.device(problem.device)
    sm_arch = n_sms = 0
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        sm_arch = properties.major * 10 + properties.minor
        n_sms = properties.multi_processor_count
    short_form, num_splits, reason = torch.ops.pyflash.select(
        dtype=int(problem.dtype),
        packed=problem.packed,
        batch=problem.batch,
        heads=problem.heads_q,
        heads_kv=problem.heads_kv,
        seqlen_q=problem.seqlen_q,
        seqlen_k=problem.seqlen_k,
        d_head=problem.d_head,
        **_masking(problem),
        num_splits=0,
        sm_arch=sm_arch,
        n_sms=n_sms,
    )
    return Selection(FlashForwardKernelConfig.parse(short_form), num_splits, reason)


def _refuse_what_attention_refuses(problem: Problem) -> None:
    def meta(seqlen: int, heads: int) -> torch.Tensor:
        shape = (problem.batch, seqlen, heads, problem.d_head)
        return torch.empty(shape, dtype=TORCH_DTYPES[problem.dtype], device="meta")

    q = meta(problem.seqlen_q, problem.heads_q)
    kv = meta(problem.seqlen_k, problem.heads_kv)
    if not problem.packed:
        torch.ops.pyflash.fwd(q, kv, kv, **_masking(problem))
        return
    q, kv = (x[:1].flatten(0, 1) for x in (q, kv))  # as if one sequence held all the rows
    cu_seqlens = torch.empty(problem.batch + 1, dtype=torch.int32, device="meta")
    lengths = (cu_seqlens, cu_seqlens, problem.seqlen_q, problem.seqlen_k)
    torch.ops.pyflash.fwd_varlen(q, kv, kv, *lengths, **_masking(problem))


def _masking(problem: Problem) -> dict[str, bool | int | float]:
    return {
        "causal": problem.causal,
        "window_left": problem.window_left,
        "window_right": problem.window_right,
        "softcap": problem.softcap,
    }
