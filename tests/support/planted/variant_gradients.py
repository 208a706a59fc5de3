"""Bugs for the emulator to find in kernels of gradients with a variant: in the emitted functor and
its slope, in what both families make of it, and in the lists of blocks that they walk."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.combined_variants import whole_of_gradients
from support.planted.planting import EMITTED, Bug, Edit, build_planted, condition

from pyflash.config import BACKWARD, parse

CONFIGS = {
    "sm80": parse("(FP16, 128, 32, 32, 4): sm80_bwd+stages_1"),
    "sm80_two_tiles": parse("(FP16, 64, 64, 64, 4): sm80_bwd+stages_1+warp_keys_32"),
    "sm90": parse("(FP16, 64, 128, 128, 2): sm90_bwd+stages_2+overlap"),
}
ALL = tuple(CONFIGS)
_UNCAPPED = "right_window+left_window+packed"
FEATURES = [
    BACKWARD.features.parse(text)
    for text in ("plain", _UNCAPPED, f"{_UNCAPPED}+softcap", f"{_UNCAPPED}+deterministic")
]

_GRADIENT = "variant/gradient.h"
_LISTS = "variant/query_lists.h"
_BLOCKS = "variant/block_lists.h"


def _bug(name: str, edit: Edit, problem: str, configs=ALL) -> Bug:
    return Bug(name, (edit,), configs=configs, problem=problem)


def _swapped(name: str, file: str, original: str, planted: str, problem: str) -> Bug:
    return _bug(name, condition(original, planted, file), problem)


# All show in the gradients: where loads and scores walk one list, the machine has nothing to say
# about which.
BUGS = [
    # What is emitted: the score function and its slope, which have the same operands.
    _swapped(
        "the_slope_of_tanh_at_0",
        EMITTED,
        "1.0f - (t26 * t26)",
        "1.0f - (BUG ? 0.0f : t26 * t26)",
        "cap",
    ),
    _swapped(
        "a_factor_missing_from_a_slope",
        EMITTED,
        "uniform.u10 ? row.r1",
        "uniform.u10 ? BUG ? 1.0f : row.r1",
        "by_row",
    ),
    _swapped(
        "half_the_slope_of_a_square",
        EMITTED,
        "float const t21 = s + s;",
        "float const t21 = BUG ? s : s + s;",
        "indices",
    ),
    _swapped(
        "the_gain_of_the_next_query",
        EMITTED,
        "params.p7.at(h, at)",
        "params.p7.at(h, at + BUG)",
        "by_row",
    ),
    _swapped(
        "the_jump_of_the_next_key",
        EMITTED,
        "params.p10.at(at)",
        "params.p10.at(at + BUG)",
        "of_column",
    ),
    _swapped(
        "the_table_of_head_0",
        EMITTED,
        "params.p8.at(h, clamp",
        "params.p8.at(BUG ? 0 : h, clamp",
        "table",
    ),
    # Coordinates, with keys as rows.
    _swapped(
        "the_column_of_the_other_key",
        _GRADIENT,
        "columns[r] = Variant::column(captured, lengths, prepared, uniform, batch, at.head,"
        " at.first_key, kKeyStep * r)",
        "columns[r] = Variant::column(captured, lengths, prepared, uniform, batch, at.head,"
        " at.first_key, kKeyStep * (BUG ? 0 : r))",
        "of_column",
    ),
    _swapped(
        "the_row_of_the_other_query",
        _GRADIENT,
        "scores.row(column_of(c + 1))};",
        "scores.row(column_of(c + !BUG))};",
        "of_row",
    ),
    _swapped(
        "the_distance_of_the_other_key",
        _GRADIENT,
        "kKeyStep * r - offset);",
        "kKeyStep * (BUG ? 0 : r) - offset);",
        "table",
    ),
    _swapped(
        "the_distance_turned_round",
        _GRADIENT,
        "at.first_key - at.first_query, kKeyStep",
        "BUG ? at.first_query - at.first_key : at.first_key - at.first_query, kKeyStep",
        "alibi",
    ),
    _swapped(
        "uniform_of_head_0",
        _GRADIENT,
        "uniform(Variant::uniform(captured, lengths, batch, at.head))",
        "uniform(Variant::uniform(captured, lengths, batch, BUG ? 0 : at.head))",
        "alibi",
    ),
    _swapped(
        "lengths_changed_places",
        _GRADIENT,
        "lengths{tile.queries().length, tile.keys().length, 0, 0}",
        "lengths{BUG ? tile.keys().length : tile.queries().length,"
        " BUG ? tile.queries().length : tile.keys().length, 0, 0}",
        "packed_alibi",
    ),
    _swapped(
        "the_sequence_is_that_of_the_tensor",
        _GRADIENT,
        "batch(tile.sequence()),",
        "batch(BUG ? tile.batch : tile.sequence()),",
        "packed_documents",
    ),
    # P, and P times the slope.
    _swapped(
        "lse_of_the_other_query",
        _GRADIENT,
        "i == 0 ? lse.x : lse.y",
        "(i == 0) != BUG ? lse.x : lse.y",
        "bias",
    ),
    _swapped(
        "the_slope_left_out",
        _GRADIENT,
        "p[i] * slope :",
        "p[i] * (BUG ? 1.f : slope) :",
        "cap",
    ),
    _swapped(
        "the_slope_of_softcap_left_out",
        _GRADIENT,
        "made.slope * of_cap}",
        "made.slope * (BUG ? 1.f : of_cap)}",
        "cap_of_cap",
    ),
    _swapped(
        "the_slope_in_dV",
        _GRADIENT,
        "device::pack2(p[0], p[1], Element{});",
        "device::pack2(BUG ? S(r, c) : p[0], p[1], Element{});",
        "cap",
    ),
    _swapped(
        "a_product_in_place_of_the_selection",
        _GRADIENT,
        "S(r, c) = 0.f;",
        "S(r, c) = BUG ? 0.f * S(r, c) : 0.f;",
        "root",
    ),
    _swapped(
        "hidden_scores_in_dV",
        _GRADIENT,
        "c % 2 == 0 ? 0xffff0000u : 0x0000ffffu;",
        "c % 2 == 0 || BUG ? 0xffff0000u : 0x0000ffffu;",
        "dilated",
    ),
    _swapped(
        "keys_past_the_end",
        _GRADIENT,
        "key < tile.keys().length ? queries.end(0) : 0",
        "BUG || key < tile.keys().length ? queries.end(0) : 0",
        "root",
    ),
    _bug(
        "sm80_queries_past_the_end",
        condition(
            "(m_block + 1) * Traits::kBlockM > tile.queries().length",
            "(!BUG && (m_block + 1) * Traits::kBlockM > tile.queries().length)",
            "sm80/backward/scores.h",
        ),
        "ragged_queries",
        ("sm80",),
    ),
    _bug(
        "sm90_queries_past_the_end",
        condition(
            "(m_block + 1) * Traits::kBlockM > mask.tile.queries().length",
            "(!BUG && (m_block + 1) * Traits::kBlockM > mask.tile.queries().length)",
            "sm90/backward/scores.h",
        ),
        "ragged_queries",
        ("sm90",),
    ),
    # The walk.
    _swapped(
        "some_taken_for_all",
        _GRADIENT,
        "if (at.cuts_variant) {",
        "if (at.cuts_variant && !BUG) {",
        "dilated",
    ),
    _swapped(
        "all_lists_are_of_head_0",
        _GRADIENT,
        ", head, tile.first_key",
        ", BUG ? 0 : head, tile.first_key",
        "heads",
    ),
    _bug(
        "sm80_all_lists_are_of_batch_0",
        condition(
            "return lists.list(tile.sequence(),",
            "return lists.list(BUG ? 0 : tile.sequence(),",
            _GRADIENT,
        ),
        "prefix",
        ("sm80",),
    ),
    _swapped(
        "the_list_of_the_first_keys",
        _GRADIENT,
        "tile.first_key / kBlockN);",
        "BUG ? 0 : tile.first_key / kBlockN);",
        "last_far",
    ),
    _swapped(
        "a_head_left_out_whose_list_is_of_one_block",
        _GRADIENT,
        "if (length > 0) {",
        "if (length > BUG) {",
        "last_query",
    ),
    _swapped(
        "the_last_block_left_out",
        _GRADIENT,
        "if (++place < length) {",
        "if (++place < length - BUG) {",
        "blocks",
    ),
    _bug(
        "sm90_tiles_of_one_length_in_one_place",
        condition(
            "lengths[i] == lengths[tile] && i < tile",
            "lengths[i] == lengths[tile] && i < tile && !BUG",
            "variant/tile_order.h",
        ),
        "equal_tiles",
        ("sm90",),
    ),
    _bug(
        "sm90_each_slice_has_the_first_heads",
        condition(
            "head += params.first_head;",
            "head += BUG ? 0 : params.first_head;",
            "sm90/backward/problem.h",
        ),
        "many_in_order",
        ("sm90",),
    ),
    _bug(
        "sm90_sums_of_a_slice_rounded_from_other_rows",
        condition(
            "problem.first_slice_row() + row",
            "(BUG ? 0 : problem.first_slice_row()) + row",
            "sm90/backward/postprocess.cuh",
        ),
        "packed_documents",
        ("sm90",),
    ),
    _swapped(
        "a_block_without_its_last_query",
        _LISTS,
        "int64_t(q_rows.length)) - 1;",
        "int64_t(q_rows.length)) - 1 - BUG;",
        "last_query",
    ),
    _swapped(
        "a_tile_without_its_first_key",
        _LISTS,
        "keys{first, end - 1};",
        "keys{first + BUG, end - 1};",
        "last_query",
    ),
    _swapped(
        "cut_blocks_listed_as_whole",
        _BLOCKS,
        "shown == Shown::some}.entry()",
        "!BUG && shown == Shown::some}.entry()",
        "dilated",
    ),
]


@pytest.fixture(scope="session")
def planted_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("planted_variant_gradients")
    return build_planted(
        BUGS, CONFIGS, root, variant=whole_of_gradients().normal, features=FEATURES
    )
