"""Docstrings with the meanings of options, which `pyflash.op.options` fills in at run time."""

from __future__ import annotations

import inspect
from importlib import import_module

import griffe


class OptionsFilledIn(griffe.Extension):
    def on_function_instance(self, *, func: griffe.Function, **_) -> None:
        if func.docstring and "{options}" in func.docstring.value:
            function = getattr(import_module(func.module.path), func.name)
            func.docstring.value = inspect.getdoc(function)
