"""Kernels of both forward families over pages, emulated: right in fp64 with NaN in everything that
has no effect, the bits of the same kernels without pages, and each planted bug is found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.paged import Cache, laid_out
from support.planted.paged import BUGS, CONFIGS, planted_libraries
from support.planted.planting import Bug, switched_on

import pyflash
from pyflash.codegen import emulated
from pyflash.codegen.emulated import build_emulated
from pyflash.config import parse
from pyflash.config.features import EMULATED, EMULATED_PAGED
from pyflash.emulator.run import run_library
from pyflash.op.selection import TORCH_DTYPES

__all__ = ["planted_libraries"]

SM90 = [
    parse(short_form).canonical()
    for short_form in (
        "(FP16, 64, 128, 64, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold",
        "(BF16, 128, 128, 80, 2): sm90+stages_2+persistent+pack_gqa",
        "(BF16, 64, 64, 32, 1): sm90+stages_1+overlap+persistent+rescale_threshold+pack_gqa",
    )
]
SM80 = [
    parse(short_form).canonical()
    for short_form in (
        "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax+stages_2",
        "(FP16, 64, 128, 64, 4): swizzled+load_2_2_2_tiles+opt_softmax+rescale_threshold",
    )
]
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "left": {"window_left": 20, "causal": True},
    "local": {"window_left": 9, "window_right": 2},
    "chunks": {"attention_chunk": 24, "causal": True},
}
EXTRAS = ({}, {"softcap": 3.0}, {"sinks": torch.linspace(-2, 3, 4)}, {"num_splits": 3})
PAGES = {
    **dict.fromkeys(SM90, (1, 2, 3, 4, 8, 16, 48, 64, 256)),
    **dict.fromkeys(SM80, (1, 7, 64, 256)),
}
CASES = [(config, page_size) for config, sizes in PAGES.items() for page_size in sizes]


def dtype_of(config) -> torch.dtype:
    return TORCH_DTYPES[config.dtype]


@pytest.fixture(scope="session")
def libraries():
    # The same features with pages and without.
    return build_emulated((*SM90, *SM80), features=(EMULATED[-1], *EMULATED_PAGED))


def is_right(library, config, cache, q, starts=None, order="ascending", **options) -> None:
    packed = () if starts is None else (torch.tensor(starts).int(), q.shape[0])
    pages = (*cache.tensors[2:], *packed)
    out, lse, report = run_library(
        library, (q, cache.k, cache.v), config, pages=pages, order=order, resident_ctas=2, **options
    )
    report.check()
    if starts is None:
        cache.check_padded(q, out, lse, **options)
    else:
        cache.check_packed(starts, q, out, lse, **options)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("config", "page_size"), CASES, ids=str)
def test_pages_masks_and_lengths(libraries, config, page_size, mask):
    """Pitfalls of serving 1 to 5, 16 and 28."""
    number = CASES.index((config, page_size)) * len(MASKS) + list(MASKS).index(mask)
    seqlen_q, heads_kv = ((1, 2), (3, 1), (40, 4))[number % 3]
    extra = EXTRAS[number % len(EXTRAS)]
    torch.manual_seed(number)
    few = (0, 1, page_size - 1, page_size, page_size + 1, 37) if page_size < 128 else (0, 129)
    cache = Cache((*few, 131), page_size, heads_kv, config.d_head, dtype_of(config))
    cache.expire([seqlen_q] * len(cache.lengths), **MASKS[mask])
    q = torch.randn(len(cache.lengths), seqlen_q, 4, config.d_head).to(dtype_of(config))
    is_right(libraries[config], config, cache, q, **MASKS[mask], **extra)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("order", ["descending", "random"])
@pytest.mark.parametrize("mask", ["causal", "left"])
@pytest.mark.parametrize("config", [*SM90, *SM80], ids=str)
def test_packed_queries(libraries, config, mask, order, page_size):
    cache = Cache((37, 70, 0, 129), page_size, 2, config.d_head, dtype_of(config))
    lengths_q = (3, 70, 5, 0)
    cache.expire(lengths_q, **MASKS[mask])
    starts = [0, *itertools.accumulate(lengths_q)]
    q = torch.randn(starts[-1], 4, config.d_head).to(dtype_of(config))
    is_right(libraries[config], config, cache, q, starts, order, **MASKS[mask])


@pytest.mark.parametrize("lengths_q", [(1, 1, 1, 1), (1,), (3, 3, 3, 3)])
@pytest.mark.parametrize("config", [*SM90, *SM80], ids=str)
def test_pitfalls_14_19_24_27_splits_of_packed_queries(libraries, config, lengths_q):
    """Equal lengths of queries; more splits than blocks of keys, so that some are empty; sinks."""
    cache = Cache((37, 200, 0, 70)[-len(lengths_q) :], 16, 2, config.d_head, dtype_of(config))
    cache.expire(lengths_q, causal=True)
    starts = [0, *itertools.accumulate(lengths_q)]
    q = torch.randn(starts[-1], 4, config.d_head).to(dtype_of(config))
    options = {"causal": True, "sinks": torch.linspace(-2, 3, 4)}
    is_right(libraries[config], config, cache, q, starts, num_splits=9, **options)


@pytest.mark.parametrize("config", [SM90[2], SM80[0]], ids=str)
def test_pitfall_15_a_second_run_gives_the_same_bits(libraries, config):
    """What the first leaves behind, counters of splits too, is of no effect."""
    cache = Cache((37, 200), 16, 2, config.d_head, dtype_of(config))
    q = torch.randn(2, 1, 4, config.d_head).to(dtype_of(config))
    inputs, pages = (q, cache.k, cache.v), cache.tensors[2:]
    first, second = (
        run_library(libraries[config], inputs, config, pages=pages, num_splits=3) for _ in range(2)
    )
    assert all(map(torch.equal, first[:2], second[:2]))


@pytest.mark.parametrize("what", ["page", "head", "sequence"])
@pytest.mark.parametrize("config", [SM90[0], SM80[0]], ids=str)
def test_pitfall_8_strides_of_dimensions_of_size_1(libraries, config, what):
    """Tensor maps take no odd ones."""
    odd = 3 * 2**20 + 5
    heads_kv = 1 if what == "head" else 2
    cache = Cache((16,), 16, heads_kv, config.d_head, dtype_of(config), spare=0, width=1)
    if what == "sequence":
        cache.table = cache.table.as_strided((1, 1), (odd, 1))
    else:
        strides = list(cache.k.stride())
        strides[{"page": 0, "head": 2}[what]] = odd
        cache.k, cache.v = (x.as_strided(x.shape, strides) for x in (cache.k, cache.v))
    q = torch.randn(1, 3, 2, config.d_head).to(dtype_of(config))
    is_right(libraries[config], config, cache, q)


@pytest.mark.parametrize("mask", ["full", "causal", "left"])
@pytest.mark.parametrize("config", [*SM90, *SM80], ids=str)
def test_pages_give_the_bits_of_packed_sequences(libraries, config, mask):
    lengths = (37, 70, 0, 129)
    cu_k = torch.tensor([0, *itertools.accumulate(lengths)]).int()
    cu_q = torch.arange(5).int() * 20
    q = torch.randn(80, 4, config.d_head).to(dtype_of(config))
    for page_size in (1, 16, 64):
        cache = Cache(lengths, page_size, 2, config.d_head, dtype_of(config))
        inputs = (q, torch.cat(cache.keys), torch.cat(cache.values), cu_q, cu_k, 20, 129)
        expected = run_library(libraries[config], inputs, config, **MASKS[mask])
        pages = (*cache.tensors[2:], cu_q, 20)
        inputs = (q, cache.k, cache.v)
        found = run_library(libraries[config], inputs, config, pages=pages, **MASKS[mask])
        assert all(map(torch.equal, found[:2], expected[:2]))


@pytest.mark.parametrize("config", [SM90[0], SM80[0]], ids=str)
@pytest.mark.parametrize("page_size", [1, 8, 64])
def test_pages_that_do_not_exist_are_zeros(libraries, config, page_size):
    """Pitfall 5; and lengths are clamped to the table."""
    cache = Cache((128, 128), page_size, 2, config.d_head, dtype_of(config), width=128 // page_size)
    q = torch.randn(2, 3, 4, config.d_head).to(dtype_of(config))
    found = []
    for bad in (None, -1, cache.num_pages, 2**31 - 1):
        if bad is not None:
            cache.table[1] = bad
            cache.seqlens[0] = 2**31 - 1
        pages = cache.tensors[2:]
        out, _, report = run_library(libraries[config], (q, cache.k, cache.v), config, pages=pages)
        report.check()
        found.append(out)
    for out in found[1:]:
        assert torch.equal(out[0], found[0][0])
        assert (out[1] == 0).all()


@pytest.mark.parametrize("d_head", [8, 40, 56])
@pytest.mark.parametrize("page_size", [1, 3])
def test_columns_past_the_head_are_not_gathered(libraries, page_size, d_head):
    """Behind the last row there is nothing, and the head beside holds NaN."""
    config = SM90[2]
    cache = Cache((37, 64), page_size, 2, d_head, dtype_of(config), spare=0)
    q = torch.randn(2, 3, 2, d_head).to(dtype_of(config))
    cache.k[:, :, 1], cache.v[:, :, 1] = torch.nan, torch.nan
    out, lse, report = run_library(
        libraries[config], (q[:, :, :1], cache.k[:, :, :1], cache.v[:, :, :1]), config,
        pages=cache.tensors[2:],
    )  # fmt: skip
    report.check()
    cache.keys, cache.values = ([x[:, :1] for x in rows] for rows in (cache.keys, cache.values))
    cache.check_padded(q[:, :, :1], out, lse)


def test_rows_that_32_bits_do_not_count_are_refused(libraries):
    cache = Cache((37,), 1, 2, 64)
    # The largest power of two that divides it is 16 bytes. NOTE: torch refuses views of no storage.
    far = [2 * stride for stride in (2**31 + 8, 64 * 2, 64, 1)]
    k, v = (
        torch.from_numpy(np.lib.stride_tricks.as_strided(x.numpy(), x.shape, far))
        for x in (cache.k, cache.v)
    )
    q = torch.randn(1, 1, 4, 64).half()
    with pytest.raises(ValueError, match="rows are counted by 32 bits"):
        run_library(libraries[SM90[0]], (q, k, v), SM90[0], pages=cache.tensors[2:])


@pytest.mark.parametrize("capacity", [5, 131, 200])
@pytest.mark.parametrize("config", [*SM90, SM80[0]], ids=str)
def test_one_page_a_sequence(libraries, config, capacity):
    """A contiguous cache: a page is a power of two where a sequence has several alone."""
    lengths = (capacity, 0, capacity - 1, 3)
    cache = Cache(lengths, capacity, 2, config.d_head, dtype_of(config), width=1)
    q = torch.randn(4, 3, 4, config.d_head).to(dtype_of(config))
    is_right(libraries[config], config, cache, q, causal=True, window_left=70)


def test_emulate_paged(libraries, monkeypatch):
    """It compiles kernels for pages alone; here they have others beside them."""
    cache = Cache((37, 3), 16, 2, 64)
    q = torch.randn(2, 1, 4, 64).half()

    def built(configs, features):
        assert features == EMULATED_PAGED
        return {config: libraries[config] for config in configs}

    monkeypatch.setattr(emulated, "build_emulated", built)
    out, lse, report = pyflash.emulate_paged(q, *cache.tensors, SM90[0])
    report.check()
    cache.check_padded(q, out, lse)
    with pytest.raises(ValueError, match=r"block_table has shape \(1, "):
        pyflash.emulate_paged(q, *cache.tensors[:2], cache.table[:1], cache.seqlens, SM90[0])


# The last sequence has the last entry of the table. A CTA has several tiles.
def _cache(page_size: int, lengths=(37, 133)) -> Cache:
    torch.manual_seed(0)
    return Cache(lengths, page_size, 2, 64, width=-(-max(lengths) // page_size))


def planted_problem(name: str):
    """A cache, q and options."""
    options = {} if name == "unmasked" else {"causal": True, "window_left": 40}
    cache = _cache({"large_pages": 256, "small_pages": 4, "rows": 1, "threes": 3}.get(name, 16))
    n_queries = 70 if name in ("window", "rows", "threes") else 131
    q = torch.randn(2, n_queries, 2, 64).half()
    cache.expire([n_queries] * 2, **options)
    if name == "interleaved":
        cache.k, cache.v = laid_out("of one tensor", cache.k, cache.v)
    return cache, q, options


def run_planted(library, config, problem, order):
    """Whether the result is right, and what is found."""
    cache, q, options = planted_problem(problem)
    inputs = (q, cache.k, cache.v)
    out, lse, report = run_library(
        library, inputs, CONFIGS[config], pages=cache.tensors[2:], order=order, resident_ctas=1,
        **options,
    )  # fmt: skip
    try:
        cache.check_padded(q, out, lse, **options)
    except AssertionError:
        return False, report.findings
    return True, report.findings


@pytest.mark.parametrize("order", ["ascending", "random"])
@pytest.mark.parametrize(
    "problem",
    ["window", "unmasked", "large_pages", "small_pages", "interleaved", "rows", "threes"],
)
@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_is_found_while_no_bug_is_on(planted_libraries, config, problem, order):
    assert run_planted(planted_libraries[config], config, problem, order) == (True, ())


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_found(planted_libraries, bug: Bug):
    for config in bug.configs:
        library = planted_libraries[config]
        with switched_on(BUGS, bug, library):
            right, findings = run_planted(library, config, bug.problem, "ascending")
        for finding in bug.found:
            assert finding.is_in(findings), f"{finding}:\n" + "\n".join(map(str, findings))
        assert bug.found or not right


def last_chunk(library, config, q, k, v, page_size, n_queries, neighbours=(), **options):
    """Attention of the last queries of a sequence, behind neighbours of (queries, keys)."""
    cache = Cache([*(n for _, n in neighbours), len(k)], page_size, 2, config.d_head, k.dtype)
    place = cache.place(len(neighbours))
    cache.k[place], cache.v[place] = k, v
    lengths_q = [*(n for n, _ in neighbours), n_queries]
    starts = [0, *itertools.accumulate(lengths_q)]
    others = 9 * torch.randn(starts[-2], *q.shape[1:]).to(q.dtype)
    inputs = (torch.cat([others, q[len(q) - n_queries :]]), cache.k, cache.v)
    pages = (*cache.tensors[2:], torch.tensor(starts).int(), max(lengths_q))
    out, lse, report = run_library(
        library, inputs, config, pages=pages, num_splits=1, causal=True, **options
    )
    report.check()
    return out[starts[-2] :], lse[:, starts[-2] :]


NEIGHBOURS = ((1, 64, ()), (7, 1, ((9, 40),)), (7, 127, ((10, 40), (70, 70))), (66, 8, ((1, 0),)))


def changed_bits(library, config, options) -> int:
    """In how many cases the bits of rows are not those of the sequence alone. The scores are
    large and grow, so that maxima move in some rows of a warp and not in others."""
    torch.manual_seed(0)
    n = 150
    q, k, v = (torch.randn(n, heads, config.d_head).to(dtype_of(config)) for heads in (4, 2, 2))
    q = q * torch.randint(1, 9, (n, 1, 1)).to(q.dtype)
    k = k * torch.linspace(3, 0.1, n)[:, None, None].to(q.dtype)
    out, lse = last_chunk(library, config, q, k, v, 16, n, **options)
    changed = 0
    for n_queries, page_size, neighbours in NEIGHBOURS:
        found = last_chunk(library, config, q, k, v, page_size, n_queries, neighbours, **options)
        same = torch.equal(found[0], out[n - n_queries :])
        changed += not (same and torch.equal(found[1], lse[:, n - n_queries :]))
    return changed


INVARIANT = [config for config in (*SM90, *SM80) if config.has_own_rows]


@pytest.mark.parametrize("options", [{}, {"window_left": 90}, {"sinks": torch.linspace(-2, 3, 4)}])
@pytest.mark.parametrize("config", INVARIANT, ids=str)
def test_pitfalls_21_22_23_bits_of_a_row_without_a_threshold(libraries, config, options):
    assert {c in SM90 for c in INVARIANT} == {True, False}
    assert changed_bits(libraries[config], config, options) == 0


@pytest.mark.parametrize("config", [SM90[0], SM80[1]], ids=str)
def test_with_a_threshold_bits_depend_on_others(libraries, config):
    """So the test above can fail. Rows of a warp vote in blocks of which a part is masked."""
    assert config.rescale_threshold
    assert changed_bits(libraries[config], config, {"window_left": 90}) > 0
