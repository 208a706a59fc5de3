"""The command `pyflash`."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.console import Console

import pyflash
from pyflash.config import parse
from pyflash.emulator import ORDERS
from pyflash.emulator.table import renderable
from pyflash.op.reference import expect
from pyflash.op.selection import TORCH_DTYPES

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """FlashAttention kernels whose configuration is a value."""


@app.command()
def emulate(
    config: Annotated[
        str,
        typer.Argument(help="Short form: '(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles'."),
    ],
    batch: int = 1,
    heads: Annotated[int, typer.Option(help="Of q.")] = 2,
    heads_kv: Annotated[int | None, typer.Option(help="Of k and v; as q by default.")] = None,
    seqlen_q: int = 256,
    seqlen_k: int = 256,
    d_head: Annotated[int | None, typer.Option(help="As the config by default.")] = None,
    causal: Annotated[bool, typer.Option("--causal")] = False,
    window_left: Annotated[int, typer.Option(help="Keys; -1: no limit.")] = -1,
    window_right: Annotated[int, typer.Option(help="Keys; -1: no limit.")] = -1,
    softcap: Annotated[float, typer.Option(help="0: none.")] = 0.0,
    num_splits: Annotated[int, typer.Option(help="CTAs that share the keys.")] = 1,
    order: Annotated[str, typer.Option(help=f"Of warps and lanes: {', '.join(ORDERS)}.")] = ORDERS[
        0
    ],
    seed: Annotated[int, typer.Option(help="Of the inputs, and of the order 'random'.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Runs a kernel on the CPU, thread by thread, and tells what it did.

    Exits with 1 if it did anything wrong, or if attention came out wrong.
    """
    try:
        key = parse(config)
        torch.manual_seed(seed)
        heads_kv = heads if heads_kv is None else heads_kv
        q, k, v = (
            torch.randn(batch, *size, d_head or key.d_head, dtype=TORCH_DTYPES[key.dtype])
            for size in ((seqlen_q, heads), (seqlen_k, heads_kv), (seqlen_k, heads_kv))
        )
        mask = {
            "causal": causal,
            "window_left": window_left,
            "window_right": window_right,
            "softcap": softcap,
        }
        out, lse, report = pyflash.emulate(
            q, k, v, key, **mask, num_splits=num_splits, order=order, seed=seed
        )
    except (ValueError, RuntimeError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if json:
        typer.echo(report.to_json(indent=1))
    else:
        Console(highlight=False).print(renderable(report))
    try:
        error = expect(q, k, v, **mask).check(out, lse)
    except AssertionError as failure:
        typer.echo(f"wrong: {failure}", err=True)
        raise typer.Exit(1) from None
    if not json:
        typer.echo(f"max |error| {error:.2e}")
    raise typer.Exit(0 if report.ok else 1)
