"""`pyflash build` in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from pyflash.cli import app


def build_command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["build", *map(str, arguments)])
