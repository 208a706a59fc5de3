"""`pyflash compare`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pyflash.compare import profiler_csv
from pyflash.compare.gpus import Gpu, find_gpu
from pyflash.compare.profiler import ProfilerError, find_profiler
from pyflash.compare.profiler_csv import COLUMNS, Joined, Profile, Row
from pyflash.compare.report import Comparison, compare, join_table
from pyflash.config import DType

app = typer.Typer(add_completion=False)


@app.command("compare")
def compare_command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="CSV files; with --cutlass-profiler, the program."),
    ] = None,
    cutlass_profiler: Annotated[
        bool,
        typer.Option(
            "--cutlass-profiler",
            help="Measure on this machine's GPU: the GEMMs by the program at PATH, "
            "CUTLASS_PROFILER or on PATH, and without one by kernels of cutlass_library.",
        ),
    ] = False,
    seqlen: Annotated[int | None, typer.Option(help="Of q, k and v.")] = None,
    tokens: Annotated[int, typer.Option(help="batch is tokens / seqlen.")] = 16384,
    d_head: int = 128,
    heads: Annotated[int | None, typer.Option(help="2048 / d_head by default.")] = None,
    heads_kv: Annotated[int | None, typer.Option(help="As heads by default.")] = None,
    dtype: Annotated[str, typer.Option(help="fp16 or bf16.")] = "bf16",
    causal: Annotated[bool, typer.Option("--causal")] = False,
    config: Annotated[
        list[str] | None, typer.Option(help="Fused kernel; may be repeated. The selected one.")
    ] = None,
    kernels: Annotated[str | None, typer.Option(help="The profiler's pattern of names.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="The profiler checks results.")] = False,
    gpu: Annotated[str | None, typer.Option(help="For rooflines of files, such as H200.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Writes all rows that were measured.")] = None,
    html: Annotated[Path | None, typer.Option(help="Writes a self-contained page.")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Attention beside its two GEMMs, in figures of the CUTLASS profiler.

    Two CSV files are joined. With --seqlen, files are searched for QK^T, PV and attention of that
    problem, which are compared. With --cutlass-profiler all are measured here.
    """
    paths = paths or []
    console = Console(highlight=False, soft_wrap=True)
    try:
        if cutlass_profiler:
            if len(paths) > 1:
                raise ValueError("--cutlass-profiler takes one path, that of the program")
            problem = _problem(seqlen or 4096, tokens, d_head, heads, heads_kv, dtype, causal)
            result, profiles = _measure(problem, paths, config or [], kernels, verify)
            if csv is not None:
                cells = [_of_4_2(row) for p in profiles for row in p.rows]
                csv.write_text(profiler_csv.as_text(cells))
            _show(console, result, as_json, html)
        elif seqlen is not None:
            problem = _problem(seqlen, tokens, d_head, heads, heads_kv, dtype, causal)
            profiles = _read(paths)
            _show(console, compare(problem, profiles, profiles, _gpu(gpu)), as_json, html)
        elif len(paths) == 2:
            first, second = _read(paths)
            _show_joined(console, first, second, as_json)
        else:
            raise ValueError("expected two CSV files, --seqlen with files, or --cutlass-profiler")
    except (ValueError, RuntimeError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def _problem(seqlen, tokens, d_head, heads, heads_kv, dtype, causal):
    from pyflash.op.selection import Problem

    if dtype.upper() not in DType.__members__:
        raise ValueError(f"--dtype {dtype}: expected fp16 or bf16")
    heads = heads or max(1, 2048 // d_head)
    return Problem(
        batch=max(1, tokens // seqlen),
        heads_q=heads,
        heads_kv=heads_kv or heads,
        seqlen_q=seqlen,
        seqlen_k=seqlen,
        d_head=d_head,
        dtype=DType[dtype.upper()],
        options={"causal": True} if causal else {},
    )


def _measure(
    problem, paths: Sequence[Path], configs: Sequence[str], kernels: str | None, verify: bool
) -> tuple[Comparison, list[Profile]]:
    import torch

    from pyflash.compare.live import compare_on_gpu
    from pyflash.config import parse as parse_config

    if not torch.cuda.is_available():
        raise RuntimeError("no GPU: pass CSV files and --seqlen to compare what was recorded")
    profiler = None
    try:
        profiler = find_profiler(*paths)
    except ProfilerError as error:
        if paths:
            raise
        typer.echo(f"{error}\nthe GEMMs are kernels of cutlass_library, built by pyflash", err=True)
    keys = [parse_config(text) for text in configs]
    return compare_on_gpu(problem, profiler, keys, kernels, verify)


def _of_4_2(row: Row) -> dict[str, str]:
    """The columns that CUTLASS 4.2.0 has too, but for the number of the problem."""
    return {name: row.cells[name] for name in COLUMNS[1:] if name in row.cells}


def _read(paths: Sequence[Path]) -> list[Profile]:
    if not paths:
        raise ValueError("no CSV files")
    return [profiler_csv.read(path) for path in paths]


def _gpu(name: str | None) -> Gpu | None:
    if name is None:
        return None
    found = find_gpu(name)
    if found is None:
        raise ValueError(f"--gpu {name}: its peak rates are not known")
    return found


def _show(console: Console, comparison: Comparison, as_json: bool, html: Path | None) -> None:
    if html is not None:
        from pyflash.inspect.page import page

        html.write_text(page(comparison))
    if as_json:
        typer.echo(comparison.to_json(indent=1))
    else:
        console.print(comparison)


def _show_joined(console: Console, first: Profile, second: Profile, as_json: bool) -> None:
    joined = profiler_csv.join(first, second)
    refused = [f"{p.name}: {r}" for p in (first, second) for r in p.refused]
    if as_json:
        record = {"joined": [_joined_dict(j) for j in joined], "refused": refused}
        typer.echo(json.dumps(record, indent=1))
        return
    console.print(join_table(joined, first.name, second.name))
    for profile in (first, second):
        if profile.note:
            typer.echo(f"{profile.name}: {profile.note}")
    for text in refused:
        typer.echo(f"refused: {text}")


def _joined_dict(joined: Joined) -> dict:
    kind, m, n, k, batch_count = joined.problem
    sides = {
        name: {"seconds": row.seconds, "gflops": row.gflops, "provider": row.provider}
        if row
        else None
        for name, row in (("first", joined.first), ("second", joined.second))
    }
    problem = {"kind": kind, "m": m, "n": n, "k": k, "batch_count": batch_count}
    return problem | {"operation": joined.operation, "speedup": joined.speedup} | sides
