"""`pyflash compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyflash.ui.app import (
    HtmlOption,
    JsonOption,
    check_writable,
    examples,
    known_configs,
    new_app,
    print_json,
    show,
    write_file,
)
from pyflash.ui.problems import Dtype, HeadsKv, dtype_of

if TYPE_CHECKING:
    from pyflash.bench.gpus import Gpu
    from pyflash.bench.profiler_csv import Joined, Profile, Row
    from pyflash.compare.report import Comparison
    from pyflash.op.selection import Problem

app = new_app()


@app.command(
    "compare",
    epilog=examples(
        "pyflash compare qk.gemm.csv pv.gemm.csv",
        "pyflash compare *.csv --seqlen 4096 --d-head 128 --gpu H200 --html compare.html",
        "pyflash compare --cutlass-profiler --seqlen 4096 --csv rows.csv",
    ),
)
def compare_command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="CSV files; with --cutlass-profiler, the program."),
    ] = None,
    cutlass_profiler: Annotated[
        bool,
        typer.Option(
            "--cutlass-profiler",
            help="Measure on this machine's GPU: the GEMMs by the program at PATH, "
            "CUTLASS_PROFILER or on PATH, and without one by kernels of cutlass_library.",
        ),
    ] = False,
    seqlen: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Queries, and keys.")
    ] = None,
    tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="batch is tokens / seqlen.")
    ] = 16384,
    d_head: Annotated[int, typer.Option(metavar="N", min=1, help="Head dimension.")] = 128,
    heads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="2048 / d_head by default.")
    ] = None,
    heads_kv: HeadsKv = None,
    dtype: Dtype = "bf16",
    causal: Annotated[bool, typer.Option("--causal", help="window_right = 0.")] = False,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONFIG",
            autocompletion=known_configs,
            help="Fused kernel; may be repeated; the selected one by default.",
        ),
    ] = None,
    kernels: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="The profiler's pattern of names.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="The profiler checks results.")] = False,
    gpu: Annotated[
        str | None, typer.Option(metavar="GPU", help="For rooflines of files, such as H200.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Writes all rows that were measured.")
    ] = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Attention beside its two GEMMs of the CUTLASS profiler.

    Two CSV files are joined. With --seqlen, files are searched for QK^T, PV and attention of that
    problem, which are compared. With --cutlass-profiler all are measured here.
    """
    from pyflash.bench import profiler_csv
    from pyflash.compare.report import compare

    paths = paths or []
    if csv is not None and not cutlass_profiler:
        raise ValueError("--csv writes what --cutlass-profiler measures: expected both or neither")
    check_writable(csv, html)
    if cutlass_profiler:
        if len(paths) > 1:
            raise ValueError("--cutlass-profiler takes one path, that of the program")
        problem = _problem(seqlen or 4096, tokens, d_head, heads, heads_kv, dtype, causal)
        result, profiles = _measure(problem, paths, config or [], kernels, verify)
        if csv is not None:
            cells = [_of_4_2(row) for p in profiles for row in p.rows]
            write_file(csv, profiler_csv.as_text(cells))
        _show(result, as_json, html)
    elif seqlen is not None:
        problem = _problem(seqlen, tokens, d_head, heads, heads_kv, dtype, causal)
        profiles = _read(paths)
        _show(compare(problem, profiles, profiles, _gpu(gpu)), as_json, html)
    elif len(paths) == 2:
        _show_joined(*_read(paths), as_json, html)
    else:
        raise ValueError("expected two CSV files, --seqlen with files, or --cutlass-profiler")


def _problem(
    seqlen: int,
    tokens: int,
    d_head: int,
    heads: int | None,
    heads_kv: int | None,
    dtype: str,
    causal: bool,
) -> Problem:
    from pyflash.op.selection import Problem

    heads = heads or max(1, 2048 // d_head)
    return Problem(
        batch=max(1, tokens // seqlen),
        heads_q=heads,
        heads_kv=heads if heads_kv is None else heads_kv,
        seqlen_q=seqlen,
        seqlen_k=seqlen,
        d_head=d_head,
        dtype=dtype_of(dtype),
        options={"causal": True} if causal else {},
    )


def _measure(
    problem: Problem,
    paths: Sequence[Path],
    configs: Sequence[str],
    kernels: str | None,
    verify: bool,
) -> tuple[Comparison, list[Profile]]:
    import torch

    from pyflash.compare.live import compare_on_gpu
    from pyflash.compare.profiler import ProfilerError, find_profiler
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
    from pyflash.bench.profiler_csv import COLUMNS

    return {name: row.cells[name] for name in COLUMNS[1:] if name in row.cells}


def _read(paths: Sequence[Path]) -> list[Profile]:
    from pyflash.bench import profiler_csv

    if not paths:
        raise ValueError("no CSV files")
    return [profiler_csv.read(path) for path in paths]


def _gpu(name: str | None) -> Gpu | None:
    from pyflash.bench.gpus import find_gpu

    if name is None:
        return None
    found = find_gpu(name)
    if found is None:
        raise ValueError(f"--gpu {name}: its peak rates are not known")
    return found


def _show(comparison: Comparison, as_json: bool, html: Path | None) -> None:
    if html is not None:
        from pyflash.ui.page import page

        write_file(html, page(comparison))
    if as_json:
        typer.echo(comparison.to_json(indent=1))
    else:
        show(comparison)


def _show_joined(first: Profile, second: Profile, as_json: bool, html: Path | None) -> None:
    from pyflash.compare.joined import JoinedProfiles

    found = JoinedProfiles(first, second)
    if html is not None:
        from pyflash.ui.page import page

        write_file(html, page(found))
    if as_json:
        joined = [_joined_dict(row) for row in found.joined]
        print_json({"joined": joined, "refused": found.refused})
    else:
        show(found)


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
