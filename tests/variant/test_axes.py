"""How often parts are computed, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from support.programs import PARAMS, pairs, programs

from pyflash.variant import parse
from pyflash.variant.axes import Cost, Rate, cost_of, costs, kept, rates
from pyflash.variant.evaluate import node_value
from pyflash.variant.expr import constant, index, load, operation
from pyflash.variant.scalars import ARITY, BOOL, F32, I32


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("a: f32(q_len + b * h)", Rate.UNIFORM),
        ("a(t: f32[1]): t[q + h]", Rate.ROW),
        ("a(t: f32[1], u: i32[1]): t[u[k]]", Rate.COLUMN),
        ("a: f32(q - k)", Rate.PAIR),
        ("a: s", Rate.PAIR),
        ("a: 1.0", Rate.UNIFORM),
    ],
)
def test_rates(text, rate):
    score = parse(text).score
    assert rates(score)[score] is rate


@given(programs)
def test_a_part_changes_with_what_its_rate_has_alone(variant):
    """The others are drawn again, and it is the same."""
    from random import Random

    one, other = pairs(Random(1), 32), pairs(Random(2), 32)
    fixed = {name: value for name, value in one.items() if value.shape != (32,)}
    fixed |= {name: one[name] for name in ("b", "h", "q_len", "k_len", "q0", "k0")}
    reads = {Rate.UNIFORM: "", Rate.ROW: "q", Rate.COLUMN: "k"}
    for node, rate in rates(variant.score, variant.mask).items():
        if rate in reads:
            values = other | fixed | {name: one[name] for name in reads[rate]}
            np.testing.assert_array_equal(node_value(node, values), node_value(node, one))


def test_costs_of_a_score():
    """ALiBi: an addition of the score, and a product of slope and distance."""
    variant = parse("a(t: f32[1]): s + t[h] * f32(k - q)").normal
    found = costs(variant.score)
    assert found[Rate.PAIR] == Cost(4, 0)
    assert found[Rate.UNIFORM] == Cost(3, 0)
    assert found[Rate.ROW] == found[Rate.COLUMN] == Cost()
    assert kept(variant.score) == {Rate.UNIFORM: 1, Rate.ROW: 1, Rate.COLUMN: 1}
    softcap = parse("a(c: f32): c * tanh(s / c)").normal
    assert costs(softcap.score)[Rate.PAIR] == Cost(2, 2)


def test_a_shared_part_costs_once():
    once, twice = parse("a: exp(s)").score, parse("a: exp(s) + exp(s)").score
    difference = costs(twice)[Rate.PAIR].instructions - costs(once)[Rate.PAIR].instructions
    assert difference == 1


@pytest.mark.parametrize("op", ARITY)
def test_every_operation_has_a_cost(op):
    kind = I32 if op in ("//", "%", "<<", ">>") else BOOL if op in "&|^~" else F32
    leaf = {I32: index("q"), F32: index("s"), BOOL: operation("<", index("q"), index("k"))}[kind]
    args = [leaf] * ARITY[op]
    if op == "where":
        args[0] = operation("<", index("q"), index("k"))
    found = cost_of(operation(op, *args))
    assert found.instructions >= 0
    assert found.special in (0, 1, 2)


def test_divisions_by_what_is_known_are_cheaper():
    q, number = index("q"), load(PARAMS["n"])
    divisors = [constant(8), constant(7), number, index("k")]
    found = [cost_of(operation("//", q, divisor)).instructions for divisor in divisors]
    assert found == sorted(set(found))
