"""Peak rates of known GPUs, for rooflines.

Sources: NVIDIA's data sheets (A100, A10, L4, L40S, H100, H200) and the GA102 and Ada whitepapers
(RTX 3090, RTX 4090). Tensor rates are of 16-bit inputs with fp32 accumulation, without sparsity, at
boost clock; a GPU that runs below it reaches less.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str  # a part of what the driver calls it
    sm: int  # compute capability, major * 10 + minor
    tflops: float
    gb_per_second: float  # 1e9 bytes

    def roofline_seconds(self, flops: float, n_bytes: float) -> float:
        """The least time for so many FLOPs and bytes of memory traffic, whichever takes longer."""
        return max(flops / (self.tflops * 1e12), n_bytes / (self.gb_per_second * 1e9))

    def bound(self, flops: float, n_bytes: float) -> str:
        """The limit: "compute" or "memory"."""
        by_compute = flops * self.gb_per_second * 1e9 >= n_bytes * self.tflops * 1e12
        return "compute" if by_compute else "memory"


# The first whose name is in the driver's counts.
GPUS = (
    Gpu("H200", 90, 989.4, 4800),
    Gpu("H100 PCIe", 90, 756.5, 2039),
    Gpu("H100", 90, 989.4, 3352),
    Gpu("A100-SXM4-80GB", 80, 312, 2039),
    Gpu("A100 80GB PCIe", 80, 312, 1935),
    Gpu("A100", 80, 312, 1555),
    Gpu("A10", 86, 125, 600),
    Gpu("RTX 3090", 86, 71, 936),
    Gpu("L40S", 89, 362.05, 864),
    Gpu("L4", 89, 121, 300),
    Gpu("RTX 4090", 89, 165.2, 1008),
)


def find_gpu(name: str) -> Gpu | None:
    """The GPU with a driver's name, such as "NVIDIA H200"; None if it is not known."""
    words = f" {name} "
    return next((gpu for gpu in GPUS if f" {gpu.name} " in words), None) or next(
        (gpu for gpu in GPUS if f" {gpu.name}-" in words), None
    )
