"""Caches in float8_e4m3fn: an element times the scale of its head is what it stands for.

Attention over them is computed on the CPU alone. Each e4m3 number is one of float16 and of
bfloat16, so scales are applied to scores and to out, and nothing but these is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyflash.op.errors import check_device, dtype_name, require
from pyflash.op.options import TENSORS, softmax_scale_of

E4M3 = torch.float8_e4m3fn
_LARGEST = 448.0


def is_fp8(cache: Tensor) -> bool:
    return cache.dtype == E4M3


def check_scales(cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None) -> None:
    """What depends on dtypes and shapes alone. cache: (num_pages, page_size, heads_kv, d_head)."""
    heads_kv = cache.shape[2]
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if not is_fp8(cache):
            require(
                scale is None,
                f"{name} came with a cache of {dtype_name(cache.dtype)}: expected it with "
                "float8_e4m3fn alone",
            )
            continue
        require(scale is not None, f"{name} is None: expected it with caches of float8_e4m3fn")
        require(
            scale.dtype == torch.float32 and scale.shape in ((), (heads_kv,)),
            f"{name} is {dtype_name(scale.dtype)} of shape {tuple(scale.shape)}: expected float32, "
            f"() or ({heads_kv},)",
        )
        check_device(cache, "k_cache", **{name: scale})


def quantised(x: Tensor, scale: Tensor) -> Tensor:
    """x, (n, heads_kv, d_head), in e4m3; what exceeds its range becomes the largest number."""
    scaled = x.float() / scale.reshape(-1, 1)
    return scaled.clamp(-_LARGEST, _LARGEST).to(E4M3)


def attention_over_fp8(
    attend: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """(out, lse) by attend(q, k_cache, v_cache, **options) over caches in the dtype of q. Where K
    has a scale for each head, a call for each."""
    require(
        q.device.type == "cpu",
        "k_cache is float8_e4m3fn: expected float16 or bfloat16 on a GPU, whose kernels do not "
        "read float8",
    )
    heads_kv = k_cache.shape[2]
    scale = softmax_scale_of(options, q.shape[-1])
    k_scales = k_scale.reshape(-1).tolist()
    parts = []
    n_kv, n = heads_kv // len(k_scales), q.shape[-2] // len(k_scales)
    for i, of_k in enumerate(k_scales):
        heads, heads_k = slice(i * n, (i + 1) * n), slice(i * n_kv, (i + 1) * n_kv)
        of_heads = {
            name: options[name][..., heads].contiguous()
            for name in TENSORS
            if options.get(name) is not None
        }
        caches = (x[:, :, heads_k].to(q.dtype) for x in (k_cache, v_cache))
        given = {**options, **of_heads, "softmax_scale": scale * of_k}
        parts.append(attend(q[..., heads, :], *caches, **given))
    out = torch.cat([part[0] for part in parts], -2)
    lse = torch.cat([part[1] for part in parts], -2)
    of_v = v_scale.expand(heads_kv).repeat_interleave(q.shape[-2] // max(heads_kv, 1))
    return (out.float() * of_v[:, None]).to(q.dtype), lse
