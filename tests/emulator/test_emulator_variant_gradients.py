"""Kernels of gradients with a variant that is many in one, in both families, on the emulated
machine: gradients of named forms and of random programs beside fp64, and each planted bug is found.
Two compilations a family."""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip("ninja", reason="building needs ninja")

import torch
from support.combined_variants import (
    CURVED,
    CURVED_SEEDS,
    PARTS,
    all_values,
    parts_of_gradients,
    values,
    whole_of_gradients,
)
from support.planted.planting import Bug, switched_on
from support.planted.variant_gradients import BUGS, CONFIGS, planted_libraries
from support.random_attention import inputs_of, values_of
from support.variant_gradients import Extents, GradientCall, call_of, errors, make_call

import pyflash
from pyflash.config import parse
from pyflash.emulator.run import run_backward_library
from pyflash.op.variants.arguments import Captured, captured_of

__all__ = ["planted_libraries"]

FROM_REGISTERS = (
    "(FP16, 64, 128, 128, 2): sm90_bwd+stages_3+dQ_by_red+early_dP",
    "(FP16, 192, 64, 64, 2): sm90_bwd+stages_3+dQ_by_red",
    "(FP16, 256, 64, 128, 2): sm90_bwd+stages_2+dQ_by_red",
)
LIMIT = 1e-3  # of an error, as a share of the norm of a gradient
NAMES = [*PARTS, *CURVED]
# part, sizes, options
PROBLEMS: dict[str, tuple[str, Extents, dict[str, Any]]] = {
    **{name: (name, Extents(2, 2, 1, 150, 200), {}) for name in NAMES},
    "heads": ("of_heads", Extents(1, 4, 2, 70, 300), {}),
    "no_groups": ("bias", Extents(1, 2, 2, 65, 130), {}),
    # More than have sums of dQ at a time.
    "many_heads": ("alibi", Extents(3, 2, 1, 70, 150), {}),
    "many_lists": ("documents", Extents(2, 4, 2, 150, 200), {"causal": True}),
    "narrow_heads": ("table", Extents(1, 2, 1, 97, 130, 40), {}),
    "one_query": ("cap", Extents(1, 2, 1, 1, 97), {}),
    "one_key": ("indices", Extents(1, 2, 1, 97, 1), {}),
    "rows_without_keys": ("alibi", Extents(1, 2, 1, 200, 70), {}),
    "cap_of_cap": ("indices", Extents(1, 2, 1, 90, 70), {"softcap": 1.0}),
    "sinks": ("of_row", Extents(1, 2, 1, 70, 90), {"sinks": torch.tensor([1.0, -2.0])}),
    "windows": ("cap", Extents(1, 2, 1, 150, 200), {"window_left": 70, "window_right": 5}),
    "equal_tiles": ("dilated", Extents(1, 2, 1, 70, 400), {}),
    "chunks": ("root", Extents(1, 2, 1, 150, 150), {"attention_chunk": 48}),
    "scale": ("indices", Extents(1, 2, 1, 70, 70), {"softmax_scale": 0.4, "causal": True}),
    "ordered_lists": ("blocks", Extents(1, 4, 2, 150, 300), {"deterministic": True}),
    "ordered": ("documents", Extents(2, 2, 2, 150, 200), {"deterministic": True, "causal": True}),
    # Slices of heads, one after another.
    "many_in_order": ("of_heads", Extents(2, 4, 2, 150, 200), {"deterministic": True}),
    "ragged_queries": ("root", Extents(1, 1, 1, 70, 128), {}),
    # The last query of a block sees the first key of a tile, the last block the last of a tile.
    "last_query": ("of_heads", Extents(1, 1, 1, 128, 200), {}),
    "last_far": ("of_heads", Extents(1, 1, 1, 300, 300), {}),
    "last_key": ("of_heads", Extents(1, 1, 1, 129, 129), {}),
}
PACKED = {
    name: (name, ((70, 33, 0, 129), (150, 40, 7, 64))) for name in ("documents", "alibi", "root")
}


@functools.cache
def problem_of(name: str) -> tuple[GradientCall, Captured, dict[str, Any]]:
    part, at, options = PROBLEMS[name]
    own = values(part, at.batch, at.heads, at.q_len, at.k_len)
    if name.startswith("last"):
        own = {"reach": torch.tensor([1], dtype=torch.int32)}
    variant, chosen = _chosen(part, own)
    given = {n: x for n, x in options.items() if n != "deterministic"}
    return make_call(at, torch.half, captured_of(variant, own), given), chosen, options


