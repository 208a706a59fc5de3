"""Gradients of what a variant captures by the kernels of both families, on the emulated machine:
named forms and combinations of lengths, heads and shapes beside fp64, and each planted bug is
found."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

pytest.importorskip("ninja", reason="building needs ninja")

import torch
from support.captured import (
    ADDED,
    CURVED,
    GROUPS,
    Problem,
    empty_sums,
    make_problem,
    relative_error,
    values,
)
from support.planted.captured import BUGS, CONFIGS, FEATURES, captured_libraries
from support.planted.planting import EMITTED, Bug, switched_on
from support.variant_gradients import Extents
from torch.utils._python_dispatch import TorchDispatchMode

from pyflash.codegen.emulated import build_emulated
from pyflash.emulator.run import run_backward_library
from pyflash.op.variants import autograd
from pyflash.op.variants.arguments import Captured, captured_of
from pyflash.variant.parser import normal_of
from pyflash.variant.summed import Summed

__all__ = ["captured_libraries"]

# The largest errors, as shares of the norm of a gradient. Sums over many pairs, of either sign, are
# small beside what rounding of out adds by delta.
LIMIT, LIMIT_OF_SUMS = 1e-3, 5e-3
AT = Extents(2, 4, 2, 70, 90)
PACKED = ((33, 0, 41, 20), (50, 12, 64, 7))
AT_PACKED = Extents(4, 4, 2, 41, 64)
# group, part, sizes, lengths, options
PROBLEMS: dict[str, tuple[str, str, Extents, Any, dict[str, Any]]] = {
    **{name: (group, name, AT, None, {}) for group, of in GROUPS.items() for name in of},
    "softcap": ("curved", "temperature", AT, None, {"softcap": 1.0}),
    "packed": ("added", "of_pair", AT_PACKED, PACKED, {}),
    "narrow_heads": ("added", "alibi", Extents(1, 2, 1, 97, 130, 40), None, {}),
    "one_query": ("added", "t5_bias", Extents(1, 2, 1, 1, 97), None, {}),
    "rows_without_keys": ("added", "alibi", Extents(1, 2, 1, 200, 70), None, {}),
    "from_the_end": ("added", "twice", AT, None, {}),
    "one_for_all_queries": ("added", "of_pair", AT, None, {}),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window": {"window_left": 20, "window_right": 5},
}
SHAPES = {
    "head": "of_head",
    "row": "of_row",
    "column": "of_column",
    "pair": "of_pair",
    "distance": "relative_table",
    "row_curved": "gain",
    "head_curved": "temperature",
}
GENERATED = list(itertools.product(OPTIONS, ("padded", "packed"), (1, 2), SHAPES))


def problem_of(name: str) -> Problem:
    group, part, at, lengths, options = PROBLEMS[name]
    own = None
    if name == "from_the_end":
        own = {"place": values("twice", at)["place"][: at.q_len]}  # keys behind are clamped
    if name == "one_for_all_queries":  # axes of one element, which every index is clamped to
        own = {"bias": torch.rand(1, at.heads, 1, at.k_len)}
    return make_problem(group, part, at, torch.half, options, lengths, own)


def errors(libraries, config: str, group: str, problem: Problem, order="ascending", **options):
    """Those of the gradients, as shares of what they may be, and the report."""
    sums = empty_sums(problem)
    *found, report = run_backward_library(
        libraries[group, config], problem.inputs, CONFIGS[config], captured=problem.captured,
        sums=sums, order=order, seed=1, **options,
    )  # fmt: skip
    shares = [relative_error(*pair) / LIMIT for pair in zip(found, problem.exact, strict=True)]
    for place, exact in problem.of_places.items():
        shares.append(relative_error(sums[place], exact) / LIMIT_OF_SUMS)
    return shares, report


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("config", CONFIGS)
def test_gradients_are_those_of_float64(captured_libraries, config, name):
    group, *_, options = PROBLEMS[name]
    problem = problem_of(name)
    # Heads have their sums of dQ in the same memory, one after another.
    found, report = errors(
        captured_libraries, config, group, problem, "random", resident_ctas=1, **options
    )
    report.check()
    assert any(exact.abs().sum() > 0 for exact in problem.of_places.values())
    assert all(error < 1 for error in found), found


@pytest.mark.parametrize(("mask", "lengths", "group_size", "shape"), GENERATED)
@pytest.mark.parametrize("config", ["sm80", "sm90"])
def test_options_lengths_heads_and_shapes_compose(
    captured_libraries, config, mask, lengths, group_size, shape
):
    part, packed = SHAPES[shape], lengths == "packed"
    group = "curved" if part in CURVED else "added"
    assert part in ADDED or part in CURVED
    batch, q_len, k_len = (3, 30, 50) if packed else (2, 45, 50)
    at = Extents(batch, 2, 2 // group_size, q_len, k_len)
    problem = make_problem(
        group, part, at, torch.half, OPTIONS[mask], ((30, 0, 17), (50, 9, 33)) if packed else None
    )
    found, report = errors(captured_libraries, config, group, problem, **OPTIONS[mask])
    report.check()
    assert all(error < 1 for error in found), found


def test_sums_are_added_to_what_is_there(captured_libraries):
    """Kernels begin with no zeros of their own."""
    problem = problem_of("alibi")
    for first in (0.0, 8.0):
        sums = {place: x + first for place, x in empty_sums(problem).items()}
        run_backward_library(
            captured_libraries["added", "sm90"], problem.inputs, CONFIGS["sm90"],
            captured=problem.captured, sums=sums,
        )  # fmt: skip
        for place, exact in problem.of_places.items():
            assert relative_error(sums[place] - first, exact) < LIMIT_OF_SUMS


class Emulated(TorchDispatchMode):
    """Runs the kernels of gradients of `torch.ops.pyflash` on the emulated machine."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.pyflash.bwd_variant_kernels.default:
            with self:
                return autograd._backward_kernels(*args, **(kwargs or {}))
        if function is torch.ops.pyflash.run_variant_backward.default:
            return self._run(*args)
        return function(*args, **(kwargs or {}))

    @staticmethod
    def _run(*args):
        grad_out, out, lse, _, q, k, v, *_, dq, dk, dv = args[:14]
        text, tensors, reals, integers, sums, summed = args[14:]
        variant, config = Summed(normal_of(text), tuple(summed)), CONFIGS["sm90"]
        (library,) = build_emulated([config], variant, [FEATURES[0]]).values()
        *found, report = run_backward_library(
            library, (grad_out, out, lse, q, k, v), config,
            captured=Captured(text, tensors, reals, integers),
            sums=dict(zip(summed, sums, strict=True)),
        )  # fmt: skip
        report.check()
        for one, other in zip((dq, dk, dv), found, strict=True):
            one.copy_(other)


