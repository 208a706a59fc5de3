"""The contenders: callables over (q, k, v), each (batch, seqlen, heads, d_head)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyflash.config import KernelConfig
from pyflash.op.ops import attention

BASELINE = "PyTorch flash"


@dataclass(frozen=True)
class Contender:
    """`run` returns out, shaped as q; it is called inside `context()`."""

    name: str
    run: Callable[[Tensor, Tensor, Tensor], Tensor]
    config: KernelConfig | None = None
    context: Callable[[], AbstractContextManager] = nullcontext


def pyflash_configs(configs: Iterable[KernelConfig], causal: bool = False) -> list[Contender]:
    return [
        Contender(
            name=str(config),
            run=functools.partial(attention, causal=causal, config=str(config.canonical())),
            config=config,
        )
        for config in configs
    ]


def torch_backends(device: torch.device, causal: bool = False) -> list[Contender]:
    """PyTorch's own attention, each backend by itself; the first is the baseline."""
    backends = {BASELINE: SDPBackend.FLASH_ATTENTION}
    if device.type == "cuda" and torch.backends.cudnn.is_available():
        backends["PyTorch cudnn"] = SDPBackend.CUDNN_ATTENTION
    return [
        Contender(
            name=name,
            run=functools.partial(_scaled_dot_product, causal=causal),
            context=functools.partial(sdpa_kernel, backend),
        )
        for name, backend in backends.items()
    ]


def _scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """NOTE: its causal mask is top-left aligned, so q and k must have the same length."""
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        *heads_first, is_causal=causal, enable_gqa=q.shape[2] != k.shape[2]
    )
    return out.transpose(1, 2)
