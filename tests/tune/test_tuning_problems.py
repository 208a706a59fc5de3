"""Problems as text, as JSON, and at random."""

import dataclasses
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pyflash
from pyflash import DType, Problem
from pyflash.tuner.problems import (
    parse_problem,
    problem_from_json,
    problem_text,
    problem_to_json,
    random_problems,
)

OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "causal": st.booleans(),
        "window_left": st.integers(-1, 5000),
        "softcap": st.sampled_from([0.0, 0.5, 30.0]),
        "softmax_scale": st.sampled_from([None, 0.25]),
    },
)
PROBLEMS = st.builds(
    Problem,
    batch=st.integers(0, 64),
    heads_q=st.just(8),
    heads_kv=st.sampled_from([1, 2, 8]),
    seqlen_q=st.integers(1, 9000),
    seqlen_k=st.integers(1, 9000),
    d_head=st.sampled_from([8, 64, 128]),
    dtype=st.sampled_from(DType),
    packed=st.booleans(),
    options=OPTIONS,
)


@given(PROBLEMS, st.booleans())
def test_text_and_json_are_read_back(problem, sinks):
    if sinks:
        options = problem.options | {"sinks": torch.zeros(8)}
        problem = dataclasses.replace(problem, options=options)
    values = problem_to_json(problem)
    assert problem_to_json(problem_from_json(values)) == values
    assert problem_to_json(parse_problem(problem_text(problem))) == values


def test_what_a_text_may_leave_out():
    problem = parse_problem("fp16,heads=4,seqlen_q=10,d_head=64", device="cpu")
    assert (problem.batch, problem.heads_kv, problem.seqlen_k) == (1, 4, 10)
    assert problem.device == "cpu"
    both = parse_problem("bf16,heads=4,seqlen=10,seqlen_k=20,d_head=64")
    assert (both.seqlen_q, both.seqlen_k) == (10, 20)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bf16,heads=4,seqlen=10", "lacks d_head: expected bf16,batch=4"),
        ("bf16,heads=4,seqlen=10,d_head=64,casual", "unknown word 'casual'"),
        ("bf16,heads=four,seqlen=10,d_head=64", "unknown word 'heads=four'"),
        ("bf16,heads=4,seqlen=10,d_head=64,causal=yes", "unknown word 'causal=yes'"),
        ("fp32,heads=4,seqlen=10,d_head=64", "unknown dtype 'FP32'"),
    ],
)
def test_a_text_that_is_no_problem_is_refused(text, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_problem(text)


def test_random_problems_follow_from_the_seed_and_are_what_attention_takes():
    problems = random_problems(60, seed=3, device="cpu")
    names = [problem_text(problem) for problem in problems]
    assert names == [problem_text(problem) for problem in random_problems(60, 3)]
    assert len(set(names)) == 60
    assert names != [problem_text(problem) for problem in random_problems(60, 4)]
    for problem in problems:
        pyflash.select(problem)  # raises where attention would
    kinds = {
        "decoding": lambda p: p.seqlen_q == 1,
        "causal": lambda p: p.options.get("causal"),
        "windowed": lambda p: "window_left" in p.options,
        "packed": lambda p: p.packed,
        "GQA": lambda p: p.heads_kv < p.heads_q,
        "odd": lambda p: p.seqlen_q % 2 and p.seqlen_q > 1,
        "narrow": lambda p: p.d_head not in (64, 128),
        "large batch": lambda p: p.batch > 16,
    }
    for kind, holds in kinds.items():
        assert sum(map(bool, map(holds, problems))) >= 3, kind
