"""What the reference of the site is made of: every public name says what it is."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import pytest
from support.markdown import ROOT

HOOKS = (ROOT / "docs/site/hooks.py").read_text()
MODULES = re.findall(r'": "(pyflash[\w.]*)"', HOOKS)


@pytest.mark.parametrize(
    ("module", "name"), [(m, name) for m in MODULES for name in import_module(m).__all__]
)
def test_public_names_have_a_docstring(module, name):
    value = getattr(import_module(module), name)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return
    text = value.__doc__ or ""
    assert text, f"{module}.{name}"
    assert not text.startswith(f"{value.__name__}("), "dataclasses writes this one"
    assert not text.startswith("Of ")
    assert "{options}" not in text
