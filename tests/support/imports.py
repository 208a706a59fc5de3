"""Which module of this repository imports which, read from their text: imports inside of functions
count, those for type checkers do not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TOPS = ("pyflash", "codegen", "third_party")
# An installation has them inside of pyflash, and so they are imported.
_INSIDE = tuple(f"pyflash.{top}" for top in TOPS[1:])


def import_graph(root: Path) -> dict[str, dict[str, str]]:
    """By module, the modules that it imports, each with the place, such as "pyflash/cli.py:9"."""
    files = {
        module_name(path.relative_to(root)): path
        for top in TOPS
        for path in sorted((root / top).rglob("*.py"))
    }
    graph: dict[str, dict[str, str]] = {}
    for module, path in files.items():
        found = graph.setdefault(module, {})
        for name, line in _imported(ast.parse(path.read_text())):
            target = _known(name, files)
            if target is not None and target != module:
                found.setdefault(target, f"{path.relative_to(root)}:{line}")
    return graph


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _known(name: str, files: dict[str, Path]) -> str | None:
    """The module itself, or the one that a name is imported from."""
    if name.startswith(_INSIDE):
        name = name.removeprefix("pyflash.")
    owner = name.rpartition(".")[0]
    return next((known for known in (name, owner) if known in files), None)


def _imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: expected the module's whole name"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from ((a.value, node.lineno) for a in node.args if isinstance(a, ast.Constant))


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        negated = isinstance(node.test, ast.UnaryOp)
        children = list(node.body if negated else node.orelse)
    for child in children:
        yield from _executed(child)
