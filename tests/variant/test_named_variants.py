"""Each named variant beside its reference of one pair, in all of its forms."""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pyflash.variant import parse
from pyflash.variant.bytecode import program_of, run
from pyflash.variant.cpp import header_of
from pyflash.variant.evaluate import evaluate
from pyflash.variant.expr import INDICES, MEANINGS
from pyflash.variant.library import named, names
from pyflash.variant.pair import Pair
from pyflash.variant.structure import BITS, EVERYTHING, RANGES, structure
from pyflash.variant.tiles import Problem, tiles

ROOT = Path(__file__).parents[2]
PROBLEMS = [Problem(12, 12, 2, 2), Problem(5, 12, 2, 2), Problem(1, 12, 2, 3), Problem(12, 6, 1, 1)]
LISTED = [
    "alibi",
    "bias",
    "block_causal",
    "block_diffusion",
    "causal",
    "chunked",
    "dilated",
    "documents",
    "global_window",
    "graphormer",
    "natten_2d",
    "padding",
    "prefix_lm",
    "relative_table",
    "sandwich",
    "shared_prefix",
    "softcap",
    "soft_window",
    "sta",
    "t5_bias",
    "temperature",
    "tree",
    "window",
]


def test_the_folder_is_the_list():
    assert names() == sorted(LISTED)
    assert len({named(name).variant.key for name in names()}) == len(names())
    with pytest.raises(ValueError, match=r"did you mean softcap\?"):
        named("soft_cap")
    with pytest.raises(ValueError, match="expected one of alibi, bias"):
        named("x")


def pairs_of(problem: Problem) -> list[Pair]:
    extents = (problem.batch, problem.heads, problem.q_len, problem.k_len)
    scores = np.random.default_rng(0).normal(size=extents).astype(np.float32)
    return [
        Pair(scores[at].item(), *at, problem.q_len, problem.k_len)
        for at in product(*map(range, extents))
    ]


def arrays(pairs: list[Pair]) -> dict[str, np.ndarray]:
    names = ("b", "h", "q", "k", "q_len", "k_len")
    found = {name: np.array([getattr(pair, name) for pair in pairs], np.int32) for name in names}
    zeros = np.zeros(len(pairs), np.int32)
    return found | {"s": np.array([p.s for p in pairs], np.float32), "q0": zeros, "k0": zeros}


def values_of(name: str, problem: Problem) -> dict[str, np.ndarray]:
    types = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "bool": bool}
    example = named(name).example(problem)
    kinds = {param.name: str(param.kind) for param in named(name).variant.params}
    return {key: np.asarray(value, types[kinds[key]]) for key, value in example.items()}


@pytest.mark.parametrize("problem", PROBLEMS, ids=range(len(PROBLEMS)))
@pytest.mark.parametrize("name", LISTED)
def test_it_is_its_reference(name, problem):
    entry = named(name)
    example, pairs = entry.example(problem), pairs_of(problem)
    expected = [entry.reference(pair, **example) for pair in pairs]
    score, mask = evaluate(entry.variant, arrays(pairs) | values_of(name, problem))
    assert mask.tolist() == [value is not None for value in expected]
    visible = [value for value in expected if value is not None]
    np.testing.assert_allclose(score[mask], visible, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", LISTED)
def test_its_bytecode_is_its_reference(name):
    entry, problem = named(name), PROBLEMS[1]
    example = entry.example(problem)
    programs = [
        program_of(root, entry.variant.params) for root in (entry.variant.score, entry.variant.mask)
    ]
    values = [example[param.name] for param in entry.variant.params]
    for pair in pairs_of(problem)[::3]:
        indices = [getattr(pair, index, 0) for index in MEANINGS]
        expected = entry.reference(pair, **example)
        assert run(programs[1], indices, values) == (expected is not None, True)
        if expected is not None:
            assert run(programs[0], indices, values) == (pytest.approx(expected, rel=2e-6), True)


@pytest.mark.parametrize("block", [(2, 3), (4, 4)])
@pytest.mark.parametrize("name", LISTED)
def test_its_tiles_are_never_judged_wrongly(name, block):
    entry, problem = named(name), PROBLEMS[0]
    pairs = pairs_of(problem)
    mask = evaluate(entry.variant, arrays(pairs) | values_of(name, problem))[1]
    shown = mask.reshape(problem.batch, problem.heads, problem.q_len, problem.k_len)
    judged = {}
    for b in range(problem.batch):
        found = tiles(entry.variant.mask, problem, block, entry.example(problem), b, 0)
        for i, j in np.ndindex(len(found), len(found[0])):
            q, k = i * block[0], j * block[1]
            tile = shown[b, 0, q : q + block[0], k : k + block[1]]
            truth = "all" if tile.all() else "some" if tile.any() else "none"
            assert found[i][j] in ("some", truth)
            judged.setdefault(truth, []).append(found[i][j] == truth)
    if name in ("causal", "window", "alibi", "prefix_lm", "documents", "chunked", "padding"):
        assert all(map(all, judged.values()))  # exact


BY_STRUCTURE = {
    RANGES: "alibi causal padding sandwich soft_window window",
    EVERYTHING: "bias graphormer relative_table softcap t5_bias temperature",
    BITS: "block_causal block_diffusion chunked dilated documents global_window natten_2d "
    "prefix_lm shared_prefix sta tree",
}


def test_structures():
    found = {name: structure(named(name).variant.normal.mask) for name in names()}
    expected = {name: kind for kind, text in BY_STRUCTURE.items() for name in text.split()}
    assert found == expected


@pytest.mark.parametrize("name", LISTED)
def test_it_is_written_down(name):
    entry = named(name)
    assert entry.name == name
    assert entry.formula
    assert entry.source
    assert parse(str(entry.variant)).same_as(entry.variant)
    assert set(entry.example(PROBLEMS[0])) == {param.name for param in entry.variant.params}
    assert not {param.name for param in entry.variant.params} & set(INDICES)


def test_every_emitted_struct_compiles(tmp_path):
    source = tmp_path / "library.cpp"
    headers = [header_of(named(name).variant).replace("#pragma once", "") for name in names()]
    source.write_text("\n".join(headers))
    command = ["g++", "-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]
    command += ["-fsyntax-only", f"-I{ROOT}", str(source)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
