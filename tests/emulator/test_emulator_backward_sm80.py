"""The SM80 backward on the emulated machine: gradients of a matrix of problems beside fp64, padded
and packed, with NaN in all that must not be read; and each planted bug is found.

One library of each config serves all of it: that of the bugs, of which none is on.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

import torch
from support.emulated_backward import LIMITS, Call, Shape, make_call, wrong
from support.emulated_packed import Packed, PackedCall, make_packed_call, wrong_packed
from support.emulated_random import draw
from support.planted.backward_sm80 import BUGS, CONFIGS, planted_libraries
from support.planted.planting import Bug, switched_on

from pyflash.emulator import ORDERS
from pyflash.emulator.run import run_backward_library

__all__ = ["planted_libraries"]

MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_left": 40, "window_right": 5},
    "left": {"window_left": 60},
    "right": {"window_right": 20},
    "chunks": {"attention_chunk": 48},
}
SCORES: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"softcap": 1.5},
    "slopes": {"alibi_slopes": torch.tensor([0.1, 0.5])},
}
# batch, heads_kv of two heads, seqlen_q, seqlen_k, columns less than the config's
SIZES = [
    (1, 2, 64, 64, 0),
    (1, 1, 97, 130, 8),
    (1, 2, 150, 70, 0),  # rows without keys
    (2, 1, 1, 97, 24),
    (1, 1, 130, 1, 32),
    (1, 1, 65, 200, 16),
]
LENGTHS = [
    ((70, 1, 33), (50, 40, 33)),
    ((0, 60, 0, 37), (30, 0, 0, 37)),
    ((65, 1, 63), (33, 65, 1)),
]
PROBLEMS = {
    "ragged": Shape(1, 1, 1, 141, 173),
    "narrow_heads": Shape(1, 1, 1, 141, 109, 24),
    "causal": Shape(1, 1, 1, 200, 200, options={"causal": True}),
    "left_window": Shape(1, 1, 1, 200, 200, options={"window_left": 50}),
    "far_below": Shape(1, 1, 1, 141, 173, below=128),
    "softcap": Shape(1, 1, 1, 150, 150, options={"causal": True, "softcap": 1.0}),
    "slopes": Shape(
        1, 2, 1, 90, 150, options={"causal": True, "alibi_slopes": torch.tensor([0.2, 0.6])}
    ),
    "deterministic": Shape(1, 1, 1, 200, 200, options={"causal": True}),
    "groups": Shape(1, 4, 2, 90, 150, options={"causal": True}),
    "slices": Shape(2, 4, 2, 90, 150, options={"causal": True}),
}


def resident_ctas_of(problem: str) -> int:
    """Few where there are to be slices."""
    return 3 if problem == "slices" else 132


@functools.cache
def call_of(config: str, problem: Shape | Packed) -> Call | PackedCall:
    make = make_packed_call if isinstance(problem, Packed) else make_call
    return make(CONFIGS[config], problem)


def run(
    libraries,
    config: str,
    problem: Shape | Packed,
    order: str,
    deterministic: bool = False,
    resident_ctas: int = 132,
):
    """The gradients, their errors and the report."""
    call = call_of(config, problem)
    *gradients, report = run_backward_library(
        libraries[config], call.inputs, CONFIGS[config], order=order, seed=1,
        grad_lse=call.grad_lse, deterministic=int(deterministic), resident_ctas=resident_ctas,
        **problem.options,
    )  # fmt: skip
    if isinstance(call, PackedCall):
        errors = wrong_packed(call, tuple(gradients), LIMITS[CONFIGS[config].dtype])
    else:
        errors = wrong(CONFIGS[config], problem, call, tuple(gradients))
    return gradients, errors, report


CASES = [*itertools.product(MASKS, SCORES)]


@pytest.mark.parametrize(("mask", "scores"), CASES, ids=map("-".join, CASES))
@pytest.mark.parametrize("config", CONFIGS)
def test_gradients(planted_libraries, config, mask, scores):
    at = CASES.index((mask, scores)) + 7 * list(CONFIGS).index(config)
    batch, heads_kv, seqlen_q, seqlen_k, narrower = SIZES[at % len(SIZES)]
    options = MASKS[mask] | SCORES[scores]
    shape = Shape(batch, 2, heads_kv, seqlen_q, seqlen_k, narrower, options)
    order = ORDERS[at % len(ORDERS)]
    _, errors, report = run(planted_libraries, config, shape, order, bool(at % 2))
    report.check()
    assert report.completed
    # What has no gradient has no relative error of one.
    call = call_of(config, shape)
    zeros = {n for n, x in zip(("dq", "dk", "dv"), call.exact, strict=True) if not x.any()}
    assert errors.keys() <= zeros


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("config", CONFIGS)
def test_gradients_of_packed_sequences(planted_libraries, config, mask, lengths):
    at = list(MASKS).index(mask) + LENGTHS.index(lengths)
    options = MASKS[mask] | list(SCORES.values())[at % len(SCORES)]
    rows_of_none = {"before": 3 * (at % 2), "behind": 5 * (at % 3)}
    narrower = 8 * (at % 3)
    packed = Packed(2, 1 + at % 2, *lengths, narrower_by=narrower, options=options, **rows_of_none)
    order = ORDERS[at % len(ORDERS)]
    _, errors, report = run(planted_libraries, config, packed, order, deterministic=bool(at % 2))
    report.check()
    assert report.completed
    assert errors == {}


CAUSAL = Shape(1, 12, 1, 70, 130, options={"causal": True})
# The tiles of a problem with a group of 12 heads, CTAs that run at a time, whether dQ is summed in
# one order, and the heads of a CTA.
HEADS_OF_A_CTA = {
    "no mask, many tiles": (Shape(1, 12, 1, 70, 130), 3, 1, False, 12),
    "no mask, few tiles": (Shape(1, 12, 1, 70, 130), 3, 4, False, 4),
    "a mask": (CAUSAL, 3, 1, False, 2),
    "a left window": (Shape(1, 12, 1, 70, 130, options={"window_left": 30}), 3, 1, False, 2),
    "packed": (Packed(12, 1, (70, 20), (60, 70)), 4, 1, False, 2),
    "a mask, few tiles": (CAUSAL, 3, 132, False, 1),
    "in order": (CAUSAL, 3, 132, True, 12),
}


@pytest.mark.parametrize("case", HEADS_OF_A_CTA)
def test_ctas_divide_the_heads_of_a_group(planted_libraries, case):
    problem, tiles, resident_ctas, in_order, n_heads = HEADS_OF_A_CTA[case]
    _, errors, report = run(
        planted_libraries, "two_tiles", problem, ORDERS[1], in_order, resident_ctas
    )
    report.check()
    assert errors == {}
    assert report.n_ctas == tiles * 12 // n_heads


# With CTAs that run at a time, slices of heads: whether dQ is summed in one order, and the heads of
# K and V of the first slice, of 64 keys a tile. Where that number would be even, slices are halves,
# of which two run side by side.
SLICES = {
    "across sequences": (Shape(2, 3, 3, 97, 130), 3, False, 1),
    "of three heads": (Shape(2, 4, 4, 97, 130), 5, False, 3),
    "fewer heads in the last": (Shape(1, 5, 5, 70, 130, 8, {"causal": True}), 6, False, 2),
    "groups": (Shape(2, 6, 3, 70, 130), 6, False, 2),
    "divided groups": (Shape(1, 12, 6, 70, 130, options={"causal": True}), 6, False, 2),
    "in order": (Shape(2, 6, 3, 97, 130, options={"causal": True}), 3, True, 1),
    "of three heads, in order": (Shape(2, 8, 4, 97, 130), 5, True, 3),
    "softcap": (Shape(3, 1, 1, 97, 130, options={"softcap": 1.5}), 1, False, 1),
    "slopes": (
        Shape(2, 2, 2, 97, 130, options={"alibi_slopes": torch.tensor([[0.1, 0.5], [0.2, 0.9]])}),
        1, False, 1,
    ),
    "packed": (Packed(4, 4, (70, 20), (60, 70)), 4, False, 1),
    "packed groups": (
        Packed(6, 3, (70, 1, 33), (50, 40, 33), options={"causal": True}), 5, True, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SLICES)
def test_slices_of_heads_have_their_sums_in_the_same_memory(planted_libraries, case):
    problem, resident_ctas, in_order, n_heads = SLICES[case]
    one, others = (
        run(planted_libraries, "two_tiles", problem, ORDERS[2], in_order, resident)
        for resident in (resident_ctas, 1000)
    )
    for _, errors, report in (one, others):
        report.check()
        assert report.completed
        assert errors == {}
    # The report is that of the first slice.
    of_slice, of_all = one[2].n_ctas, others[2].n_ctas
    group = problem.heads // problem.heads_kv
    all_heads = problem.heads_kv * (1 if isinstance(problem, Packed) else problem.batch)
    divided = 1 if in_order else group  # by all CTAs that there are
    assert of_all % (divided * all_heads) == 0
    assert of_slice in (of_all // divided // all_heads * n_heads * n for n in range(1, group + 1))
    assert n_heads < all_heads
    if in_order:
        assert all(torch.equal(a, b) for a, b in zip(one[0], others[0], strict=True))


@pytest.mark.parametrize("nan_sequence", range(3))
@pytest.mark.parametrize("config", CONFIGS)
def test_a_neighbour_of_nan_changes_nothing(planted_libraries, config, nan_sequence):
    options = {"causal": nan_sequence == 1}
    packed = Packed(2, 1, (70, 40, 33), (50, 70, 33), 0, options, nan_sequence=nan_sequence)
    _, errors, report = run(planted_libraries, config, packed, ORDERS[0])
    report.check()
    assert errors == {}


@pytest.mark.parametrize("config", CONFIGS)
def test_deterministic_gradients_have_the_same_bits(planted_libraries, config):
    runs = [run(planted_libraries, config, PROBLEMS["ragged"], o, True)[0] for o in ORDERS]
    for gradients in runs[1:]:
        for a, b in zip(gradients, runs[0], strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_is_found_while_no_bug_is_on(planted_libraries, config, problem):
    order = ORDERS[list(PROBLEMS).index(problem) % len(ORDERS)]
    shape, in_turn = PROBLEMS[problem], problem == "deterministic"
    _, errors, report = run(
        planted_libraries, config, shape, order, in_turn, resident_ctas_of(problem)
    )
    report.check()
    assert errors == {}


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_found(planted_libraries, bug: Bug):
    for config, order in zip(bug.configs, ORDERS, strict=False):
        with switched_on(BUGS, bug, planted_libraries[config]):
            _, errors, report = run(
                planted_libraries, config, PROBLEMS[bug.problem], order,
                deterministic=bug.problem == "deterministic",
                resident_ctas=resident_ctas_of(bug.problem),
            )  # fmt: skip
        for finding in bug.found:
            assert finding.is_in(report.findings), f"{finding}:\n" + "\n".join(
                map(str, report.findings)
            )
        # A bug that nothing points at shows in the result.
        assert bug.found or errors


@pytest.mark.parametrize("seed", range(100, 124))
def test_random_problems(planted_libraries, seed):
    config = list(CONFIGS)[seed % len(CONFIGS)]
    key, drawn = CONFIGS[config], draw(seed)
    call = drawn.make_call(key)
    *gradients, report = run_backward_library(
        planted_libraries[config], call.inputs, key, grad_lse=call.grad_lse, **drawn.options
    )
    report.check()
    assert report.completed
    assert drawn.wrong(key, call, tuple(gradients)) == {}
