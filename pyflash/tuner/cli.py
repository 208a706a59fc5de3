"""`pyflash tune`."""

from __future__ import annotations

import typer

app = typer.Typer(add_completion=False)
