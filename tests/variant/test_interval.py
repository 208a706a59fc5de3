"""Bounds hold every value, and a tile is never called empty or whole where it is not."""

from __future__ import annotations

import re
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs import Grammar, captured, integer_program, pairs

from pyflash.variant import Variant, expr, parse
from pyflash.variant.arithmetic import applied
from pyflash.variant.evaluate import evaluate, node_value
from pyflash.variant.expr import Node
from pyflash.variant.interval import Bounds, anywhere, bounds
from pyflash.variant.scalars import F32, I32, I64, signature
from pyflash.variant.structure import BITS, EVERYTHING, RANGES, structure
from pyflash.variant.tiles import Problem, Tile, element_bounds, tile, tiles
from pyflash.variant.walk import postorder

SEEDS = st.integers(0, 1 << 32)
LISTS = {name: value.tolist() for name, value in captured().items()}


def leaf_of(values: dict):
    """The bounds of a leaf by the least and greatest of its values."""

    def leaf(node: Node, args: tuple[Bounds, ...]) -> Bounds:
        if node.op == "load":
            return element_bounds(node, LISTS[node.data.name], args)
        return Bounds(values[node.data].min().item(), values[node.data].max().item())

    return leaf


@given(SEEDS, st.integers(1, 8))
def test_bounds_hold_every_value(seed, width):
    random = Random(seed)
    grammar = Grammar(random)
    root = random.choice([grammar.integer, grammar.condition, grammar.number])(4)
    values = {name: value[3 : 3 + width] for name, value in pairs(random).items() if value.ndim}
    values |= captured()
    leaf = leaf_of(values)
    for node in postorder(root):
        found = bounds(node, leaf)
        for value in np.unique(node_value(node, values)):
            assert value.item() in found, (str(node), found, value)


@pytest.mark.parametrize("kind", [I32, I64])
@pytest.mark.parametrize(
    "op",
    ["+", "-", "*", "//", "%", "min", "max", "&", "|", "^", "<<", ">>", "neg", "abs", "~", "clamp"],
)
def test_small_boxes_of_integers(op, kind):
    """Every box of small numbers and of the ends of a type; exact for what rises."""
    count = {"neg": 1, "abs": 1, "~": 1, "clamp": 3}.get(op, 2)
    names = ("q", "k", "h")[:count]
    nodes = [expr.operation(kind.value, expr.index(name)) for name in names]
    node = expr.operation(op, *nodes)
    random = Random(3)
    for _ in range(300):
        boxes = {}
        for name in names:
            base = random.choice([-3, 0, 2, 5, I32.greatest - 2, I32.least])
            boxes[name] = range(base, min(base + random.randrange(1, 5), I32.greatest + 1))
        values = dict(zip(names, np.meshgrid(*boxes.values()), strict=True))
        found = bounds(node, lambda n, _, b=boxes: Bounds(b[n.data][0], b[n.data][-1]))
        exact = node_value(node, values)
        assert exact.min() in found
        assert exact.max() in found
        if op in ("min", "max", "clamp", "~") or (op == "//" and 0 not in boxes["k"]):
            wraps = op == "//" and exact.min() == kind.least
            assert wraps or (found.low, found.high) == (exact.min(), exact.max())


@pytest.mark.parametrize("op", ["+", "-", "*", "/", "min", "max", "<", "<=", "==", "!="])
def test_boxes_of_floats_with_infinities_and_nan(op):
    ends = [-np.inf, -2.5, 0.0, 0.1, 3e38, np.inf]
    node = expr.operation(op, expr.SCORE, expr.load(expr.Param("x", F32)))
    for low, high, other, last in np.ndindex(6, 6, 6, 6):
        if low > high or other > last:
            continue
        for nan in (False, True):
            box = {"s": Bounds(ends[low], ends[high], nan), "x": Bounds(ends[other], ends[last])}
            key = lambda n: n.data if n.op == "index" else n.data.name  # noqa: E731
            found = bounds(node, lambda n, _, box=box, key=key: box[key(n)])
            firsts = [ends[low], ends[high], *([0.0] if low <= 2 <= high else [])]
            for a in [*firsts, *([float("nan")] if nan else [])]:
                for b in [ends[other], ends[last], *([0.0] if other <= 2 <= last else [])]:
                    assert applied(op, F32, a, b) in found, (a, op, b, found)


