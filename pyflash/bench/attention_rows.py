"""Attention in the profiler's columns: what pyflash measured, as rows that open beside a GEMM's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyflash.bench.measurements import Facts, differing, facts_of
from pyflash.bench.profiler_csv import measured_cells
from pyflash.bench.work import DTYPE_NAMES, attention_flops, fused_bytes, is_causal
from pyflash.config import FORWARD, DType, KernelConfig, from_dict

PROVIDER = "pyflash"
KIND = "attention"
# The columns that tell rows apart.
_TELLING = ("Provider", "Operation", "gemm_kind", "m", "n", "k", "batch_count", "A")


def attention_rows(records: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """A row for each record, as `attention_row`.

    Raises ValueError also for problems, or machines, that the columns cannot tell apart.
    """
    found = []
    first: dict[tuple[str | None, ...], Facts] = {}
    for record in records:
        row, facts = attention_row(record), facts_of(record)
        other = first.setdefault(tuple(map(row.get, _TELLING)), facts)
        if apart := differing([other, facts]):
            words = (", ".join(filter(None, map(one.get, apart))) for one in (other, facts))
            raise ValueError(
                f"the profiler's columns cannot tell apart {' and '.join(words)}: keep one of "
                "them, such as with --heads, --heads-kv or --tokens"
            )
        found.append(row)
    return found


def attention_row(record: Mapping[str, Any]) -> dict[str, str]:
    """A benchmark's record (`Result.record()`) as cells: Provider pyflash (or PyTorch, ...),
    OperationKind attention, Operation the config's short form; m, n, k are seqlen_q, seqlen_k,
    d_head, and batch_count is batch * heads_q. FLOPs are halved for causal, as everywhere in
    pyflash.

    A result that was refused or wrong has no figures, and says so as the profiler does. Raises
    ValueError for what the columns cannot tell from the forward pass of full or causal attention of
    sequences of one length.
    """
    from pyflash.op.selection import Problem

    if record["what"] != FORWARD.name:
        raise ValueError(f"a {record['what']} pass: the profiler's columns hold forward passes")
    values = record["problem"]
    facts = facts_of(record)
    if facts["variant"] not in ("full", "causal") or "rest" in facts:
        words = ", ".join(filter(None, (facts["variant"], facts.get("rest"))))
        raise ValueError(
            f"{words}: the profiler's columns hold full and causal attention of sequences of one "
            "length"
        )
    problem = Problem(**{**values, "dtype": DType[values["dtype"]]})
    config = from_dict(record["config"]) if record["config"] else None
    provider, _, name = record["contender"].partition(" ")
    cells = _problem_cells(problem) | {
        "Provider": PROVIDER if config else provider,
        "OperationKind": KIND,
        "Operation": str(config) if config else name or "attention",
        "Status": "success" if record["status"] in ("ok", "wrong") else "not_supported",
        "Disposition": {"ok": "passed", "wrong": "incorrect"}.get(record["status"], "not_run"),
    }
    if config is not None:
        cells |= _config_cells(config)
    if record["timing"]:
        seconds = record["timing"]["seconds"]
        cells |= measured_cells(fused_bytes(problem), attention_flops(problem), seconds)
    return cells


def _problem_cells(problem) -> dict[str, str]:
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


def _config_cells(config: KernelConfig) -> dict[str, str]:
    """The tile: what one CTA computes of S, and the extent of its first GEMM's K dimension."""
    tile = {"cta_m": config.B_r, "cta_n": config.B_c, "cta_k": config.d_head}
    return {name: str(value) for name, value in tile.items()}
