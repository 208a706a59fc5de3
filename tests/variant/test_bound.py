"""A value for each parameter, or a refusal."""

from __future__ import annotations

import numpy as np
import pytest

from pyflash.variant import bind, parse

TEXT = (
    "a(slope: f32[1], half: f16[0], n: i32, wide: i64, x: f32, flag: bool): "
    "s * x + slope[h] + half where flag & (q // n < wide)"
)
GOOD = {
    "slope": np.zeros(3, np.float32), "half": np.float16(1), "n": 3, "wide": 1 << 40, "x": 0.5,
    "flag": True,
}  # fmt: skip


def test_values_of_the_types_are_bound():
    variant = parse(TEXT)
    bound = bind(variant, **GOOD)
    assert bound.variant is variant
    assert bound.values == GOOD
    assert bind(variant, **GOOD | {"x": 1}).values["x"] == 1


def test_a_tensor_of_torch_is_bound():
    torch = pytest.importorskip("torch")
    variant = parse("a(t: bf16[2]): s + t[q, k]")
    table = torch.zeros(2, 2, dtype=torch.bfloat16)
    assert bind(variant, t=table).values["t"] is table
    with pytest.raises(ValueError, match="t is float32: expected bf16"):
        bind(variant, t=table.float())


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("slope", [0.5], "slope is list: expected a tensor"),
        ("slope", np.zeros((3, 1), np.float32), "slope has 2 axes: expected 1"),
        ("slope", np.zeros(3), "slope is float64: expected f32"),
        ("half", np.zeros(1, np.float16), "half has 1 axes: expected 0"),
        ("n", 1 << 31, "n is 2147483648: expected a number, i32"),
        ("n", 1.0, "n is 1.0: expected a number, i32"),
        ("n", True, "n is True: expected a number, i32"),
        ("n", 0, "n is 0 in 'q // n': expected a divisor"),
        ("wide", 1 << 63, "expected a number, i64"),
        ("x", True, "x is True: expected a number, f32"),
        ("x", "1", "x is '1': expected a number, f32"),
        ("flag", 1, "flag is 1: expected a number, bool"),
        (
            "other",
            1,
            "other is no parameter of a: expected values of slope, half, n, wide, x, flag",
        ),
    ],
)
def test_other_values_are_refused(name, value, words):
    with pytest.raises(ValueError, match=words):
        bind(parse(TEXT), **GOOD | {name: value})


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_value_is_refused(name):
    values = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(ValueError, match=f"{name} of a has no value"):
        bind(parse(TEXT), **values)
