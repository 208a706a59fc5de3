"""Fused attention beside its two GEMMs, as the CUTLASS profiler measures them.

    python examples/compare_with_cutlass_profiler.py [--profiler PATH] [--seqlen 4096]

Unfused attention is QK^T and PV with a softmax between them: fusion saves the traffic of S and P.
Where the profiler is missing, kernels of the nvidia-cutlass wheel stand in for its own. Both need a
GPU: without one the example says so, and how to compare files that another machine recorded.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich import print as show

import pyflash
from pyflash.compare.live import compare_on_gpu
from pyflash.compare.profiler import ProfilerError, find_profiler

TOKENS, HEADS, D_HEAD = 16384, 16, 128


def profiler_at(path: Path | None) -> Path | None:
    """The program at `path`, CUTLASS_PROFILER or on PATH, if there is one."""
    try:
        return find_profiler(path)
    except ProfilerError as error:
        print(f"{error}; the GEMMs are kernels of cutlass_library instead")
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profiler", type=Path)
    parser.add_argument("--seqlen", type=int, default=4096)
    arguments = parser.parse_args()
    profiler = profiler_at(arguments.profiler)
    if not torch.cuda.is_available():
        print(
            "skipped: no GPU to measure on. Files that were recorded elsewhere are compared by "
            "`pyflash compare QK.csv PV.csv --seqlen 4096 --gpu H200`"
        )
        return
    problem = pyflash.Problem(
        batch=TOKENS // arguments.seqlen,
        heads_q=HEADS,
        heads_kv=HEADS,
        seqlen_q=arguments.seqlen,
        seqlen_k=arguments.seqlen,
        d_head=D_HEAD,
        dtype="BF16",
    )
    comparison, _ = compare_on_gpu(problem, profiler)
    show(comparison)


if __name__ == "__main__":
    main()
