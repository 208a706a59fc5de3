"""The order of the tiles of an SM90 backward: each once, and sections that have enough of them."""

from __future__ import annotations

import itertools
import subprocess

import pytest
from support.headers import ROOT

from pyflash.codegen.toolchain import emulator_compiler
from pyflash.third_party.cuda import CudaError

D_HEAD, B_C, CTAS = 128, 128, 132
L2 = 36 << 20


@pytest.fixture(scope="module")
def orders_of(tmp_path_factory):
    """Gives for each problem the heads of a section, those that have sums of dQ at a time, and the
    tiles in the order of their starts."""
    program = tmp_path_factory.mktemp("order") / "print_backward_order"
    source = ROOT / "tests/support/print_backward_order.cpp"
    try:
        compiler = emulator_compiler()
    except CudaError as error:
        pytest.skip(str(error))
    command = ["g++", "-std=c++20", *compiler.includes, source, "-o", program]
    subprocess.run(command, check=True)

    def run(problems, recycles=False, in_order=False, causal=False, packed=False, d_head=D_HEAD):
        flags = [int(x) for x in (recycles, in_order, causal, packed)]
        lines = "".join(
            " ".join(map(str, (d_head, B_C, *p, CTAS, *flags))) + "\n" for p in problems
        )
        done = subprocess.run([program], input=lines, check=True, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            section, n_sums, *numbers = map(int, line.split())
            yield section, n_sums, list(zip(numbers[::2], numbers[1::2], strict=True))

    return run


def sections_of(seqlen: int, group: int, batch: int = 4, heads_kv: int = 8):
    return (seqlen, seqlen, batch, heads_kv * group, heads_kv)


def test_every_tile_starts_once_and_the_longest_of_a_section_first(orders_of):
    problems = [
        sections_of(seqlen, group, batch, heads_kv)
        for seqlen in (1, 128, 1000, 4096, 16384)
        for group in (1, 2, 4, 8, 32)
        for batch, heads_kv in ((1, 1), (1, 2), (4, 3))
    ]
    for problem, (_, _, tiles) in zip(problems, orders_of(problems), strict=True):
        seqlen, _, batch, _, heads_kv = problem
        n_blocks, n_heads = -(-seqlen // B_C), batch * heads_kv
        assert sorted(tiles) == list(itertools.product(range(n_blocks), range(n_heads))), problem
        for head in range(n_heads):
            blocks = [n_block for n_block, of_head in tiles if of_head == head]
            assert blocks == list(range(n_blocks)), problem


def test_a_section_has_the_heads_whose_queries_fit_l2_of_two_heads_of_a_group(orders_of):
    """Those of Q, dO and the sums of dQ."""
    groups = (1, 2, 4, 8, 32)
    problems = [sections_of(4096, group) for group in groups]
    sections = {g: section for g, (section, *_) in zip(groups, orders_of(problems), strict=True)}
    bytes_of_head = 4096 * D_HEAD * (2 + 2 + 4)
    assert sections == {g: L2 // (bytes_of_head * min(g, 2)) for g in groups}
    assert sections == {1: 9, 2: 4, 4: 4, 8: 4, 32: 4}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d_head", [64, 128, 192])
def test_in_one_order_a_section_of_long_sequences_has_twice_as_many_heads(
    orders_of, d_head, causal, packed
):
    """But where tiles of a mask go from the last keys to the first."""
    seqlens = (1024, 2048, 4096, 8192)
    problems = [sections_of(seqlen, 1, batch=1, heads_kv=64) for seqlen in seqlens]
    found = orders_of(problems, False, True, causal, packed, d_head)
    abreast = d_head == 128 or not causal
    for seqlen, (section, *_) in zip(seqlens, found, strict=True):
        rows = seqlen // 2 if abreast and seqlen >= 4096 else seqlen
        expected = min(L2 // (rows * d_head * (2 + 2 + 4)), 64)
        assert section == expected, seqlen


@pytest.mark.parametrize("in_order", [False, True])
def test_sections_of_packed_sequences_go_by_the_longest(orders_of, in_order):
    several = [sections_of(2048, 1, batch=8, heads_kv=64)]
    ((section, *_),) = orders_of(several, in_order=in_order, packed=True)
    assert section == L2 // (2048 * D_HEAD * (2 + 2 + 4))


def test_a_head_whose_sums_were_others_starts_after_those(orders_of):
    """And after those that clear them, half as many heads before: a CTA waits for CTAs that start
    before it alone."""
    problems = [
        sections_of(seqlen, group, batch, heads_kv)
        for seqlen in (1, 128, 300, 1000, 4096, 16384)
        for group in (1, 2, 8)
        for batch, heads_kv in ((1, 1), (1, 16), (3, 7), (16, 16), (37, 5), (300, 16))
        if seqlen * batch * heads_kv <= 1 << 21
    ]
    recycling = 0
    for problem, (_, n_sums, tiles) in zip(problems, orders_of(problems, True), strict=True):
        n_heads = problem[2] * problem[4]
        assert n_sums == n_heads or n_sums % 2 == 0 < n_sums < n_heads, problem
        starts = {}
        for index, (_, head) in enumerate(tiles):
            starts.setdefault(head, []).append(index)
        for before in (n_sums, n_sums // 2):
            if n_sums < n_heads:
                for head in range(before, n_heads):
                    assert max(starts[head - before]) < min(starts[head]), (problem, head)
        recycling += n_sums < n_heads
    assert recycling > 20