@pytest.mark.parametrize("kind", ["bool", "i32", "i64", "f32"])
@given(SEEDS)
def test_bounds_anywhere_hold_every_value(kind, seed):
    """Without knowing parameters."""
    random = Random(seed)
    node = Grammar(random).integer(3)
    node = expr.operation(kind, node)
    found = bounds(node, anywhere)
    assert all(value.item() in found for value in np.ravel(node_value(node, pairs(random))))
    assert signature(kind, (node.kind,))[1] is node.kind


def brute(variant: Variant, at: Tile, problem: Problem, values: dict) -> str:
    q, k = np.mgrid[at.q[0] : at.q[1] + 1, at.k[0] : at.k[1] + 1]
    names = {name: getattr(problem, name) for name in ("q_len", "k_len", "q0", "k0")}
    here = {"q": q, "k": k, "b": at.b, "h": at.h, "s": np.float32(0), **names}
    shown = evaluate(variant, here | values)[1]
    return "all" if shown.all() else "some" if shown.any() else "none"


PROBLEM = Problem(q_len=24, k_len=40, batch=2, heads=3, q0=5)


@given(SEEDS)
def test_a_tile_is_never_judged_wrongly(seed):
    random = Random(seed)
    variant = integer_program(random)
    numbers = captured()
    for _ in range(4):
        q, k = random.randrange(20), random.randrange(36)
        at = Tile((q, q + random.randrange(4)), (k, k + random.randrange(4)), 1, 2)
        truth = brute(variant, at, PROBLEM, numbers)
        normal = {f"p{i}": LISTS[param.name] for i, param in enumerate(variant.captured)}
        for mask, values in ((variant.mask, LISTS), (variant.normal.mask, normal)):
            assert tile(mask, at, PROBLEM, values) in ("some", truth)
            assert tile(mask, at, PROBLEM, {}) in ("some", truth)


DOCUMENTS = sorted([0] * 9 + [1] * 13 + [2] * 18)
EXACT = [
    "a: s where k <= q + k_len - q_len",
    "a: s where (k <= q) & (q - k < 7)",
    "a: s where abs(q - k) <= 5",
    "a: s where (k < 6) | (k <= q)",
    "a: s where k // 8 == q // 8",
    "a: s where k // 8 <= q // 8",
    "a(lens: i32[1]): s where k < lens[b]",
    "a(doc: i32[1]): s where (doc[q] == doc[k]) & (k <= q)",
    "a: s where clamp(k, 3, 9) <= min(q, 8)",
    "a: s where where(h == 2, k <= q, k >= q)",
    "a: s where (k < q) ^ (h == 2)",
]


@pytest.mark.parametrize("text", EXACT)
def test_masks_of_intervals_are_judged_exactly(text):
    """Where both ends of a tile are in one period, or no period counts."""
    variant = parse(text)
    values = {"doc": DOCUMENTS, "lens": [17, 33]}
    arrays = {name: np.array(value, np.int32) for name, value in values.items()}
    for b in range(2):
        judged = tiles(variant.mask, PROBLEM, (2, 4), values, b, 2)
        assert len({verdict for row in judged for verdict in row}) >= 2
        for i, row in enumerate(judged):
            for j, verdict in enumerate(row):
                at = Tile((2 * i, 2 * i + 1), (4 * j, 4 * j + 3), b, 2)
                assert verdict == brute(variant, at, PROBLEM, arrays)


def test_an_index_that_changes_its_sign_reads_both_ends():
    mask = parse("a(t: i32[1]): s where t[k - 3] == 7").mask
    for table, verdict in (([0, 0, 0, 7], "some"), ([7, 7, 7, 7], "all"), ([0] * 4, "none")):
        assert tile(mask, Tile((0, 1), (2, 4)), Problem(8, 8), {"t": table}) == verdict


