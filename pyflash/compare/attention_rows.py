"""Attention in the profiler's columns: what pyflash measured, as rows that open beside a GEMM's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflash.compare.profiler_csv import measured_cells
from pyflash.compare.work import DTYPE_NAMES, attention_flops, fused_bytes, is_causal

if TYPE_CHECKING:
    from pyflash.bench.forward import Result
    from pyflash.op.selection import Problem

PROVIDER = "pyflash"
KIND = "attention"


def attention_row(result: Result) -> dict[str, str]:
    """A benchmark's result as cells: Provider pyflash (or PyTorch), OperationKind attention,
    Operation the config's short form; m, n, k are seqlen_q, seqlen_k, d_head, and batch_count is
    batch * heads_q. FLOPs are halved for causal, as everywhere in pyflash.

    A result that was refused or wrong has no figures, and says so as the profiler does.
    """
    problem = result.problem
    config = result.contender.config
    provider, _, name = result.contender.name.partition(" ")
    cells = _problem_cells(problem) | {
        "Provider": PROVIDER if config else provider,
        "OperationKind": KIND,
        "Operation": str(config) if config else name,
        "Status": "success" if result.timing or result.status == "wrong" else "not_supported",
        "Disposition": {"ok": "passed", "wrong": "incorrect"}.get(result.status, "not_run"),
    }
    if config is not None:
        cells |= _config_cells(config)
    if result.timing:
        seconds = result.timing.seconds
        cells |= measured_cells(fused_bytes(problem), attention_flops(problem), seconds)
    return cells


def _problem_cells(problem: Problem) -> dict[str, str]:
    element = DTYPE_NAMES[problem.dtype]
    return {
        "gemm_kind": "causal" if is_causal(problem) else "full",
        "m": str(problem.seqlen_q),
        "n": str(problem.seqlen_k),
        "k": str(problem.d_head),
        "batch_count": str(problem.batch * problem.heads_q),
        **dict.fromkeys("ABCD", f"{element}:row"),
        "accum": "f32",
        "op_class": "tensorop",
    }


def _config_cells(config) -> dict[str, str]:
    """The tile: what one CTA computes of S, and the extent of its first GEMM's K dimension."""
    tile = {"cta_m": config.B_r, "cta_n": config.B_c, "cta_k": config.d_head}
    return {name: str(value) for name, value in tile.items()}
