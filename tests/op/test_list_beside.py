"""The kernel that lists tiles, and the shares of the kernel beside, its code run on the CPU by a
thread for each of a CTA's: both lists are those that one thread makes."""

from __future__ import annotations

import pytest
from support.host_kernels import planted_program, printed

# Heads of K and V, shares, lengths of q and of k.
BATCHES = {
    "decodes beside a chunk": (8, 60, (1, 1, 700, 1, 4, 0), (900, 5000, 900, 64, 70, 9)),
    "several chunks": (2, 33, (1, 300, 17, 1, 2000), (9000, 300, 40, 1, 3000)),
    "more sequences than are read at a time": (1, 9, (*[1] * 1100, 40), (130,) * 1101),
    "no chunk": (2, 12, (1, 1, 2), (500, 70, 800)),
    "no decode": (2, 12, (100, 200), (500, 200)),
    "nothing beside": (2, 0, (100, 1, 200), (500, 70, 200)),
}
FEWER_THREADS = ("constexpr int kThreads = 1024;", "constexpr int kThreads = 64;")
ERRORS = (
    ("if (blockIdx.x == 0) {", "if (blockIdx.x <= PLANTED(1)) {"),
    ("return atomicAdd(&number, n);", "return atomicAdd(&number, PLANTED(2) ? 1 : n);"),
    ("params.beside.list != nullptr ? 2 : 1", "params.beside.list != nullptr ? 2 - PLANTED(3) : 1"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the program with an error, by its number, or with none: 0."""
    folder = tmp_path_factory.mktemp("list")
    program = planted_program(folder, "list_tiles.cu", "list_beside.cpp", (FEWER_THREADS, *ERRORS))

    def run(names, error: int = 0) -> dict[str, bool]:
        """Whether both lists are right."""
        lines = []
        for *sizes, q, k in map(BATCHES.get, names):
            sizes += (max(q), max(k), len(q))
            lines.append(" ".join(map(str, (*sizes, *q, *k))))
        rows = [line.split() for line in printed(program, lines, error)]
        return {
            name: tiles == "1" and (shares == "1" if BATCHES[name][1] else n_written == "0")
            for name, (tiles, shares, n_written) in zip(names, rows, strict=True)
        }

    return run


def test_both_lists_are_those_of_one_thread(run):
    assert run(list(BATCHES)) == dict.fromkeys(BATCHES, True)


@pytest.mark.parametrize("error", range(1, len(ERRORS) + 1))
def test_a_planted_error_shows(run, error):
    assert not all(run(["decodes beside a chunk", "several chunks"], error).values())