def _chosen(part: str, own: dict[str, Any]) -> tuple[Any, Captured]:
    """The part, and what the one that has it captures."""
    which = NAMES.index(part)
    parts = parts_of_gradients()
    return parts[which], captured_of(whole_of_gradients(), all_values(which, own, parts))


@functools.cache
def packed_problem(name: str) -> tuple[GradientCall, Captured]:
    part, lengths = PACKED[name]
    at = Extents(len(lengths[0]), 4, 2, max(lengths[0]), max(lengths[1]))
    own = values(part, at.batch, at.heads, at.q_len, at.k_len)
    variant, chosen = _chosen(part, own)
    return make_call(at, torch.half, captured_of(variant, own), {}, lengths), chosen


def run(libraries, family: str, name: str, order: str = "ascending"):
    """The errors of the gradients, and the report."""
    options: dict[str, Any]
    if name.startswith("packed_"):
        (call, captured), options = packed_problem(name.removeprefix("packed_")), {}
    else:
        call, captured, options = problem_of(name)
    *found, report = run_backward_library(
        libraries[family], call.inputs, CONFIGS[family], captured=captured, order=order, seed=1,
        resident_ctas=1 if name.startswith(("many", "packed")) else 132,
        grad_lse=call.grad_lse, **{n: x for n, x in options.items() if n != "sinks"},
    )  # fmt: skip
    return errors(found, call.exact), report


def is_wrong(libraries, family: str, name: str) -> bool:
    found, report = run(libraries, family, name)
    return bool(report.findings) or not all(error < LIMIT for error in found.values())


@pytest.mark.parametrize("name", [*PROBLEMS, *(f"packed_{name}" for name in PACKED)])
@pytest.mark.parametrize("family", CONFIGS)
def test_gradients_are_those_of_float64(planted_libraries, family, name):
    found, report = run(planted_libraries, family, name, "random")
    report.check()
    assert all(error < LIMIT for error in found.values()), found


@pytest.mark.parametrize("seed", CURVED_SEEDS)
@pytest.mark.parametrize("family", CONFIGS)
def test_gradients_of_random_programs_are_those_of_float64(planted_libraries, family, seed):
    parts = parts_of_gradients()
    which = len(NAMES) + CURVED_SEEDS.index(seed)
    call = call_of(inputs_of(seed), captured_of(parts[which], values_of(parts[which])))
    captured = captured_of(whole_of_gradients(), all_values(which, values_of(parts[which]), parts))
    *found, report = run_backward_library(
        planted_libraries[family], call.inputs, CONFIGS[family], captured=captured,
        grad_lse=call.grad_lse,
    )  # fmt: skip
    report.check()
    assert all(error < LIMIT for error in errors(found, call.exact).values())


@pytest.mark.parametrize("family", CONFIGS)
def test_scores_without_slopes_keep_P_in_place(family):
    """Of those above some have slopes, so that all are computed as if they had."""
    text = "both(slope: f32[1], doc: i32[2]): s + slope[h] * (k - q) where doc[b, q] == doc[b, k]"
    own = values("documents", 2, 2, 150, 200) | {"slope": torch.tensor([0.1, -0.2])}
    captured = captured_of(text, own)
    call = make_call(Extents(2, 2, 1, 150, 200), torch.half, captured, {})
    grad_out, out, lse, *inputs = call.inputs
    *found, report = pyflash.emulate_backward(
        grad_out, out, lse, *inputs, CONFIGS[family], grad_lse=call.grad_lse, variant=text,
        tensors=own,
    )  # fmt: skip
    report.check()
    assert all(error < LIMIT for error in errors(found, call.exact).values())


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_left": 90}], ids=str)
@pytest.mark.parametrize("text", FROM_REGISTERS)
def test_in_one_order_consumers_add_the_blocks_that_senders_take_turns_for(text, options):
    config, own = parse(text), values("documents", 2, 2, 150, 300)
    variant = "docs(doc: i32[2]): s where doc[b, q] == doc[b, k]"
    captured = captured_of(variant, own)
    call = make_call(Extents(2, 2, 1, 150, 300, config.d_head), torch.half, captured, options)
    *found, report = pyflash.emulate_backward(
        *call.inputs, config, grad_lse=call.grad_lse, variant=variant, tensors=own,
        deterministic=True, order="random", **options,
    )  # fmt: skip
    report.check()
    assert all(error < LIMIT for error in errors(found, call.exact).values())


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_found(planted_libraries, bug: Bug):
    for family in bug.configs:
        with switched_on(BUGS, bug, planted_libraries[family]):
            assert is_wrong(planted_libraries, family, bug.problem), family
