"""The C++ function that judges a tile, by the interval arithmetic of pyflash/variant/interval.py.

Of floats and of 64-bit sums it knows nothing.
"""

from __future__ import annotations

from pyflash.variant.expr import Node
from pyflash.variant.scalars import F32, I32, I64, Scalar
from pyflash.variant.walk import postorder

_CALLS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "neg": "neg",
    "abs": "absolute",
    "//": "floor_div",
    "%": "floor_mod",
    "min": "minimum",
    "max": "maximum",
    "clamp": "clamp",
    "where": "select",
}
_LOGIC = {"&": "both", "|": "either", "^": "one_of", "~": "opposite", "where": "select"}
_RELATIONS = {"<=": "less_equal", "==": "equal"}
_OF_64_BITS = ("min", "max", "clamp", "where")
_WHOLE = {Scalar.BOOL: "maybe()", I32: "whole<int>()", I64: "whole<int64_t>()"}


def tile_lines(mask: Node) -> list[str]:
    """A member function of a normal mask."""
    names: dict[Node, str] = {}
    statements: list[str] = []
    for node in postorder(mask, operands=lambda node: () if _is_unknown(node) else node.args):
        text = _bounds(node, [names[arg] for arg in node.args if not _is_unknown(node)])
        if text.endswith(")") and node.args:
            statements.append(f"    Bounds const t{len(statements)} = {text};")
            text = f"t{len(statements) - 1}"
        names[node] = text
    return [
        "  // What the mask shows of the queries q and the keys k. At worst some.",
        "  static PYFLASH_HOST_DEVICE Shown tile(",
        "      Params const& params, Lengths const& lengths, int b, int h, Bounds q, Bounds k) {",
        *statements,
        f"    return shown({names[mask]});",
        "  }",
    ]


def _is_unknown(node: Node) -> bool:
    """Whether nothing but the type of its result is known."""
    if not node.args or node.op == "load":
        return node.kind is F32
    kinds = [arg.kind for arg in node.args]
    if F32 in (node.kind, *kinds):
        return True
    if kinds[-1] is Scalar.BOOL or node.op in _RELATIONS or node.op in ("i32", "i64"):
        return False
    return node.op not in (_CALLS if node.kind is I32 else _OF_64_BITS)


def _bounds(node: Node, texts: list[str]) -> str:
    op, operands = node.op, ", ".join(texts)
    if _is_unknown(node):
        return _WHOLE[node.kind]
    if op == "constant":
        is_least = node.data == I64.least  # which C++ cannot write
        return "only(whole<int64_t>().low)" if is_least else f"only({int(node.data)}ll)"
    if op == "index":
        if node.data in ("q", "k"):
            return node.data
        return f"only({'' if node.data in 'bh' else 'lengths.'}{node.data})"
    if op == "load":
        name = f"params.{node.data.name}"
        return f"{name}.bounds({operands})" if node.data.rank is not None else f"only({name})"
    if op in ("i32", "i64"):  # of a shorter type they are the same
        is_cut = node.args[0].kind is I64
        return f"checked({texts[0]}.low, {texts[0]}.high)" if is_cut else texts[0]
    if op in _RELATIONS:
        return f"{_RELATIONS[op]}({operands})"
    is_logic = node.args[-1].kind is Scalar.BOOL
    return f"{(_LOGIC if is_logic else _CALLS)[op]}({operands})"
