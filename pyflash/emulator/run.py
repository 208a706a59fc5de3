"""`emulate`: attention by a real kernel on the CPU."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from torch import Tensor

from pyflash import ops  # noqa: F401  (registers torch.ops.pyflash)
from pyflash.config import FlashForwardKernelConfig
from pyflash.emulator.machine import Machine
from pyflash.emulator.report import Report, parse

# In which order warps, and the lanes of a warp, run; "random" as the seed says, anew at each point
# where a warp meets. A bug may show under one and hide under another.
ORDERS = ("ascending", "descending", "random")


def emulate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: FlashForwardKernelConfig | str,
    *,
    softmax_scale: float | None = None,
    order: str = "ascending",
    seed: int = 0,
) -> tuple[Tensor, Tensor, Report]:
    """Attention as `pyflash.attention` computes it with `config` on a GPU, by the same kernel
    template, thread by thread on the CPU. Arguments that both have mean the same.

    q is (batch, seqlen_q, heads, d_head), k and v are (batch, seqlen_k, heads, d_head), on the CPU.
    The kernel is compiled for the CPU and kept in the cache of builds: half a minute the first
    time. A tile of 64 x 64 at d_head 128 takes about 2 ms.

    Returns (out, lse, report). out and lse are what the kernel wrote, NaN where it wrote nothing;
    they agree with a GPU's up to the order of sums. Races and the like do not raise: they are in
    `report.findings`, and `report.check()` raises them.

    Raises RuntimeError for arguments that attention refuses, ValueError for an unknown order, for
    text that is no config and for a config that breaks a rule, `codegen.build.BuildError` where the
    kernel does not compile.
    """
    from codegen.emulated import build_emulated  # needs a compiler; only emulating does

    if isinstance(config, str):
        config = FlashForwardKernelConfig.parse(config)
    config = config.canonical()
    _results(q, k, v, config, softmax_scale, order)  # refuses before anything is compiled
    (library,) = build_emulated([config]).values()
    return run_library(library, q, k, v, config, softmax_scale, order, seed)


def run_library(
    library: Path,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: FlashForwardKernelConfig,
    softmax_scale: float | None = None,
    order: str = "ascending",
    seed: int = 0,
) -> tuple[Tensor, Tensor, Report]:
    """`emulate` with a library that was built, of a canonical config."""
    results = _results(q, k, v, config, softmax_scale, order)
    out, lse = (torch.full(x.shape, torch.nan, dtype=x.dtype) for x in results)
    problem = {
        "batch": q.shape[0],
        "heads": q.shape[2],
        "seqlen_q": q.shape[1],
        "seqlen_k": k.shape[1],
        "softmax_scale": 1 / math.sqrt(q.shape[3]) if softmax_scale is None else softmax_scale,
    }
    tensors = {"q": q, "k": k, "v": v, "o": out}
    with Machine(library, order, seed) as machine:
        machine.set_params(problem)
        for name, tensor in tensors.items():
            machine.add_tensor(name, tensor, output=tensor is out)
            strides = zip(("batch", "row", "head"), tensor.stride(), strict=False)
            machine.set_params({f"{name}_strides.{axis}": stride for axis, stride in strides})
        machine.add_tensor("lse", lse, output=True)
        start = time.perf_counter()
        values = machine.run()
        seconds = time.perf_counter() - start
    report = Report(
        config=config.short_form(),
        problem=problem,
        order=order,
        seed=seed,
        seconds=seconds,
        **{**values, **parse(values)},
    )
    return out, lse, report


def _results(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: FlashForwardKernelConfig,
    softmax_scale: float | None,
    order: str,
) -> tuple[Tensor, Tensor]:
    """out and lse on the meta device. Refuses what attention refuses, by the op's own checks."""
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}: expected one of {', '.join(ORDERS)}")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.device.type != "cpu":
            raise RuntimeError(f"pyflash: {name} is on {tensor.device}: emulate runs on the CPU")
    like = [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in (q, k, v)
    ]
    return torch.ops.pyflash.fwd(*like, softmax_scale=softmax_scale, config=config.short_form())
