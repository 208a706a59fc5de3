"""`pyflash inspect`, `diff`, `profile` and `registers`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pyflash.config.arch import Arch

app = typer.Typer(add_completion=False, no_args_is_help=True)

ArchOption = Annotated[
    str | None, typer.Option(help="Such as sm_90; that of this machine's GPU by default.")
]
ErrorTypes = (ValueError, RuntimeError)


@app.command("inspect")
def inspect_command(
    config: Annotated[str, typer.Argument(help="A config's short form, of any family.")],
    arch: ArchOption = None,
    part: Annotated[
        list[str] | None, typer.Option(help="layouts, traffic or compiled; all by default.")
    ] = None,
    features: Annotated[
        list[str] | None, typer.Option(help="Of the kernels to compile; plain by default.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Writes a self-contained page.")] = None,
    json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Looks inside a config: resources, layouts, memory traffic, machine code.

    Compiles what is not cached; what this machine cannot do is left out, and said. Exits with 1 if
    the config is not legal on the architecture.
    """
    from pyflash.inspect.inspection import PARTS, inspect
    from pyflash.inspect.page import page

    try:
        found = inspect(config, chosen_arch(arch), part or PARTS, features or ("plain",))
    except ErrorTypes as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if html is not None:
        html.write_text(page(found))
    if json:
        typer.echo(found.to_json(indent=1))
    elif html is None:
        Console(highlight=False).print(found)
    raise typer.Exit(1 if found.violations else 0)


@app.command("profile")
def profile_command(
    config: Annotated[str, typer.Argument(help="A config's short form; it has to be built.")],
    seqlen: Annotated[int, typer.Option(help="Queries and keys.")] = 256,
    json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Runs a config under Nsight Compute: predicted beside measured. Needs a GPU and ncu.

    Exits with 1 where a count differs from the emulator's.
    """
    from pyflash.inspect.profile import profile

    try:
        result = profile(config, seqlen)
    except ErrorTypes as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if json:
        typer.echo(result.to_json(indent=1))
    else:
        Console(highlight=False).print(result)
    raise typer.Exit(1 if result.wrong else 0)


@app.command("registers")
def registers_command(
    library: Annotated[
        Path | None, typer.Argument(help="A kernel library; by default that of the default set.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="For the docs.")] = False,
) -> None:
    """Registers that the resource model predicts beside ptxas's, for every kernel of a library."""
    from pyflash.codegen.build import abi
    from pyflash.codegen.kernel_libraries import find
    from pyflash.inspect.registers import register_table, summary, to_markdown

    try:
        path = library or find("default", abi())
        table = register_table(path)
    except (OSError, *ErrorTypes) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if markdown:
        typer.echo(to_markdown(table))
    else:
        Console(highlight=False).print(table)
    typer.echo(summary(path))


@app.command("diff")
def diff_command(
    first: Annotated[str, typer.Argument(help="A config's short form.")],
    second: Annotated[str, typer.Argument(help="Another's.")],
    arch: ArchOption = None,
    features: Annotated[str, typer.Option(help="Which of their kernels.")] = "plain",
    emulate: Annotated[
        bool, typer.Option("--emulate", help="Count bank conflicts, on the emulator.")
    ] = False,
    sass: Annotated[bool, typer.Option("--sass", help="And the main loops' machine code.")] = False,
    html: Annotated[Path | None, typer.Option(help="Writes a self-contained page.")] = None,
    json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Two configs side by side: fields, resources, instructions. Compiles what is not cached."""
    from pyflash.inspect.diff import diff
    from pyflash.inspect.page import page

    try:
        result = diff(first, second, chosen_arch(arch), features, emulate)
    except ErrorTypes as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if html is not None:
        html.write_text(page(result))
    if json:
        typer.echo(result.to_json(indent=1))
        return
    Console(highlight=False).print(result)
    if sass:
        typer.echo(result.sass())


def chosen_arch(arch: str | None) -> Arch:
    """The one named, else the newest of this machine's GPUs. Raises ValueError without either."""
    from pyflash.codegen.build import default_archs

    if arch is not None:
        return Arch.of(arch)
    here = default_archs()
    if not here:
        raise ValueError("no GPU on this machine: pass --arch, such as --arch sm_90")
    return here[-1]
