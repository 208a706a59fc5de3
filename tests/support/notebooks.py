"""Runs the cells of a notebook without Jupyter, and keeps what it would show.

python tests/support/notebooks.py NOTEBOOK    # writes the outputs into it
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its cells, which run in this process. What a cell raises is
    raised."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    for n, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            cell = cell | {"outputs": _run("".join(cell["source"]), f"cell {n}", names)}
        cells.append(cell)
    return notebook | {"cells": cells}


def said(output: dict[str, Any]) -> object:
    """What is printed, or the kinds of content of what is shown."""
    return output.get("text") or sorted(output["data"])


def _run(source: str, place: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, place, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), place, "eval"), names)
    outputs = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(text)})
    if value is not None:
        shown = {"output_type": "execute_result", "execution_count": None, "metadata": {}}
        outputs.append(shown | {"data": _data(value)})
    return outputs


def _data(value: Any) -> dict[str, list[str]]:
    """By what kind of content, the best that a value has, and text."""
    for kind, method in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
        if hasattr(value, method):
            drawn = str(getattr(value, method)())
            return {kind: _lines(drawn), "text/plain": [f"<{type(value).__name__}>"]}
    return {"text/plain": _lines(repr(value))}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(json.dumps(executed(read(path)), indent=1) + "\n")
