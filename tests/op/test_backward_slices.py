"""Slices of heads of a backward, whose sums have the same memory: every head once, within the
bound, each part of the workspace at its place, and no more rounds of CTAs than of all heads. On
SM90 a slice is a problem of its own, but with dropout or a variant."""

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

# Kernels that know the heads of the whole problem.
KERNELS = ("sm80", "sm90, dropout", "sm90, variant")


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
    bytes_of_workspace: int  # as the op states it
    slices: list[Slice]

    @property
    def at_a_time(self) -> int:
        return self.bytes_of_workspace // max(self.slices[0].bytes_of_workspace, 1)


def compiled(name, folder):
    """A function from problems to lines of the program of that name in tests/support."""
    program = folder / name
    source = ROOT / f"tests/support/{name}.cpp"
    try:
        compiler = emulator_compiler()
    except CudaError as error:
        pytest.skip(str(error))
    command = ["g++", "-std=c++20", *compiler.includes, source, "-o", program]
    subprocess.run(command, check=True)

    def lines_of(problems):
        lines = "".join(" ".join(str(int(x)) for x in (*p[0], *p[1:])) + "\n" for p in problems)
        done = subprocess.run([program], input=lines, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    return lines_of


@pytest.fixture(scope="module")
def slices_of(tmp_path_factory):
    lines_of = compiled("print_backward_slices", tmp_path_factory.mktemp("slices"))

    def run(problems, kernel="sm80"):
        for line in lines_of([(*problem, KERNELS.index(kernel)) for problem in problems]):
            known, numbers = [*map(int, line.split()[:4])], line.split()[4:]
            fields = zip(*[map(int, numbers)] * 5, strict=True)
            yield Slices(*known, [Slice(*f[:4], bool(f[4])) for f in fields])

    return run


class ProblemSlice(NamedTuple):
    heads: int
    heads_kv: int
    before: tuple[int, ...]  # heads, by where tensors begin: q, o, dO, dq; k, v, dk, dv; others
    bytes_of_workspace: int
    parts: tuple[range, ...]  # elements of each part of the workspace


class ProblemSlices(NamedTuple):
    n_blocks: int  # of keys, of a head
    recycles: bool
    bytes_of_all: int  # sums of all heads
    bytes_of_workspace: int  # as the op states it
    parts: list[int]  # elements of each part of that
    slices: list[ProblemSlice]


@pytest.fixture(scope="module")
def problem_slices_of(tmp_path_factory):
    lines_of = compiled("print_problem_slices", tmp_path_factory.mktemp("problem_slices"))

    def run(problems):
        for line in lines_of(problems):
            numbers = [*map(int, line.split())]
            known, parts, numbers = numbers[:4], numbers[4:11], numbers[11:]
            fields = zip(*[iter(numbers)] * 28, strict=True)
            slices = [
                ProblemSlice(f[0], f[1], f[2:13], f[13], tuple(map(range, f[14::2], f[15::2])))
                for f in fields
            ]
            yield ProblemSlices(known[0], bool(known[1]), *known[2:], parts, slices)

    return run


PROBLEMS = [
    Problem(config, seqlen, seqlen + more, batch, heads, heads // group, *kind)
    for config in CONFIGS
    for seqlen, more in ((1, 0), (200, 300), (1000, 0), (4096, 0), (16384, 128), (131072, -131000))
    for batch, heads, group in ((1, 16, 1), (3, 24, 8), (40, 24, 3), (300, 12, 12))
    for kind in itertools.product((False, True), repeat=3)
    if seqlen * batch * heads < 1 << 25
]


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_head_once_and_each_part_at_its_place(slices_of, kernel):
    n_slices = n_pairs = 0
    for problem, found in zip(PROBLEMS, slices_of(PROBLEMS, kernel), strict=True):
        n_heads = problem.heads_kv * (1 if problem.packed else problem.batch)
        heads = [range(s.first_head, s.first_head + s.n_heads) for s in found.slices]
        assert list(itertools.chain(*heads)) == list(range(n_heads)), problem
        assert all(s.begins_with_its_rows for s in found.slices), problem
        # Memory for the first one serves each.
        assert max(s.bytes_of_workspace for s in found.slices) == found.slices[0].bytes_of_workspace
        # Or for two, which run side by side.
        of_one, of_all = found.slices[0].bytes_of_workspace, found.bytes_of_workspace
        assert of_all in (of_one, 2 * of_one)[: min(len(found.slices), 2)], problem
        n_slices += len(found.slices) > 1
        n_pairs += of_all > of_one
    assert 80 < n_slices < len(PROBLEMS) - 80
    assert 40 < n_pairs < n_slices


def test_sums_take_64_mb_or_those_of_heads_with_two_tiles_for_each_cta(slices_of):
    """But for groups whose tiles differ in length, which are never sliced."""
    more = 0
    for problem, found in zip(PROBLEMS, slices_of(PROBLEMS), strict=True):
        first = found.slices[0]
        if found.bytes_of_all <= 64 * MIB:
            assert len(found.slices) == 1, problem
        if problem.heads > problem.heads_kv and (problem.packed or problem.causal):
            assert len(found.slices) == 1, problem
        elif found.at_a_time * first.bytes_of_sums > 64 * MIB and first.n_heads > 1:
            parts = 1 if problem.deterministic else problem.heads // problem.heads_kv
            assert found.at_a_time * first.n_heads * found.n_blocks * parts <= 2 * CTAS, problem
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


def test_a_variant_has_slices_where_its_mask_may_be_a_short_window(slices_of):
    """From 8192 queries on heads do not share sums, whatever the mask turns out to show."""
    seen = []
    for problem, found in zip(PROBLEMS, slices_of(PROBLEMS, "sm90, variant"), strict=True):
        if problem.packed or problem.deterministic or found.bytes_of_all <= 256 * MIB:
            continue
        if found.n_blocks * problem.batch * problem.heads_kv <= 2 * CTAS:
            continue  # all run at a time
        is_long = problem.seqlen_q >= 8192
        assert len(found.slices) > 1 or not is_long, problem
        seen.append((is_long, len(found.slices) > 1))
    assert min(seen.count((True, True)), seen.count((False, False))) > 3, seen


def test_slices_take_few_more_rounds_of_ctas_than_all_heads_at_a_time(slices_of):
    """CTAs of a slice end before the next one begins, where none runs beside it. Rounds are weighed
    by the heads of a CTA."""
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
        if found.at_a_time == 1:
            costs.append(sum(rounds(s.n_heads) for s in found.slices) / max(whole, rounds(1)))
    assert len(costs) > 100
    assert sum(costs) / len(costs) < 1.04
    assert sum(cost > 1.1 for cost in costs) < 0.02 * len(costs)


@pytest.mark.parametrize("family", ["sm80", "sm90"])
def test_a_problem_of_nothing_is_one_slice(slices_of, problem_slices_of, family):
    """No sequences, or no queries or keys."""
    problems = [
        Problem(config, seqlen_q, seqlen_k, batch, 24, heads_kv, *kind)
        for config in CONFIGS
        for seqlen_q, seqlen_k, batch in ((200, 300, 0), (0, 300, 2), (200, 0, 2), (0, 0, 0))
        for heads_kv in (24, 8)
        for kind in itertools.product((False, True), repeat=3)
    ]
    if family == "sm90":
        found = problem_slices_of([(*problem, -1) for problem in problems])
    else:
        found = slices_of(problems)
    for problem, of_it in zip(problems, found, strict=True):
        assert len(of_it.slices) == 1, problem


SM90_CONFIGS = [(64, 128, 128), (96, 64, 128), (128, 64, 128), (192, 64, 64), (256, 64, 128)]
# With the keys before its own that a query attends, behind the others.
SM90_PROBLEMS = [
    (*problem._replace(config=config), window)
    for config, of_sm80 in zip(SM90_CONFIGS, CONFIGS, strict=True)
    for problem in PROBLEMS
    if problem.config == of_sm80
    for window in (-1, 200)
]


def has_short_window(problem):
    """Whether masks cut both sides, and show at most a sixteenth of the sequence."""
    _, seqlen_q, *_, causal, window = problem
    return causal and window >= 0 and 16 * (window + 1) <= seqlen_q


def is_never_sliced(problem):
    """Groups of heads whose tiles differ in length."""
    *_, heads, heads_kv, packed, deterministic, causal, window = problem
    is_like_others = not packed and not deterministic and has_short_window(problem)
    differ = (packed or causal or window >= 0) and not is_like_others
    return heads > heads_kv and differ


def test_slices_of_sm90_are_problems_of_every_head_once(problem_slices_of):
    n_slices = 0
    for problem, found in zip(SM90_PROBLEMS, problem_slices_of(SM90_PROBLEMS), strict=True):
        heads, heads_kv = problem[4:6]
        group, first = heads // heads_kv, 0
        for part in found.slices:
            assert part.heads == part.heads_kv * group, problem
            of_q, of_kv, others = part.before[:4], part.before[4:8], part.before[8:]
            assert {*of_q, *others} == {first * group}, problem
            assert {*of_kv} == {first}, problem
            first += part.heads_kv
        assert first == heads_kv, problem
        n_slices += len(found.slices) > 1
    assert n_slices > 50


def test_the_workspace_that_is_stated_is_what_slices_of_sm90_take(problem_slices_of):
    """Of one slice, or of two that run at a time: sums of 64 MB, or of two heads of each batch, or
    of heads with two tiles for each CTA. Where groups of heads have tiles that differ in
    length, all heads run at a time."""
    short, times = 0, []
    for problem, found in zip(SM90_PROBLEMS, problem_slices_of(SM90_PROBLEMS), strict=True):
        config, _, _, batch, _, heads_kv, packed, *_ = problem
        stated = found.bytes_of_workspace
        most = max(part.bytes_of_workspace for part in found.slices)
        at_a_time = stated // max(most, 1)
        assert at_a_time * most == stated, problem
        assert at_a_time <= min(2, len(found.slices)), problem
        batches = 1 if packed else batch
        bytes_of_head = found.bytes_of_all / heads_kv
        of_slice = found.slices[0].heads_kv
        if found.recycles or is_never_sliced(problem):
            assert len(found.slices) == 1, problem
        elif of_slice > 1 and at_a_time * of_slice * bytes_of_head > 64 * MIB:
            assert at_a_time * of_slice * batches * found.n_blocks <= 2 * CTAS, problem
        if not found.recycles:
            rows = found.bytes_of_all / (4 * config[0]) / heads_kv * of_slice * at_a_time
            beside = at_a_time * 4 * 4096
            assert stated <= rows * (4 * config[0] + 8 + config[0] / 256) + beside, problem
        short += len(found.slices) > 1 and stated < 0.6 * found.bytes_of_all
        times += [at_a_time] * (len(found.slices) > 1)
    assert short > 30
    assert times.count(1) > 10
    assert times.count(2) > 30


def test_recycled_sums_are_of_heads_whose_tiles_run_at_a_time(problem_slices_of):
    """32 MB, 64 under windows, or two heads of K and V for each that has some of 132 tiles, or of
    264 in groups. None under short windows, which have slices."""
    n_recycling = {False: 0, True: 0}
    for problem, found in zip(SM90_PROBLEMS, problem_slices_of(SM90_PROBLEMS), strict=True):
        if not found.recycles:
            continue
        _, _, _, batch, heads, heads_kv, *_, window = problem
        assert not has_short_window(problem), problem
        in_groups = heads > heads_kv
        bytes_of_sums, bytes_of_head = 4 * found.parts[0], found.bytes_of_all / (batch * heads_kv)
        at_a_time = -(-CTAS * (2 if in_groups else 1) // found.n_blocks)
        assert bytes_of_sums <= max(
            (64 if window >= 0 else 32) * MIB, 2 * at_a_time * bytes_of_head
        ), problem
        assert bytes_of_sums < found.bytes_of_all, problem
        n_recycling[in_groups] += 1
    assert min(n_recycling.values()) > 3, n_recycling


def test_slices_that_run_side_by_side_have_no_memory_in_common(problem_slices_of):
    n_pairs = 0
    for problem, found in zip(SM90_PROBLEMS, problem_slices_of(SM90_PROBLEMS), strict=True):
        most = max(part.bytes_of_workspace for part in found.slices)
        if found.bytes_of_workspace == most:
            assert all(part.start == 0 for one in found.slices for part in one.parts), problem
            continue
        for one, other in itertools.pairwise(found.slices):
            for whole, a, b in zip(found.parts, one.parts, other.parts, strict=True):
                assert {a.start, b.start} == ({0, whole // 2} if whole > 0 else {0}), problem
                assert max(len(a), len(b)) <= whole // 2, problem
            n_pairs += 1
    assert n_pairs > 100
