"""`pyflash config` and `pyflash space`."""

from __future__ import annotations

from typing import Annotated

import typer

from pyflash.config import FAMILIES
from pyflash.ui.app import (
    ConfigArgument,
    HtmlOption,
    JsonOption,
    check_writable,
    completed_from,
    examples,
    known_archs,
    new_app,
    print_json,
    show,
    tracked,
    working,
    write_file,
)

app = new_app()
_FORM = "FIELD=VALUE,VALUE"
_FAMILIES = " or ".join([f"{FAMILIES[0]} (default)", *map(str, FAMILIES[1:])])


def _words() -> list[str]:
    """What a space begins with: a family, and the fields of all."""
    fields = (name for family in FAMILIES for name in family.config_type.field_types())
    return [*map(str, FAMILIES), *(f"{name}=" for name in dict.fromkeys(fields))]


@app.command(
    "config",
    epilog=examples(
        'pyflash config "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"',
        'pyflash config "(BF16, 128, 128, 128, 2): sm90+stages_2+overlap" --html config.html',
    ),
)
def config_command(
    config: ConfigArgument,
    arch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARCH",
            autocompletion=known_archs,
            help="Such as sm_90; may be repeated; every known one by default.",
        ),
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
        from pyflash.ui.page import page

        write_file(html, page(sheet))
    if json:
        print_json(sheet.to_dict())
    elif html is None:
        show(sheet)
    raise typer.Exit(0 if sheet.is_legal else 1)


@app.command(
    "space",
    epilog=examples(
        "pyflash space d_head=128 B_r=64,128 B_c=64 n_warps=4 swizzled=true --arch sm_86",
        "pyflash space sm90_forward dtype=BF16 d_head=128 --list",
    ),
)
def space_command(
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD",
            autocompletion=completed_from(_words),
            help=f"{_FAMILIES}, then {_FORM} for those that are not to take every explored value.",
        ),
    ] = None,
    arch: Annotated[
        str,
        typer.Option(
            metavar="ARCH",
            autocompletion=known_archs,
            help="For which configs have to be legal.",
        ),
    ] = "sm_90",
    list_configs: Annotated[
        bool, typer.Option("--list", help="The legal configs, one a line, and nothing else.")
    ] = False,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Tells how many configs are legal, and what refuses the others."""
    from pyflash.config.space import parse_space
    from pyflash.inspect.sheet import SpaceSheet

    check_writable(html)
    space = parse_space(" ".join(values or []))
    asking = f"asking the rules of {len(space):,} configs"
    if list_configs and not json:
        with working(asking):
            legal = list(space.legal(arch))
        for config in legal:
            typer.echo(str(config))
        return
    sheet = SpaceSheet.of(space, arch, lambda configs: tracked(configs, len(space), asking))
    if html is not None:
        from pyflash.ui.page import page

        write_file(html, page(sheet))
    if json:
        print_json(sheet.to_dict())
    elif html is None:
        show(sheet)
