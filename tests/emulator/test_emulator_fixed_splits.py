"""Splits at fixed keys, as batch_invariant has them: a row's bits are those that it has alone,
beside longer sequences, whose splits are more, in pages, in chunks and as the last of many, and
whether CTAs share the splits of a tile or one folds them all."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch

pytest.importorskip("ninja", reason="building needs ninja")
pytest.importorskip("rich", reason="building needs rich")

from support.paged import Cache
from support.planted.fold import BUGS
from support.planted.planting import build_planted, switched_on

from pyflash.codegen.emulated import build_emulated
from pyflash.config import named_set, parse
from pyflash.config.features import EMULATED_FIXED, EMULATED_PAGED_FIXED
from pyflash.emulator import ORDERS
from pyflash.emulator.run import RESIDENT_CTAS, run_library
from pyflash.op.invariant import AT_FIXED_KEYS, invariant_config
from pyflash.op.reference import expect
from pyflash.op.selection import TORCH_DTYPES

CONFIGS = {
    "sm90": invariant_config("FP16", 64, 90),
    "sm90 for few rows": invariant_config("FP16", 64, 90, few_rows=True),
    "sm80": parse("(FP16, 64, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"),
}
HEADS, HEADS_KV, D_HEAD = 2, 1, 64
LENGTHS = (70, 2048, 2049, 4300)
OPTIONS = {
    "causal": {"causal": True},
    "window": {"causal": True, "window_left": 1500, "sinks": torch.tensor([-1.0, 2.0])},
}


@pytest.fixture(scope="module")
def libraries():
    return build_emulated(CONFIGS.values(), features=EMULATED_PAGED_FIXED)


def cache_of(keys, page_size: int) -> Cache:
    """In random pages that the table has no more entries than needed for."""
    lengths = [len(k) for k, _ in keys]
    width = math.ceil(max(lengths) / page_size)
    cache = Cache(lengths, page_size, HEADS_KV, D_HEAD, torch.float16, width=width)
    for b, (k, v) in enumerate(keys):
        cache.k[cache.place(b)], cache.v[cache.place(b)] = k, v
    return cache


def sequences(seed: int):
    torch.manual_seed(seed)
    of = ((1, HEADS), (0, HEADS_KV), (0, HEADS_KV))
    return [
        tuple(torch.randn(1, 3 if is_q else n, h, D_HEAD).half() for is_q, h in of) for n in LENGTHS
    ]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("options", OPTIONS)
def test_bits_of_a_row(libraries, name, options):
    options, config = OPTIONS[options], CONFIGS[name].canonical()
    every = sequences(seed=len(options))

    def run(q, keys, page_size, resident_ctas=RESIDENT_CTAS):
        cache = cache_of(keys, page_size)
        out, lse, report = run_library(
            libraries[config], (q, cache.k, cache.v), config, pages=cache.tensors[2:],
            num_splits=AT_FIXED_KEYS, resident_ctas=resident_ctas, **options,
        )  # fmt: skip
        report.check()
        return out, lse, report.problem["num_splits"]

    alone, n_splits = [], []
    for q, k, v in every:
        out, lse, n = run(q, [(k[0], v[0])], 64)
        alone.append((out, lse))
        n_splits.append(n)
        expect(q, k, v, **options).check(out, lse)
    assert n_splits == ([2, 2, 3, 5] if "sinks" in options else [1, 2, 3, 5])
    last, last_lse, _ = run(q[:, -1:], [(k[0], v[0])], 128)
    assert torch.equal(last, out[:, -1:])
    assert torch.equal(last_lse, lse[..., -1:])
    out, lse, n = run(torch.cat([q for q, _, _ in every]), [(k[0], v[0]) for _, k, v in every], 1)
    assert n >= 5
    for b, (of_one, lse_of_one) in enumerate(alone):
        assert torch.equal(out[b : b + 1], of_one)
        assert torch.equal(lse[b : b + 1], lse_of_one)
    if name == "sm90":  # few CTAs, each of which folds the splits of its tiles
        for page_size, resident_ctas in ((64, 3), (16, 8)):
            keys = [(k[0], v[0]) for _, k, v in every]
            folded, lse_of_folded, n = run(
                torch.cat([q for q, _, _ in every]), keys, page_size, resident_ctas
            )
            assert n == 1
            assert torch.equal(folded, out)
            assert torch.equal(lse_of_folded, lse)


@pytest.fixture(scope="module")
def pairs():
    """The kernels for many and for few rows, by dtype and d_head."""
    configs = {
        kind: [invariant_config(*kind, 90, few_rows).canonical() for few_rows in (False, True)]
        for kind in (("FP16", 64), ("BF16", 128))
    }
    every = list(itertools.chain(*configs.values()))
    built = build_emulated(every, features=EMULATED_PAGED_FIXED)
    return {kind: [(built[config], config) for config in of] for kind, of in configs.items()}


@pytest.mark.parametrize("scale", [None, 1.0, 9.0])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("narrower", [0, 8])
@pytest.mark.parametrize("kind", [("FP16", 64), ("BF16", 128)])
def test_few_rows_have_the_bits_of_many(pairs, kind, narrower, options, scale):
    """Whichever config a call takes; scores of a larger scale overflow what was computed with m."""
    options = OPTIONS[options] | ({} if scale is None else {"softmax_scale": scale})
    dtype, d_head = {"FP16": torch.float16, "BF16": torch.bfloat16}[kind[0]], kind[1] - narrower
    torch.manual_seed(7)
    results: list[list[torch.Tensor]] = [[], []]
    for length in (70, 2049):
        q = torch.randn(1, 3, HEADS, d_head).to(dtype)
        cache = Cache([length], 64, HEADS_KV, d_head, dtype)
        for (library, config), of_config in zip(pairs[kind], results, strict=True):
            out, lse, report = run_library(
                library, (q, cache.k, cache.v), config, pages=cache.tensors[2:],
                num_splits=AT_FIXED_KEYS, **options,
            )  # fmt: skip
            report.check()
            of_config += [out, lse]
    assert all(itertools.starmap(torch.equal, zip(*results, strict=True)))


# Head dimensions with room for the fold, numbers of consumers, and kinds of slabs that O leaves
# through.
FOLDING = [
    parse(f"({tile}): sm90+stages_2{words}").canonical()
    for tile, words in (
        ("BF16, 128, 128, 128, 2", "+overlap+pingpong+persistent+rescale_threshold+rows_decide"),
        ("FP16, 96, 128, 128, 2", "+persistent+rescale_threshold+rows_decide"),
        ("BF16, 64, 256, 64, 4", "+overlap+persistent+rescale_threshold+rows_decide"),
        ("FP16, 64, 128, 128, 2", "+overlap+pingpong+persistent"),
        ("FP16, 64, 128, 128, 2", "+overlap+pingpong+persistent+rescale_threshold+rows_decide"),
    )
]
MASKS = {
    "none": {},
    "causal": {"causal": True},
    "window": {"window_left": 700, "window_right": 300},
    "long window": {"causal": True, "window_left": 1000},
    "sinks": {"causal": True, "sinks": torch.tensor([-1.0, 2.0])},
    "far sinks": {"window_left": 5, "sinks": torch.tensor([-100.0, 60.0])},
    "slopes": {"causal": True, "alibi_slopes": torch.tensor([0.01, 0.001])},
}


@pytest.fixture(scope="module")
def folding(tmp_path_factory):
    """With every bug in them, none of which is on."""
    root = tmp_path_factory.mktemp("planted_folds")
    configs = {str(config): config for config in FOLDING}
    built = build_planted(BUGS, configs, root, features=EMULATED_FIXED)
    return {config: built[str(config)] for config in FOLDING}


def attend(
    library, config, mask, resident_ctas=RESIDENT_CTAS, order=ORDERS[0], narrower=0, change=None
):
    """Rows in two tiles, with keys in up to three splits. change: of V."""
    options = MASKS[mask]
    d_head = config.d_head - narrower
    torch.manual_seed(d_head)
    shapes = ((1, config.B_r + 22, 2, d_head), *2 * [(1, 2100, 1, d_head)])
    inputs = [torch.randn(shape).to(TORCH_DTYPES[config.dtype]) for shape in shapes]
    if change is not None:
        change(inputs[2])
    out, lse, report = run_library(
        library, inputs, config, num_splits=AT_FIXED_KEYS, order=order,
        resident_ctas=resident_ctas, **options,
    )  # fmt: skip
    return out, lse, report, expect(*inputs, **options)


@pytest.mark.parametrize("narrower", [0, 8])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("config", FOLDING, ids=str)
def test_folded_by_one_cta_and_shared_by_several(folding, config, mask, narrower):
    """In every order of warps."""
    run = functools.partial(attend, folding[config], config, mask, narrower=narrower)
    shared, lse_of_shared, report, expected = run()
    report.check()
    assert report.problem["num_splits"] == 3
    assert report.smem_bytes == config.smem_bytes_with(EMULATED_FIXED[0])
    expected.check(shared, lse_of_shared)
    for n, order in enumerate(ORDERS):
        resident_ctas = 1 + 2 * (n % 2)
        out, lse, report, _ = run(resident_ctas, order)
        report.check()
        assert report.problem["num_splits"] == 1
        assert torch.equal(out, shared)
        assert torch.equal(lse, lse_of_shared)


@pytest.mark.parametrize("resident_ctas", [RESIDENT_CTAS, 1])
@pytest.mark.parametrize("v", [math.inf, math.nan])
@pytest.mark.parametrize("mask", ["causal", "long window"])
@pytest.mark.parametrize("config", FOLDING, ids=str)
def test_a_split_that_a_row_has_no_key_of_does_not_reach_it(
    folding, config, mask, v, resident_ctas
):
    """Where other rows of its tile attend keys of that split, O of the row is NaN there."""
    n_queries = config.B_r + 22
    n_before = n_queries - 2100 + (2048 if mask == "causal" else 2024)
    assert 0 < n_before < n_queries
    if mask == "causal":  # the last split, which is the first to be taken in
        rows, others, keys = slice(n_before), slice(n_before, None), slice(2048, None)
    else:
        rows, others, keys = slice(n_before, None), slice(n_before), slice(1024)
    run = functools.partial(attend, folding[config], config, mask, resident_ctas)
    (out, lse, report, _), (found, of_found, _, _) = (
        run(),
        run(change=lambda values: values[:, keys].fill_(v)),
    )
    assert report.problem["num_splits"] == (1 if resident_ctas == 1 else 3)
    assert torch.equal(found[:, rows], out[:, rows])
    assert torch.equal(of_found[..., rows], lse[..., rows])
    assert not found[:, others].isfinite().any()


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(folding, bug):
    """By the emulator where it is a matter of memory, else in the bits."""
    config = FOLDING[-1]
    library, findings = folding[config], []
    shared, lse_of_shared, _, _ = attend(library, config, "sinks")
    for order in ORDERS:
        with switched_on(BUGS, bug, library):
            out, lse, report, _ = attend(library, config, "sinks", 1, order)
        findings += report.findings
        differs = not (torch.equal(out, shared) and torch.equal(lse, lse_of_shared))
        if (differs or bug.silent) and all(expected.is_in(findings) for expected in bug.found):
            return
    pytest.fail(f"{differs=}, {findings}")


def test_which_configs_have_room():
    """The others of the set leave splits to several CTAs, whatever there are of tiles."""
    configs = [c for c in named_set("invariant") if c.family.name == "sm90_forward"]
    many = [c for c in configs if not c.pack_gqa]
    assert {c.d_head for c in many if c.folds_splits} == {64, 96, 128}
    assert {c.d_head for c in many if not c.folds_splits} == {192, 256}
    few = [c for c in configs if c.pack_gqa]
    assert {(c.dtype, c.d_head, c.B_c) for c in few} < {(c.dtype, c.d_head, c.B_c) for c in many}
