"""Each planted bug is found, at the site where it is, and nothing is found without it."""

from __future__ import annotations

import functools

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.planted.planting import Bug, expected_of, is_right, switched_on
from support.planted.sm80 import BUGS, CONFIGS, planted_libraries
from support.problems import Packed, Shape, make_inputs, make_packed, make_sinks

from pyflash.emulator import ORDERS
from pyflash.emulator.run import run_library
from pyflash.op.reference import Expected

__all__ = ["planted_libraries"]


def padded(seqlen_q, seqlen_k, heads=1, d_head=64, layout="contiguous", heads_kv=None):
    shape = Shape("", 1, seqlen_q, seqlen_k, heads, layout, heads_kv)
    return make_inputs(shape, torch.float16, d_head)


# Inputs and options. Several blocks of Q and of K, the last of each ragged; one head, so that what
# lies past the end of its rows belongs to nobody, but for groups.
PROBLEMS = {
    "ragged": (padded(141, 109), {}),
    # The first rows attend nothing, and so do the first of a block that others attend.
    "causal": (padded(141, 109), {"causal": True}),
    "window": (padded(141, 173), {"window_left": 40, "window_right": 20}),
    "groups": (padded(33, 70, heads=4, heads_kv=2), {}),
    "narrow_heads": (padded(141, 109, d_head=40, layout="sliced"), {}),
    "packed": (make_packed(Packed("", (70, 33), (41, 65), 1, 1), torch.float16, 64), {}),
    "splits": (padded(141, 173), {"num_splits": 2}),
    "sinks": (padded(70, 109, heads=2), {"sinks": make_sinks(2, torch.float32)}),
    # Rows of a head of K and V are heads of Q, each with a sink.
    "sinks_of_one_query": (
        padded(1, 70, heads=4, heads_kv=2),
        {"sinks": make_sinks(4, torch.float16)},
    ),
    "splits_and_all_features": (
        padded(70, 173, d_head=40),
        {
            "num_splits": 2,
            "window_left": 90,
            "window_right": 20,
            "softcap": 3.0,
            "sinks": make_sinks(1, torch.float32),
        },
    ),
}


def run(library, config, problem, order):
    inputs, options = PROBLEMS[problem]
    return run_library(library, inputs, CONFIGS[config], order=order, seed=1, **options)


@functools.cache
def expected(problem: str) -> Expected:
    return expected_of(*PROBLEMS[problem])


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_found_while_no_bug_is_on(planted_libraries, config, problem, order):
    out, lse, report = run(planted_libraries[config], config, problem, order)
    report.check()
    assert report.completed
    expected(problem).check(out, lse)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_found(planted_libraries, bug: Bug, order):
    for config in bug.configs:
        library = planted_libraries[config]
        with switched_on(BUGS, bug, library):
            out, lse, report = run(library, config, bug.problem, order)
        for finding in bug.found:
            assert finding.is_in(report.findings), f"{finding}:\n" + "\n".join(
                map(str, report.findings)
            )
        if bug.conflicts_at:
            assert report.sites[bug.conflicts_at]["shared_load"].max_degree == 8
        assert is_right(expected(bug.problem), out, lse) == bug.silent
    assert bug.found or bug.conflicts_at or not bug.silent
