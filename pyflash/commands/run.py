"""`pyflash demo`, `select` and `emulate`."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyflash.ui.app import (
    ConfigArgument,
    JsonOption,
    completed_from,
    console,
    examples,
    new_app,
    print_json,
    show,
)
from pyflash.ui.problems import (
    Batch,
    Device,
    Dtype,
    Heads,
    HeadsKv,
    device_of,
    dtype_of,
    takes_attention_options,
    with_tensors,
)

if TYPE_CHECKING:
    from pyflash.config import KernelConfig

app = new_app()
# The product of an element of Q with one of K: 2 ms for a tile of 64 x 64 at d_head 128.
_SECONDS_PER_PRODUCT = 2e-3 / (64 * 64 * 128)
DHead = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Head dimension; as the config by default.")
]


def _orders() -> tuple[str, ...]:
    from pyflash.emulator import ORDERS

    return ORDERS


@app.command(
    "demo",
    epilog=examples(
        "pyflash demo",
    ),
)
def demo_command() -> None:
    """Shows the way of one config from Python to results.

    On a GPU: builds the selected config, runs it beside PyTorch. Without: runs the op on the CPU,
    emulates two kernels, compiles one and shows its resources.
    """
    from pyflash.demo import main

    main()


@app.command(
    "select",
    epilog=examples(
        "pyflash select --seqlen-q 4096 --causal",
        "pyflash select --batch 8 --heads 32 --heads-kv 8 --seqlen-q 1 --seqlen-k 8192 --json",
    ),
)
@takes_attention_options
def select_command(
    *,
    batch: Batch = 1,
    heads: Heads = 16,
    heads_kv: HeadsKv = None,
    seqlen_q: Annotated[int, typer.Option(metavar="N", min=0, help="Queries.")] = 4096,
    seqlen_k: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Keys; as queries by default.")
    ] = None,
    d_head: Annotated[int, typer.Option(metavar="N", min=1, help="Head dimension.")] = 128,
    dtype: Dtype = "bf16",
    packed: Annotated[
        bool, typer.Option("--packed", help="attention_varlen: batch sequences, longest lengths.")
    ] = False,
    device: Device = None,
    json: JsonOption = False,
    **options: Any,
) -> None:
    """Which config and how many splits a call runs with, and why."""
    import torch

    from pyflash.op.selection import Problem, select

    problem = Problem(
        batch=batch,
        heads_q=heads,
        heads_kv=heads if heads_kv is None else heads_kv,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_q if seqlen_k is None else seqlen_k,
        d_head=d_head,
        dtype=dtype_of(dtype),
        packed=packed,
        device=device_of(device),
        options=with_tensors(options, lambda: torch.zeros(heads)),
    )
    selection = select(problem)
    if json:
        print_json(dataclasses.asdict(selection) | {"config": str(selection.config)})
        return
    typer.echo(selection.config)
    typer.echo(f"num_splits {selection.num_splits}; {selection.reason}")


@app.command(
    "emulate",
    epilog=examples(
        'pyflash emulate "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"',
        'pyflash emulate "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles" --causal --heads-kv 1',
        'pyflash emulate "(BF16, 128, 128, 128, 2): sm90+stages_2+overlap" --timeline timeline.svg',
    ),
)
@takes_attention_options
def emulate_command(
    config: ConfigArgument,
    *,
    batch: Batch = 1,
    heads: Heads = 2,
    heads_kv: HeadsKv = None,
    seqlen_q: Annotated[int, typer.Option(metavar="N", min=0, help="Queries.")] = 256,
    seqlen_k: Annotated[int, typer.Option(metavar="N", min=0, help="Keys.")] = 256,
    d_head: DHead = None,
    num_splits: Annotated[
        int, typer.Option(metavar="N", min=1, help="CTAs that share the keys.")
    ] = 1,
    order: Annotated[
        str,
        typer.Option(
            metavar="ORDER",
            autocompletion=completed_from(_orders),
            help="Of warps and lanes: ascending, descending, random.",
        ),
    ] = "ascending",
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of the inputs, and of the order 'random'.")
    ] = 0,
    resident_ctas: Annotated[
        int, typer.Option(metavar="N", min=1, help="Of a persistent kernel, at most.")
    ] = 132,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Writes an SM90 kernel's time line there, as SVG."),
    ] = None,
    json: JsonOption = False,
    **options: Any,
) -> None:
    """Runs a kernel on the CPU, thread by thread, and reports on it.

    Exits with 1 if it did anything wrong, or if the result of attention is wrong.
    """
    import torch

    import pyflash
    from pyflash.emulator.table import renderable
    from pyflash.emulator.timeline import as_svg
    from pyflash.op.reference import expect
    from pyflash.op.selection import TORCH_DTYPES

    key = pyflash.config.parse(config)
    torch.manual_seed(seed)
    heads_kv = heads if heads_kv is None else heads_kv
    d_head = key.d_head if d_head is None else d_head
    q, k, v = (
        torch.randn(batch, *size, d_head, dtype=TORCH_DTYPES[key.dtype])
        for size in ((seqlen_q, heads), (seqlen_k, heads_kv), (seqlen_k, heads_kv))
    )
    options = with_tensors(options, lambda: torch.randn(heads))
    with _emulating(key, batch * heads, seqlen_q, seqlen_k):
        out, lse, report = pyflash.emulate(
            q, k, v, key, **options, num_splits=num_splits, order=order, seed=seed,
            resident_ctas=resident_ctas,
        )  # fmt: skip
    if timeline is not None:
        timeline.write_text(as_svg(report))
    if json:
        typer.echo(report.to_json(indent=1))
    else:
        show(renderable(report))
    try:
        error = expect(q, k, v, **options).check(out, lse)
    except AssertionError as failure:
        raise RuntimeError(f"wrong result: {failure}") from None
    if not json:
        typer.echo(f"max |error| {error:.2e}")
    raise typer.Exit(0 if report.ok else 1)


def _emulating(
    config: KernelConfig, n_heads: int, seqlen_q: int, seqlen_k: int
) -> AbstractContextManager[object]:
    """Tells on stderr that a long run is under way, and about how long it takes."""
    seconds = _SECONDS_PER_PRODUCT * n_heads * seqlen_q * seqlen_k * config.d_head
    text = f"emulating {config}, about {max(1, round(seconds))} s"
    err = console(stderr=True)
    if not err.is_terminal and seconds >= 2:
        err.print(text)
    return err.status(text)
