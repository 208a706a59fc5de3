"""Commands in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from pyflash.cli import app


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def build_command(*arguments: object) -> Result:
    """`pyflash build`."""
    return invoke("build", *arguments)


def assert_one_line(result: Result) -> None:
    """An error: one line, and no traceback."""
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: "), result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
