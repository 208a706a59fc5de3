"""`pyflash bench` and `pyflash ladder`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyflash.bench import options
from pyflash.config import FORWARD
from pyflash.ui.app import (
    ArchOption,
    HtmlOption,
    JsonOption,
    check_writable,
    examples,
    given_options,
    new_app,
    print_json,
    show,
    working,
    write_file,
)
from pyflash.ui.problems import Device, Dtype, HeadsKv, device_of, dtype_of
from pyflash.ui.variants import AskedVariant, ValueOption, VariantOption

if TYPE_CHECKING:
    from pyflash.bench.grid import Wanted
    from pyflash.bench.records import Record

app = new_app()
_OF_HOST = ("host", "samples", "device", "out", "form", "as_json")
_OF_UNEVEN = ("configs", "dtype", "samples", "device", "out", "form", "as_json")


@app.command(
    "bench",
    epilog=examples(
        "pyflash bench --seqlen 512,4k --mask full,causal --backend flash,cudnn",
        'pyflash bench "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles" --out records.jsonl',
        "pyflash bench packed --json",
        "pyflash bench --variant documents --seqlen 4k",
        "pyflash bench --read records.jsonl --plot speed.svg --format markdown",
    ),
)
def bench_command(
    ctx: typer.Context,
    configs: options.Configs = None,
    set_name: options.SetName = None,
    backend: options.Backends = None,
    passes: options.Passes = FORWARD.name,
    decode: options.Decode = False,
    seqlen: options.Seqlens = None,
    tokens: options.Tokens = None,
    d_head: options.DHeads = "128",
    heads: options.HeadsOrWidth = None,
    heads_kv: HeadsKv = None,
    mask: options.Masks = "full",
    variant: VariantOption = None,
    value: ValueOption = None,
    dtype: Dtype = "bf16",
    samples: options.Samples = 25,
    device: Device = None,
    host: options.Host = False,
    read: options.Read = None,
    out: options.Out = None,
    csv: options.Csv = None,
    plot: options.Plot = None,
    roofline: options.Roofline = None,
    html: HtmlOption = None,
    form: options.Format = "table",
    as_json: JsonOption = False,
    over: options.Over = "PyTorch flash",
) -> None:
    """Times pyflash beside every attention that is importable.

    Checks each contender, then times the correct ones in turns, in one run with a GEMM. Several
    values are joined by commas.
    """
    from pyflash.bench.grid import measure_all

    given = given_options(ctx)
    form = _form_of(form, as_json, given)
    _check_files(out, csv, plot, roofline, html)
    if names := _workloads(configs or []):
        _bench_uneven(names, device_of(device), dtype, samples, out, form, given)
        return
    if read is not None:
        found = _read(read, ctx.params, given)
    elif host:
        _bench_host(device_of(device), samples, out, form, given)
        return
    else:
        wanted = _wanted(ctx.params, AskedVariant.of(variant, value), given)
        found = measure_all(wanted, samples, out)
    _write(found, csv, plot, roofline, html)
    typer.echo(_as_text(found, form, over), nl=False)


@app.command(
    "ladder",
    epilog=examples(
        "pyflash ladder --seqlen 4096",
        "pyflash ladder --arch sm_90 --part compiled --html ladder.html",
    ),
)
def ladder_command(
    seqlen: Annotated[int, typer.Option(metavar="N", min=1, help="Queries and keys.")] = 4096,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Sequences.")] = 4,
    heads: Annotated[int, typer.Option(metavar="N", min=1, help="Of q, k and v.")] = 16,
    dtype: Dtype = "fp16",
    samples: Annotated[int, typer.Option(metavar="N", min=2, help="Of each step.")] = 25,
    arch: ArchOption = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART", help="speed, compiled or traffic; may be repeated; all by default."
        ),
    ] = None,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Climbs the optimisation ladder: what each step brings.

    Registers and instructions from the compiled kernels, bank conflicts from the emulator, TFLOP/s
    beside PyTorch's flash backend on a GPU. What this machine cannot do is left out, and said.
    """
    from pyflash.bench.ladder import PARTS, climb

    check_writable(html)
    with working("climbing the ladder, of which each step is emulated, compiled and timed"):
        ladder = climb(batch, heads, seqlen, dtype_of(dtype), samples, arch, part or PARTS)
    if html is not None:
        from pyflash.ui.page import page

        write_file(html, page(ladder))
    if json:
        print_json(ladder.to_dict())
    elif html is None:
        show(ladder)


def _form_of(form: str, as_json: bool, given: dict[str, str]) -> str:
    """One of FORMATS. Raises ValueError for another one, and for options that contradict it."""
    if form not in options.FORMATS:
        raise ValueError(f"--format {form}: expected one of {', '.join(options.FORMATS)}")
    if as_json:
        if "form" in given and form != "json":
            raise ValueError(f"--json is --format json: expected no --format {form} beside it")
        form = "json"
    if "over" in given and form != "markdown":
        raise ValueError("--over: --format markdown alone divides by a contender's speed")
    return form


def _check_files(
    out: Path | None,
    csv: Path | None,
    plot: Path | None,
    roofline: Path | None,
    html: Path | None,
) -> None:
    """Raises OSError or ValueError for what cannot be written, before minutes of work."""
    from pyflash.bench.figures import check_figure

    check_writable(out, csv, plot, roofline, html)
    check_figure(plot)
    check_figure(roofline)


