"""Recorded files of the CUTLASS profiler, and the problem that they are of."""

from __future__ import annotations

from pathlib import Path

from pyflash.config import DType
from pyflash.op.options import AttentionOptions
from pyflash.op.selection import Problem

RECORDED = Path(__file__).parent.parent / "inspect" / "data" / "cutlass_profiler"


def problem_of(seqlen: int, options: AttentionOptions | None = None, **changes) -> Problem:
    """batch * seqlen = 16384, 16 heads, d_head 128, bf16."""
    values = {"batch": 16384 // seqlen, "heads_q": 16, "heads_kv": 16, "d_head": 128}
    lengths = {"seqlen_q": seqlen, "seqlen_k": seqlen}
    return Problem(**values | lengths | {"dtype": DType.BF16, "options": options or {}} | changes)
