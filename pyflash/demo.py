"""`pyflash demo`: from a config to a result.

With a CUDA GPU: builds the config that is selected, runs it, compares error and speed with PyTorch.
Without: runs the op on the CPU; runs two kernels thread by thread, one with and one without a
swizzle, and shows what they did; shows the emitted C++, compiles kernels of it for two
architectures and sets what ptxas reports beside what the resource model predicts.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.syntax import Syntax

import pyflash
from pyflash import DType, KernelConfig, Problem
from pyflash.bench import plain_text
from pyflash.bench.contenders import backends, pyflash_configs
from pyflash.bench.measure import rotated_inputs, run
from pyflash.codegen import emit
from pyflash.codegen.build import BuildError
from pyflash.codegen.compilation import compile_all
from pyflash.codegen.emulated import build_emulated
from pyflash.codegen.kernels import Request, cubin_compilation
from pyflash.codegen.toolchain import cutlass_identity
from pyflash.config.arch import Arch
from pyflash.emulator.report import Report
from pyflash.emulator.table import renderable
from pyflash.op.reference import check
from pyflash.ui.tables import Table

ARCHS = (Arch.of(80), Arch.of(90))
HOPPER = "(FP16, 128, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold"
FEATURES = ("plain", "right_window")  # of the kernels that are compiled
COLUMNS = ("registers", "spilled", "smem")  # per thread; bytes


def main(out: Console) -> dict[str, Any]:
    """Shows each step on `out`; returns what it found, as JSON can hold it. Raises RuntimeError
    where something on the way is wrong or cannot be had here."""
    try:
        return demo_on_gpu(out) if torch.cuda.is_available() else demo_on_cpu(out)
    except AssertionError as error:
        raise RuntimeError(f"demo failed: {error}") from error


def demo_on_cpu(out: Console) -> dict[str, Any]:
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
    config = _select(out, problem)
    q, k, v = rotated_inputs(problem, torch.device("cpu"))[0]
    start = time.perf_counter()
    result = pyflash.attention(q, k, v, config=config)
    seconds = time.perf_counter() - start
    error, bound = check(result, q, k, v)
    out.print(f"[bold]attention[/bold] of {_shape(problem)}:")
    out.print(f"  max |error| {error:.2e} against fp32, bound {bound:.2e}")
    out.print(f"  {seconds * 1e3:.0f} ms, block by block as the kernel goes, on the CPU\n")

    emulated, kernels = _emulate_and_compile(out, config)

    out.print("[bold]The same config as C++[/bold], which instantiates the kernel:\n")
    text = emit.emit_config(config)
    out.print(Syntax(text, "cpp", theme="ansi_dark").highlight(text), soft_wrap=True)
    names = " and ".join(map(str, ARCHS))
    out.print(f"[bold]Compiled[/bold] for {names}:\n")
    out.print(_resource_table(config, kernels), crop=False)
    return {
        "config": str(config),
        "attention": {"seconds": seconds, "error": error, "bound": bound},
        "emulated": emulated,
        "compiled": kernels,
    }


def _emulate_and_compile(
    out: Console, config: KernelConfig
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What kernels did on the CPU, which is shown, and what ptxas reports of those of `config`,
    which compile meanwhile: emulation keeps one core busy."""
    ladder = pyflash.named_set("prog")[:2]  # the same kernel without and with a swizzle
    hopper = pyflash.config.parse(HOPPER)
    build_emulated([*ladder, hopper])  # at once, so that no core waits for a single one
    with ThreadPoolExecutor(max_workers=1) as pool:  # one: seeds are of the process
        runs = [pool.submit(_emulate, c, seqlen=256) for c in ladder]
        # One CTA takes all tiles, so that its time line shows how they overlap.
        runs.append(pool.submit(_emulate, hopper, seqlen=384, heads=1, resident_ctas=1))
        kernels = _compile(config)
    emulated = [run.result() for run in runs]
    out.print("[bold]The kernels themselves on the CPU[/bold], thread by thread, built with g++:")
    for found in emulated[:2]:
        _show(out, found)
    out.print("[bold]A Hopper kernel on the CPU[/bold]: TMA, mbarriers, warpgroup MMAs:")
    _show(out, emulated[2])
    return [found.record() for found in emulated], kernels


