"""Caches in float8_e4m3fn: an element times the scale of its head is what it stands for.

Each e4m3 number is one of float16 and of bfloat16, so attention applies the scales to scores and to
out, and nothing but these is rounded. The scales stay on their device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyflash.op.errors import check_device, dtype_name, require

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
