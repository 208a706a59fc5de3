"""Each bug planted in the kernels of the SM90 backward is found, at the site where it is, under
every order of warps; and nothing is found without it."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

import torch
from support.emulated_backward import LIMITS, Call, Shape, make_call, wrong
from support.emulated_packed import Packed, PackedCall, make_packed_call, wrong_packed
from support.planted.backward import BUGS, CONFIGS, planted_libraries
from support.planted.planting import Bug, switched_on

from pyflash.emulator import ORDERS
from pyflash.emulator.run import run_backward_library

__all__ = ["planted_libraries"]

# Two tiles of keys, the last of each ragged; several blocks of queries for each stage. One head, so
# that what lies past the end of its rows belongs to nobody.
PROBLEMS = {
    "ragged": Shape(1, 1, 1, 141, 173),
    "many_blocks": Shape(1, 1, 1, 520, 150),
    "narrow_heads": Shape(1, 1, 1, 141, 109, 24),
    "causal": Shape(1, 1, 1, 300, 300, options={"causal": True}),
    "far_below": Shape(1, 1, 1, 141, 173, below=128),
    "cluster": Shape(1, 4, 1, 141, 130, options={"causal": True}),
    "recycled": Shape(4, 2, 1, 141, 173),
    "softcap": Shape(1, 1, 1, 150, 150, options={"causal": True, "softcap": 1.0}),
    "large_scores": Shape(1, 1, 1, 300, 300, options={"causal": True, "softcap": 1.0}),
    "small_scores": Shape(
        1, 1, 1, 300, 300, options={"causal": True, "softcap": 7.0, "softmax_scale": 0.03}
    ),
    "slopes": Shape(
        1, 2, 1, 90, 150, options={"causal": True, "alibi_slopes": torch.tensor([0.2, 0.6])}
    ),
    "deterministic": Shape(1, 1, 1, 300, 300, options={"causal": True}),
    "packed": Packed(1, 1, (70, 59, 64, 12), (130, 40, 7, 129)),
    "rows_of_none": Packed(1, 1, (70, 33), (40, 129), before=5, behind=9),
    "packed_with_nan": Packed(1, 1, (70, 90, 33), (130, 40, 129), nan_sequence=1),
}


@functools.cache
def call_of(config: str, problem: str) -> Call | PackedCall:
    make = make_packed_call if isinstance(PROBLEMS[problem], Packed) else make_call
    return make(CONFIGS[config], PROBLEMS[problem])


def run(library, config, problem, order):
    call, options = call_of(config, problem), PROBLEMS[problem].options
    *gradients, report = run_backward_library(
        library, call.inputs, CONFIGS[config], order=order, seed=1, grad_lse=call.grad_lse,
        deterministic=int(problem == "deterministic"),
        resident_ctas=1 if problem == "recycled" else 132, **options,
    )  # fmt: skip
    if isinstance(call, PackedCall):
        return wrong_packed(call, tuple(gradients), LIMITS[CONFIGS[config].dtype]), report
    return wrong(CONFIGS[config], PROBLEMS[problem], call, tuple(gradients)), report


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_is_found_while_no_bug_is_on(planted_libraries, config, problem, order):
    errors, report = run(planted_libraries[config], config, problem, order)
    report.check()
    assert errors == {}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_found(planted_libraries, bug: Bug, order):
    for config in bug.configs:
        library = planted_libraries[config]
        with switched_on(BUGS, bug, library):
            errors, report = run(library, config, bug.problem, order)
        for finding in bug.found:
            assert finding.is_in(report.findings), f"{finding}:\n" + "\n".join(
                map(str, report.findings)
            )
        # A bug that nothing points at shows in the result.
        assert bug.found or errors
