"""`emulate` and `emulate_varlen`: attention by a real kernel on the CPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyflash.config import FlashForwardKernelConfig
from pyflash.emulator.machine import Machine
from pyflash.emulator.problem import merge, problem_of
from pyflash.emulator.report import Report, parse
from pyflash.op import ops  # noqa: F401  (registers torch.ops.pyflash)

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
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    num_splits: int = 1,
    order: str = "ascending",
    seed: int = 0,
) -> tuple[Tensor, Tensor, Report]:
    """Attention as `pyflash.attention` computes it with `config` on a GPU, by the same kernel
    template, thread by thread on the CPU. Arguments that both have mean the same.

    q is (batch, seqlen_q, heads, d_head), k and v are (batch, seqlen_k, heads_kv, d_head), on the
    CPU. The kernel is compiled for the CPU and kept in the cache of builds: half a minute the first
    time. A tile of 64 x 64 at d_head 128 takes about 2 ms.

    With num_splits > 1 the kernel writes partial results, one per split of the keys, and PyTorch
    merges them.

    Returns (out, lse, report). out and lse are what the kernel wrote, NaN where it wrote nothing;
    they agree with a GPU's up to the order of sums. Races and the like do not raise: they are in
    `report.findings`, and `report.check()` raises them.

    Raises RuntimeError for arguments that attention refuses, ValueError for an unknown order, for
    num_splits < 1, for text that is no config and for a config that breaks a rule,
    `codegen.build.BuildError` where the kernel does not compile.
    """
    return _emulate(
        (q, k, v),
        config,
        softmax_scale=softmax_scale,
        causal=causal,
        window_left=window_left,
        window_right=window_right,
        softcap=softcap,
        num_splits=num_splits,
        order=order,
        seed=seed,
    )


def emulate_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    config: FlashForwardKernelConfig | str,
    **options: Any,
) -> tuple[Tensor, Tensor, Report]:
    """`emulate` for packed sequences, as `pyflash.attention_varlen` takes them.

    q is (total_q, heads, d_head), k and v are (total_k, heads_kv, d_head); what cu_seqlens hold is
    checked as little as on a GPU. `options` are the others of `emulate`. Returns (out, lse, report)
    with lse (heads, total_q).
    """
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _emulate((q, k, v, *lengths), config, **options)


def _emulate(
    inputs: tuple[Any, ...], config: FlashForwardKernelConfig | str, **options: Any
) -> tuple[Tensor, Tensor, Report]:
    from pyflash.codegen.emulated import build_emulated  # needs a compiler; only emulating does

    if isinstance(config, str):
        config = FlashForwardKernelConfig.parse(config)
    config = config.canonical()
    _results(inputs, config, **options)  # refuses before anything is compiled
    (library,) = build_emulated([config]).values()
    return run_library(library, inputs, config, **options)


def run_library(
    library: Path,
    inputs: tuple[Any, ...],
    config: FlashForwardKernelConfig,
    *,
    order: str = "ascending",
    seed: int = 0,
    **options: Any,
) -> tuple[Tensor, Tensor, Report]:
    """`emulate`, or `emulate_varlen`, with a library that was built, of a canonical config.

    `inputs` are the positional arguments but for the config.
    """
    results = _results(inputs, config, order, **options)
    out, lse = (torch.full(x.shape, torch.nan, dtype=x.dtype) for x in results)
    problem = problem_of(inputs, out, lse, **options)
    with Machine(library, order, seed) as machine:
        machine.set_params(problem.params)
        for name, tensor in problem.inputs.items():
            machine.add_tensor(name, tensor, output=False)
        for name, tensor in problem.outputs.items():
            machine.add_tensor(name, tensor, output=True)
        start = time.perf_counter()
        values = machine.run()
        seconds = time.perf_counter() - start
    if "o_partial" in problem.outputs:
        merge(problem.outputs, out, lse)
    report = Report(
        config=config.short_form(),
        problem=problem.numbers,
        order=order,
        seed=seed,
        seconds=seconds,
        **{**values, **parse(values)},
    )
    return out, lse, report


def _results(
    inputs: tuple[Any, ...],
    config: FlashForwardKernelConfig,
    order: str = "ascending",
    seed: int = 0,
    *,
    num_splits: int = 1,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """out and lse on the meta device. Refuses what attention refuses, by the op's own checks."""
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}: expected one of {', '.join(ORDERS)}")
    if num_splits < 1:
        raise ValueError(f"num_splits = {num_splits}: expected at least 1, nothing chooses it here")
    names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
    for name, tensor in zip(names, inputs, strict=False):
        if tensor.device.type != "cpu":
            raise RuntimeError(f"pyflash: {name} is on {tensor.device}: emulate runs on the CPU")
    tensors, max_seqlens = inputs[:5], inputs[5:]
    like = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in tensors]
    op = torch.ops.pyflash.fwd_varlen if max_seqlens else torch.ops.pyflash.fwd
    return op(*like, *max_seqlens, config=config.short_form(), num_splits=num_splits, **options)
