"""CTAs that share the keys of sequences of different lengths equally, emulated: right in fp64 with
NaN in everything that has no effect, and each planted bug is found. One kernel, of pages and of
packed sequences, runs all cases."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.paged import Cache
from support.planted.planting import Bug, switched_on
from support.planted.shares import BUGS, CONFIG, shared_library
from support.problems import Packed, make_packed

import pyflash
from pyflash.emulator.run import run_library
from pyflash.op.reference import expect_varlen

__all__ = ["shared_library"]

BY_LENGTH = {"num_splits": -1}
MASKS = ({"causal": True}, {}, {"causal": True, "window_left": 45}, {"window_left": 9})
EXTRAS = ({}, {"sinks": torch.linspace(-2, 3, 8)}, {"softcap": 3.0})


def options_of(seed: int) -> dict:
    return {**MASKS[seed % len(MASKS)], **EXTRAS[seed % len(EXTRAS)]}


def lengths_of(chance: random.Random) -> tuple[int, ...]:
    kinds = (0, 1, chance.randint(2, 70), 32, 33, chance.randint(100, 400))
    return tuple(chance.choices(kinds, k=chance.randint(1, 6)))


@pytest.mark.parametrize("seed", range(8))
def test_pages(shared_library, seed):
    chance = random.Random(seed)
    torch.manual_seed(seed)
    lengths, n_queries = lengths_of(chance), chance.choice((1, 1, 3, 8))
    options = options_of(seed)
    cache = Cache(lengths, chance.choice((1, 3, 16, 64)), 2, 64, torch.bfloat16)
    cache.expire([n_queries] * len(lengths), **options)
    q = torch.randn(len(lengths), n_queries, 8, 64).bfloat16()
    order = ("ascending", "random", "descending")[seed % 3]
    for resident_ctas in (chance.randint(1, 9), 40):
        out, lse, report = run_library(
            shared_library, (q, cache.k, cache.v), CONFIG, pages=cache.tensors[2:], order=order,
            seed=seed, resident_ctas=resident_ctas, **BY_LENGTH, **options,
        )  # fmt: skip
        report.check()
        assert report.n_ctas == resident_ctas
        cache.check_padded(q, out, lse, **options)


@pytest.mark.parametrize("resident_ctas", [6, 10, 14, 40])
def test_an_infinite_value_stays_infinite(shared_library, resident_ctas):
    """Of any number of parts, the last of which stands for those that are loaded in vain."""
    cache = Cache((700,), 16, 2, 64, torch.bfloat16)
    cache.v[..., 3] = torch.inf
    out, _, report = run_library(
        shared_library, (torch.randn(1, 1, 8, 64).bfloat16(), cache.k, cache.v), CONFIG,
        pages=cache.tensors[2:], resident_ctas=resident_ctas, **BY_LENGTH,
    )  # fmt: skip
    report.check()
    assert torch.isposinf(out[..., 3]).all()
    assert torch.isfinite(out).sum() == out.numel() - out[..., 3].numel()


@pytest.mark.parametrize("seed", range(12))
def test_pages_of_sequences_of_one_length(shared_library, seed):
    chance = random.Random(seed)
    torch.manual_seed(seed)
    lengths = (chance.choice((0, 1, 32, 95, 300, 800, 2500)),) * chance.choice((1, 2, 3, 7, 34))
    options = options_of(seed)
    cache = Cache(lengths, 16, 2, 64, torch.bfloat16)
    q = torch.randn(len(lengths), chance.choice((1, 3)), 8, 64).bfloat16()
    out, lse, report = run_library(
        shared_library, (q, cache.k, cache.v), CONFIG, pages=cache.tensors[2:], seed=seed,
        resident_ctas=chance.choice((1, 5, 12, 40, 60)), **BY_LENGTH, **options,
    )  # fmt: skip
    report.check()
    cache.check_padded(q, out, lse, **options)


@pytest.mark.parametrize("resident_ctas", [70, 140])
def test_tiles_of_more_parts_than_eights_of_eight(shared_library, resident_ctas):
    torch.manual_seed(0)
    cache = Cache((5000, 1), 16, 1, 64, torch.bfloat16)
    q = torch.randn(2, 1, 4, 64).bfloat16()
    out, lse, report = run_library(
        shared_library, (q, cache.k, cache.v), CONFIG, pages=cache.tensors[2:], order="random",
        resident_ctas=resident_ctas, **BY_LENGTH,
    )  # fmt: skip
    report.check()
    assert report.n_ctas == resident_ctas
    cache.check_padded(q, out, lse)


@pytest.mark.parametrize("seed", range(8))
def test_packed_sequences(shared_library, seed):
    chance = random.Random(seed)
    k = lengths_of(chance)
    q = tuple(chance.choice((0, 1, 1, 4, 16)) for _ in k)
    inputs = make_packed(Packed("", q, k, 8, 2), torch.bfloat16, 64, seed=seed)
    options = options_of(seed)
    out, lse, report = run_library(
        shared_library, inputs, CONFIG, resident_ctas=1 + seed, **BY_LENGTH, **options
    )
    report.check()
    expect_varlen(*inputs[:5], **options).check(out, lse)


def test_more_queries_than_a_tile_has_rows_are_refused(shared_library):
    inputs = make_packed(Packed("", (17, 1), (30, 30), 8, 2), torch.bfloat16, 64)
    with pytest.raises(ValueError, match="queries are more than a tile's"):
        run_library(shared_library, inputs, CONFIG, **BY_LENGTH)


BESIDE = {**BY_LENGTH, "runs_beside": 1}


def beside_case():
    """Decodes, some of them empty, beside a chunk of more rows than a tile; its rows of out, which
    another kernel writes."""
    packed = Packed("", (1, 17, 0, 3, 40, 16, 1), (90, 70, 5, 200, 300, 33, 0), 8, 2)
    inputs = make_packed(packed, torch.bfloat16, 64)
    starts = inputs[3].tolist()
    others = torch.zeros(starts[-1], dtype=torch.bool)
    for begin, end, n in zip(starts, starts[1:], packed.seqlens_q, strict=False):
        others[begin:end] = n > 16
    return inputs, others


def run_beside(library, **options):
    """Whether the result is right, and what is found beside the chunk's rows."""
    inputs, others = beside_case()
    out, lse, report = run_library(
        library, inputs, CONFIG, causal=True, resident_ctas=5, **BESIDE, **options
    )
    expected = expect_varlen(*inputs[:5], causal=True)
    right = bool(out[others].isnan().all() and lse[:, others].isnan().all())
    out[others], lse[:, others] = expected.out[others].to(out), expected.lse[:, others].to(lse)
    try:
        expected.check(out, lse)
    except AssertionError:
        right = False
    return right, [finding for finding in report.findings if finding.kind != "not_written"]


