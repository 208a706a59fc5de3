"""The command `pyflash`: the commands of every room, under one name."""

from __future__ import annotations

from typing import Annotated

import typer

from pyflash.bench.cli import app as bench_app
from pyflash.commands import build, cache, configs, emulate, info, run, variants
from pyflash.compare.cli import app as compare_app
from pyflash.explore.cli import app as explore_app
from pyflash.inspect.cli import app as inspect_app
from pyflash.installation import VERSION
from pyflash.tuner.cli import app as tune_app
from pyflash.ui.app import EXIT_STATUSES, new_app

app = new_app(add_completion=True, epilog=EXIT_STATUSES)
# In the order of help: from a config to its speed, then the looks inside.
for room in (
    run.app,
    emulate.app,
    build.app,
    configs.app,
    variants.app,
    tune_app,
    bench_app,
    inspect_app,
    explore_app,
    compare_app,
    cache.app,
    info.app,
):
    app.add_typer(room)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pyflash {VERSION}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Shows the version."
        ),
    ] = False,
) -> None:
    """FlashAttention kernels whose configuration is a value."""


if __name__ == "__main__":
    app()
