"""Each bug planted in the SM90 kernel is found, at the site where it is, under every order of
warps; and nothing is found without it."""

from __future__ import annotations

import functools

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.planted.planting import Bug, expected_of, is_right, switched_on
from support.planted.sm90 import BUGS, CONFIGS, planted_libraries
from support.problems import Packed, Shape, leaping, make_inputs, make_packed

from pyflash.emulator import ORDERS
from pyflash.emulator.run import run_library
from pyflash.op.reference import Expected

__all__ = ["planted_libraries"]

D_HEAD = 128

# Two tiles of one CTA, several blocks of K for each stage, the last of each ragged. One head, so
# that what lies past the end of its rows belongs to nobody.
PROBLEMS = {
    "ragged": (make_inputs(Shape("", 1, 141, 173, 1), torch.float16, D_HEAD), {}),
    "packed": (make_packed(Packed("", (70, 33), (41, 141), 1, 1), torch.float16, D_HEAD), {}),
    "uneven": (
        make_packed(Packed("", (300, 5, 0, 70), (41, 141, 9, 70), 1, 1), torch.float16, D_HEAD),
        {},
    ),
    "uneven_heads": (make_packed(Packed("", (300, 5), (41, 141), 3, 3), torch.float16, D_HEAD), {}),
    "narrow_heads": (make_inputs(Shape("", 1, 141, 109, 1), torch.float16, 72), {}),
    "causal": (make_inputs(Shape("", 1, 300, 300, 1), torch.float16, D_HEAD), {"causal": True}),
    "leaping": (leaping(make_inputs(Shape("", 1, 141, 300, 1), torch.float16, D_HEAD)), {}),
    "window": (
        make_inputs(Shape("", 1, 300, 300, 1), torch.float16, D_HEAD),
        {"window_left": 40, "window_right": 20},
    ),
    "splits": (make_inputs(Shape("", 1, 70, 300, 1), torch.float16, D_HEAD), {"num_splits": 3}),
}


def run(library, config, problem, order):
    inputs, options = PROBLEMS[problem]
    # A CTA takes all tiles, unless those of splits are clusters, which have to run at a time.
    options = {"resident_ctas": 6 if (config, problem) == ("cluster", "splits") else 1} | options
    return run_library(library, inputs, CONFIGS[config], order=order, seed=1, **options)


@functools.cache
def expected(problem: str) -> Expected:
    return expected_of(*PROBLEMS[problem])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_is_found_while_no_bug_is_on(planted_libraries, config, problem, order):
    out, lse, report = run(planted_libraries[config], config, problem, order)
    report.check()
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
        # A bug that nothing points at shows in the result.
        assert bug.found or not is_right(expected(bug.problem), out, lse)
