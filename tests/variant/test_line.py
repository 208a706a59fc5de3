"""Which score functions add a line along the keys, and its slope."""

from __future__ import annotations

import numpy as np
import pytest

from pyflash.variant import parse
from pyflash.variant.cpp import stages_of, struct_of
from pyflash.variant.evaluate import node_value
from pyflash.variant.library import named
from pyflash.variant.line import line_of
from pyflash.variant.stages import ALIGNED, APART

LINES = {
    "a(x: f32): s + x * (k - q)": 2.5,
    "b(x: f32): s - x * (k - q)": 2.5,
    "c(x: f32): s + x * f32(q - k)": -2.5,
    "d(x: f32): s + 0.5 * x * f32(k)": 1.25,
    "e: s + f32(k - q)": 1.0,
    "f(x: f32): s + x * (2 * k - 2 * q + q_len)": 5.0,
    "g(x: f32): s + x * (k - q - k_len + q_len) where k <= q": 2.5,
}
OTHERS = [
    "a: s",
    "b(x: f32): x * (k - q)",
    "c(x: f32): s * 2.0 + x * (k - q)",
    "d(x: f32): x * (k - q) - s",
    "e(x: f32): s + x * abs(k - q)",
    "f(x: f32): s + x * (k - 2 * q)",
    "g(x: f32[1]): s + x[q] * (k - q)",
    "h(x: f32): s + x * f32((k - q) * (k - q))",
    "i(x: f32): s + x * q",
    "j(x: f32[2]): s + x[q, k]",
]


@pytest.mark.parametrize(("text", "slope"), LINES.items())
def test_lines(text, slope):
    stages = stages_of(parse(text))
    line = line_of(stages)
    assert line is not None
    assert line.is_subtracted == ("s - " in text)
    values = {"x": np.float32(2.5), "q_len": np.int32(7), "k_len": np.int32(9)}
    values |= {p.name: values["x"] for p in parse(text).normal.params}
    assert node_value(line.slope, values) == slope
    keys = np.arange(5, dtype=np.int32)
    at = {"k": keys, "apart": keys - 3, "aligned": keys - 5}
    assert {APART.data, ALIGNED.data} < set(at)
    np.testing.assert_array_equal(np.diff(node_value(line.value, values | at)), slope)


@pytest.mark.parametrize("text", OTHERS)
def test_others(text):
    assert line_of(stages_of(parse(text))) is None


def test_alibi_is_one():
    assert "kAddsLine = true" in struct_of(named("alibi").variant)
