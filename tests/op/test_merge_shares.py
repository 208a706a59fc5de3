"""The kernels that list shares of keys and merge their parts, their code run on the CPU by a thread
for each of a CTA's, beside the host's own."""

from __future__ import annotations

import pytest
from support.host_kernels import planted_program, printed

# Shares, heads, heads_kv, d_head, sinks, whether another kernel runs beside, lengths of q and of k.
PROBLEMS = {
    "few sequences": (40, 8, 2, 128, 0, 0, (1, 1, 1), (900, 5000, 64)),
    "sinks": (33, 8, 2, 64, 1, 0, (2, 1, 0, 3), (900, 3000, 640, 0)),
    "a tile of many parts": (66, 4, 1, 256, 1, 0, (1, 1), (70_000, 1)),
    "several queries": (20, 4, 2, 72, 0, 0, (7, 8, 5), (777, 1500, 2100)),
    "beside a kernel of more queries": (20, 8, 1, 128, 1, 1, (8, 1, 0, 5), (777, 1500, 9, 2100)),
    "more sequences than shares": (4, 2, 2, 64, 0, 0, (1,) * 50, tuple(range(10, 510, 10))),
    "more sequences and shares than threads": (1100, 1, 1, 64, 0, 0, (1,) * 1300, (130,) * 1300),
}
# Places in the kernels, and what stands there with an error.
ERRORS = (
    ("int const query = row /", "int const query = PLANTED(1) + row /"),
    ("bool const is_in_part = row", "bool const is_in_part = !PLANTED(2) && row"),
    ("for (int i = 1; i < tiling.groups", "for (int i = 1 + PLANTED(3); i < tiling.groups"),
    ("float const sink = exists ?", "float const sink = exists && !PLANTED(4) ?"),
    ("number < parts.count();", "number < parts.count() - PLANTED(5);"),
    ("return static_cast<int>(blockDim.x);", "return static_cast<int>(blockDim.x) + PLANTED(6);"),
    (
        "first_row += static_cast<int>(gridDim.y)",
        "first_row += PLANTED(7) + static_cast<int>(gridDim.y)",
    ),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the program with an error, by its number, or with none: 0."""
    folder = tmp_path_factory.mktemp("merge")
    program = planted_program(folder, "shares.cu", "merge_shares.cpp", ERRORS)

    def run(names, error: int = 0) -> dict[str, bool]:
        """Whether problems are right."""
        lines = []
        for *sizes, q, k in map(PROBLEMS.get, names):
            sizes += (max(q), max(k), len(q))
            lines.append(" ".join(map(str, (*sizes, *q, *k))))
        rows = [line.split() for line in printed(program, lines, error)]
        return {
            name: same_list == "1" and float(o) < 0.04 and float(lse) < 1e-4 and n_other == "0"
            for name, (same_list, o, lse, n_other) in zip(names, rows, strict=True)
        }

    return run


def test_kernels_do_what_the_host_does(run):
    assert run(list(PROBLEMS)) == dict.fromkeys(PROBLEMS, True)


@pytest.mark.parametrize("error", range(1, len(ERRORS) + 1))
def test_a_planted_error_shows(run, error):
    of = {6: "more sequences and shares than threads", 7: "beside a kernel of more queries"}
    assert not all(run([of.get(error, "sinks")], error).values())
