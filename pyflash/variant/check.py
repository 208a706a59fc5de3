"""A variant beside itself: its normal form, its tiles and its reference on a small problem."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from random import Random
from typing import Any

from pyflash.variant.bytecode import Program, program_of, run
from pyflash.variant.expr import MEANINGS, Param
from pyflash.variant.library import Entry
from pyflash.variant.pair import Pair
from pyflash.variant.scalars import BOOL
from pyflash.variant.tiles import Problem, tiles
from pyflash.variant.value import Variant

PROBLEM = Problem(8, 10, batch=2, heads=2)
BLOCKS = ((4, 4), (3, 5))


@dataclass
class Findings:
    """How much was compared, and what differs, in words."""

    pairs: int = 0
    tiles: int = 0
    with_reference: bool = False
    faults: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check(variant: Variant, entry: Entry | None = None) -> Findings:
    """With the example of a named variant and its reference, else with random parameters."""
    values = entry.example(PROBLEM) if entry else random_values(variant)
    found = Findings(with_reference=entry is not None)
    faults = list(_faults_of_pairs(variant, entry, values, found))
    faults += _faults_of_tiles(variant, values, found)
    found.faults = tuple(faults[:8])
    return found


def random_values(variant: Variant) -> dict[str, Any]:
    """Numbers, and nested lists of 16 for each axis."""
    random = Random(0)

    def number(param: Param) -> Any:
        if param.kind is BOOL:
            return random.random() < 0.5
        return random.randrange(1, 9) if param.kind.is_integer else random.randrange(-16, 16) / 8

    def table(param: Param, axes: int) -> Any:
        return [table(param, axes - 1) for _ in range(16)] if axes else number(param)

    return {param.name: table(param, param.rank or 0) for param in variant.params}


def _pairs() -> Iterator[Pair]:
    random = Random(1)
    extents = (PROBLEM.batch, PROBLEM.heads, PROBLEM.q_len, PROBLEM.k_len)
    for b, h, q, k in product(*map(range, extents)):
        score = random.randrange(-64, 64) / 16
        yield Pair(score, b, h, q, k, PROBLEM.q_len, PROBLEM.k_len)


def _run(programs: tuple[Program, Program], pair: Pair, values: list[Any]) -> float | None:
    """The score of a pair, None where it is hidden."""
    indices = [getattr(pair, name, 0) for name in MEANINGS]
    if not run(programs[1], indices, values)[0]:
        return None
    score = run(programs[0], indices, values)[0]
    return None if score == -math.inf else score


def _programs(variant: Variant) -> tuple[Program, Program]:
    return program_of(variant.score, variant.params), program_of(variant.mask, variant.params)


def _faults_of_pairs(
    variant: Variant, entry: Entry | None, values: Mapping[str, Any], found: Findings
) -> Iterator[str]:
    own, normal = _programs(variant), _programs(variant.normal)
    given = [values[param.name] for param in variant.params]
    renamed = [values[param.name] for param in variant.captured]
    for pair in _pairs():
        found.pairs += 1
        score = _run(own, pair, given)
        if not _same(score, _run(normal, pair, renamed), exactly=True):
            yield f"the normal form differs at {pair}"
        if entry is not None and not _same(score, entry.reference(pair, **values)):
            yield f"the reference differs at {pair}"


def _same(a: float | None, b: float | None, exactly: bool = False) -> bool:
    if a is None or b is None or exactly:
        return a == b or (a is not None and b is not None and a != a and b != b)
    return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5)


def _faults_of_tiles(variant: Variant, values: Mapping[str, Any], found: Findings) -> Iterator[str]:
    mask = program_of(variant.mask, variant.params)
    given = [values[param.name] for param in variant.params]
    shown = {
        (p.b, p.h, p.q, p.k): run(mask, [getattr(p, n, 0) for n in MEANINGS], given)[0]
        for p in _pairs()
    }
    for block, b, h in product(BLOCKS, range(PROBLEM.batch), range(PROBLEM.heads)):
        judged = tiles(variant.mask, PROBLEM, block, values, b, h)
        for i, j in product(range(len(judged)), range(len(judged[0]))):
            found.tiles += 1
            rows = range(i * block[0], min((i + 1) * block[0], PROBLEM.q_len))
            columns = range(j * block[1], min((j + 1) * block[1], PROBLEM.k_len))
            truth = {shown[b, h, q, k] for q, k in product(rows, columns)}
            if judged[i][j] != "some" and truth != {judged[i][j] == "all"}:
                yield f"tile {i}, {j} of {block} is called {judged[i][j]}, of {b=} and {h=}"
