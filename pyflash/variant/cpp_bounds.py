"""The C++ function that judges a tile, by the interval arithmetic of pyflash/variant/interval.py.

Of floats and of 64-bit sums it knows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyflash.variant.axes import Rate, rates
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


# What is told once for the queries of a tile, and once for its keys: the struct, the function, and
# what the latter takes.
_SIDES = {"rows": ("TileRows", "q"), "columns": ("TileColumns", "k")}


def tile_lines(mask: Node) -> list[str]:
    """Member functions of a normal mask, and the structs of what they tell one another."""
    of_sides = _dear_of_sides(mask)
    lines, names = [], {}
    for side, (struct, axis) in _SIDES.items():
        nodes = of_sides[side]
        fields = [f"Bounds {axis}{i};" for i in range(len(nodes))]
        told = _statements(nodes, {})
        lines += [
            f"  // What the bounds of {axis} alone decide, where that takes loads or divisions.",
            f"  struct {struct} {{{' '.join(['', *fields, ''])}}};"
            if fields
            else f"  struct {struct} {{}};",
            f"  static PYFLASH_HOST_DEVICE {struct} tile_{side}(",
            f"      Params const& params, Lengths const& lengths, int b, int h, Bounds {axis}) {{",
            *told.lines,
            f"    return {{{', '.join(told.names[node] for node in nodes)}}};",
            "  }",
        ]
        names |= {node: f"{side}.{axis}{i}" for i, node in enumerate(nodes)}
    told = _statements([mask], names)
    return [
        *lines,
        "  // What the mask shows of the queries q and the keys k. At worst some.",
        "  static PYFLASH_HOST_DEVICE Shown tile(",
        "      Params const& params, Lengths const& lengths, TileRows const& rows,",
        "      TileColumns const& columns, int b, int h, Bounds q, Bounds k) {",
        *told.lines,
        f"    return shown({told.names[mask]});",
        "  }",
    ]


def _dear_of_sides(mask: Node) -> dict[str, list[Node]]:
    """The largest parts of a mask that read a tensor or divide, and depend on queries at most, or
    on keys at most."""
    rate = rates(mask)
    dear: set[Node] = set()
    found: dict[str, list[Node]] = {side: [] for side in _SIDES}
    for node in postorder(mask, operands=_known_operands):
        own = node.op in ("//", "%") or (node.op == "load" and node.data.rank is not None)
        if own or any(arg in dear for arg in _known_operands(node)):
            dear.add(node)

    seen: set[Node] = set()
    stack = [mask]
    while stack:
        node = stack.pop()
        if node in seen or node not in dear:
            continue
        seen.add(node)
        if rate[node] is Rate.PAIR:
            stack += reversed(_known_operands(node))
        else:
            found["columns" if rate[node] is Rate.COLUMN else "rows"].append(node)
    return found


@dataclass(frozen=True)
class _Told:
    lines: list[str]
    names: Mapping[Node, str]


def _statements(roots: Iterable[Node], known: Mapping[Node, str]) -> _Told:
    """What tells the bounds of some nodes, but for those that are known by name."""
    names = dict(known)
    lines: list[str] = []
    for node in postorder(
        *roots, operands=lambda node: () if node in known else _known_operands(node)
    ):
        if node in known:
            continue
        text = _bounds(node, [names[arg] for arg in _known_operands(node)])
        if text.endswith(")") and node.args:
            lines.append(f"    Bounds const t{len(lines)} = {text};")
            text = f"t{len(lines) - 1}"
        names[node] = text
    return _Told(lines, names)


def _known_operands(node: Node) -> tuple[Node, ...]:
    return () if _is_unknown(node) else node.args


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
