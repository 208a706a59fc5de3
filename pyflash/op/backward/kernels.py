"""Gradients on a GPU by the kernels of op backward, where they are built.

They recompute P = exp(S - lse) from the given lse, as the borrowed ones do. dq is summed over
blocks of keys in whatever order these end, in float32: two calls differ by rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyflash.config import DType
from pyflash.op.backward.cudnn import readable
from pyflash.op.library import built_configs
from pyflash.op.options import AttentionOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

_DTYPES = {torch.float16: DType.FP16, torch.bfloat16: DType.BF16}


def choice(device: torch.device, problem: Mapping[str, Any]) -> tuple[str, str]:
    """(config, reason): the config of op backward that computes the gradients of a problem there,
    "" for none, and why. problem: the arguments of `torch.ops.pyflash.select_backward`, but for
    the device's."""
    if torch.are_deterministic_algorithms_enabled():
        return "", "torch.use_deterministic_algorithms is on, and dq is summed in any order"
    if device.type != "cuda" or not torch.cuda.is_available():
        return "", "there is no GPU"
    properties = torch.cuda.get_device_properties(device)
    return torch.ops.pyflash.select_backward(
        sm_arch=properties.major * 10 + properties.minor,
        n_sms=properties.multi_processor_count,
        **problem,
    )


def are_built() -> bool:
    """Whether the process has kernels of op backward for any GPU."""
    return bool(built_configs("backward"))


def takes(q: Tensor, k: Tensor, options: AttentionOptions) -> bool:
    """Whether these kernels compute the gradients of a call of `fwd`."""
    batch, seqlen_q, heads, d_head = q.shape
    problem = {
        "dtype": int(_DTYPES[q.dtype]),
        "packed": False,
        "batch": batch,
        "heads": heads,
        "heads_kv": k.shape[2],
        "seqlen_q": seqlen_q,
        "seqlen_k": k.shape[1],
        "d_head": d_head,
    }
    return bool(choice(q.device, problem | options)[0])


def bwd(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, (batch, seqlen, heads, d_head); `takes` says so."""
    grad_out, out, q, k, v = map(readable, (grad_out, out, q, k, v))
    gradients = tuple(torch.empty_like(x) for x in (q, k, v))
    torch.ops.pyflash.run_backward(
        grad_out, out, lse.contiguous(), None, q, k, v, *gradients, **options
    )
    return gradients
