"""Which config runs a problem when none is named, and why. The rule is in
cute_kernels/bindings/select.h; this asks it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pyflash import ops  # noqa: F401  (registers torch.ops.pyflash)
from pyflash.config import DType, FlashForwardKernelConfig

TORCH_DTYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is asked of attention. Windows count keys, -1: no limit; device as torch names it."""

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
    device: str = "cuda"


@dataclass(frozen=True, slots=True)
class Selection:
    config: FlashForwardKernelConfig
    reason: str


def select(problem: Problem) -> Selection:
    """The config that `attention` would run with config = "", and the reason in a sentence.

    Raises RuntimeError where `attention` would refuse the problem.
    """
    _refuse_what_attention_refuses(problem)
    device = torch.device(problem.device)
    sm_arch = n_sms = 0
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        sm_arch = properties.major * 10 + properties.minor
        n_sms = properties.multi_processor_count
    short_form, reason = torch.ops.pyflash.select(
        int(problem.dtype),
        problem.d_head,
        problem.batch,
        problem.heads_q,
        problem.seqlen_q,
        sm_arch,
        n_sms,
    )
    return Selection(FlashForwardKernelConfig.parse(short_form), reason)


def _refuse_what_attention_refuses(problem: Problem) -> None:
    def meta(seqlen: int, heads: int) -> torch.Tensor:
        shape = (problem.batch, seqlen, heads, problem.d_head)
        return torch.empty(shape, dtype=TORCH_DTYPES[problem.dtype], device="meta")

    kv = meta(problem.seqlen_k, problem.heads_kv)
    torch.ops.pyflash.fwd(
        meta(problem.seqlen_q, problem.heads_q),
        kv,
        kv,
        causal=problem.causal,
        window_left=problem.window_left,
        window_right=problem.window_right,
    )
