"""Kernels over caches of e4m3, emulated: right in fp64 of what the elements stand for, with the
byte of NaN in everything that has no effect, and each planted bug is found."""

from __future__ import annotations

import itertools

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.fp8 import Fp8Cache
from support.planted.fp8 import BUGS, CONFIGS
from support.planted.planting import Bug, build_planted, switched_on

from pyflash.config.features import EMULATED_FP8
from pyflash.emulator.run import run_library
from pyflash.op.selection import TORCH_DTYPES

MASKS = {
    "full": {},
    "causal": {"causal": True},
    "left": {"window_left": 20, "causal": True},
    "local": {"window_left": 9, "window_right": 2},
    "chunks": {"attention_chunk": 24, "causal": True},
}
EXTRAS = (
    {},
    {"softcap": 3.0},
    {"sinks": torch.linspace(-2, 3, 4)},
    {"num_splits": 3},
    {"alibi_slopes": torch.linspace(0.1, 0.4, 4)},
    {"softcap": 2.0, "sinks": torch.linspace(-2, 3, 4), "num_splits": 2},
)
PAGES = (1, 7, 16, 256)
ORDERS = ("ascending", "descending", "random")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """With every bug in them, none of which is on."""
    libraries = {}
    for (name, config), features in zip(
        CONFIGS.items(), (EMULATED_FP8, EMULATED_FP8[-1:]), strict=True
    ):
        root = tmp_path_factory.mktemp(f"planted_fp8_{name}")
        libraries |= build_planted(BUGS, {name: config}, root, features=features)
    return libraries


def run(library, config, cache, q, starts=None, **options):
    packed = (None, None) if starts is None else (torch.tensor(starts).int(), q.shape[0])
    pages = (cache.table, cache.seqlens, *packed, *cache.scales.values())
    return run_library(library, (q, cache.k8, cache.v8), config, pages=pages, **options)


def is_right(library, config, cache, q, starts=None, order="ascending", **options) -> None:
    out, lse, report = run(library, config, cache, q, starts, order=order, **options)
    report.check()
    if starts is None:
        cache.check_padded(q, out, lse, **options)
    else:
        cache.check_packed(starts, q, out, lse, **options)


@pytest.mark.parametrize("page_size", PAGES)
@pytest.mark.parametrize("mask", MASKS)
def test_pages_masks_and_lengths(libraries, mask, page_size):
    """Warps share keys where rows are few, and each has its own where they are not."""
    number = PAGES.index(page_size) + len(PAGES) * list(MASKS).index(mask)
    name = list(CONFIGS)[number % 2]
    config = CONFIGS[name]
    seqlen_q, heads_kv = ((1, 2), (3, 1), (17, 4))[number % 3]
    d_head = config.d_head - 16 * (number % 5 == 1)
    torch.manual_seed(number)
    few = (0, 1, page_size - 1, page_size + 1, 37) if page_size < 128 else (0, 129)
    dtype = TORCH_DTYPES[config.dtype]
    cache = Fp8Cache((*few, 331), page_size, heads_kv, d_head, dtype)
    cache.expire([seqlen_q] * len(cache.lengths), **MASKS[mask])
    cache.quantise(("of all", "of each head")[number // 2 % 2])
    q = torch.randn(len(cache.lengths), seqlen_q, 4, d_head).to(dtype)
    extra = EXTRAS[number % 7 % len(EXTRAS)]
    is_right(
        libraries[name], config, cache, q, order=ORDERS[number // 3 % 3], **MASKS[mask], **extra
    )


@pytest.mark.parametrize("order", ["descending", "random"])
@pytest.mark.parametrize("mask", ["causal", "left"])
def test_packed_queries(libraries, mask, order):
    """Sequences of few queries and of many in a call."""
    name = "wide" if (mask, order) == ("causal", "random") else "decode"
    config = CONFIGS[name]
    lengths_q = (3, 70, 0, 16)
    dtype = TORCH_DTYPES[config.dtype]
    cache = Fp8Cache((37, 70, 129, 150), 16, 2, config.d_head, dtype)
    cache.expire(lengths_q, **MASKS[mask])
    cache.quantise("of each head")
    starts = [0, *itertools.accumulate(lengths_q)]
    q = torch.randn(starts[-1], 4, config.d_head).to(dtype)
    is_right(libraries[name], config, cache, q, starts, order, **MASKS[mask])


def test_one_page_a_sequence(libraries):
    """A contiguous cache, whose rows are no power of two."""
    config = CONFIGS["decode"]
    cache = Fp8Cache((131, 0, 130, 3), 131, 2, 128, torch.bfloat16, width=1)
    cache.quantise("of all")
    q = torch.randn(4, 3, 4, 128).bfloat16()
    is_right(libraries["decode"], config, cache, q, causal=True, window_left=70)


def test_every_number_of_e4m3_counts_as_torch_says(libraries):
    """K has each byte once, but for NaN; V is one."""
    config = CONFIGS["decode"]
    numbers = torch.arange(256, dtype=torch.uint8)
    finite = numbers[(numbers & 0x7F) != 0x7F]
    cache = Fp8Cache((256,), 64, 1, 128, torch.bfloat16)
    cache.quantise("of all")
    rows = finite.repeat(130)[: 256 * 128].view(256, 128)
    cache.k8[cache.place(0)] = rows[:, None].view(cache.k8.dtype)
    cache.keys[0] = rows.view(cache.k8.dtype).double()[:, None] * cache.scales["k_scale"].double()
    q = torch.zeros(1, 1, 1, 128).bfloat16()
    for column in (0, 1, 2, 3, 63, 127):
        q.zero_()[..., column] = 0.125
        is_right(libraries["decode"], config, cache, q)


def planted_problem(name: str, config):
    """A cache, q and options."""
    torch.manual_seed(0)
    options = {"causal": True, "window_left": 150}
    n_queries = 3 if name == "few" else 70
    dtype = TORCH_DTYPES[config.dtype]
    cache = Fp8Cache((37, 333), 16, 2, config.d_head, dtype, width=-(-333 // 16))
    cache.expire([n_queries] * 2, **options)
    cache.quantise("of each head")
    return cache, torch.randn(2, n_queries, 2, config.d_head).to(dtype), options


def run_planted(library, config, problem):
    """Whether the result is right, and what is found."""
    cache, q, options = planted_problem(problem, config)
    out, lse, report = run(library, config, cache, q, **options)
    try:
        cache.check_padded(q, out, lse, **options)
    except AssertionError:
        return False, report.findings
    return True, report.findings


@pytest.mark.parametrize(("name", "problem"), [("decode", "few"), ("decode", "many")])
def test_nothing_is_found_while_no_bug_is_on(libraries, name, problem):
    assert run_planted(libraries[name], CONFIGS[name], problem) == (True, ())


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_found(libraries, bug: Bug):
    for name in bug.configs:
        with switched_on(BUGS, bug, libraries[name]):
            right, findings = run_planted(libraries[name], CONFIGS[name], bug.problem)
        for finding in bug.found:
            assert finding.is_in(findings), f"{finding}:\n" + "\n".join(map(str, findings))
        assert bug.found or not right
