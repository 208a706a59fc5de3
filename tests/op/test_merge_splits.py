"""The kernel that merges splits of keys, its code run on the CPU by a thread for each of a CTA's:
results, and which of their bits depend on what."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.host_kernels import planted_program, printed
from torch import Tensor

# Errors of the kernel for splits at fixed keys: a place in it, and what stands there instead.
ERRORS = {
    "folded from the first on": ("return params.num_splits - 1 - place;",
                                 "return PLANTED(1) ? place : params.num_splits - 1 - place;"),
    "another row's lse": ("? lse[row][split] :", "? lse[PLANTED(2) ? 0 : row][split] :"),
    "parts behind the first eight are left out": (
        "first = 0; first < params.num_splits;",
        "first = 0; first < (PLANTED(3) ? 1 : params.num_splits);"
    ),
    "the sink is left out": (
        "fold.finish(load_sink", "fold.finish(PLANTED(4) ? -INFINITY : load_sink"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def kernel(tmp_path_factory) -> Path:
    """A program; the number of an error is in its environment."""
    folder = tmp_path_factory.mktemp("merge")
    return planted_program(folder, "merge_splits.cu", "merge_splits.cpp", ERRORS.values())


def merged(
    program: Path, problems: list[tuple[bool, Tensor, Tensor, Tensor | None]], error: int = 0
):
    """O and lse of problems: whether splits are at fixed keys, lse of each split, (num_splits,
    batch, heads, seqlen), O of each, as lse with d_head, and sinks, (heads,)."""
    lines = []
    for is_fixed, lse, o, sinks in problems:
        numbers = [*lse.flatten().tolist(), *o.flatten().tolist()]
        numbers += [] if sinks is None else sinks.tolist()
        sizes = [int(is_fixed), *o.shape, int(sinks is not None)]
        lines.append(" ".join(map(repr, sizes + numbers)))
    results = []
    for line, (_, lse, o, _) in zip(printed(program, lines, error), problems, strict=True):
        bits = np.array(line.split(), dtype=np.uint32)
        n = o[0].numel()
        out = torch.from_numpy(bits[:n].astype(np.uint16)).view(torch.bfloat16)
        batch, heads, rows, d_head = o.shape[1:]
        out = out.view(batch, rows, heads, d_head).transpose(1, 2)
        results.append((out, torch.from_numpy(bits[n:].view(np.float32)).view(lse.shape[1:])))
    return results


def parts(num_splits: int, d_head: int, seed: int, rows: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lse = 3 * torch.randn(num_splits, 2, 3, rows, generator=generator)
    return lse, torch.randn(*lse.shape, d_head, generator=generator)


def same(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> bool:
    return torch.equal(a[0].view(torch.int16), b[0].view(torch.int16)) and torch.equal(
        a[1].view(torch.int32), b[1].view(torch.int32)
    )


@pytest.mark.parametrize("is_fixed", [False, True])
def test_results(kernel, is_fixed):
    problems = []
    for seed, (n, d_head) in enumerate([(2, 64), (33, 128), (9, 256), (128, 72)]):
        lse, o = parts(n, d_head, seed)
        # Rows that few splits attend, and none.
        lse[: n - 1, 0], lse[:, 1, 0], o[:, 1, 0] = -math.inf, -math.inf, 0
        o[: n - 1, 0] = 0
        sinks = torch.tensor([-1.0, 2.0, -math.inf]) if seed % 2 else None
        problems.append((is_fixed, lse, o, sinks))
    for (_, lse, o, sinks), found in zip(problems, merged(kernel, problems), strict=True):
        every = lse.double()
        if sinks is not None:
            every = torch.cat([every, sinks.double()[None, None, :, None].expand_as(every[:1])])
        expected_lse = every.logsumexp(0)
        weights = (lse.double() - expected_lse).exp()
        weights = weights.masked_fill(lse == -math.inf, 0)[..., None]
        torch.testing.assert_close(found[1].double(), expected_lse, rtol=1e-5, atol=1e-5)
        expected = (weights * o.double()).sum(0)
        torch.testing.assert_close(found[0].double(), expected, rtol=1e-2, atol=1e-2)


def broken(program: Path, error: int = 0) -> set[str]:
    """What bits of splits at fixed keys depend on and must not."""
    found = set()
    d_head = 64
    lse, o = parts(7, d_head, seed=d_head)
    # Equal weights: the sums are what rounding leaves.
    lse[:, 1], o[5, 1] = 0.5, 0
    o[6, 1] = -o[:6, 1].sum(0)
    lse[2, 0], lse[5] = -math.inf, -math.inf
    # More splits, of which nobody wrote O.
    many = torch.full((70, *lse.shape[1:]), -math.inf)
    many_o = torch.full((*many.shape, d_head), math.nan)
    many[:7], many_o[:7] = lse, o
    many_o[many == -math.inf] = math.nan
    # One that attends, of any bits.
    alone, alone_o = many.clone(), many_o.clone()
    alone[:], alone[3] = -math.inf, lse[3]
    alone_o[3, ..., ::2], alone_o[3, ..., 1] = -0.0, 1e-40
    nothing = torch.full_like(many, -math.inf)
    sinks = torch.tensor([0.5, 0.5, 0.5])  # as if one more split of that weight had no value
    few, more, one, none, with_sinks = merged(
        program,
        [
            (True, lse, o, None),
            (True, many, many_o, None),
            (True, alone, alone_o, None),
            (True, nothing, torch.full_like(many_o, math.nan), None),
            (True, lse, o, sinks),
        ],
        error,
    )
    if not same(few, more):
        found.add("the number of splits")
    # Splits of equal weights are added from the last to the first.
    of_equal = functools.reduce(torch.add, o.flip(0)[:, 1])
    for n, (found_o, found_lse) in ((6, few), (7, with_sinks)):
        of_n = (of_equal * (torch.ones(()) / n)).bfloat16()
        in_order = torch.equal(found_o[1].view(torch.int16), of_n.view(torch.int16))
        expected_lse = torch.full_like(found_lse[1], 0.5 + math.log(n))
        if not in_order or not torch.allclose(found_lse[1], expected_lse):
            found.add("what is folded, or its order")
    if not same(one, (alone_o[3].bfloat16(), lse[3])):
        found.add("splits beside one that attends")
    zero = torch.zeros_like(none[0])
    if not same(none, (zero, torch.full_like(none[1], -math.inf))):
        found.add("rows without keys")
    return found


def test_bits_of_splits_at_fixed_keys(kernel):
    assert broken(kernel) == set()


@pytest.mark.parametrize("number", range(1, len(ERRORS) + 1))
def test_a_planted_error_shows(kernel, number):
    assert broken(kernel, number)
