"""Features: text, C++, order, and the combination that a problem runs in."""

import dataclasses
import itertools

import pytest

from pyflash import Features
from pyflash.codegen.emit import emit_config
from pyflash.config import named_set
from pyflash.config.features import BUILT, DROPOUT, FIXED, NAMES, SHARED, first_covering

ALL = [Features(*flags) for flags in itertools.product((False, True), repeat=len(NAMES))]


def test_text():
    assert str(Features()) == "plain"
    assert str(Features(left_window=True, right_window=True)) == "right_window+left_window"
    assert [Features.parse(str(f)) for f in ALL] == ALL
    assert Features.parse("softcap + right_window") == Features(right_window=True, softcap=True)
    assert Features.of("sinks") == Features.of(Features(sinks=True)) == Features(sinks=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("causal", "unknown feature 'causal' in 'causal': expected plain, or some of right_window"),
        ("plain+softcap", "unknown feature 'plain'"),
        ("", "unknown feature ''"),
        ("softcap+softcap", "'softcap' is repeated"),
    ],
)
def test_errors_name_the_offending_text(text, says):
    with pytest.raises(ValueError, match=says):
        Features.parse(text)


def test_cpp():
    assert Features().to_cpp() == "ForwardFeatures{}"
    assert Features(right_window=True, sinks=True).to_cpp() == (
        "ForwardFeatures{.right_window = true, .sinks = true}"
    )


def test_a_kernel_covers_what_it_has_and_less():
    for needed in ALL:
        names = [name for name in NAMES if getattr(needed, name)]
        for kernel in (*BUILT, *_near(needed)):
            has_all = all(getattr(kernel, name) for name in names)
            same = all(getattr(kernel, name) == getattr(needed, name) for name in Features.exact)
            assert kernel.covers(needed) == (has_all and same)


def _near(features: Features) -> list[Features]:
    """Those that differ from these in at most two."""
    pairs = itertools.combinations_with_replacement(NAMES, 2)
    flipped = ({name: not getattr(features, name) for name in names} for names in pairs)
    return [features, *(dataclasses.replace(features, **names) for names in flipped)]


def test_every_problem_runs_in_the_first_combination_that_covers_it():
    assert len(set(BUILT)) == len(BUILT)
    for needed in ALL:
        found = first_covering(needed)
        # Rows are gathered from pages.
        if needed.gathered_kv and not needed.paged_kv:
            assert not any(first_covering(needed, of) for of in (BUILT, DROPOUT, FIXED, SHARED))
            continue
        # The options refuse each other; with slopes a problem runs without a list.
        # Caches of e4m3 are in pages; one combination has all the other features there.
        if needed.dropout:  # built by its own set
            assert found is None
            of_set = first_covering(needed, DROPOUT)
            lacking = ("paged_kv", "listed_tiles", "fp8_kv", "equal_shares", "fixed_splits")
            assert (of_set is None) == any(getattr(needed, name) for name in lacking)
            continue
        if needed.fp8_kv:
            assert (found is None) == (
                not needed.paged_kv
                or needed.listed_tiles
                or needed.equal_shares
                or needed.fixed_splits
                or needed.gathered_kv
            )
            continue
        # As batch_invariant asks for, whose configs have no other combinations.
        if needed.fixed_splits:
            assert found is None
            fixed = first_covering(needed, FIXED)
            assert (fixed is None) == (needed.listed_tiles or needed.equal_shares or needed.softcap)
            continue
        if needed.alibi_slopes and (needed.softcap or needed.listed_tiles):
            assert found is None
            continue
        # Keys are shared where a call asks for it, by the kernels of one family.
        if needed.equal_shares and not needed.fixed_splits:
            assert found is None
            shared = first_covering(needed, SHARED)
            assert (shared is None) == (needed.alibi_slopes or needed.listed_tiles)
            continue
        assert found.covers(needed)
        assert not any(f.covers(needed) for f in BUILT[: BUILT.index(found)])
    assert [first_covering(f) for f in BUILT] == list(BUILT)
    assert not any(first_covering(f).listed_tiles for f in BUILT if not f.listed_tiles)
    assert str(first_covering("left_window")) == "right_window+left_window"
    assert first_covering("sinks", ["plain", "softcap"]) is None


def test_a_family_that_lacks_a_feature_refuses_to_build_it():
    config = next(c for c in named_set("all") if c.family.generation == 90)
    with pytest.raises(ValueError, match=r"is not built with fp8_kv: kernels of .* lack it"):
        emit_config(config, [Features.parse("paged_kv+fp8_kv")])
