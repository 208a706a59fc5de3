"""Text and back; what is refused, with its place and a cure."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.programs import programs

from pyflash.variant import TextError, parse
from pyflash.variant.expr import constant
from pyflash.variant.scalars import rounded
from pyflash.variant.text import float_text


@given(programs)
def test_text_comes_back(variant):
    again = parse(str(variant))
    assert again.same_as(variant)
    assert again == variant
    assert "\n" not in str(variant)


@given(st.floats(width=32, allow_nan=False))
@example(-0.0)
@example(math.inf)
@example(2.0**-149)
@example(16777216.0)
def test_numbers_come_back(value):
    text = float_text(value)
    assert rounded(float(text)) == value
    assert parse(f"a: s + {text}").score.args[1] == constant(value)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
@example(-(1 << 31))
@example(1 << 31)
def test_integers_come_back(value):
    assert parse(f"a: s where q < {value}").mask.args[1] == constant(value)


SAME = [
    ("a: s where k <= q and not q == 3", "a: s where (k <= q) & ~(q == 3)"),
    ("a:s   where(k<=q)", "a: s where k <= q"),
    ("a: q", "a: f32(q)"),
    ("  a( t :f32 [ 2 ] ,) : t [q,k]", "a(t: f32[2]): t[q, k]"),
    ("a: where(k < 3, s, 0.0) where where(k < 3, True, q < 4)",) * 2,
    ("a: +s\n where k < 0x10", "a: s where k < 16"),
    ("a: s * (2 - q) - (3 - k)",) * 2,
    ("a: s where (q ^ k) == ~(-q | 3 & k)", "a: s where q ^ k == ~(-q | 3 & k)"),
    ("a: - - s", "a: --s"),
    ("a: s where i64(3) < 2147483648 * q", "a: s where i64(3) < 2147483648 * q"),
]


@pytest.mark.parametrize(("text", "written"), SAME)
def test_what_is_read_is_written(text, written):
    assert str(parse(text)) == written
    assert parse(written).same_as(parse(text))


# Text, the words of its refusal, and what the caret is below.
REFUSED = [
    ("a: s + x", "x is unknown: declare it as a parameter, such as x: f32", "x"),
    ("a(slope: f32[1]): slop[h]", "did you mean slope?", "slop[h]"),
    ("a: tanhh(s)", "did you mean tanh?", "tanhh(s)"),
    ("a: neg(s)", "neg is no function", "neg(s)"),
    ("a: tanh + s", "tanh is a function", "tanh +"),
    ("a: tanh(s, s)", "2 operands: expected 1", "tanh"),
    ("a: s where k < 3 & q < 5", "expected (a < b) & (b < c)", "k <"),
    ("a: s where (k < 3) & flag(k)", "flag is no function", "flag"),
    ("a: s where q < 5 & (k < 3)", "bind looser", "5 &"),
    ("a: s if k < 3 else 0.0", "expected where(condition, a, b)", "s if"),
    ("a: s ** 2", "x * x", "s **"),
    ("a: s.exp()", "'s.exp()' is no expression", "s.exp"),
    ("a: q in k", "in is no operator", "q in"),
    ("a: s where k is q", "expected ==", "k is"),
    ("a(t: f32[2]): t[q]", "1 indices: expected 2", "t[q]"),
    ("a(t: f32[1]): t[1:2]", "a slice is no index", "1:2"),
    ("a(t: f32[1]): t", "0 indices: expected 1", "t"),
    ("a: q[3]", "q is a number", "q[3]"),
    ("a: s where not q", "not of i32: expected bool", "q"),
    ("a: s where q or k < 3", "or of i32: expected bool", "q or"),
    ("a: s where k // 0 < 1", "by 0", "k //"),
    ("a: s // 2", "floor(a / b)", "s //"),
    ("a: (s", "not closed", ""),
    ("a: s)", "closes nothing", ")"),
    ("a: s +", "not an expression", ""),
    ("a: s k", "not an expression", None),
    ("a:", "nothing here", ""),
    ("a: s where", "nothing here", ""),
    ("a: s where k < 1 where k < 2", "a second where", "where k < 2"),
    ("s + 1", "no colon", ""),
    ("1a: s", "no head of a variant", "1a"),
    ("a b: s", "no head of a variant", "a b"),
    ("a(): s: s", "not an expression", None),
    ("a(x): s + x", "x has no type: expected x: f32", "x)"),
    ("a(x: f8): s + x", "expected bool, i32", "x: f8"),
    ("a(x: f32[9]): s", "at most 4", "x: f32[9]"),
    ("a(x: f32, x: f32): s + x", "declared twice", "x: f32):"),
    ("a(x: f32 = 3): s + x", "has a default or a star", "a("),
    ("a(*x: f32): s", "has a default or a star", "a("),
    ("a(s: f32): s", "reserved", "s: f32"),
    ("a(x: f32): s", "declared and not used", "a("),
    ("a: s # c", "'#' is no part", "#"),
    ("a: s + 'q'", "is no part", "'"),
    ("a: s + é", "is no part", "é"),
    ("a: (lambda: s)()", "expected", None),
    ("a: 1j + s", "no expression of a variant", "1j"),
    ("a: nan", "nan is unknown", "nan"),
    ("a: s + " + "(" * 300 + "s" + ")" * 300, "not an expression", None),
    ("a: s + " + "-" * 3000 + "s", "expected", None),
    ("a: s where s < 3", "the mask reads s", "a:"),
]


@pytest.mark.parametrize(("text", "words", "place"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused_is_said_with_its_place(text, words, place):
    with pytest.raises(TextError) as caught:
        parse(text)
    error = caught.value
    assert words in error.reason
    assert "expected" in error.reason or "declare" in error.reason or "did you mean" in words
    reason, line, caret = str(error).split("\n")
    assert (reason, line.strip()) == (error.reason, text.strip())
    assert caret.index("^") == error.column + 2
    if place is not None:
        assert text[error.column :].startswith(place)
        assert place or error.column == len(text)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@given(st.text(alphabet="skqt0123 +-*/%&|^~<>=()[],.:whereinf", max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        variant = parse(text)
    except TextError:
        return
    assert parse(str(variant)).same_as(variant)


@given(programs, st.data())
def test_a_damaged_text_is_read_or_refused(variant, data):
    text = str(variant)
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.sampled_from(["", "(", ")", " ", "where", "s", "-"]))
    try:
        again = parse(damaged + text[at + 1 :])
    except TextError:
        return
    assert parse(str(again)).same_as(again)
