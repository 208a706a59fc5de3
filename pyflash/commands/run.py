"""`pyflash demo` and `select`."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from pyflash.ui.app import (
    JsonOption,
    console,
    examples,
    new_app,
    print_json,
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
from pyflash.ui.variants import AskedVariant, VariantOption

app = new_app()


@app.command(
    "demo",
    epilog=examples(
        "pyflash demo",
    ),
)
def demo_command(json: JsonOption = False) -> None:
    """Goes from a config to a result.

    On a GPU: builds the selected config, runs it beside PyTorch. Without: runs the op on the CPU,
    emulates three kernels, compiles one and shows its resources. With --json the steps are shown on
    stderr.
    """
    from pyflash.demo import main

    found = main(console(stderr=json))
    if json:
        print_json(found)


@app.command(
    "select",
    epilog=examples(
        "pyflash select --seqlen-q 4096 --causal",
        "pyflash select --variant alibi --device cpu",
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
    page_size: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="attention_paged: rows of a page; 0: no pages."),
    ] = 0,
    variant: VariantOption = None,
    device: Device = None,
    json: JsonOption = False,
    **options: Any,
) -> None:
    """Which config and how many splits a call runs with, and why."""
    import torch

    from pyflash.op.selection import Problem, select
    from pyflash.op.variants.selection import select as select_with_variant

    problem = Problem(
        batch=batch,
        heads_q=heads,
        heads_kv=heads if heads_kv is None else heads_kv,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_q if seqlen_k is None else seqlen_k,
        d_head=d_head,
        dtype=dtype_of(dtype),
        packed=packed,
        page_size=page_size,
        device=device_of(device),
        options=with_tensors(options, lambda: torch.zeros(heads)),
    )
    asked = AskedVariant.of(variant, None)
    if asked and page_size:
        raise typer.BadParameter("--variant and --page-size exclude each other")
    selection = select_with_variant(problem, asked.variant) if asked else select(problem)
    if json:
        print_json(dataclasses.asdict(selection) | {"config": str(selection.config)})
        return
    typer.echo(selection.config)
    typer.echo(f"num_splits {selection.num_splits}; {selection.reason}")