TWO = "two(slope: f32[1], bias: bf16[4], mask: f32[1]): s + slope[h] * (k - q) + bias[b, h, q, k]" \
    " where mask[k] < 2.0"  # fmt: skip


@pytest.mark.parametrize("needed", [("slope", "bias"), ("bias",), ("slope", "bias", "mask")])
def test_autograd_gives_tensors_their_gradients(needed):
    """In their types and shapes, the sums of what is broadcast, the same at every call."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    q, k, v = (random(2, n, h, 64).half() for n, h in ((30, 4), (40, 2), (40, 2)))
    leaves = {"slope": random(4) / 8, "bias": random(1, 4, 1, 40).bfloat16(), "mask": random(40)}
    for name in needed:
        leaves[name].requires_grad_()
    grad_out = random(*q.shape).half()

    def gradients(config: str) -> tuple[torch.Tensor, ...]:
        given = leaves | {"bias": leaves["bias"].expand(2, 4, 30, 40)}
        captured = captured_of(TWO, given)
        packing = (None,) * 4
        out, _ = torch.ops.pyflash.fwd_variant(q, k, v, *captured, *packing, config)
        wanted = [leaves[name] for name in needed]
        return torch.autograd.grad(out, wanted, grad_out, materialize_grads=True)

    expected = gradients("")
    with Emulated():
        for _ in range(2):
            found = gradients(CONFIGS["sm90"].short_form())
            for name, one, other in zip(needed, found, expected, strict=True):
                assert (one.dtype, one.shape) == (leaves[name].dtype, leaves[name].shape)
                assert relative_error(one, other.double()) < 1e-2, name


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_found(captured_libraries, bug: Bug):
    (group,) = bug.configs
    bugs = [b for b in BUGS if group in b.configs or b.edits[0].file != EMITTED]
    group_of_problem, *_, options = PROBLEMS[bug.problem]
    assert group_of_problem == group
    problem = problem_of(bug.problem)
    for config in ("sm80", "sm90"):
        with switched_on(bugs, bug, captured_libraries[group, config]):
            found, report = errors(captured_libraries, config, group, problem, **options)
        assert report.findings or not all(error < 1 for error in found), config
