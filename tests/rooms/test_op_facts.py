"""What is true of one op alone is in its record, its families' folders and the C++ that they name:
other code of the tools asks the family's record, and emits what that says. Host code in C++ knows
no family."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyflash.codegen.compilation import included_headers
from pyflash.config import FAMILIES, OPS

ROOT = Path(__file__).parents[2]
TOOLS = ("codegen", "pyflash/tuner", "pyflash/bench", "pyflash/inspect", "pyflash/emulator")
RECORDS = {"features.py", "backward.py"}  # of the ops, in pyflash/config
HOST = sorted((ROOT / "cute_kernels" / "host").glob("*.*"))


def docstrings(tree: ast.AST) -> set[ast.AST]:
    bodies = (node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list))
    firsts = (body[0] for body in bodies if body)
    return {first.value for first in firsts if isinstance(first, ast.Expr)}


def texts_of_ops(text: str) -> Iterator[str]:
    """The literals of a module that say what an op is called, in Python or in C++; prose about a
    forward pass does not."""
    tree = ast.parse(text)
    prose = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            for op in OPS:
                names = rf"\b({op.name}_\w*|{op.struct}|{op.features.struct})\b"
                if node.value == op.name or re.search(names, node.value):
                    yield f"{node.lineno}: {node.value.strip().splitlines()[0]}"


def modules() -> Iterator[Path]:
    for tool in TOOLS:
        yield from sorted((ROOT / tool).rglob("*.py"))
    for path in sorted((ROOT / "pyflash" / "config").glob("*.py")):
        if path.name not in RECORDS:
            yield path


def test_no_tool_says_what_an_op_is_called():
    found = {
        f"{path.relative_to(ROOT)}:{place}"
        for path in modules()
        for place in texts_of_ops(path.read_text())
    }
    assert found == set()


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ('emit("forward")', True),
        ('UNIT = "return forward_row<kConfig>"', True),
        ('UNIT = "ConfigMapRow<Forward> row;"', True),
        ('struct = f"{n}ForwardFeatures"', True),
        ('def f():\n    """forward"""', False),
        ('help = "of the forward pass"', False),
        ('family = "sm80_forward"', False),  # test_family_facts.py
        ("emit(config.family.op.name)", False),
    ],
)
def test_a_planted_text_is_found(text, is_found):
    assert bool(list(texts_of_ops(text))) is is_found


def rooms_included(path: Path) -> set[str]:
    """The rooms of cute_kernels whose headers a file includes, itself or through others in the
    tree. Those that are emitted stand for what families answer."""
    headers = included_headers(path.read_text(), path)
    return {header.relative_to(ROOT / "cute_kernels").parts[0] for header in headers}


@pytest.mark.parametrize("path", HOST, ids=lambda path: path.name)
def test_host_code_includes_nothing_of_a_family(path):
    rooms = {family.namespace for family in FAMILIES} | {"bindings", "emulator", "native"}
    assert not rooms & rooms_included(path)


def test_an_include_of_a_family_is_found(tmp_path):
    source = tmp_path / "source.cpp"
    source.write_text('#include "cute_kernels/sm90/forward/plan.h"\n')
    assert "sm90" in rooms_included(source)


def test_few_files_name_the_params_of_forward():
    """Parts of kernels and of the host take the values that they need."""
    texts = [path for path in (ROOT / "cute_kernels").rglob("*.*") if path.is_file()]
    assert sum("ForwardParams" in path.read_text() for path in texts) <= 20
