"""The kernels that make the lists and the bits of masks, with a thread of the host for each of
theirs, beside the same code as the emulator runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.host_kernels import planted_program, printed

from pyflash.variant import parse
from pyflash.variant.cpp import header_of, struct_name

TEXTS = {
    "Bools": "bools(m: bool[2]): s where m[q, k]",
    "Computed": "computed: s where (q * 31 + k) % 7 < 3",
    "Banded": "banded: s where (k <= q) & (q - k < 300)",
}
# Queries, keys, B_r, B_c, warpgroups, blocks that a CTA judges, warps of a list, bools of a row.
PROBLEMS = [
    "128 384 128 128 2 2 1 384",
    "66 640 64 16 1 32 2 640",
    "200 288 192 96 3 5 8 288",
    "70 333 64 176 1 3 1 336",
]
SHOWING = PROBLEMS[:2]  # all errors
ERRORS = {
    "bytes of two lanes": ("0x3715 :", "(PLANTED(1) ? 0x7351 : 0x3715) :"),
    "bytes of four lanes": ("0x3276 :", "(PLANTED(2) ? 0x7632 : 0x3276) :"),
    "the other nibble": ("(lane % 2 * kBits", "((lane + PLANTED(3)) % 2 * kBits"),
    "what one warp sees": ("(&seen, of_warp)", "(&seen, PLANTED(4) && threadIdx.x ? 0 : of_warp)"),
    "blocks of the CTA before": (
        "int(blockIdx.x) * count;",
        "int(blockIdx.x - (PLANTED(5) && blockIdx.x > 0)) * count;",
    ),
    "rows of a warp too few": ("i += kWarps)", "i += kWarps + PLANTED(6))"),
    "votes of the own warp": (
        "votes->attended[i],",
        "votes->attended[PLANTED(7) ? warp : i],",
    ),
    "no vote of the last warp": ("i < warps; ++i", "i < warps - PLANTED(8); ++i"),
}  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("makers")
    headers, names = [], []
    for name, text in TEXTS.items():
        variant = parse(text)
        headers.append(header_of(variant).replace("#pragma once", ""))
        names.append(f"using {name} = {struct_name(variant)};")
    lines = [*headers, "namespace pyflash::variant {", *names, "}"]
    (folder / "masks.h").write_text("\n".join(lines))
    return planted_program(folder, "variant/makers.cuh", "make_masks.cpp", ERRORS.values())


def test_they_are_what_one_thread_makes(program):
    assert printed(program, PROBLEMS, 0) == ["1 1 1"] * len(PROBLEMS)


@pytest.mark.parametrize("error", ERRORS)
def test_errors_are_found(program, error):
    number = 1 + list(ERRORS).index(error)
    assert "0" in " ".join(printed(program, SHOWING, number)).split()
