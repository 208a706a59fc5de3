"""Slices of heads of an SM80 backward, whose sums have the same memory: every head once, within the
bound, each part of the workspace at its place, and no more rounds of CTAs than of all heads."""

from __future__ import annotations

import itertools
import subprocess
from typing import NamedTuple

import pytest
from support.headers import ROOT

from pyflash.codegen.toolchain import emulator_compiler
from pyflash.third_party.cuda import CudaError

MIB, CTAS = 1 << 20, 132
# d_head, B_r, B_c
CONFIGS = [(64, 64, 64), (96, 64, 128), (128, 64, 128), (192, 32, 64), (256, 64, 64)]


class Problem(NamedTuple):
    config: tuple[int, int, int]
    seqlen_q: int
    seqlen_k: int
    batch: int
    heads: int
    heads_kv: int
    packed: bool = False
    deterministic: bool = False
    causal: bool = False


class Slice(NamedTuple):
    first_head: int
    n_heads: int
    bytes_of_sums: int
    bytes_of_workspace: int
    begins_with_its_rows: bool


class Slices(NamedTuple):
    n_blocks: int  # of keys, of a head
    ctas_of_group: int
    bytes_of_all: int  # sums of all heads
    slices: list[Slice]


@pytest.fixture(scope="module")
def slices_of(tmp_path_factory):
    program = tmp_path_factory.mktemp("slices") / "print_backward_slices"
    source = ROOT / "tests/support/print_backward_slices.cpp"
    try:
        compiler = emulator_compiler()
    except CudaError as error:
        pytest.skip(str(error))
    command = ["g++", "-std=c++20", *compiler.includes, source, "-o", program]
    subprocess.run(command, check=True)

    def run(problems):
        lines = "".join(" ".join(str(int(x)) for x in (*p[0], *p[1:])) + "\n" for p in problems)
        done = subprocess.run([program], input=lines, check=True, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            *known, numbers = *map(int, line.split(maxsplit=3)[:3]), line.split()[3:]
            fields = zip(*[map(int, numbers)] * 5, strict=True)
            yield Slices(*known, [Slice(*f[:4], bool(f[4])) for f in fields])

    return run


PROBLEMS = [
    Problem(config, seqlen, seqlen + more, batch, heads, heads // group, *kind)
    for config in CONFIGS
    for seqlen, more in ((1, 0), (200, 300), (1000, 0), (4096, 0), (16384, 128), (131072, -131000))
    for batch, heads, group in ((1, 16, 1), (3, 24, 8), (40, 24, 3), (300, 12, 12))
    for kind in itertools.product((False, True), repeat=3)
    if seqlen * batch * heads < 1 << 25
]


def test_every_head_once_and_each_part_at_its_place(slices_of):
    n_slices = 0
    for problem, found in zip(PROBLEMS, slices_of(PROBLEMS), strict=True):
        n_heads = problem.heads_kv * (1 if problem.packed else problem.batch)
        heads = [range(s.first_head, s.first_head + s.n_heads) for s in found.slices]
        assert list(itertools.chain(*heads)) == list(range(n_heads)), problem
        assert all(s.begins_with_its_rows for s in found.slices), problem
        # Memory for the first one serves each.
        assert max(s.bytes_of_workspace for s in found.slices) == found.slices[0].bytes_of_workspace
        n_slices += len(found.slices) > 1
    assert 100 < n_slices < len(PROBLEMS) - 100


def test_sums_take_64_mb_or_those_of_heads_with_two_tiles_for_each_cta(slices_of):
    """But for groups whose tiles differ in length, which are never sliced."""
    more = 0
    for problem, found in zip(PROBLEMS, slices_of(PROBLEMS), strict=True):
        first = found.slices[0]
        if found.bytes_of_all <= 64 * MIB:
            assert len(found.slices) == 1, problem
        if problem.heads > problem.heads_kv and (problem.packed or problem.causal):
            assert len(found.slices) == 1, problem
        elif first.bytes_of_sums > 64 * MIB and first.n_heads > 1:
            parts = 1 if problem.deterministic else problem.heads // problem.heads_kv
            assert first.n_heads * found.n_blocks * parts <= 2 * CTAS, problem
            more += 1
        padded = -(-problem.seqlen_q // 64) * 64
        if problem.packed:
            padded = (problem.seqlen_q + 64) * problem.batch
        # Beside them: lse and delta, turns, the order of blocks of keys.
        of_row = 8 + (problem.config[0] / 256 if problem.deterministic else 0)
        rows = padded * first.n_heads * problem.heads // problem.heads_kv
        beside = of_row * rows + 4 * (4096 if problem.packed else 0)
        assert first.bytes_of_workspace <= first.bytes_of_sums + beside, problem
    assert more > 0


def test_slices_take_few_more_rounds_of_ctas_than_all_heads_at_a_time(slices_of):
    """CTAs of a slice end before the next one begins. Rounds are weighed by the heads of a CTA."""
    problems = [
        Problem(config, seqlen, seqlen, tokens // seqlen, heads, heads // group, False, *kind)
        for config in CONFIGS
        for seqlen in (512, 1024, 1536, 2048, 4096, 8192, 16384)
        for tokens in (16384, 65536)
        for heads, group in ((16, 1), (16, 4), (16, 8), (32, 2))
        for kind in itertools.product((False, True), repeat=2)
    ]
    costs = []
    for problem, found in zip(problems, slices_of(problems), strict=True):
        group, n_heads = problem.heads // problem.heads_kv, problem.batch * problem.heads_kv

        def rounds(n, group=group, found=found):
            tiles = n * found.n_blocks * found.ctas_of_group
            return -(-tiles // CTAS) * group // found.ctas_of_group

        whole = n_heads * found.n_blocks * found.ctas_of_group / CTAS * group / found.ctas_of_group
        costs.append(sum(rounds(s.n_heads) for s in found.slices) / max(whole, rounds(1)))
    assert sum(costs) / len(costs) < 1.04
    assert sum(cost > 1.1 for cost in costs) < 0.02 * len(costs)
