"""Caches of e4m3 in pages, as tests of attention over them make them."""

from __future__ import annotations

import torch
from support.paged import Cache
from torch import Tensor

from pyflash.op.fp8 import E4M3, quantised


def scales(kind: str, heads_kv: int, device: str = "cpu") -> dict[str, Tensor]:
    """k_scale and v_scale, of all heads or of each."""
    if kind == "of all":
        k, v = torch.tensor(0.37), torch.tensor(1.7)
    else:
        k, v = torch.linspace(0.02, 0.6, heads_kv), torch.linspace(3.0, 0.1, heads_kv)
    return {"k_scale": k.to(device), "v_scale": v.to(device)}


class Fp8Cache(Cache):
    """A cache whose keys and values are those that the elements of `fp8` stand for, float64. What
    is NaN is NaN there, too: the byte 0x7f."""

    def quantise(self, kind: str) -> None:
        """After `expire`."""
        self.scales = scales(kind, self.k.shape[2], str(self.k.device))
        made = []
        for x, name, into in (
            (self.k, "k_scale", self.keys),
            (self.v, "v_scale", self.values),
        ):
            scale = self.scales[name]
            fp8 = quantised(x.flatten(0, 1), scale).view(x.shape)
            for b in range(len(self.lengths)):
                one = quantised(into[b], scale)
                into[b] = one.double() * scale.double().reshape(-1, 1)
            made.append(fp8)
        assert made[0].dtype == E4M3
        self.k8, self.v8 = made

    @property
    def fp8(self) -> tuple[Tensor, ...]:
        return self.k8, self.v8, self.table, self.seqlens
