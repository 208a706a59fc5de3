"""`pyflash config` and `pyflash space`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyflash.commands.app import (
    ConfigArgument,
    HtmlOption,
    JsonOption,
    check_writable,
    new_app,
    print_json,
    show,
    write_file,
)

if TYPE_CHECKING:
    from pyflash.config import Space

app = new_app()


@app.command("config")
def config_command(
    config: ConfigArgument,
    arch: Annotated[
        list[str] | None, typer.Option(help="May be repeated; every known one by default.")
    ] = None,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """A config's fields, canonical form, rules and resources.

    On every architecture. Needs no compiler and no GPU. Exits with 1 if the config is legal on none
    of the architectures.
    """
    from pyflash.config import ARCHS
    from pyflash.inspect.sheet import Sheet

    check_writable(html)
    sheet = Sheet.of(config, arch or ARCHS)
    if html is not None:
        from pyflash.inspect.page import page

        write_file(html, page(sheet))
    if json:
        print_json(sheet.to_dict())
    elif html is None:
        show(sheet)
    raise typer.Exit(0 if sheet.is_legal else 1)


@app.command("space")
def space_command(
    values: Annotated[
        list[str] | None,
        typer.Argument(help="FIELD=VALUE[,VALUE...]; other fields take every explored value."),
    ] = None,
    family: Annotated[str, typer.Option(help="sm80_forward or sm90_forward.")] = "sm80_forward",
    arch: Annotated[str, typer.Option(help="For which configs have to be legal.")] = "sm_90",
    list_configs: Annotated[
        bool, typer.Option("--list", help="The legal configs, one a line, and nothing else.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Tells how many configs are legal, and what refuses the others.

    pyflash space dtype=FP16 d_head=128 B_r=64,128 B_c=64 n_warps=4 swizzled=true --arch sm_86
    """
    from pyflash.inspect.sheet import SpaceSheet

    space = space_of(values or [], family)
    if list_configs and not json:
        for config in space.legal(arch):
            typer.echo(str(config))
        return
    sheet = SpaceSheet.of(space, arch)
    if json:
        print_json(sheet.to_dict())
    else:
        show(sheet)


def space_of(assignments: Iterable[str], family: str = "sm80_forward") -> Space:
    """The space that `FIELD=VALUE,VALUE` texts name: numbers, true and false, names of dtypes.

    Raises ValueError naming the text that is none.
    """
    from pyflash.config import Space
    from pyflash.config.family import find_family

    config_type = find_family(family).config_type
    kinds = config_type.field_types()
    values: dict[str, list[Any]] = {}
    for text in assignments:
        name, equals, listed = text.partition("=")
        if not equals or name not in kinds:
            raise ValueError(f"{text!r}: expected FIELD=VALUE,... with one of {', '.join(kinds)}")
        if name in values:
            raise ValueError(f"{text!r}: {name} is given twice")
        values[name] = [_value(word.strip(), kinds[name], text) for word in listed.split(",")]
    try:
        return Space(family=family, **values)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _value(word: str, kind: type, text: str) -> Any:
    if kind is bool:
        if word.lower() in ("true", "false", "0", "1"):
            return word.lower() in ("true", "1")
        raise ValueError(f"{text!r}: {word!r} is neither true nor false")
    if kind is int:
        if word.isdecimal():
            return int(word)
        raise ValueError(f"{text!r}: {word!r} is not a number")
    if word.upper() in kind.__members__:
        return kind[word.upper()]
    raise ValueError(f"{text!r}: {word!r} is none of {', '.join(kind.__members__)}")
