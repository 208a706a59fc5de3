"""Nodes and variants as values: equality, pickling, types, refusals, arithmetic."""

from __future__ import annotations

import pickle
import sys
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from support.programs import programs

from pyflash.variant import Parameters, V, Variant, define, parse
from pyflash.variant.evaluate import evaluate, node_value
from pyflash.variant.expr import INDICES, Param, constant, index, load, operation
from pyflash.variant.scalars import ARITY, BOOL, F32, I32, I64, Scalar, rounded_to, signature
from pyflash.variant.walk import postorder


@given(programs)
def test_a_variant_comes_back_from_pickle(variant):
    again = pickle.loads(pickle.dumps(variant))
    assert again.same_as(variant)
    assert pickle.loads(pickle.dumps(variant.score)) == variant.score


def test_a_deep_tree_is_pickled():
    node = index("q")
    for _ in range(3 * sys.getrecursionlimit()):
        node = operation("abs", node)
    assert pickle.loads(pickle.dumps(node)).size == node.size


def test_nodes_are_values():
    a, b = (operation("+", index("q"), constant(1)) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert len({a, b, operation("+", constant(1), index("q"))}) == 2
    assert constant(1) != constant(1.0)
    assert constant(1) != constant(True)
    assert constant(0.0) != constant(-0.0)
    with pytest.raises(AttributeError, match="immutable"):
        a.op = "-"


KINDS = (BOOL, I32, I64, F32)
TORCH = {BOOL: "bool", I32: "int32", I64: "int64", F32: "float32"}


@pytest.mark.parametrize("right", KINDS)
@pytest.mark.parametrize("left", KINDS)
@pytest.mark.parametrize("op", [op for op, arity in ARITY.items() if arity == 2])
def test_types_are_those_of_torch(op, left, right):
    """What is refused aside."""
    torch = pytest.importorskip("torch")
    functions = {
        "+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div,
        "//": torch.floor_divide, "%": torch.remainder, "min": torch.minimum,
        "max": torch.maximum, "<<": torch.bitwise_left_shift, ">>": torch.bitwise_right_shift,
        "&": torch.bitwise_and, "|": torch.bitwise_or, "^": torch.bitwise_xor,
        "<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge, "==": torch.eq,
        "!=": torch.ne,
    }  # fmt: skip
    operands = [torch.tensor(1).to(getattr(torch, TORCH[kind])) for kind in (left, right)]
    if op == "-" and BOOL in (left, right) and left is not right:
        pytest.skip("torch refuses what is a number here")
    if why_refused(op, left, right):
        assert BOOL in (left, right) or (F32 in (left, right) and op not in ("+", "-", "*", "/"))
        return
    _, kind = signature(op, (left, right))
    assert functions[op](*operands).dtype == getattr(torch, TORCH[kind])


def why_refused(op: str, *kinds: Scalar) -> str:
    try:
        signature(op, kinds)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("op", ARITY)
def test_every_refusal_has_a_cure(op):
    refusals = [why_refused(op, *kinds) for kinds in product(KINDS, repeat=ARITY[op])]
    assert all("expected" in refusal for refusal in refusals if refusal)
    assert not all(refusals)


REFUSED = [
    (lambda: operation("where", index("q"), constant(1), constant(2)), "expected bool"),
    (lambda: operation("+", constant(True), constant(True)), "bool"),
    (lambda: operation("//", index("s"), constant(2)), "floor"),
    (lambda: operation("&", constant(True), index("q")), "parentheses"),
    (lambda: operation("%", index("q"), constant(0)), "by 0"),
    (lambda: operation("<<", index("q"), constant(32)), "0 to 31"),
    (lambda: constant(float("nan")), "NaN"),
    (lambda: constant(1 << 70), "64 bits"),
    (lambda: load(Param("t", F32, 2), index("q")), "2, one for each axis"),
    (lambda: load(Param("t", F32, 1), index("s")), "expected an integer"),
    (lambda: Param("t", F32, 5), "at most 4"),
    (lambda: Param("k_len", F32), "reserved"),
    (lambda: Param("lambda", F32), "no name of a parameter"),
    (lambda: Variant("two words"), "no name of a variant"),
    (lambda: Variant("a", mask=index("q")), "mask is i32"),
    (lambda: Variant("a", score=index("q")), "score is i32"),
    (lambda: Variant("a", mask=operation("<", index("s"), constant(0.0))), "reads s"),
    (lambda: Variant("a", (Param("t", F32),)), "declared and not used"),
    (lambda: Variant("a", (), load(Param("t", F32))), "not declared"),
    (lambda: define("a", None, V.score + Parameters(t="f32").t), "not declared"),
    (lambda: Parameters(t="f33"), "expected bool, i32"),
    (lambda: Parameters(t="f32[x]"), "number of axes"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_is_no_expression_is_refused(case):
    make, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: 1 if V.q < V.k else 2, "where"),
        (lambda: V.q < V.k < 3, "chained"),
        (lambda: max(V.q, V.k), "where"),
        (lambda: V.q + "1", "expected an expression"),
        (lambda: V.score + Parameters(t="f32[1]").t, "index it"),
        (lambda: list(V.q), "no sequence"),
    ],
)
def test_operators_that_python_cannot_pass_on_are_refused(make, words):
    with pytest.raises(TypeError, match=words):
        make()


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="expected score, b, h"):
        V.query  # noqa: B018
    with pytest.raises(AttributeError, match="expected slope"):
        Parameters(slope="f32").slop  # noqa: B018


