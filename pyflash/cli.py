"""The command `pyflash`. What a command needs is imported when it runs, so that help is quick."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import pyflash
from pyflash.compare.cli import app as compare_app
from pyflash.inspect.cli import app as inspect_app
from pyflash.op.options import scalar_options
from pyflash.tuner.cli import app as tune_app

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.add_typer(compare_app)
app.add_typer(inspect_app)
app.add_typer(tune_app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pyflash {pyflash.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """FlashAttention kernels whose configuration is a value."""


@app.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def build(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Compiles configs, or lists and emits them: `pyflash build --help`."""
    from pyflash.codegen.cli import main as build_main

    sys.exit(build_main(arguments or [], prog="pyflash build"))


def takes_attention_options(command: Callable[..., None]) -> Callable[..., None]:
    """For a command of **options: one flag for each option of attention that a shell can write."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=Annotated[kind, typer.Option(help=option.meaning)],
        )
        for name, (kind, option) in scalar_options().items()
        if name not in signature.parameters
    ]
    command.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
    return command


@app.command()
@takes_attention_options
def emulate(
    config: Annotated[
        str,
        typer.Argument(help="Short form: '(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles'."),
    ],
    *,
    batch: int = 1,
    heads: Annotated[int, typer.Option(help="Of q.")] = 2,
    heads_kv: Annotated[int | None, typer.Option(help="Of k and v; as q by default.")] = None,
    seqlen_q: int = 256,
    seqlen_k: int = 256,
    d_head: Annotated[int | None, typer.Option(help="As the config by default.")] = None,
    sinks: Annotated[bool, typer.Option("--sinks", help="A random logit for each head.")] = False,
    num_splits: Annotated[int, typer.Option(help="CTAs that share the keys.")] = 1,
    order: Annotated[
        str, typer.Option(help="Of warps and lanes: ascending, descending, random.")
    ] = "ascending",
    seed: Annotated[int, typer.Option(help="Of the inputs, and of the order 'random'.")] = 0,
    resident_ctas: Annotated[int, typer.Option(help="Of a persistent kernel, at most.")] = 132,
    timeline: Annotated[
        Path | None, typer.Option(help="Write an SM90 kernel's time line there, as SVG.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
    **options: Any,
) -> None:
    """Runs a kernel on the CPU, thread by thread, and reports what it did.

    Exits with 1 if it did anything wrong, or if the result of attention is wrong.
    """
    import torch
    from rich.console import Console

    from pyflash.emulator.table import renderable
    from pyflash.emulator.timeline import as_svg
    from pyflash.op.reference import expect
    from pyflash.op.selection import TORCH_DTYPES

    try:
        key = pyflash.config.parse(config)
        torch.manual_seed(seed)
        heads_kv = heads if heads_kv is None else heads_kv
        q, k, v = (
            torch.randn(batch, *size, d_head or key.d_head, dtype=TORCH_DTYPES[key.dtype])
            for size in ((seqlen_q, heads), (seqlen_k, heads_kv), (seqlen_k, heads_kv))
        )
        options["sinks"] = torch.randn(heads) if sinks else None
        out, lse, report = pyflash.emulate(
            q, k, v, key, **options, num_splits=num_splits, order=order, seed=seed,
            resident_ctas=resident_ctas,
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if timeline is not None:
        timeline.write_text(as_svg(report))
    if json:
        typer.echo(report.to_json(indent=1))
    else:
        Console(highlight=False).print(renderable(report))
    try:
        error = expect(q, k, v, **options).check(out, lse)
    except AssertionError as failure:
        typer.echo(f"wrong: {failure}", err=True)
        raise typer.Exit(1) from None
    if not json:
        typer.echo(f"max |error| {error:.2e}")
    raise typer.Exit(0 if report.ok else 1)
