"""python -m pyflash.demo: the way of one config from Python to results.

With a CUDA GPU: builds the config that is selected, runs it, compares error and speed with PyTorch.
Without: runs the op on the CPU, shows the emitted C++, compiles it for two architectures and sets
what ptxas says beside what the config's resource model predicts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from torch import Tensor

import pyflash
from codegen import emit
from codegen.build import build_kernels, built_resources
from pyflash import DType, FlashForwardKernelConfig, Problem
from pyflash.arch import Arch
from pyflash.reference import check
from pyflash.selection import TORCH_DTYPES

ARCHS = (Arch.of(80), Arch.of(90))

out = Console(highlight=False)


def main() -> int:
    try:
        if torch.cuda.is_available():
            demo_on_gpu()
        else:
            demo_on_cpu()
    except (AssertionError, RuntimeError) as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    return 0


def demo_on_cpu() -> None:
    problem = Problem(
        batch=1,
        heads_q=2,
        heads_kv=2,
        seqlen_q=512,
        seqlen_k=512,
        d_head=128,
        dtype=DType.FP16,
        device="cpu",
    )
    config = _select(problem)
    q, k, v = _inputs(problem)
    start = time.perf_counter()
    result = pyflash.attention(q, k, v, config=config)
    seconds = time.perf_counter() - start
    _report_error(result, q, k, v)
    out.print(f"  {seconds * 1e3:.0f} ms, block by block as the kernel goes, on the CPU\n")

    out.print("[bold]The same config as C++[/bold], which instantiates the kernel:\n")
    out.print(Syntax(emit.emit_config(config), "cpp", theme="ansi_dark", word_wrap=True))
    names = " and ".join(map(str, ARCHS))
    out.print(f"[bold]Compiled[/bold] for {names}; half a minute for each, the first time:\n")
    with tempfile.TemporaryDirectory(prefix="pyflash-demo-") as folder:
        library = build_kernels([config], ARCHS, Path(folder), "demo")
        pyflash.load(library)
        out.print(_resource_table(config, built_resources(library)[config]["kernels"]))


def demo_on_gpu() -> None:
    problem = Problem(
        batch=4, heads_q=16, heads_kv=16, seqlen_q=4096, seqlen_k=4096, d_head=128, dtype=DType.FP16
    )
    properties = torch.cuda.get_device_properties(0)
    out.print(f"[bold]{properties.name}[/bold], torch {torch.__version__}")
    try:
        config = _select(problem)
    except RuntimeError:  # nothing is built for this GPU
        pyflash.build(pyflash.named_set("all")[0])
        config = _select(problem)
    q, k, v = _inputs(problem)
    _report_error(pyflash.attention(q, k, v, config=config), q, k, v)

    def scaled_dot_product() -> Tensor:
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(*heads_first)

    contenders = {
        "pyflash": lambda: pyflash.attention(q, k, v, config=config),
        "PyTorch": scaled_dot_product,
    }
    flops = 4 * problem.batch * problem.heads_q * problem.seqlen_q * problem.seqlen_k
    flops *= problem.d_head
    table = Table("", "ms", "TFLOP/s", title="median of 20, one after the other in turns")
    for name, seconds in time_on_gpu(contenders).items():
        table.add_row(name, f"{seconds * 1e3:.3f}", f"{flops / seconds / 1e12:.0f}")
    out.print(table)


def time_on_gpu(contenders: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
    """Median seconds of 20 launches of each, in turns, after 5 to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(25):
        for name, run in contenders.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            if turn >= 5:
                seconds[name].append(start.elapsed_time(end) / 1e3)
    return {name: median(values) for name, values in seconds.items()}


def _select(problem: Problem) -> FlashForwardKernelConfig:
    selection = pyflash.select(problem)
    out.print(f"[bold]Config[/bold] {selection.config}: {selection.reason}\n")
    return selection.config


def _inputs(problem: Problem) -> Iterable[Tensor]:
    torch.manual_seed(0)
    shape = (problem.batch, problem.seqlen_q, problem.heads_q, problem.d_head)
    dtype = TORCH_DTYPES[problem.dtype]
    return [torch.randn(shape, dtype=dtype, device=problem.device) for _ in range(3)]


def _report_error(result: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
    error, bound = check(result, q, k, v)
    shape = ", ".join(map(str, q.shape))
    out.print(f"[bold]attention[/bold] of ({shape}), (batch, seqlen, heads, d_head):")
    out.print(f"  max |error| {error:.2e} against fp32, bound {bound:.2e}")


def _resource_table(config: FlashForwardKernelConfig, kernels: list[dict]) -> Table:
    table = Table("", "predicted", "ptxas", title=str(config))
    smem_bytes = pyflash.built_configs()[config].smem_bytes
    for arch, kernel in zip(ARCHS, kernels, strict=True):
        predicted = config.resources(arch)
        spills = kernel["spill_store_bytes"] + kernel["spill_load_bytes"]
        table.add_row(
            f"{arch} registers a thread", f"{predicted.registers}", f"{kernel['registers']}"
        )
        spill_predicted = "yes" if predicted.spill_predicted else "no"
        table.add_row(f"{arch} spills", spill_predicted, f"{spills} bytes")
        shared = kernel["static_smem_bytes"] + smem_bytes
        table.add_row(f"{arch} shared memory a CTA", f"{predicted.smem_bytes}", f"{shared} bytes")
        table.add_row(f"{arch} CTAs an SM", f"{predicted.num_ctas_per_sm}", "")
    return table


if __name__ == "__main__":
    sys.exit(main())