def test_a_ragged_tile_ends_with_its_sequence():
    judged = tiles(parse("a: s where k < 40").mask, Problem(3, 41), (2, 8), {}, 0, 0)
    assert judged == [["all"] * 5 + ["none"]] * 2


STRUCTURES = [
    ("a: s", EVERYTHING),
    ("a: s where k <= q + k_len - q_len", RANGES),
    ("a(w: i32): s where (k <= q) & (q - k < w)", RANGES),
    ("a(w: i32): s where q <= k + w", BITS),  # it wraps
    ("a: s where abs(q - k) <= 5", BITS),
    ("a: s where (q - k <= 5) & (k - q <= 5)", RANGES),
    ("a: s where k // 8 == q // 8", RANGES),
    ("a(c: i32): s where k // c == q // c", BITS),  # c may be negative
    ("a: s where k // 8 <= q // 4", RANGES),
    ("a(lens: i32[1]): s where k < lens[b]", RANGES),
    ("a(n: i32[1]): s where (k < n[b]) & (q < n[b])", BITS),
    ("a(doc: i32[1]): s where doc[q] == doc[k]", BITS),
    ("a: s where k + q <= 9", BITS),
    ("a: s where k % 4 == q % 4", BITS),
    ("a: s where (k < 6) | (k <= q)", BITS),
    ("a: s where k <= max(q, 17)", RANGES),
    ("a(n: i32): s where k <= max(q, n)", RANGES),
    ("a: s where (h == 2) & (k <= q)", RANGES),
    ("a: s where 2 * k <= q", RANGES),
    ("a: s where -2 * k >= -q", RANGES),
    ("a: s where 7 - k <= 3 - q", RANGES),
    ("a: s where k * 65536 * 65535 <= q", BITS),
]


@pytest.mark.parametrize(("text", "expected"), STRUCTURES)
def test_structure(text, expected):
    assert structure(parse(text).normal.mask) == expected


def assert_ranges(variant: Variant, values: dict) -> None:
    """A row attends one interval, whose ends do not fall."""
    q, k = np.mgrid[0:24, 0:40]
    names = {name: getattr(PROBLEM, name) for name in ("q_len", "k_len", "q0", "k0")}
    here = {"q": q, "k": k, "b": 1, "h": 2, "s": np.float32(0), **names}
    shown = np.broadcast_to(evaluate(variant, here | values)[1], q.shape)
    ends = []
    for row in shown:
        keys = np.flatnonzero(row)
        if keys.size:
            assert keys.size == keys[-1] - keys[0] + 1
            ends.append((keys[0], keys[-1]))
    assert all(a <= c and b <= d for (a, b), (c, d) in pairwise(ends))


@pytest.mark.parametrize("text", [text for text, found in STRUCTURES if found == RANGES])
def test_ranges_are_ranges(text):
    for number in (0, 3, 17, 50, I32.greatest, I32.least):
        values = {"w": np.int32(number), "n": np.int32(number), "lens": np.array([number] * 2)}
        assert_ranges(parse(text), values)


@st.composite
def range_candidates(draw):
    """Masks that are often ranges."""
    random = Random(draw(SEEDS))

    def side(name: str) -> str:
        scaled = random.choice(["{}", "2 * {}", "-{}", "{} // 3", "min({}, 9)", "max({}, n)"])
        return scaled.format(name) + random.choice(["", " + 3", " - q_len", " + n"])

    def condition() -> str:
        a, b = side("k"), side(random.choice("qqk"))
        return f"({a} {random.choice(['<', '<=', '==', '>='])} {b})"

    mask = " & ".join(condition() for _ in range(random.randrange(1, 3)))
    head = "(n: i32)" if re.search(r"\bn\b", mask) else ""
    return f"a{head}: s where {mask}"


@given(range_candidates(), st.sampled_from([0, 4, -3, I32.greatest, I32.least]))
def test_what_is_called_ranges_is(text, number):
    variant = parse(text)
    if structure(variant.normal.mask) == RANGES:
        assert_ranges(variant, {"n": np.int32(number)})