def _wanted(values: dict[str, Any], variant: AskedVariant | None, given: dict[str, str]) -> Wanted:
    """What the command's parameters ask to measure."""
    from pyflash.bench import asked
    from pyflash.bench.grid import Wanted

    if variant:
        asked.check_variant(given, values["passes"])
    device = device_of(values["device"])
    on_cpu = device.startswith("cpu")
    backends = values["backend"]
    return Wanted(
        passes=asked.passes_of(values["passes"]),
        dtypes=asked.dtypes_of(values["dtype"]),
        d_heads=asked.d_heads_of(values["d_head"]),
        masks=asked.masks_of(values["mask"]),
        seqlens=asked.seqlens_of(values["seqlen"] or ("512" if on_cpu else "4k")),
        decode=values["decode"],
        tokens=values["tokens"] or (512 if on_cpu else 16384),
        width=256 if on_cpu else 2048,
        heads=values["heads"],
        heads_kv=values["heads_kv"],
        device=device,
        configs=asked.configs_of(values["configs"] or [], values["set_name"]),
        backends=None if backends is None else asked.backends_of(backends),
        variant=variant,
    )


def _read(path: Path, values: dict[str, Any], given: dict[str, str]) -> list[Record]:
    """The records of a file that the options ask for. Raises ValueError where there are none."""
    from pyflash.bench import asked, records

    if measuring := [given[name] for name in asked.MEASURING if name in given]:
        raise ValueError(f"--read measures nothing: it has no {', '.join(measuring)}")
    found = records.read(path)
    asking = [name for name in given if name not in asked.SHOWING]
    kept = asked.kept(found, {name: values[name] for name in asking})
    if not kept:
        words = ", ".join(given[name] for name in asking)
        raise ValueError(
            f"{path}: none of its {len(found)} records fits {words}: "
            f"`pyflash bench --read {path}` shows all"
        )
    return kept


def _bench_host(
    device: str, samples: int, out: Path | None, form: str, given: dict[str, str]
) -> None:
    import torch

    from pyflash.bench import records
    from pyflash.bench.environment import environment
    from pyflash.bench.host import host_table, host_times

    if form not in ("table", "json"):
        raise ValueError(f"--host has no --format {form}: expected table or json")
    if others := [given[name] for name in given if name not in _OF_HOST]:
        raise ValueError(f"--host has no {', '.join(others)}: its calls are fixed")
    target = torch.device(device)
    with working(f"timing the host's part of calls on {device}"):
        times = host_times(target, samples)
    found = records.stamped("host", (time.record() for time in times), environment(target))
    if out is not None:
        records.append(out, found)
    typer.echo(_json_lines(found).rstrip() if form == "json" else host_table(times))


def _workloads(configs: list[str]) -> list[str]:
    """The named workloads. Raises ValueError for some beside configs."""
    named = [name for name in configs if name in ("packed", "ragged", "mixed")]
    if named and len(named) < len(configs):
        raise ValueError(f"{', '.join(named)} came beside configs: expected workloads, or configs")
    return named


def _bench_uneven(
    names: list[str],
    device: str,
    dtype: str,
    samples: int,
    out: Path | None,
    form: str,
    given: dict[str, str],
) -> None:
    import torch

    from pyflash.bench import records, uneven
    from pyflash.bench.environment import environment
    from pyflash.op.selection import TORCH_DTYPES

    if form not in ("table", "json"):
        raise ValueError(f"{names[0]} has no --format {form}: expected table or json")
    if others := [given[name] for name in given if name not in _OF_UNEVEN]:
        raise ValueError(f"{names[0]} has no {', '.join(others)}: its problems are fixed")
    target = torch.device(device)
    facts = environment(target)
    with working(f"timing {', '.join(names)}: sequences of different lengths, on {device}"):
        for name in names:
            for results in uneven.measure(name, target, samples, TORCH_DTYPES[dtype_of(dtype)]):
                found = records.stamped(name, (result.record() for result in results), facts)
                if out is not None:
                    records.append(out, found)
                if form == "json":
                    typer.echo(_json_lines(found), nl=False)
                else:
                    show(uneven.table(results))


def _write(
    found: Sequence[Record],
    csv: Path | None,
    plot: Path | None,
    roofline: Path | None,
    html: Path | None,
) -> None:
    from pyflash.bench import figures, records

    if csv is not None:
        write_file(csv, records.to_csv(found))
    if plot is not None:
        figures.save(figures.speed(found), plot)
    if roofline is not None:
        figures.save(figures.roofline(found), roofline)
    if html is not None:
        from pyflash.bench.report import BenchReport
        from pyflash.ui.page import page

        write_file(html, page(BenchReport(found)))


def _as_text(found: Sequence[Record], form: str, over: str) -> str:
    from pyflash.bench import plain_text, records

    if form == "json":
        return _json_lines(found)
    if form == "csv":
        return records.to_csv(found)
    if form == "cutlass":
        from pyflash.bench.attention_rows import attention_rows
        from pyflash.bench.profiler_csv import as_text

        return as_text(attention_rows(found))
    if form == "markdown":
        return plain_text.markdown(found, records.OURS, over) + "\n"
    return plain_text.tables(found)


def _json_lines(found: Sequence[Record]) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in found)
