"""The normal form: what has one form, what has not, and that it computes the same."""

from __future__ import annotations

import pickle
import subprocess
import sys
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs import integer_program, pairs, program, programs

from pyflash.variant import Variant, parse
from pyflash.variant.evaluate import evaluate

# Each line has texts of one form.
EQUAL = [
    ["a: s where k <= q", "b: s where q >= k", "c: s where k < q + 1", "d: s where ~(k > q)",
     "e: s where not q - k < 0", "f: where(k <= q, s, -inf)", "g: where(q < k, -inf, s)",
     "h: s where q - k + 3 >= 3", "i: s where 0 <= q - k", "j: s where 2 * k - k <= q"],
    ["a: s where k == q + 3", "a: s where q - k == -3", "a: s where not (k - q != 3)"],
    ["a: s where (k < 5) & (q < 3) & (h == 1)", "a: s where (h == 1) & ((q < 3) & (k < 5))",
     "a: where((h == 1), where(k < 5, s, -inf), -inf) where q < 3",
     "a: s where (k < 5) & ((q < 3) & (h == 1)) & (k < 5)"],
    ["a: s where ~((k < 3) | (q < 5))", "a: s where (k >= 3) & (5 <= q)"],
    ["alibi(slope: f32[1]): s + slope[h] * (k - q)", "a(t: f32[1]): t[h] * f32(k - q) + s",
     "a(t: f32[1]): s + (-q + k) * t[h + 0]"],
    ["a(u: i32, w: i32): s where (k < u) & (q < w)",
     "a(w: i32, u: i32): s where (k < w) & (q < u)"],
    ["a: s + 0.5 * 2.0", "a: 1.0 + s"],
    ["a: s", "a: s * 1.0", "a: s / 1", "a: s - 0", "a: s where k == k", "a: --s",
     "a: where(True, s, 1.0)", "a: s where (k < 3) | (k >= 3) | True"],
    ["a: -inf", "a: tanh(s) where False", "a: where(k < 3, -inf, -inf)",
     "a(u: i64): s where u + u < u + u"],
    ["a: s where k << 2 == 8", "a: s where 4 * k == 8"],
    ["a: s where k // 4 == 1", "a: s where k >> 2 == 1"],
    ["a: s where ~k == -3", "a: s where k == 2"],
    ["a: s where bool(k)", "a: s where k != 0"],
    ["a: s where (k < 3) == (q < 3)", "a: s where ~((k < 3) ^ (q < 3))"],
    ["a: s where (k < 3) <= (q < 3)", "a: s where (k >= 3) | (q < 3)"],
    ["a: s where i64(k) < 3 + i64(q)", "a: s where i64(k) - i64(q) <= 2"],
    ["a(d: i32[1]): s where d[q] == d[k]", "a(d: i32[1]): s where d[k] == d[q]"],
]  # fmt: skip


@pytest.mark.parametrize("texts", EQUAL, ids=range(len(EQUAL)))
def test_what_is_the_same_is_equal(texts):
    first, *others = map(parse, texts)
    for other in others:
        assert other == first, (other.normal, first.normal)
        assert hash(other) == hash(first)
        assert other.key == first.key


def test_forms_of_different_lines_differ():
    assert len({parse(texts[0]) for texts in EQUAL}) == len(EQUAL)


