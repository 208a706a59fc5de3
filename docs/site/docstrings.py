"""Docstrings that the reference makes longer: the meanings of options, which `pyflash.op.options`
fills in at run time, and the fields of dataclasses, with the comments that say what they are."""

from __future__ import annotations

import ast
import dataclasses
import html
import inspect
import textwrap
from importlib import import_module

import griffe


class FilledIn(griffe.Extension):
    def on_function_instance(self, *, func: griffe.Function, **_) -> None:
        if func.docstring and "{options}" in func.docstring.value:
            function = getattr(import_module(func.module.path), func.name)
            func.docstring.value = inspect.getdoc(function)

    def on_class_instance(self, *, cls: griffe.Class, **_) -> None:
        value = getattr(import_module(cls.module.path), cls.name, None)
        if cls.docstring and dataclasses.is_dataclass(value):
            cls.docstring.value += "\n\n" + table_of_fields(value)


def table_of_fields(cls: type) -> str:
    comments = comments_of(cls)
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for field in dataclasses.fields(cls):
        if field.name.startswith("_"):
            continue
        has_factory = field.default_factory is not dataclasses.MISSING
        default = field.default_factory() if has_factory else field.default
        shown = "" if default is dataclasses.MISSING else f"`{default!r}`"
        cells = [f"`{field.name}`", f"`{field.type}`", shown, comments.get(field.name, "")]
        rows.append("| " + " | ".join(escaped(cell) for cell in cells) + " |")
    return "\n".join(rows)


def escaped(text: str) -> str:
    return text.replace("|", "\\|") if text.startswith("`") else html.escape(text, quote=False)


def comments_of(cls: type) -> dict[str, str]:
    """What stands behind each field, or above it."""
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body[0].body:
        if not isinstance(node, ast.AnnAssign):
            continue
        behind = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
        above = []
        first = node.lineno - 2
        while not behind and lines[first].strip().startswith("#"):
            above.insert(0, lines[first].strip())
            first -= 1
        words = [comment.strip().lstrip("#").strip() for comment in (behind, *above)]
        found[node.target.id] = " ".join(filter(None, words))
    return found
