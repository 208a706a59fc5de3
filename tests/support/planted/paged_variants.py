"""Bugs for the emulator to find in what kernels over pages make of a variant, and how those run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from support.combined_variants import all_values, combined
from support.paged_variants import OPTIONS, PROBLEMS, TEXTS, PagedCall
from support.planted.planting import Bug, build_planted, condition
from torch import Tensor

from pyflash.config import Features, parse
from pyflash.emulator.report import Report
from pyflash.emulator.run import run_library
from pyflash.op.variants.arguments import Captured, captured_of
from pyflash.variant import Variant
from pyflash.variant import parse as parse_variant

CONFIGS = {
    "sm80": parse(
        "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
    ).canonical(),
    "sm90": parse(
        "(FP16, 64, 128, 64, 2): sm90+stages_2+overlap+persistent+rescale_threshold"
    ).canonical(),
    "sm90_packed_heads": parse(
        "(FP16, 64, 64, 32, 1): sm90+stages_1+overlap+persistent+rescale_threshold+pack_gqa"
    ).canonical(),
    "sm90_decoding": parse(  # whose splits are clusters
        "(FP16, 64, 64, 128, 1): sm90+stages_2+overlap+persistent+rescale_threshold+pack_gqa"
    ).canonical(),
}
_EACH_WAY = ("sm80", "sm90", "sm90_packed_heads")
_EVERY = "right_window+left_window+predicated_head_dim+softcap+sinks+paged_kv"
FEATURES = [Features.parse(_EVERY), Features.parse(f"{_EVERY}+gathered_kv")]

_LOAD = "sm90/forward/load.h"
_GATHER = "sm90/forward/gather.h"
_LISTS = "variant/block_lists.h"


def _bug(name: str, original: str, planted: str, file: str, problem: str, *configs: str) -> Bug:
    edits = (condition(original, planted, file),)
    return Bug(name, edits, configs=configs or _EACH_WAY, problem=problem)


# All show in the results.
BUGS = [
    _bug(
        "sm90_boxes_of_the_block_by_its_place",
        "int const n_block = walk[place].number; // A block ahead",
        "int const n_block = BUG ? place : walk[place].number; // A block ahead",
        _LOAD,
        "sinks_and_window, pages_of_64",
        "sm90_packed_heads",
    ),
    _bug(
        "sm90_the_page_of_the_block_before_in_the_sequence",
        "page_of(walk[place - 1].number, 0)",
        "page_of(BUG ? n_block - 1 : walk[place - 1].number, 0)",
        _LOAD,
        "sinks_and_window, one_query",
        "sm90_packed_heads",
    ),
    _bug(
        "sm90_rows_of_the_block_by_its_place",
        "int const n_block = walk[place].number; uint32_t rows",
        "int const n_block = BUG ? place : walk[place].number; uint32_t rows",
        _GATHER,
        "sinks_and_window, pages_of_48",
        "sm90_packed_heads",
    ),
    _bug(
        "sm90_the_head_of_V_by_its_place",
        "now.block_at(now.blocks.begin).number * kBlockN",
        "(BUG ? now.blocks.begin : now.block_at(now.blocks.begin).number) * kBlockN",
        "sm90/forward/consumer.h",
        "far_apart, one_query, wide_window",
        "sm90_packed_heads",
    ),
    _bug(
        "lists_of_all_that_entries_have_room_for",
        "if (k_lengths == nullptr) {",
        "if (k_lengths == nullptr || BUG) {",
        _LISTS,
        "causal, packed",
    ),
    _bug(
        "tables_of_all_that_entries_have_room_for",
        "problem.k_rows(batch, load).length, 0, 0};",
        "BUG ? problem.k.longest : problem.k_rows(batch, load).length, 0, 0};",
        "variant/prepared_tables.h",
        "of_end, packed",
    ),
    _bug(
        "tables_of_the_first_sequence",
        "field.reads_lengths && problem.has_lengths()",
        "field.reads_lengths && problem.has_lengths() && !BUG",
        "variant/prepared_tables.h",
        "of_end, packed",
    ),
]


@functools.cache
def _parts() -> list[Variant]:
    return [*map(parse_variant, TEXTS.values())]


@functools.cache
def call_of(name: str, problem: str, option: str = "") -> PagedCall:
    return PagedCall(name, PROBLEMS[problem], options=OPTIONS[option] if option else {})


def _captured(call: PagedCall) -> Captured:
    """The text of the call, of the variant that has all of them."""
    which = list(TEXTS.values()).index(call.text)
    return captured_of(combined(_parts()), all_values(which, call.tensors, _parts()))


def run(
    library: Path,
    family: str,
    call: PagedCall,
    captured: Captured | None = None,
    resident_ctas: int = 2,
    **options: Any,
) -> tuple[Tensor, Tensor, Report]:
    q, k, v, *pages = call.inputs
    return run_library(
        library,
        (q, k, v),
        CONFIGS[family],
        pages=(*pages, *call.packing.values()),
        captured=captured or _captured(call),
        resident_ctas=resident_ctas,
        **options,
    )


@pytest.fixture(scope="session")
def planted_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("planted_paged_variants")
    return build_planted(BUGS, CONFIGS, root, variant=combined(_parts()).normal, features=FEATURES)