# What looks the same and is not: where integers may wrap, or floats round.
DIFFERENT = [
    ("a(w: i32): s where q - k <= w", "a(w: i32): s where q <= k + w"),
    ("a(w: i32): s where k < w + 1", "a(w: i32): s where k <= w"),
    ("a: (s + 0.1) + 0.2", "a: s + (0.1 + 0.2)"),
    ("a: s + 0.0", "a: s"),
    ("a: s - s", "a: 0.0 * s"),
    ("a: where(s <= 1.0, s, 0.0)", "a: where(~(s > 1.0), s, 0.0)"),
    (
        "a: min(s, where(bool(q) ^ ~(s <= 1.0), s, 0.0))",
        "a: min(s, where(bool(q) ^ (s > 1.0), s, 0.0))",
    ),
    ("a: s where k * 65536 * 65536 < q", "a: s where 0 < q - 1"),
    ("a(w: i32): s where i64(w) * w < 3", "a(w: i32): s where w * w < 3"),
    ("a(w: i32): s where w < 3", "a(w: i64): s where w < 3"),
    ("a(t: f32): s + t", "a(t: f32[0]): s + t"),
    ("a(t: f32[1]): s + t[q]", "a(t: f16[1]): s + t[q]"),
    ("a(t: f32[1]): s + t[q]", "a(t: f32[1]): s + t[k]"),
    ("a(t: f32, u: f32): s * t + t", "a(t: f32, u: f32): s * t + u"),
    ("a: exp(s * 2.0)", "a: exp2(s * 2.0)"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=range(len(DIFFERENT)))
def test_what_differs_is_not_equal(one, other):
    one, other = (parse(used(text)) for text in (one, other))
    assert one != other
    assert one.key != other.key


def used(text: str) -> str:
    """Without a parameter that is not used."""
    return text.replace("(t: f32, u: f32): s * t + t", "(t: f32): s * t + t")


@given(programs)
def test_the_normal_form_is_its_own(variant):
    normal = variant.normal
    assert normal.normal.same_as(normal)
    assert normal.key == variant.key
    assert parse(str(normal)) == variant
    assert [p.name for p in normal.params] == [f"p{i}" for i in range(len(normal.params))]


def by_place(variant: Variant, values: dict) -> dict:
    """The values of the parameters of its normal form."""
    captured = {f"p{i}": values[param.name] for i, param in enumerate(variant.captured)}
    return {name: values[name] for name in values if name not in captured} | captured


def assert_computes_the_same(variant: Variant, random: Random) -> None:
    values = pairs(random)
    computed = *evaluate(variant, values), *evaluate(variant.normal, by_place(variant, values))
    score, mask, found, shown = np.broadcast_arrays(*computed)
    visible = mask & ~np.isneginf(score)
    np.testing.assert_array_equal(visible, shown & ~np.isneginf(found))
    np.testing.assert_array_equal(score[visible], found[visible])


@given(st.integers(0, 1 << 32))
def test_it_computes_the_same(seed):
    assert_computes_the_same(program(Random(seed)), Random(seed))


@given(st.integers(0, 1 << 32))
def test_masks_of_integers_compute_the_same(seed):
    assert_computes_the_same(integer_program(Random(seed), 5), Random(seed))


EDGES = np.array([0, 1, 2, -1, (1 << 31) - 1, -(1 << 31), 1 << 30], np.int32)


@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "==", "!="])
@pytest.mark.parametrize(
    "left", ["q - k", "k + u", "u - k", "2 * u - 3", "-u", "~w", "u << 3", "u >> 31"]
)
@pytest.mark.parametrize("right", ["w", "q + w", "w - 2", "5", "w * 4 + q"])
def test_parameters_at_the_ends_of_their_type(op, left, right):
    """Such as the window 2^31 - 1, which shows all."""
    names = [name for name in "uw" if name in left + right]
    head = f"({', '.join(f'{name}: i32' for name in names)})" if names else ""
    variant = parse(f"a{head}: s where {left} {op} {right}")
    values = {"q": np.arange(4, dtype=np.int32), "k": np.int32(2), "s": np.float32(0)}
    for u, w in product(EDGES, EDGES):
        here = values | {"u": u, "w": w}
        mask = evaluate(variant, here)[1]
        np.testing.assert_array_equal(mask, evaluate(variant.normal, by_place(variant, here))[1])


def test_the_key_is_the_same_in_every_process():
    text = "alibi(slope: f32[1]): s + slope[h] * (k - q) where k <= q + k_len - q_len"
    assert parse(text).key == pickle.loads(pickle.dumps(parse(text))).key
    code = f"from pyflash.variant import parse; print(parse({text!r}).key)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == parse(text).key
    assert len(parse(text).key) == 16


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("a: s where q >= k - q_len + k_len", "k + k_len <= q + q_len"),
        ("a(w: i32): s where q - k < w", "~(p0 <= q - k)"),
        ("a(d: i32[2]): s where d[b, q] == d[b, k]", "p0[b, k] == p0[b, q]"),
        ("a: s where (5 > q) & ~(q < 3)", "(3 <= q) & (q <= 4)"),
        ("a: s where k % 4 == 3 - q * 2", "k % 4 + q * 2 == 3"),
        ("a: s where (3 - q - k) * 2 == h // 4", "h // 4 + k * 2 + q * 2 == 6"),
    ],
)
def test_how_it_is_written(text, normal):
    assert str(parse(text).normal.mask) == normal
