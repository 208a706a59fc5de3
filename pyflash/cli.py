"""The command `pyflash`: the commands of every room, under one name."""

from __future__ import annotations

from typing import Annotated

import typer

import pyflash
from pyflash.bench.cli import app as bench_app
from pyflash.commands import cache, configs, info, run
from pyflash.commands.app import new_app
from pyflash.compare.cli import app as compare_app
from pyflash.inspect.cli import app as inspect_app

app = new_app()
for room in (run.app, configs.app, bench_app, compare_app, inspect_app, cache.app, info.app):
    app.add_typer(room)


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


if __name__ == "__main__":
    app()
