"""What the measurements of variants count, and that their values fit their variants."""

from __future__ import annotations

import pytest
from support import timed_variants
from support.flex_speed import Cell, cells, means
from support.timed_variants import NAMED, TEXTS, apart, given_of, ours, problem_of, walked_scores

from pyflash.bench.measure import rotated_inputs


def test_documents_are_those_of_the_docstring(monkeypatch):
    monkeypatch.setattr(timed_variants, "SMALLER", 1)
    lengths = timed_variants.lengths_of_documents(65536, 910)
    assert (len(lengths), sum(lengths)) == (108, 65536)
    assert round(sum(n * n for n in lengths) / 65536) == 1474


@pytest.mark.parametrize("tile", [(192, 64), (128, 128), (32, 16)])
def test_walked_scores_are_those_of_blocks_with_a_pair(tile):
    B_r, B_c = tile
    lengths = [1, 200, 63, 64, 500, 7, 7, 300]
    doc = timed_variants.documents_of(lengths)
    shown = doc[:, None] == doc
    blocks = sum(
        shown[first : first + B_r, key : key + B_c].any().item()
        for first in range(0, len(doc), B_r)
        for key in range(0, len(doc), B_c)
    )
    assert walked_scores(lengths, B_r, B_c) == blocks * B_r * B_c


@pytest.mark.parametrize("name", [*NAMED, *TEXTS])
def test_values_fit_their_variant(name):
    problem = problem_of(64, 64, 128)
    given = given_of(name, problem)
    inputs = rotated_inputs(problem, timed_variants.DEVICE)[0]
    expected = given.expect(*inputs)
    assert apart(ours(given)(*inputs), expected.out) < 1e-2


def test_means_are_of_all_and_of_each(monkeypatch):
    monkeypatch.setenv("FLEX_VARIANTS", "alibi,bools")
    assert [cell.name for cell in cells(64)] == ["alibi", "bools"] * 2
    found = {Cell("alibi", 128, 64): 1.0, Cell("bools", 128, 64): 4.0}
    lines = list(means(found))
    assert lines[-1].startswith("all: geometric mean 2.000 (bar 2), least 1.000, 1 of 2 at 1.6")
    assert lines[-2].startswith("named variants: geometric mean 1.000")
