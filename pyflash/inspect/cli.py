"""`pyflash inspect`, `diff`, `profile` and `registers`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyflash.ui.app import (
    ArchOption,
    ConfigArgument,
    HtmlOption,
    JsonOption,
    check_writable,
    chosen_arch,
    new_app,
    print_json,
    show,
    write_file,
)

app = new_app()


@app.command("inspect")
def inspect_command(
    config: ConfigArgument,
    arch: ArchOption = None,
    part: Annotated[
        list[str] | None, typer.Option(help="layouts, traffic or compiled; all by default.")
    ] = None,
    features: Annotated[
        list[str] | None, typer.Option(help="Of the kernels to compile; plain by default.")
    ] = None,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Looks inside a config: layouts, traffic, machine code.

    Compiles what is not cached; what this machine cannot do is left out, and said. Exits with 1 if
    the config is not legal on the architecture.
    """
    from pyflash.inspect.inspection import PARTS, inspect
    from pyflash.ui.page import page

    check_writable(html)
    found = inspect(config, chosen_arch(arch), part or PARTS, features or ("plain",))
    if html is not None:
        write_file(html, page(found))
    if json:
        typer.echo(found.to_json(indent=1))
    elif html is None:
        show(found)
    raise typer.Exit(1 if found.violations else 0)


@app.command("profile")
def profile_command(
    config: Annotated[str, typer.Argument(help="A config's short form; it has to be built.")],
    seqlen: Annotated[int, typer.Option(help="Queries and keys.")] = 256,
    json: JsonOption = False,
) -> None:
    """Runs a config under Nsight Compute: predicted beside measured.

    Needs a GPU and ncu. Exits with 1 where a count differs from the emulator's.
    """
    from pyflash.inspect.profile import profile

    result = profile(config, seqlen)
    if json:
        typer.echo(result.to_json(indent=1))
    else:
        show(result)
    raise typer.Exit(1 if result.wrong else 0)


@app.command("registers")
def registers_command(
    library: Annotated[
        Path | None, typer.Argument(help="A kernel library; by default that of the default set.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="For the docs.")] = False,
    json: JsonOption = False,
) -> None:
    """Predicted registers beside ptxas's, of each kernel of a library."""
    from pyflash.codegen.build import abi
    from pyflash.codegen.kernel_libraries import find
    from pyflash.inspect.registers import register_table, registers_of, summary, to_markdown

    path = library or find("default", abi())
    if not path.is_file():
        raise ValueError(f"{path}: no such kernel library; to build the default one: pyflash build")
    if json:
        print_json([r.to_dict() for r in registers_of(path)])
        return
    table = register_table(path)
    if markdown:
        typer.echo(to_markdown(table))
    else:
        show(table)
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
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Two configs side by side: fields, resources, instructions.

    Compiles what is not cached.
    """
    from pyflash.inspect.diff import diff
    from pyflash.ui.page import page

    check_writable(html)
    result = diff(first, second, chosen_arch(arch), features, emulate)
    if html is not None:
        write_file(html, page(result))
    if json:
        typer.echo(result.to_json(indent=1))
        return
    show(result)
    if sass:
        typer.echo(result.sass())
