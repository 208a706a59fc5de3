"""What is true of one family alone is in its folder: no other module names a family, or asks a
config or a family whether it has something."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyflash.config import FAMILIES

ROOT = Path(__file__).parents[2]
NAMES = {
    name
    for family in FAMILIES
    for name in (family.name, family.tag, family.namespace, family.kernel, family.struct)
    if name
}
NAMING = {
    "pyflash/__init__.py": "the public names",
    "pyflash/config/__init__.py": "the public names",
    "pyflash/config/family.py": "the list of families",
    "pyflash/inspect/ncu_truth.py": "the kernels that were measured beside the emulator's counts",
}


def facts_of_families(text: str) -> Iterator[str]:
    """The places of a module that name a family, or guess at what it has."""
    for node in ast.walk(ast.parse(text)):
        found = None
        if isinstance(node, ast.Constant) and node.value in NAMES:
            found = node.value
        elif isinstance(node, ast.Name) and node.id in NAMES - {f.namespace for f in FAMILIES}:
            found = node.id
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = next((part for part in node.module.split(".") if part in NAMES), None)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            whom, _, *default = node.args
            guesses = ast.unparse(node.func) == "hasattr" or default
            of_config = ast.unparse(whom).split(".")[-1] in ("config", "family", "kernel_config")
            # `module.config` is that of another library's model.
            if guesses and of_config and not ast.unparse(whom).startswith("module."):
                found = ast.unparse(node)
        if found:
            yield f"{node.lineno}: {found}"


def modules() -> Iterator[Path]:
    folders = [ROOT / "pyflash" / "config" / family.name for family in FAMILIES]
    for top in ("pyflash", "codegen"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if not any(path.is_relative_to(folder) for folder in folders):
                yield path


def test_no_module_but_its_own_names_a_family():
    found = {
        str(path.relative_to(ROOT)): list(facts_of_families(path.read_text())) for path in modules()
    }
    assert {path for path, places in found.items() if places} == set(NAMING), found


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        *((f"FACTS = {{{name!r}: 1}}", True) for name in sorted(NAMES)),
        *((f"from pyflash.config.{family.name} import rules", True) for family in FAMILIES),
        *((f"isinstance(config, {family.struct})", True) for family in FAMILIES),
        ("hasattr(config, 'pack_gqa')", True),
        ("getattr(kernel.config.family, 'fact', None)", True),
        ("getattr(config, 'stages', 1)", True),
        ("getattr(config, name)", False),
        ("config.family.slowdowns", False),
    ],
)
def test_a_planted_fact_is_found(text, is_found):
    assert bool(list(facts_of_families(text))) is is_found