@dataclass(frozen=True)
class Emulated:
    report: Report
    error: float
    bound: float

    def record(self) -> dict[str, Any]:
        report = json.loads(self.report.to_json())
        return {"report": report, "error": self.error, "bound": self.bound}


def _emulate(config: KernelConfig, seqlen: int, heads: int = 2, **options: int) -> Emulated:
    torch.manual_seed(0)
    shape = (1, seqlen, heads, config.d_head)
    q, k, v = (torch.randn(shape, dtype=torch.float16) for _ in range(3))
    result, lse, report = pyflash.emulate(q, k, v, config, **options)
    report.check()
    return Emulated(report, *check(result, q, k, v, lse=lse))


def _show(out: Console, found: Emulated) -> None:
    out.print(renderable(found.report), crop=False)
    out.print(f"max |error| {found.error:.2e} against fp32, bound {found.bound:.2e}\n")


def demo_on_gpu(out: Console) -> dict[str, Any]:
    problem = Problem(
        batch=4, heads_q=16, heads_kv=16, seqlen_q=4096, seqlen_k=4096, d_head=128, dtype=DType.FP16
    )
    properties = torch.cuda.get_device_properties(0)
    out.print(f"[bold]{properties.name}[/bold], torch {torch.__version__}")
    try:
        config = _select(out, problem)
    except RuntimeError:  # nothing is built for this GPU
        pyflash.build(pyflash.named_set("all")[0])
        config = _select(out, problem)
    contenders = [*backends(problem, ["flash", "cudnn"]), *pyflash_configs([config])]
    results = run(problem, contenders, n_samples=25)
    table = plain_text.table(result.record() for result in results)
    out.print(f"{_shape(problem)}, beside PyTorch and, in % of its TFLOP/s, a GEMM:")
    out.print(table, markup=False, soft_wrap=True)
    ours = results[-1]
    if ours.status != "ok":
        raise RuntimeError(f"{ours.status}: error {ours.error}, bound {ours.bound}")
    return {"config": str(config), "timed": [result.record() for result in results]}


def _select(out: Console, problem: Problem) -> KernelConfig:
    selection = pyflash.select(problem)
    out.print(f"[bold]Config[/bold] {selection.config}: {selection.reason}\n")
    return selection.config


def _shape(problem: Problem) -> str:
    shape = (problem.batch, problem.seqlen_q, problem.heads_q, problem.d_head)
    return f"(batch, seqlen, heads, d_head) = {shape}"


def _compile(config: KernelConfig) -> list[dict[str, Any]]:
    """What ptxas reports of a kernel for each of FEATURES and ARCHS."""
    cutlass = cutlass_identity()
    request = Request(config, tuple(map(config.family.op.features.of, FEATURES)))
    kernels = [cubin_compilation(request, arch, cutlass) for arch in ARCHS]
    if failures := compile_all(kernels, "kernels of the config"):
        raise BuildError(failures, len(kernels))
    return [found for kernel in kernels for found in kernel.record["kernels"]]


def _resource_table(config: KernelConfig, kernels: list[dict]) -> Table:
    """The model's prediction for the plain kernel, and what ptxas made of each of FEATURES."""
    predicted = [config.resources(arch) for arch in ARCHS]
    spills = ["some" if p.spill_predicted else "0" for p in predicted]
    cells = [
        str(x)
        for p, spill in zip(predicted, spills, strict=True)
        for x in (p.registers, spill, p.smem_bytes)
    ]
    rows = [("predicted", *cells)]
    for features in map(config.family.op.features.of, FEATURES):
        of_features = {
            kernel["arch"]: kernel
            for kernel in kernels
            if type(features).of_kernel(kernel["function"]) == features
        }
        ptxas = [of_features[arch.sm] for arch in ARCHS]
        spilled = [k["spill_store_bytes"] + k["spill_load_bytes"] for k in ptxas]
        smem = [k["static_smem_bytes"] + config.smem_bytes for k in ptxas]
        cells = [
            str(x)
            for k, spill, total in zip(ptxas, spilled, smem, strict=True)
            for x in (k["registers"], spill, total)
        ]
        rows.append((str(features).replace("+", " + "), *cells))
    columns = ("", *(f"{arch} {what}" for arch in ARCHS for what in COLUMNS))
    return Table.of(str(config), columns, rows, "per thread: registers, bytes; per CTA: bytes")
