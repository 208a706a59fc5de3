"""Slices of problems with splits at fixed keys: every head of every sequence once, at its place."""

import itertools
import subprocess

import pytest
from support.headers import ROOT, includes


@pytest.fixture(scope="module")
def slices_of(tmp_path_factory):
    program = tmp_path_factory.mktemp("slices") / "print_slices"
    source = ROOT / "tests/support/print_slices.cpp"
    subprocess.run(["g++", "-std=c++20", *includes(), source, "-o", program], check=True)

    def run(problems):
        text = "".join(" ".join(map(str, problem)) + "\n" for problem in problems)
        done = subprocess.run([program], input=text, check=True, capture_output=True, text=True)
        return [
            [tuple(map(int, line.split())) for line in one.splitlines()]
            for one in done.stdout.split("\n\n")[: len(problems)]
        ]

    return run


HEADS, ROWS, SPLITS, D_HEAD = 4, 6, 3, 16
OF_HEAD = 4 * ROWS * SPLITS * (D_HEAD + 1)  # bytes of parts


def test_every_head_of_every_sequence_once(slices_of):
    limits = (1, OF_HEAD, 3 * OF_HEAD, 9 * OF_HEAD, 10**9)
    kinds = itertools.product(limits, (0, 1), (0, 1), (1, 5), (1, 2, 4))
    problems = [
        (limit, 1, packed, paged, batch, HEADS, heads_kv, ROWS, SPLITS, D_HEAD)
        for limit, packed, paged, batch, heads_kv in kinds
    ]
    for problem, slices in zip(problems, slices_of(problems), strict=True):
        limit, _, packed, paged, batch, _, heads_kv, *_ = problem
        group, seen = HEADS // heads_kv, []
        for n_sequences, heads, n_heads, n_rows, q, o, k, v, lse, sink, slope, *pages in slices:
            assert heads == n_heads * group
            rows = ROWS * heads * (1 if packed else n_sequences)
            assert n_rows == rows
            # As little as there may be, or within the limit; its lse is one piece.
            least = heads == group and (packed or n_sequences == 1)
            assert least or 4 * rows * SPLITS * (D_HEAD + 1) <= limit
            assert packed or n_sequences == 1 or heads == HEADS
            first = sink
            b = 0 if packed else (lse - first * ROWS) // (HEADS * ROWS)
            head_kv = first // group
            assert lse == (b * HEADS + first) * ROWS
            assert q == 7001 * b + 101 * first
            assert o == 5003 * b + 53 * first
            assert k == (0 if paged else 9007 * b) + 211 * head_kv
            assert v == (0 if paged else 8009 * b) + 307 * head_kv
            assert slope == 19 * b + 2 * first
            assert pages == ([17 * b, b] if paged else [])
            seen += itertools.product(range(b, b + n_sequences), range(first, first + heads))
        assert sorted(seen) == list(itertools.product(range(batch), range(HEADS))), problem


def test_other_problems_are_one(slices_of):
    """With splits as lengths ask for, and where one split leaves no parts."""
    problems = [(1, 0, 0, 0, 5, 4, 2, 6, 3, 16), (1, 1, 0, 0, 5, 4, 2, 6, 1, 16)]
    assert [len(slices) for slices in slices_of(problems)] == [1, 1]
