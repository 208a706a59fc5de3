"""The list of equal shares of the keys, by the code that the device runs, on several threads: every
block of keys of every tile in one share, none with more than the others; parts in the order of the
shares, each in a place of its own. A planted error in the code shows."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from dataclasses import dataclass

import pytest
from support.planted.planting import SWITCH, Bug, apply, condition

from pyflash.codegen.compilation import ROOT

NO_WINDOW = 1 << 30
LEAST = 4  # units of a share: kLeastUnits


@dataclass(frozen=True)
class Listing:
    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    heads: int = 2
    abreast: int = 1  # heads
    n_queries: int = 16
    B_c: int = 64
    n_shares: int = 264
    left: int = NO_WINDOW
    right: int = NO_WINDOW
    paged: bool = False
    n_threads: int = 3
    slack: int = 0  # of the largest lengths, which are bounds

    def line(self) -> str:
        longest = [max(x, default=0) + self.slack for x in (self.lengths_q, self.lengths_k)]
        head = (self.n_threads, self.heads, self.abreast, self.n_queries, self.B_c, self.n_shares)
        numbers = (*head, self.left, self.right, 0, *longest, int(self.paged), len(self.lengths_q))
        return " ".join(map(str, (*numbers, *self.lengths_q, *self.lengths_k)))

    def n_blocks(self, sequence: int) -> int:
        """The blocks that a tile attends, by its first and its last row."""
        length_q, length_k = self.lengths_q[sequence], self.lengths_k[sequence]
        aligned = length_k - length_q
        last = aligned + min(length_q, self.n_queries) - 1
        begin, end = max(aligned - self.left, 0), max(min(last + self.right + 1, length_k), 0)
        return max(-(-end // self.B_c) - begin // self.B_c, 0)

    def tiles(self) -> list[tuple[int, int]]:
        """(sequence, head) for each tile of the first of the heads abreast."""
        return [
            (sequence, head)
            for sequence, length in enumerate(self.lengths_q)
            if 0 < length <= self.n_queries
            for head in range(0, self.heads, self.abreast)
        ]


# Errors, each on by its number in the environment.
def _error(name: str, original: str, planted: str, file: str = "common/shares.h") -> Bug:
    return Bug(name, (condition(original, planted, file),))


ERRORS = [
    _error("a share begins a unit late", "int const begin = i * size;",
           "int const begin = i * size + BUG;"),
    _error("sequences without queries count", "if (length_q == 0 ||",
           "if (length_q < (BUG ? 0 : 1) ||"),
    _error("sequences of more rows than a tile count", "length_q > n_queries) {",
           "length_q > n_queries + 1000 * BUG) {"),
    _error("the sequence before", "start <= begin ? sequence : end",
           "start + BUG <= begin ? sequence : end"),
    _error("the heads of a sequence are one tile",
           "listing.units_of(first + i, load) * listing.tiles()",
           "listing.units_of(first + i, load) * (BUG ? 1 : listing.tiles())"),
    _error("a chunk of sequences starts at 0", "= total + ends[i]",
           "= (BUG ? 0 : total) + ends[i]"),
    _error("sums are where those of more numbers would be", "    from = made;",
           "    from = BUG ? from : made;", "common/sums.h"),
    _error("the sequence that ends a chunk has no end", "ends[sequence - 1] : starts",
           "ends[sequence - (BUG ? 0 : 1)] : starts"),
    _error("every CTA merges the tile", "if (first + 1 != share) {",
           "if (BUG ? first + 1 > share : first + 1 != share) {"),
    _error("heads abreast have one place", "first * listing.abreast + index,",
           "first * listing.abreast + (BUG ? 0 : index),"),
    _error("heads abreast are one", ".head = begin.head + index,",
           ".head = begin.head + (BUG ? 0 : index),"),
    _error("the head after is the next of those abreast", "/ n_units * listing.abreast,",
           "/ n_units * (BUG ? 1 : listing.abreast),"),
    _error("two parts have one place", "(begins_tile ? 1 : 0)", "(begins_tile && !BUG ? 1 : 0)"),
    _error("a tile ends a block early", "(start + n_units - 1) / size,",
           "(start + n_units - 1 - BUG) / size,"),
]  # fmt: skip
_DECLARATION = f"""#pragma once
#include <cstdlib>
inline int const {SWITCH} = std::getenv("PLANTED") ? std::atoi(std::getenv("PLANTED")) : 0;
"""


@pytest.fixture(scope="module")
def lists_of(tmp_path_factory):
    """Runs the program with an error, by its number, or with none: 0."""
    root = tmp_path_factory.mktemp("shares")
    common = root / "cute_kernels/common"
    shutil.copytree(ROOT / "cute_kernels/common", common)
    for number, error in enumerate(ERRORS, start=1):
        for edit in error.edits:
            apply(edit, number, root / "cute_kernels" / edit.file)
    (common / "planted.h").write_text(_DECLARATION)
    (common / "shares.h").write_text(
        f'#include "cute_kernels/common/planted.h"\n{(common / "shares.h").read_text()}'
    )
    source, binary = ROOT / "tests/support/print_shares.cpp", root / "print_shares"
    command = ["g++", "-std=c++20", "-O1", "-pthread", f"-I{root}", source, "-o", binary]
    subprocess.run(command, check=True)

    def run(listings: list[Listing], error: int = 0) -> list[list[int]]:
        lines = "".join(listing.line() + "\n" for listing in listings)
        done = subprocess.run(
            [binary],
            input=lines,
            check=error == 0,  # one may crash
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PLANTED": str(error)},
        )
        return [list(map(int, line.split())) for line in done.stdout.splitlines()]

    return run


def check_all(printed: list[list[int]]) -> None:
    for listing, numbers in zip(LISTINGS, printed, strict=True):
        check(listing, numbers)


def check(listing: Listing, printed: list[int]) -> None:
    size, total, share_size, *rest = printed
    assert size % 4 == 0
    assert size >= 4 + 4 * listing.n_shares + len(listing.lengths_q) + 1
    tiles = listing.tiles()
    units = {tile: listing.n_blocks(tile[0]) + 1 for tile in tiles}
    assert total == sum(units.values())
    assert share_size == max(-(-total // listing.n_shares), LEAST)
    # A walk through the tiles in order meets each share where its predecessor ended.
    line = [(*tile, unit) for tile in tiles for unit in range(units[tile])]
    shares = [rest[4 * i : 4 * i + 4] for i in range(listing.n_shares)]
    owners: dict[tuple[int, int], list[int]] = {}
    for i, (sequence, head, first, n_units) in enumerate(shares):
        mine = line[i * share_size : (i + 1) * share_size]
        assert n_units == len(mine)
        if mine:
            assert (sequence, head, first) == mine[0]
        for s, h, unit in mine:
            if unit >= 1 and i not in owners.setdefault((s, h), []):
                owners[s, h].append(i)
    # Those that are cut, each at the CTA whose share begins within it first. Heads abreast have
    # CTAs beside each other.
    n = listing.abreast
    expected = []
    for (sequence, head), found in owners.items():
        for index in range(n) if len(found) > 1 else ():
            ctas = [share * n + index for share in found]
            places = [2 * ctas[0] + 1, *(2 * cta for cta in ctas[1:])]
            expected.append((ctas[1], [sequence, head + index, ctas[0], *places]))
    flat = [x for _, numbers in sorted(expected) for x in numbers]
    assert rest[4 * listing.n_shares :] == flat
    places = [x for _, numbers in expected for x in numbers[3:]]
    assert len(set(places)) == len(places)
    assert all(0 <= place < 2 * listing.n_shares * n for place in places)


def random_listing(seed: int) -> Listing:
    chance = random.Random(seed)
    batch = chance.choice((1, 2, 5, 31, 67))
    longest = chance.choice((1, 64, 3000))
    heads = chance.choice((1, 2, 8))
    mask = chance.choice(({}, {"right": 0}, {"left": 700, "right": 0}, {"left": 40}))
    return Listing(
        tuple(chance.choice((0, 1, 1, 1, 4, 16)) for _ in range(batch)),
        tuple(chance.choice((0, 1, chance.randint(0, longest))) for _ in range(batch)),
        heads=heads,
        abreast=chance.choice([n for n in (1, 2, 4, 8) if heads % n == 0]),
        B_c=chance.choice((32, 64, 128)),
        n_shares=chance.choice((1, 2, 7, 264)),
        paged=chance.random() < 0.5,
        n_threads=chance.choice((1, 2, 7)),
        slack=chance.choice((0, 1, 5000)),
        **mask,
    )


LISTINGS = [random_listing(seed) for seed in range(60)]
LISTINGS += [
    Listing((1,) * n, tuple(i * 7 % 900 for i in range(n)), n_shares=33)
    for n in (1023, 1024, 1025, 2500)
]
LISTINGS += [
    Listing((), ()),
    Listing((0,) * 3, (5,) * 3),
    Listing((1,), (0,)),
    Listing((1,), (64_000,)),
    Listing((1, 17, 16, 2048, 3), (300, 900, 70, 8192, 5000), right=0, n_shares=9),
]


def test_every_block_in_one_share(lists_of):
    check_all(lists_of(LISTINGS))


@pytest.mark.parametrize("error", ERRORS, ids=str)
def test_an_error_shows(lists_of, error):
    printed = lists_of(LISTINGS, 1 + ERRORS.index(error))
    with pytest.raises((AssertionError, ValueError)):  # ValueError: it prints fewer
        check_all(printed)
