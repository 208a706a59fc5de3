"""A postfix program computes what the tree does."""

from __future__ import annotations

import pickle
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.programs import captured, is_exact, pairs, program

from pyflash.variant import parse
from pyflash.variant.bytecode import OPCODES, program_of, run
from pyflash.variant.evaluate import evaluate
from pyflash.variant.expr import MEANINGS
from pyflash.variant.scalars import ARITY

SEEDS = st.integers(0, 1 << 32)


@given(SEEDS)
@example(2468)  # divides by floor(-0.0)
def test_it_computes_what_the_tree_does(seed):
    variant = program(Random(seed))
    values = pairs(Random(seed), 12)
    expected = np.broadcast_arrays(*evaluate(variant, values), values["s"])
    tables = [captured()[param.name].tolist() for param in variant.params]
    programs = [program_of(root, variant.params) for root in (variant.score, variant.mask)]
    for pair in range(12):
        indices = [values[name][pair].item() for name in MEANINGS]
        score, mask = (run(one, indices, tables) for one in programs)
        assert mask == (bool(expected[1][pair]), True)
        assert score[1]
        # exp and the like are rounded from float64 by both.
        close = 0 if is_exact(variant) else 1e-5
        np.testing.assert_allclose(score[0], expected[0][pair], rtol=close, atol=close)


def test_several_shared_parts_are_kept_apart():
    variant = parse("a: exp(s + 1.0) * (s * 2.0) - (s + 1.0) / (s * 2.0)")
    code = program_of(variant.score, ())
    assert code.slots == 2
    indices = [3.0 if name == "s" else 0 for name in MEANINGS]
    assert run(code, indices, ())[0] == pytest.approx(np.exp(4) * 6 - 4 / 6)


@given(SEEDS)
def test_the_stack_and_slots_are_as_deep_as_said(seed):
    variant = program(Random(seed))
    code = program_of(variant.score, variant.params)
    height = most = 0
    for line in str(code).splitlines():
        name = line.split()[0]
        if name == "load":
            height -= next(p for p in code.params if p.name == line.split()[1]).rank or 0
        if "." in name:
            op = name.rpartition(".")[0]
            height -= ARITY[op]
        height += name != "keep"
        most = max(most, height)
    assert (height, most) == (1, code.stack)
    assert code.slots == sum(OPCODES[opcode] == "keep" for opcode, _ in code.code)
    assert pickle.loads(pickle.dumps(code)) == code


def test_shared_parts_are_computed_once():
    variant = parse("a(t: f32[1]): exp(s + t[q]) + tanh(s + t[q]) * 2.0")
    assert str(program_of(variant.score, variant.params)).splitlines() == [
        "constant 2.0", "index s", "index q", "load t", "+.f32", "keep 0", "tanh.f32", "*.f32",
        "recall 0", "exp.f32", "+.f32",
    ]  # fmt: skip


@pytest.mark.parametrize(("k", "expected"), [(3, (5, True)), (-1, (5, True)), (4, (5, False))])
def test_an_index_outside_is_reported(k, expected):
    variant = parse("a(t: i32[1]): f32(t[k])")
    indices = [k if name == "k" else 0 for name in MEANINGS]
    assert run(program_of(variant.score, variant.params), indices, [[2, 3, 4, 5]]) == expected


def test_no_opcode_is_there_twice():
    assert len(set(OPCODES)) == len(OPCODES)
