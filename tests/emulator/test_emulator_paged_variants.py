"""Kernels of both forward families over pages with a variant that is many in one, emulated: beside
fp64, with NaN in rows that hold no key, and each planted bug is found."""

from __future__ import annotations

import pytest

pytest.importorskip("ninja", reason="building needs ninja")

from support.paged_variants import OPTIONS, PROBLEMS, TEXTS
from support.planted.paged_variants import (
    BUGS,
    CONFIGS,
    FEATURES,
    call_of,
    planted_libraries,
    run,
)
from support.planted.planting import Bug, switched_on

from pyflash.codegen.emulated import build_emulated
from pyflash.op.variants.arguments import captured_of
from pyflash.variant import parse as parse_variant

__all__ = ["planted_libraries"]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("family", CONFIGS)
def test_it_is_its_formula(planted_libraries, family, name, problem):
    call = call_of(name, problem)
    out, lse, report = run(planted_libraries[family], family, call, order="random")
    report.check()
    call.check(out, lse)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("problem", ["packed", "one_query"])
@pytest.mark.parametrize("name", ["alibi", "far_apart", "dilated"])
@pytest.mark.parametrize("family", CONFIGS)
def test_it_composes_with_options(planted_libraries, family, name, problem, option):
    call = call_of(name, problem, option)
    out, lse, report = run(planted_libraries[family], family, call, **OPTIONS[option])
    report.check()
    call.check(out, lse, **OPTIONS[option])


@pytest.mark.parametrize("num_splits", [2, 3, 8, 16])
@pytest.mark.parametrize("problem", ["one_query", "packed", "pages_of_7"])
@pytest.mark.parametrize(
    "name", ["alibi", "far_apart", "dilated", "documents", "of_pair", "curved"]
)
def test_clusters_merge_splits(planted_libraries, name, problem, num_splits):
    call, options = call_of(name, problem), {"num_splits": num_splits, "resident_ctas": 1000}
    library = planted_libraries["sm90_decoding"]
    out, lse, report = run(library, "sm90_decoding", call, order="random", **options)
    report.check()
    assert report.cluster == num_splits
    call.check(out, lse)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["alibi", "far_apart", "dilated"])
def test_clusters_compose_with_options(planted_libraries, name, option):
    call, options = call_of(name, "packed", option), OPTIONS[option] | {"num_splits": 3}
    library = planted_libraries["sm90_decoding"]
    out, lse, report = run(library, "sm90_decoding", call, resident_ctas=1000, **options)
    report.check()
    assert report.cluster == 3
    call.check(out, lse, **options)


# By itself a mask is bits, and kernels of scores alone walk no lists.
ALONE = [
    ("sm90", "dilated"),
    ("sm90_packed_heads", "dilated"),
    ("sm90", "of_key"),
    ("sm90_decoding", "of_pair"),
]


@pytest.fixture(scope="module", params=ALONE, ids="-".join)
def alone(request):
    family, name = request.param
    normal = parse_variant(TEXTS[name]).normal
    (library,) = build_emulated([CONFIGS[family]], normal, FEATURES).values()
    return family, name, library


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_variant_by_itself(alone, problem):
    family, name, library = alone
    call = call_of(name, problem)
    captured = captured_of(call.text, call.tensors)
    out, lse, report = run(library, family, call, captured=captured, order="descending")
    report.check()
    call.check(out, lse)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_found(planted_libraries, bug: Bug):
    for family in bug.configs:
        name, problem, *option = bug.problem.split(", ")
        call, options = call_of(name, problem, *option), OPTIONS[option[0]] if option else {}
        with switched_on(BUGS, bug, planted_libraries[family]):
            out, lse, report = run(planted_libraries[family], family, call, **options)
            try:
                call.check(out, lse, **options)
            except AssertionError:
                continue
            assert report.findings, family
