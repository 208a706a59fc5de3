"""`pyflash explore`."""

from __future__ import annotations

import webbrowser
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from pyflash.explore import DEFAULT_ARCH, DEFAULT_PROBLEM
from pyflash.ui.app import (
    JsonOption,
    completed_from,
    examples,
    given_options,
    known_archs,
    known_configs,
    new_app,
)
from pyflash.ui.variants import known_variants

app = new_app()


@app.command(
    "explore",
    epilog=examples(
        "pyflash explore",
        'pyflash explore "(BF16, 128, 128, 128, 2): sm90+stages_2+overlap" --port 8900 --open',
        "pyflash explore --journal pyflash-tune.jsonl",
    ),
)
def explore_command(
    ctx: typer.Context,
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            autocompletion=known_configs,
            help="Short form of the first one; by default what selection prefers on ARCH.",
        ),
    ] = None,
    arch: Annotated[
        str,
        typer.Option(
            metavar="ARCH", autocompletion=known_archs, help="The first one, such as sm_90."
        ),
    ] = DEFAULT_ARCH,
    problem: Annotated[
        str,
        typer.Option(
            metavar="PROBLEM", help="The first one; the config says its dtype and d_head."
        ),
    ] = DEFAULT_PROBLEM,
    variant: Annotated[
        str,
        typer.Option(
            metavar="VARIANT",
            autocompletion=completed_from(known_variants),
            help="The first one: a name of `pyflash variant list`, or text.",
        ),
    ] = "",
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Shows what `pyflash tune` measured into it; the first state is its fastest "
            "config, if nothing else is asked for.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="0: any that is free.")
    ] = 0,
    opens: Annotated[bool, typer.Option("--open", help="Opens the page in a browser.")] = False,
    json: JsonOption = False,
) -> None:
    """Serves a page for choosing a config: rules, resources, C++.

    To this machine alone, until Ctrl-C; prints its URL. Each state of the page has a URL and a
    short form. Needs no network and no GPU; layouts need a C++ compiler.
    """
    from pyflash.explore.measured import Measured
    from pyflash.explore.server import HOST, Explorer
    from pyflash.explore.state import State, first_config

    measured = Measured.read(journal) if journal else None
    if measured and not given_options(ctx).keys() & {"config", "problem", "variant"}:
        start = measured.start(arch)
    else:
        chosen = config or str(first_config(arch))
        asked = {"config": chosen, "arch": arch, "problem": problem, "variant": variant}
        start = State.of(asked)
    try:
        server = Explorer(start, port, measured)
    except OSError as error:
        text = f"{error.strerror}; pass another --port, or 0"
        raise OSError(error.errno, text, f"{HOST}:{port}") from None
    with server:
        typer.echo(dumps({"url": server.url}) if json else server.url)
        if opens:
            webbrowser.open(server.url)
        server.serve_forever()
