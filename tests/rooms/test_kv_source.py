"""Addresses of K and V in the forward op are computed in one place, and in no kernel's part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "cute_kernels"
OWNERS = {ROOT / "params.h", ROOT / "common" / "kv_source.h"}
BACKWARD = ROOT / "sm90" / "backward"  # which has params of its own
PARTS = [
    path
    for path in sorted(ROOT.rglob("*"))
    if path.suffix in {".h", ".cuh", ".cu", ".cpp"}
    and path not in OWNERS
    and BACKWARD not in path.parents
]

# The members that hold K and V, and sums of a stride that only addresses are made of.
DATA = r"\bkv_data\b"
OFFSETS = r"(\*|\+)\s*[\w.()]*\b(kv_strides|kv\(?\)?\.[kv])\.?[\w.]*\.(batch|head)\b"


def computes_addresses(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if re.search(f"{DATA}|{OFFSETS}", line)]


@pytest.mark.parametrize("path", PARTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_file_computes_addresses_of_k_and_v(path):
    assert computes_addresses(path.read_text()) == []


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("static_cast<Element const*>(params.kv_data.k) + offset", True),
        ("batch * params.kv_strides.k.batch", True),
        ("first + head * kv.k.strides.head", True),
        ("first + head * problem.kv().v.strides.head", True),
        ("params.k_at<Element>(batch, head, row)", False),
        ("head_matrix(first, params.kv_strides.k, rows)", False),
        ("matrix_dims(params, kv.k.strides, rows, kv.heads)", False),
    ],
)
def test_a_planted_address_is_found(line, is_found):
    assert bool(computes_addresses(line)) is is_found
