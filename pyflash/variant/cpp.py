"""A variant as C++: a struct for the host and the device.

What is uniform, of a row, and of a column is computed once for each, into the structs Uniform, Row
and Column; `score` and `counts` have the rest, of one pair. `tile` judges a tile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyflash.variant.affine import Affine
from pyflash.variant.axes import Rate, rates
from pyflash.variant.cpp_bounds import tile_lines
from pyflash.variant.expr import SCORE, TRUE, Node, Param, operation, rebuilt
from pyflash.variant.interval import MAX_POSITION, Bounds, anywhere, bounds
from pyflash.variant.scalars import BOOL, F32, I32, Scalar
from pyflash.variant.text import float_text
from pyflash.variant.value import Variant
from pyflash.variant.walk import fold, postorder

HEADERS = ("cute_kernels/variant/arithmetic.h", "cute_kernels/variant/table.h")
_TYPES = {
    Scalar.BOOL: "bool",
    Scalar.I32: "int",
    Scalar.I64: "int64_t",
    Scalar.F32: "float",
    Scalar.F16: "Half",
    Scalar.BF16: "BFloat16",
}
# Floats hold every sum of _MOST_TERMS positions up to this one, and float_of_position has these.
MOST_APART = 1 << 21
_MOST_TERMS = 6
_SCOPES = {Rate.UNIFORM: "uniform", Rate.ROW: "row", Rate.COLUMN: "column"}
_OPERANDS = "Params const& params, Lengths const& lengths"


def struct_name(variant: Variant) -> str:
    return f"Variant_{variant.key}"


def header_of(variant: Variant) -> str:
    """A header with the struct alone."""
    includes = "\n".join(f'#include "{name}"' for name in HEADERS)
    return (
        f"#pragma once\n\n#include <cstdint>\n\n{includes}\n\nnamespace pyflash::variant {{\n\n"
        f"{struct_of(variant)}\n\n}}  // namespace pyflash::variant\n"
    )


def struct_of(variant: Variant) -> str:
    """The struct of the normal form; its text and the names of parameters are in comments."""
    normal = variant.normal
    score = with_sums_apart(normal.score)
    emitter = _Emitter(score, normal.mask)
    lines = [f"// {variant}", f"struct {struct_name(variant)} {{", *_facts(normal)]
    captured = zip(normal.params, variant.captured, strict=True)
    lines += _struct("Params", [(_param_type(p), p.name, own.name) for p, own in captured])
    lines += ["", *_params_of(normal.params)]
    for rate in _SCOPES:
        lines += ["", *_struct(_SCOPES[rate].capitalize(), emitter.fields(rate))]
    for rate in _SCOPES:
        lines += ["", *emitter.stage(rate)]
    lines += ["", *emitter.of_pair("float score", score, ", float s")]
    lines += ["", "  // Whether the mask shows a pair."]
    lines += emitter.of_pair("bool counts", normal.mask, "")
    lines += ["", *tile_lines(normal.mask)]
    return "\n".join([*lines, "};"])


def with_sums_apart(score: Node) -> Node:
    """The score function with the floats of sums such as k - q as sums of floats, of the key and of
    the rest: a conversion for each key and each query takes the place of one for each pair. They
    are the same where sequences are no longer than MOST_APART."""

    def rule(node: Node, args: tuple[Node, ...]) -> Node:
        made = rebuilt(node, args)
        if made.op != "f32" or made.args[0].kind is not I32:
            return made
        total = Affine.of(made.args[0])
        of_key = tuple(term for term in total.terms if term[0].data == "k")
        others = tuple(term for term in total.terms if term[0].data != "k")
        is_short = sum(abs(factor) for _, factor in total.terms) <= _MOST_TERMS
        are_positions = all(part.op == "index" for part, _ in total.terms)
        reads_query = any(part.data == "q" for part, _ in others)
        if not (of_key and reads_query and is_short and are_positions) or abs(total.constant) > 64:
            return made
        parts = (Affine(I32, of_key, 0), Affine(I32, others, total.constant))
        return operation("+", *(operation("f32", part.node()) for part in parts))

    return fold(score, rule)


def _facts(normal: Variant) -> list[str]:
    """What kernels ask of a variant before they are compiled."""
    read = {node.data for node in postorder(normal.mask) if node.op == "index"}
    facts = {
        "kHasMask": normal.mask != TRUE,
        "kHasScore": normal.score != SCORE,
        "kMaskReadsBatch": "b" in read,
        "kMaskReadsHead": "h" in read,
    }
    lines = [
        f"  static constexpr bool {name} = {str(fact).lower()};" for name, fact in facts.items()
    ]
    score = with_sums_apart(normal.score)
    has_floats = any(map(_is_float_of_key, postorder(score, normal.mask)))
    most = MOST_APART if has_floats or score != normal.score else MAX_POSITION
    return [*lines, f"  static constexpr int kMostPositions = {most};  // of a sequence"]


def _params_of(params: Iterable[Param]) -> list[str]:
    """The function that makes Params, for host code: of cute_kernels/variant/arguments.h."""
    values = []
    places = {"table": 0, "real": 0, "integer": 0}
    for param in params:
        kind = _TYPES[param.kind.computed]
        getter = "table" if param.rank is not None else "real" if kind == "float" else "integer"
        text = {
            "table": f"template table<{_TYPES[param.kind]}, {param.rank}>",
            "real": "real",
            "integer": f"template integer<{kind}>",
        }[getter]
        values.append(f"arguments.{text}({places[getter]})")
        places[getter] += 1
    return [
        "  template <class Arguments>",
        "  static Params params_of([[maybe_unused]] Arguments const& arguments) {",
        f"    return Params{{{', '.join(values)}}};",
        "  }",
    ]


def _param_type(param: Param) -> str:
    kind = _TYPES[param.kind]
    return f"Table<{kind}, {param.rank}>" if param.rank is not None else _TYPES[param.kind.computed]


def _struct(name: str, members: Iterable[tuple[str, str, str]]) -> list[str]:
    lines = [
        f"    {kind} {member};{f'  // {note}' if note else ''}" for kind, member, note in members
    ]
    return [f"  struct {name} {{", *lines, "  };"] if lines else [f"  struct {name} {{}};"]


@dataclass
class _Emitter:
    """The parts of a score function and a mask by rate, and the fields that pairs read."""

    score: Node
    mask: Node
    rates: dict[Node, Rate] = field(init=False)
    names: dict[Node, str] = field(init=False)  # of the fields

    def __post_init__(self) -> None:
        self.rates = rates(self.score, self.mask)
        read = [(arg, self.rates[node]) for node in self.rates for arg in node.args]
        read += [(self.score, Rate.PAIR), (self.mask, Rate.PAIR)]
        wanted = {node for node, by in read if self.rates[node] is not by and _is_computed(node)}
        self.names = {}
        for rate, scope in _SCOPES.items():
            of_rate = [n for n in self.rates if n in wanted and self.rates[n] is rate]
            self.names |= {node: f"{scope}.{scope[0]}{i}" for i, node in enumerate(of_rate)}

    def fields(self, rate: Rate) -> list[tuple[str, str, str]]:
        return [
            (_TYPES[node.kind], name.partition(".")[2], "")
            for node, name in self.names.items()
            if self.rates[node] is rate
        ]

    def stage(self, rate: Rate) -> list[str]:
        """The function that computes the fields of a rate."""
        scope = _SCOPES[rate]
        own = {Rate.ROW: ", int q", Rate.COLUMN: ", int k"}.get(rate, "")
        before = "" if rate is Rate.UNIFORM else "Uniform const& uniform, "
        wanted = [node for node in self.names if self.rates[node] is rate]
        uniform = {n: name for n, name in self.names.items() if self.rates[n] is Rate.UNIFORM}
        known = {} if rate is Rate.UNIFORM else uniform
        lines, texts = _statements(wanted, known)
        return [
            f"  static PYFLASH_HOST_DEVICE {scope.capitalize()} {scope}(",
            f"      {_OPERANDS}, {before}int b, int h{own}) {{",
            *lines,
            f"    return {{{', '.join(texts)}}};",
            "  }",
        ]

    def of_pair(self, signature: str, root: Node, more: str) -> list[str]:
        lines, (text,) = _statements([root], self.names)
        return [
            f"  static PYFLASH_HOST_DEVICE {signature}(",
            f"      {_OPERANDS}, Uniform const& uniform, Row const& row,",
            f"      Column const& column, int b, int h, int q, int k{more}) {{",
            *lines,
            f"    return {text};",
            "  }",
        ]


def _is_computed(node: Node) -> bool:
    """Whether a field is worth it."""
    is_number = node.op == "load" and node.data.rank is None
    return node.op not in ("constant", "index") and not is_number


def _statements(roots: list[Node], known: Mapping[Node, str]) -> tuple[list[str], list[str]]:
    """Statements that compute what is used twice, and the expressions of the roots."""
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
            lines.append(f"    {_TYPES[node.kind]} const {name} = {text};")
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
    "f16": "rounded_to_f16",
    "bf16": "rounded_to_bf16",
}
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
        return f"{_enclosed(texts[0])} ? {_enclosed(texts[1])} : {_enclosed(texts[2])}"
    if op in ("bool", "i32", "i64", "f32"):
        return _cast(node, texts[0])
    if op == "neg":
        wraps = node.kind.is_integer and _may_wrap("-", node.kind, Bounds(0, 0), node.args[0])
        zero = f"{_TYPES[node.kind]}(0)"
        return f"wrapping_sub({zero}, {texts[0]})" if wraps else f"-{_enclosed(texts[0])}"
    if op == "~":
        return f"!{_enclosed(texts[0])}" if node.kind is BOOL else f"~{_enclosed(texts[0])}"
    if op in _WRAPPING and node.kind.is_integer:
        left = bounds(node.args[0], anywhere)
        if _may_wrap(op, node.kind, left, node.args[1]):
            return f"{_WRAPPING[op]}({', '.join(texts)})"
    if op.isidentifier() or op in _CALLS:
        return f"{_CALLS.get(op, op)}({', '.join(texts)})"
    if node.kind is BOOL:
        op = {"&": "&&", "|": "||", "^": "!="}.get(op, op)
    return f"{_enclosed(texts[0])} {op} {_enclosed(texts[1])}"


def _may_wrap(op: str, kind: Scalar, a: Bounds, right: Node) -> bool:
    b = bounds(right, anywhere)
    ends = {
        "+": (a.low + b.low, a.high + b.high),
        "-": (a.low - b.high, a.high - b.low),
        "*": tuple(x * y for x in (a.low, a.high) for y in (b.low, b.high)),
    }[op]
    return not all(map(kind.holds, ends))


def _is_float_of_key(node: Node) -> bool:
    return node.op == "f32" and node.args[0].op == "index" and node.args[0].data == "k"


def _cast(node: Node, text: str) -> str:
    kind = _TYPES[node.kind]
    if _is_float_of_key(node):  # of each pair, or each key: kernels do it often
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
        return f"({_TYPES[node.kind]}({value + 1}) - 1)"
    return str(value) if node.kind is I32 else f"int64_t({value})"


def _enclosed(text: str) -> str:
    """In parentheses, unless it is a name, a literal or a call."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character in " -!~" and depth == 0:
            return f"({text})"
    return text
