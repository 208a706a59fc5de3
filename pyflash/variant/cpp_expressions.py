"""Nodes as C++ expressions, and the statements that compute once what several of them use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from pyflash.variant.affine import Affine
from pyflash.variant.expr import Node
from pyflash.variant.interval import Bounds, bounds
from pyflash.variant.scalars import BOOL, F32, I32, Scalar
from pyflash.variant.stages import (
    ALIGNED,
    APART,
    Stage,
    anywhere_apart,
    is_float_of_distance,
    is_float_of_key,
)
from pyflash.variant.text import float_text
from pyflash.variant.walk import postorder

TYPES = {
    Scalar.BOOL: "bool",
    Scalar.I32: "int",
    Scalar.I64: "int64_t",
    Scalar.F32: "float",
    Scalar.F16: "Half",
    Scalar.BF16: "BFloat16",
}


def no_float(node: Node) -> str | None:
    return None


def _float_of_key(node: Node) -> tuple[str, str] | None:
    return ("float(first)", "float(offset)") if is_float_of_key(node) else None


def _float_of_distance(node: Node) -> tuple[str, str] | None:
    if not is_float_of_distance(node):
        return None
    total = Affine.of(node.args[0])
    factor = next(factor for part, factor in total.terms if part in (APART, ALIGNED))
    places = {APART: "first_apart", ALIGNED: "(first_apart - lengths.k_len + lengths.q_len)"}
    lines, (text,) = statements([node.args[0]], places)
    assert not lines
    steps = "offset" if factor == 1 else f"{factor} * offset"
    return f"float({text})", f"float({steps})"


# Floats of positions in functions of a stage as the sum of that of a thread's first one, which is
# converted once, and a constant.
_SUMS = {Stage.COLUMN: _float_of_key, Stage.DISTANCE: _float_of_distance}


def floats_of(stage: Stage, uniform: Mapping[Node, str]) -> Callable[[Node], str | None]:
    """Writes floats of positions in functions of a stage. uniform: the fields that all positions
    share; the product of one with a position is one multiply-add of the constant."""
    if (sum_of := _SUMS.get(stage)) is None:
        return no_float

    def float_of(node: Node) -> str | None:
        if found := sum_of(node):
            return f"({found[0]} + {found[1]})"
        if node.op == "*" and node.kind is F32:
            for position, factor in (node.args, node.args[::-1]):
                if factor in uniform and (found := sum_of(position)):
                    times = uniform[factor]
                    return f"fused({found[1]}, {times}, {found[0]} * {times})"
        return None

    return float_of


def statements(
    roots: list[Node],
    known: Mapping[Node, str],
    float_of: Callable[[Node], str | None] = no_float,
) -> tuple[list[str], list[str]]:
    """Statements that compute what is used twice, and the expressions of the roots. float_of: of
    positions, where there is a better one."""
    floats = {n: text for n in postorder(*roots) if (text := float_of(n)) is not None}
    known = {**floats, **known}
    nodes = list(postorder(*roots, operands=lambda node: () if node in known else node.args))
    uses = Counter([*roots, *(arg for n in nodes if n not in known for arg in n.args)])
    texts = dict(known)
    lines: list[str] = []
    for node in nodes:
        if node in known:
            continue
        text = _expression(node, [texts[arg] for arg in node.args])
        if uses[node] > 1 and node.args:
            name = f"t{len(lines)}"
            lines.append(f"    {TYPES[node.kind]} const {name} = {text};")
            text = name
        texts[node] = text
    return lines, [texts[root] for root in roots]


_CALLS = {
    "min": "minimum",
    "max": "maximum",
    "abs": "absolute",
    "//": "floor_div",
    "%": "floor_mod",
    "<<": "shift_left",
    ">>": "shift_right",
    "/": "divided",
    "over": "divided",
    "f16": "rounded_to_f16",
    "bf16": "rounded_to_bf16",
}
# NOTE: && and || would be branches, of each pair.
_LOGIC = {"&": "both", "|": "either"}
_WRAPPING = {"+": "wrapping_add", "-": "wrapping_sub", "*": "wrapping_mul"}


def _expression(node: Node, texts: list[str]) -> str:
    op = node.op
    if op == "constant":
        return literal(node)
    if op == "index":
        in_lengths = node.data in ("q_len", "k_len", "q0", "k0")
        return f"lengths.{node.data}" if in_lengths else node.data
    if op == "load":
        name = f"params.{node.data.name}"
        return name if node.data.rank is None else f"{name}.at({', '.join(texts)})"
    if op == "where":
        return f"{enclosed(texts[0])} ? {enclosed(texts[1])} : {enclosed(texts[2])}"
    if op in ("bool", "i32", "i64", "f32"):
        return _cast(node, texts[0])
    if op == "neg":
        wraps = node.kind.is_integer and _may_wrap("-", node.kind, Bounds(0, 0), node.args[0])
        zero = f"{TYPES[node.kind]}(0)"
        return f"wrapping_sub({zero}, {texts[0]})" if wraps else f"-{enclosed(texts[0])}"
    if op == "~":
        return f"!{enclosed(texts[0])}" if node.kind is BOOL else f"~{enclosed(texts[0])}"
    if op in _WRAPPING and node.kind.is_integer:
        left = bounds(node.args[0], anywhere_apart)
        if _may_wrap(op, node.kind, left, node.args[1]):
            return f"{_WRAPPING[op]}({', '.join(texts)})"
    if op.isidentifier() or op in _CALLS:
        return f"{_CALLS.get(op, op)}({', '.join(texts)})"
    if node.kind is BOOL:
        if op in _LOGIC:
            return f"{_LOGIC[op]}({', '.join(texts)})"
        op = "!=" if op == "^" else op
    return f"{enclosed(texts[0])} {op} {enclosed(texts[1])}"


def _may_wrap(op: str, kind: Scalar, a: Bounds, right: Node) -> bool:
    b = bounds(right, anywhere_apart)
    ends = {
        "+": (a.low + b.low, a.high + b.high),
        "-": (a.low - b.high, a.high - b.low),
        "*": tuple(x * y for x in (a.low, a.high) for y in (b.low, b.high)),
    }[op]
    return not all(map(kind.holds, ends))


def _cast(node: Node, text: str) -> str:
    kind = TYPES[node.kind]
    if is_float_of_key(node):  # of each pair, or each key: kernels do it often
        return f"float_of_position({text})"
    if node.args[0].kind is F32 and node.kind.is_integer:
        return f"to_integer<{kind}>({text})"
    return f"{kind}({text})"


def literal(node: Node) -> str:
    value = node.data
    if node.kind is BOOL:
        return "true" if value else "false"
    if node.kind is F32:
        if abs(value) == float("inf"):
            return "kInfinity" if value > 0 else "-kInfinity"
        return f"{float_text(value)}f"
    if value == node.kind.least:
        return f"({TYPES[node.kind]}({value + 1}) - 1)"
    return str(value) if node.kind is I32 else f"int64_t({value})"


def enclosed(text: str) -> str:
    """In parentheses, unless it is a name, a literal or a call."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character in " -!~" and depth == 0:
            return f"({text})"
    return text
