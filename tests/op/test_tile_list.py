"""The list of the tiles of packed sequences, by the code that the device runs, on several threads:
every tile once, those with the most blocks of keys first."""

from __future__ import annotations

import itertools
import random
import subprocess
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch

from pyflash.codegen.compilation import ROOT
from pyflash.op.reference import attended_with

NO_WINDOW = 1 << 30


@dataclass(frozen=True)
class Listing:
    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    n_queries: int = 128
    B_c: int = 128
    left: int = NO_WINDOW
    right: int = NO_WINDOW
    chunk: int = 0
    least_rows: int = 0
    beside: tuple[int, int, int, int, int] = (0, 0, 0, 0, -1)  # see print_tile_list.cpp
    n_threads: int = 3
    slack: int = 0  # of the largest lengths, which are bounds

    def line(self) -> str:
        longest = [max(x, default=0) + self.slack for x in (self.lengths_q, self.lengths_k)]
        head = (self.n_threads, self.n_queries, self.B_c, self.left, self.right, self.chunk)
        numbers = (*head, self.least_rows, *self.beside, *longest, len(self.lengths_q))
        return " ".join(map(str, (*numbers, *self.lengths_q, *self.lengths_k)))

    def tiles(self) -> list[tuple[int, int]]:
        return [
            (sequence, m_block)
            for sequence, length in enumerate(self.lengths_q)
            if self.least_rows <= length
            for m_block in range(-(-length // self.n_queries))
        ]

    def n_blocks(self, sequence: int, m_block: int) -> int:
        """By every pair of query and key."""
        length_q, length_k = self.lengths_q[sequence], self.lengths_k[sequence]
        first = m_block * self.n_queries
        rows = torch.arange(first, min(first + self.n_queries, length_q))
        windows = {"window_left": self.left, "window_right": self.right}
        options = {name: -1 if n == NO_WINDOW else n for name, n in windows.items()}
        options["attention_chunk"] = self.chunk
        keys = attended_with(options, rows, length_q, length_k).any(0).nonzero()[:, 0]
        if not len(keys):
            return 0
        return int(keys[-1]) // self.B_c - int(keys[0]) // self.B_c + 1


@pytest.fixture(scope="module")
def lists_of(tmp_path_factory):
    program = tmp_path_factory.mktemp("tile_list") / "print_tile_list"
    source = ROOT / "tests/support/print_tile_list.cpp"
    command = ["g++", "-std=c++20", "-O1", "-pthread", f"-I{ROOT}", source, "-o", program]
    subprocess.run(command, check=True)

    def run(listings: list[Listing]) -> list[list[int]]:
        lines = "".join(listing.line() + "\n" for listing in listings)
        done = subprocess.run([program], input=lines, check=True, capture_output=True, text=True)
        return [list(map(int, line.split())) for line in done.stdout.splitlines()]

    return run


def check(listing: Listing, printed: list[int]) -> None:
    size, n_tiles, _, *numbers = printed
    tiles = list(zip(*(numbers[i::3] for i in range(3)), strict=True))
    assert n_tiles == len(tiles), listing
    assert 2 * n_tiles + 2 <= size, listing
    assert sorted(tile[:2] for tile in tiles) == listing.tiles(), listing
    blocks = [n for _, _, n in tiles]
    assert blocks == sorted(blocks, reverse=True), listing


def random_listing(seed: int) -> Listing:
    chance = random.Random(seed)
    batch = chance.choice((1, 2, 5, 31, 67))

    def lengths() -> tuple[int, ...]:
        few, many = chance.choice(((1, 1), (0, 3), (1, 400), (127, 129))), chance.choice((0, 1500))
        drawn = [chance.randint(*few) for _ in range(batch)]
        drawn[chance.randrange(batch)] += many
        return tuple(drawn)

    mask = chance.choice(
        ({}, {"right": 0}, {"left": 40, "right": 0}, {"left": 7, "right": 90}, {"chunk": 64})
    )
    q = lengths()
    return Listing(
        q,
        q if chance.random() < 0.5 else lengths(),
        n_queries=chance.choice((16, 64, 128, 192)),
        B_c=chance.choice((32, 64, 80, 128)),
        least_rows=chance.choice((0, 0, 17)),
        n_threads=chance.choice((1, 2, 7)),
        slack=chance.choice((0, 0, 1, 5000)),
        **mask,
    )


def test_every_tile_once_the_longest_first(lists_of):
    listings = [random_listing(seed) for seed in range(60)]
    for listing, printed in zip(listings, lists_of(listings), strict=True):
        check(listing, printed)
        seen = list(zip(*(printed[3 + i :: 3] for i in range(3)), strict=True))
        for sequence, m_block, n_blocks in random.Random(0).sample(seen, min(len(seen), 5)):
            assert n_blocks == listing.n_blocks(sequence, m_block), listing


def test_more_sequences_than_are_read_at_a_time(lists_of):
    """Chunks of 1024, of which some have no row at all."""
    empty = (0,) * 1024
    listings = [
        Listing(tuple(i % 300 for i in range(n)), tuple(i * 7 % 900 for i in range(n)))
        for n in (1023, 1024, 1025, 2500)
    ]
    listings += [Listing(empty, empty), Listing((*empty, 5), (*empty, 9)), Listing((), ())]
    for listing, printed in zip(listings, lists_of(listings), strict=True):
        check(listing, printed)


def test_sequences_of_more_blocks_than_bins(lists_of):
    """Tiles that share a bin are in any order: of 2 blocks here."""
    listing = Listing((64, 20_000, 3), (64, 40_000, 30_000), n_queries=64, B_c=32, right=0)
    (printed,) = lists_of([listing])
    blocks = printed[5::3]
    assert sorted(zip(printed[3::3], printed[4::3], strict=True)) == listing.tiles()
    assert max(blocks) == 1250
    assert all(a // 2 >= b // 2 for a, b in itertools.pairwise(blocks))


def test_sequences_of_few_rows_are_left_out(lists_of):
    lengths, keys = (1, 2048, 16, 17, 0, 1, 300), (4096, 8192, 1, 900, 5, 0, 300)
    listing = Listing(lengths, keys, least_rows=17)
    (printed,) = lists_of([listing])
    check(listing, printed)
    assert set(printed[3::3]) == {1, 3, 6}


HEADS, HEADS_KV, N_CTAS = 32, 8, 132
COSTS = (72 * 64, 128 * 128, HEADS, N_CTAS, HEADS_KV)


def ctas_of_both(listing: Listing) -> Fraction:
    """Those of the tiles, in proportion to the work of both kernels."""
    cost, cost_of_block = listing.beside[:2]
    tiles = sum(listing.n_blocks(*tile) + 1 for tile in listing.tiles()) * HEADS * cost_of_block
    lengths = zip(listing.lengths_q, listing.lengths_k, strict=True)
    decodes = [keys for rows, keys in lengths if 0 < rows < listing.least_rows]
    units = sum(-(-keys // 64) + 1 for keys in decodes) * HEADS_KV * cost
    return Fraction(N_CTAS * tiles, tiles + units)


# Chunks beside decodes, and rounds: of the first seven those within 3 % of the best on a GPU.
MIXES = [
    ([2048], [8192], 63, 4096, {5, 6}),
    ([512], [8192], 63, 4096, {2}),
    ([8192], [8192], 63, 4096, {18}),
    ([2048], [8192], 8, 4096, {4}),
    ([2048], [2048], 200, 1024, {7, 8, 9, 10}),
    ([1024, 700], [4096, 700], 30, 8192, {6, 7, 8}),
    ([512] * 4, [4096] * 4, 124, 2048, {6}),
    ([300], [300], 1, 64, {1}),
    ([300], [300], 63, 65536, {96}),  # one CTA
    ([200, 300, 130], [200, 0, 77], 3, 9000, None),
]


@pytest.mark.parametrize("n_threads", [1, 3, 7])
def test_two_kernels_have_ctas_in_proportion_to_their_work_in_whole_rounds(lists_of, n_threads):
    listings = [
        Listing(
            (*q, *[1] * n), (*k, *[keys] * n), right=0, least_rows=17, beside=COSTS,
            n_threads=n_threads,
        )
        for q, k, n, keys, _ in MIXES
    ]  # fmt: skip
    for listing, mix, numbers in zip(listings, MIXES, lists_of(listings), strict=True):
        check(listing, numbers)
        n_tiles, n_ctas = numbers[1] * HEADS, numbers[2]
        n_rounds = -(-n_tiles // n_ctas)
        assert 1 <= n_ctas <= N_CTAS
        assert n_ctas == -(-n_tiles // n_rounds), "fewer CTAs take as many rounds"
        in_proportion = n_tiles / ctas_of_both(listing)
        at_least = -(-n_tiles // N_CTAS)
        if n_rounds not in (at_least, n_tiles):
            assert abs(n_rounds - in_proportion) <= Fraction(1, 2), listing
        assert n_rounds >= min(n_tiles, in_proportion - Fraction(1, 2))
        assert mix[-1] is None or n_rounds in mix[-1], (mix, n_rounds)


def test_all_ctas_have_the_tiles_where_nobody_runs_beside(lists_of):
    """One for each tile where the other kernel has nothing to do, and one where there is none."""
    listing = {"lengths_q": (1, 2048), "lengths_k": (4096, 8192), "right": 0, "least_rows": 17}
    cells = {(1, 1, 1, 132, 0): 16, (1, 1, 1, 132, -1): NO_WINDOW}
    listings = [Listing(**listing, beside=beside) for beside in cells]
    listings += [Listing((3, 0), (0, 5), least_rows=17, beside=(1, 1, 1, 132, 9))]
    printed = lists_of(listings)
    assert [numbers[2] for numbers in printed] == [*cells.values(), 1]
    for of, numbers in zip(listings, printed, strict=True):
        check(of, numbers)