@pytest.mark.parametrize("order", ["ascending", "random", "descending"])
def test_few_queries_beside_a_kernel_of_many(shared_library, order):
    assert run_beside(shared_library, order=order) == (True, [])


PLANTED_CASES = ("found", "many", "listed", "alike, whole", "alike, in parts", "of many parts")


def planted_case(name: str):
    """Sequences that shares cut, and some that they do not, beside empty ones; sinks that weigh.
    CTAs find shares of sequences, of some in each lane, or read them from a list. Sequences of one
    length are left whole, or cut alike."""
    torch.manual_seed(0)
    lengths = (40, 0, 300, 9, 64)
    if name == "many":
        lengths = (*lengths, *(i * 37 % 50 for i in range(35)))
    lengths = {
        "alike, whole": (100,) * 7,
        "alike, in parts": (400,),
        "of many parts": (2300, 40, 1000),
    }.get(name, lengths)
    n_queries = {"found": 3, "listed": 8}.get(name, 1)
    cache = Cache(lengths, 16, 2, 64, torch.bfloat16)
    q = torch.randn(len(lengths), n_queries, 8, 64).bfloat16()
    return cache, q, {"causal": True, "sinks": torch.linspace(2, 5, 8)}


def run_planted(library, name: str):
    """Whether the result is right, and what is found."""
    cache, q, options = planted_case(name)
    # NOTE: with 6 and 60 both heads go abreast.
    resident_ctas = {"of many parts": 60}.get(name, 5 if "alike" in name else 6)
    out, lse, report = run_library(
        library, (q, cache.k, cache.v), CONFIG, pages=cache.tensors[2:],
        resident_ctas=resident_ctas, **BY_LENGTH, **options,
    )  # fmt: skip
    try:
        cache.check_padded(q, out, lse, **options)
    except AssertionError:
        return False, report.findings
    return True, report.findings


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_found(shared_library, bug: Bug):
    with switched_on(BUGS, bug, shared_library):
        runs = [run_planted(shared_library, name) for name in PLANTED_CASES]
        runs.append(run_beside(shared_library))
    right = all(is_right for is_right, _ in runs)
    findings = [finding for _, found in runs for finding in found]
    for finding in bug.found:
        assert finding.is_in(findings), f"{finding}:\n" + "\n".join(map(str, findings))
    assert bug.found or not right


@pytest.mark.parametrize("name", PLANTED_CASES)
def test_nothing_is_found_while_no_bug_is_on(shared_library, name):
    assert run_planted(shared_library, name) == (True, ())


def test_a_stale_list_reads_and_writes_nothing_outside(shared_library):
    (bug,) = (bug for bug in BUGS if "another_call" in bug.name)
    with switched_on(BUGS, bug, shared_library):
        _, findings = run_planted(shared_library, "listed")
    assert "out_of_bounds" not in {finding.kind for finding in findings}


@pytest.mark.parametrize("name", PLANTED_CASES)
def test_bits_are_those_of_the_shares_alone(shared_library, name):
    """Whatever order warps run in, and twice."""
    cache, q, options = planted_case(name)
    inputs, pages = (q, cache.k, cache.v), cache.tensors[2:]
    resident_ctas = 60 if name == "of many parts" else 6
    runs = [
        run_library(
            shared_library, inputs, CONFIG, pages=pages, order=order, seed=i,
            resident_ctas=resident_ctas,
            **BY_LENGTH, **options,
        )
        for i, order in enumerate(("ascending", "descending", "random", "random"))
    ]  # fmt: skip
    for (out, lse, _), (other, other_lse, _) in itertools.pairwise(runs):
        assert torch.equal(out, other)
        assert torch.equal(lse, other_lse)


def test_kernels_of_the_sm80_family_do_not_share_keys():
    config = "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
    q = torch.randn(1, 1, 2, 64).bfloat16()
    with pytest.raises(ValueError, match=r"not built with equal_shares: kernels of .* lack it"):
        pyflash.emulate(q, q, q, config, num_splits=-1)
