"""Emitted C++ computes what the tree does. One call of the compiler for all of it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from support.emitted_variants import Emitted
from support.programs import captured, integer_program, is_exact, pairs, program

from pyflash.variant import Variant, parse
from pyflash.variant.arithmetic import applied
from pyflash.variant.cpp import (
    MOST_APART,
    gradient_struct_name,
    gradient_struct_of,
    header_of,
    struct_name,
    struct_of,
)
from pyflash.variant.evaluate import evaluate
from pyflash.variant.expr import params_of
from pyflash.variant.scalars import F32, ROUNDINGS
from pyflash.variant.tiles import Problem, Tile, tile

LISTS = {name: value.tolist() for name, value in captured().items()}
RANDOM = [program(Random(seed)) for seed in range(40)]
MASKS = [integer_program(Random(1000 + seed)) for seed in range(40)]
# Masks that both judge alike.
SAME = [
    "a: s where k <= q + k_len - q_len",
    "a: s where (k <= q) & (q - k < 7)",
    "a: s where (k // 8 == q // 8) | (k % 16 < 3)",
    "a(n: i32): s where abs(q - k) <= n * 3",
    "a(ids: i32[1]): s where ids[q % 7] == ids[k % 7]",
    "a(ids: i32[1]): s where ids[min(k, 6) - 3] == 15",
    "a(far: i64[1]): s where far[min(q, 4)] <= far[min(k, 4)]",
    "a(keep: bool[2], flag: bool): s where keep[q % 5, h % 4] & flag ^ (k < 5)",
    "a: s where where(h == 2, clamp(k, 3, q), -q // 3) <= q_len >> 2",
]
ALIKE = [parse(text) for text in SAME]
# Each operation on its own.
UNARY = ["exp", "exp2", "log", "log2", "tanh", "sigmoid", "sqrt", "rsqrt", "sin", "cos", "erf"]
SINGLE = [parse(f"a: {op}(s)") for op in [*UNARY, "floor", "abs", "f16", "bf16", "-"]]
SINGLE += [parse("a: exp(s + 1.0) * (s * 2.0) - (s + 1.0) / (s * 2.0)")]
SINGLE += [parse(f"a: f32((q - 20) {op} (k - 5))") for op in ("<<", ">>", "//", "%")]
SINGLE += [parse(f"a(x: f32): {text}") for text in ("s / x", "min(s, x)", "max(x, s)")]
SINGLE += [parse(f"a: f32(i32(s * {factor}))") for factor in ("1.0", "1e9", "-1e30")]
SINGLE += [parse(f"a(n: i32): f32((q * 99999 + s_) {op} n)".replace("s_", "i32(s * 1e8)"))
           for op in ("*", "+", "//", "%", "<<", ">>", "&", "|", "^")]  # fmt: skip
ALL = [*RANDOM, *MASKS, *ALIKE, *SINGLE]


@pytest.fixture(scope="module")
def emitted(tmp_path_factory) -> Emitted:
    return Emitted(ALL, captured(), tmp_path_factory.mktemp("emitted"))


@pytest.mark.parametrize("which", range(len(ALL)))
def test_it_computes_what_the_tree_does(emitted, which):
    variant = ALL[which]
    values = pairs(Random(which), 256)
    score, mask, _ = np.broadcast_arrays(*evaluate(variant, values), values["s"])
    found, shown = emitted.run(which, values)
    np.testing.assert_array_equal(shown, mask)
    visible = mask & ~np.isneginf(score)
    if is_exact(variant):
        np.testing.assert_array_equal(found[visible], score[visible])
    else:  # libm rounds float32 on its own
        scale = np.abs(score[visible & np.isfinite(score)]).max(initial=1)
        np.testing.assert_allclose(found[visible], score[visible], rtol=1e-5, atol=1e-6 * scale)


def test_rounding_is_the_same(emitted):
    """At every exponent, on both sides of ties."""
    near = [2.0**e * (1 + m / 4096) for e in range(-30, 18) for m in (0, 1, 2, 3, 4, 6, 4095)]
    values = np.array([*near, 65519.0, 65520.0, np.inf, 3e38, 2.0**-149], np.float32)
    values = np.concatenate([values, -values, np.array([0.0, -0.0, np.nan], np.float32)])
    at = {name: np.zeros(len(values)) for name in pairs(Random(0))} | {"s": values}
    for op in ROUNDINGS:
        which = ALL.index(parse(f"a: {op}(s)"))
        expected = [applied(op, F32, value.item()) for value in values]
        found = emitted.run(which, at)[0]
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def tiles_at(random: Random, count: int) -> list[tuple[Tile, Problem]]:
    found = []
    for _ in range(count):
        q, k = random.randrange(40), random.randrange(40)
        at = Tile(
            (q, q + random.randrange(6)), (k, k + random.randrange(6)), 1, random.randrange(4)
        )
        found.append((at, Problem(random.randrange(60), random.randrange(60), q0=3, k0=7)))
    return found


def truth(variant: Variant, at: Tile, problem: Problem) -> str:
    q, k = np.mgrid[at.q[0] : at.q[1] + 1, at.k[0] : at.k[1] + 1]
    names = {name: getattr(problem, name) for name in ("q_len", "k_len", "q0", "k0")}
    here = {"q": q, "k": k, "b": at.b, "h": at.h, "s": np.float32(0), **names, **captured()}
    shown = evaluate(variant, here)[1]
    return "all" if shown.all() else "some" if shown.any() else "none"


@pytest.mark.parametrize("which", range(len(RANDOM), len(RANDOM) + len(MASKS) + len(ALIKE)))
def test_tiles_are_never_judged_wrongly(emitted, which):
    variant = ALL[which]
    places = tiles_at(Random(which), 60)
    rows = [(at.b, at.h, *at.q, *at.k, p.q_len, p.k_len, p.q0, p.k0) for at, p in places]
    judged = emitted.tiles(which, rows)
    normal = {f"p{i}": LISTS[param.name] for i, param in enumerate(variant.captured)}
    for verdict, (at, problem) in zip(judged, places, strict=True):
        assert verdict in ("some", truth(variant, at, problem))
        if variant in ALIKE:
            assert verdict == tile(variant.normal.mask, at, problem, normal)


def test_what_a_causal_mask_judges_is_not_all_some(emitted):
    rows = [(0, 0, q, q + 3, k, k + 3, 40, 40, 0, 0) for q in (0, 20) for k in (0, 20)]
    assert emitted.tiles(ALL.index(ALIKE[0]), rows) == ["some", "none", "all", "some"]


def test_the_text_says_where_it_is_from():
    variant = parse("alibi(slope: f32[1]): s + slope[h] * (k - q) where k <= q")
    text = header_of(variant)
    assert f"// {variant}\nstruct Variant_{variant.key} {{" in text
    assert "Table<float, 1> p0;  // slope" in text
    assert "return {params.p0.at(h)};" in text
    assert "return fused(raw, scale, distance.d0);" in text
    distance = "fused(float(offset), uniform.u0, float(first_apart) * uniform.u0)"
    assert f"return {{{distance}, apart <= 0}};" in text
    assert f"kMostPositions = {MOST_APART};" in text
    assert "return distance.d1;" in text


@pytest.mark.parametrize(
    ("text", "is_apart"),
    [
        ("a: s + f32(k - q)", True),
        ("a: s + f32(3 * k - 2 * q + 64)", True),
        ("a: s + f32(q - k - k_len + q_len)", True),
        ("a: s + f32(k)", True),
        ("a: s + f32(q)", False),
        ("a: s + f32(4 * k - 3 * q)", False),
        ("a: s + f32(k - q + 65)", False),
        ("a(n: i32): s + f32(k - q + n)", False),
        ("a: s + f32(k * q)", False),
        ("a: s where k <= q", False),
    ],
)
def test_which_sums_become_floats_apart(text, is_apart):
    assert (f"kMostPositions = {MOST_APART};" in struct_of(parse(text))) is is_apart


def test_sums_that_may_wrap_are_written_so():
    text = struct_of(parse("a(n: i32): s where (q + 5) * (k + 3) == n * 2"))
    assert "wrapping_mul(params.p0, 2)" in text
    assert "q + 5" in text


def test_programs_use_every_parameter():
    used = {param.name for variant in RANDOM for param in params_of(variant.score, variant.mask)}
    assert used == set(LISTS)


def test_a_struct_of_gradients_has_the_slope_and_a_name_of_its_own():
    variant = parse("a(c: f32, gain: f32[1]): c * tanh(s / c) * gain[h] where k <= q")
    text = gradient_struct_of(variant)
    assert f"struct {gradient_struct_name(variant)} {{" in text
    assert gradient_struct_name(variant) != struct_name(variant)
    assert "kHasSlope = true;" in text
    assert "ScoreAndSlope score_and_slope(" in text
    assert "score_and_slope" not in struct_of(variant)


@pytest.mark.parametrize("text", ["a: s where k <= q", "a(t: f32[2]): s + t[h, k - q]"])
def test_a_bias_has_no_slope(text):
    assert "kHasSlope = false;" in gradient_struct_of(parse(text))


def test_keys_as_rows_read_no_pairs_of_prepared_numbers():
    """Keys of a thread are eight apart, and the first may be odd."""
    variant = parse("a(t: f32[1]): s + t[k]")
    assert "prepared_beside" in struct_of(variant)
    assert "prepared_beside" not in gradient_struct_of(variant)


@pytest.mark.parametrize(
    ("mask", "by_position"),
    [
        ("k <= q", False),
        ("k < lengths[b]", False),
        ("k < table[h, lengths[b]]", False),
        ("ids[q] == ids[k]", True),
        ("table[h, lengths[min(k, 3)]] < q", True),
        ("(k < lengths[b]) & (ids[k] > 3)", True),
    ],
)
def test_kernels_know_whether_a_mask_reads_tensors_by_position(mask, by_position):
    """So that tiles of others go by their place (tile_order.h)."""
    params = {"lengths": "i32[1]", "ids": "i32[1]", "table": "i32[2]"}
    of = ", ".join(f"{name}: {kind}" for name, kind in params.items() if name in mask)
    struct = struct_of(parse(f"a({of}): s where {mask}" if of else f"a: s where {mask}").normal)
    assert f"kMaskReadsTensorsByPosition = {str(by_position).lower()};" in struct