def test_too_many_nodes_levels_and_loads_are_refused():
    node = index("q")
    for _ in range(9):
        node = operation("+", node, node)
    with pytest.raises(ValueError, match=r"1024 nodes: expected at most 512"):
        Variant("a", score=operation("f32", node))
    for _ in range(3):
        node = operation("+", node, node)
    with pytest.raises(ValueError, match="nodes: expected fewer"):
        operation("+", node, node)
    node = index("s")
    for _ in range(128):
        node = operation("exp", node)
    with pytest.raises(ValueError, match="129 levels: expected at most 128"):
        Variant("a", score=node)
    table, node = Param("t", I32, 1), index("q")
    for _ in range(3):
        node = load(table, node)
    with pytest.raises(ValueError, match="4th load"):
        load(table, node)


def test_the_dsl_and_the_text_are_the_same():
    p = Parameters(slope="f32[1]", window="i32")
    term = V.score * 0.5 - V.exp(p.slope[V.h]) * -abs(2 * V.q // 3 - (V.k << 1)) + 1 / V.f32(V.q)
    mask = ~(V.q == V.k) & (V.q - V.k <= p.window) | (V.k <= 3)
    variant = define("a", p, term, mask)
    assert parse(str(variant)).same_as(variant)
    assert str(variant) == (
        "a(slope: f32[1], window: i32): s * 0.5 - exp(slope[h]) * -abs(2 * q // 3 - (k << 1))"
        " + 1 / f32(q) where ~(q == k) & (q - k <= window) | (k <= 3)"
    )


@pytest.mark.parametrize("name", INDICES)
def test_every_index_has_a_name(name):
    assert getattr(V, name).node == index(name)


@given(programs)
def test_postorder_has_operands_first(variant):
    seen = set()
    for node in postorder(variant.score, variant.mask):
        assert node not in seen
        assert seen.issuperset(node.args)
        seen.add(node)


# The arithmetic that is written down.


def value(text: str, **values) -> object:
    variant = parse(f"a{values.pop('head', '')}: f32({text})")
    return node_value(variant.score.args[0] if text[:3] != "f32" else variant.score, values).item()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q // 3", -3), ("q % 3", 2), ("q // -3", 2), ("q % -3", -1), ("q // k", 0), ("q % k", 0),
        ("q << 1", -14), ("q >> 1", -4), ("q << h", 0), ("q >> h", -1), ("q >> -h", -1),
        ("q * 2147483647", -2147483641), ("i64(q) * 2147483647", -15032385529),
        ("i32(s)", -2), ("i32(s * 1e30)", -(1 << 31)), ("i32(s * -1e30)", (1 << 31) - 1),
        ("i64(s * -1e30)", (1 << 63) - 1), ("i32(s * inf - s * inf)", 0), ("i32(2.9)", 2),
        ("i32(3000000000)", -1294967296), ("bool(q) ^ bool(k)", True), ("q / 2", -3.5),
        ("min(q, k)", -7), ("clamp(q, -3, 5)", -3), ("clamp(q, 5, -3)", -3), ("~q", 6),
    ],
)  # fmt: skip
def test_arithmetic(text, expected):
    node = parse(f"a: f32({text})").score
    node = node.args[0] if node.op == "f32" else node
    found = node_value(node, {"q": -7, "k": 0, "h": 40, "s": np.float32(-2.5)})
    assert found.item() == expected


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_rounding_is_that_of_torch(kind):
    torch = pytest.importorskip("torch")
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[kind]
    random = Random(1)
    values = [random.choice([-1, 1]) * 2 ** random.uniform(-30, 20) for _ in range(2000)]
    values += [0.0, -0.0, float("inf"), 65519.0, 65520.0, 1e-8, 1 + 2**-11, 1 + 3 * 2**-11, 3e38]
    exact = torch.tensor(values, dtype=torch.float32)
    expected = exact.to(dtype).float()
    found = torch.tensor([rounded_to(kind, x) for x in exact.tolist()])
    assert torch.equal(found, expected)


def test_a_wrong_index_is_an_error_where_it_counts():
    table = np.arange(4, dtype=np.float32)
    hidden = parse("a(t: f32[1]): s + t[k] where k < 4")
    values = {"s": np.zeros(6, np.float32), "k": np.arange(6), "t": table}
    score, mask = evaluate(hidden, values)
    assert score[mask].tolist() == [0, 1, 2, 3]
    score, _ = evaluate(parse("a(t: f32[1]): s + t[-1 - k % 4]"), values)
    assert score.tolist() == [3, 2, 1, 0, 3, 2]
    for text in ("a(t: f32[1]): s + t[k]", "a(t: f32[1]): s where (k < 4) & (t[k] >= 0)"):
        with pytest.raises(IndexError, match=r"t\[k\] is outside of t"):
            evaluate(parse(text), values)
