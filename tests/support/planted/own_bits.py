"""Bugs for the emulator to find in bits of cut blocks that SM90 forward kernels make themselves."""

from __future__ import annotations

from support.planted.planting import Bug, condition

PLANTED = "planted(a: i32[2], c: i32[2]): s where a[b, q] == c[b, k]"

_BITS = "sm90/forward/own_bits.h"
_READ = "sm90/forward/mask_bits.h"
_TILE = "sm90/forward/warpgroup_tile.h"
_SCORES = "sm90/forward/variant.h"
_CONFIGS = ("three", "pingpong")
_WIDE = ("pingpong",)  # more keys than the lanes of a warp have at once


def _bug(name: str, *edits, problem: str = "mixed", configs=_CONFIGS, silent=False) -> Bug:
    return Bug(name, edits, configs=configs, problem=problem, silent=silent)


BUGS = [
    _bug(
        "bits_of_the_block_before",
        condition(
            "bits.words = {words[0], words[1]};",
            "if (!BUG || block.number % 2 == 0) { bits.words = {words[0], words[1]}; }",
            _BITS,
        ),
    ),
    _bug(
        "keys_of_the_block_before",
        condition(
            "columns_of_lane(tile, n_block)",
            "columns_of_lane(tile, n_block > 0 ? n_block - BUG : 0)",
            _BITS,
        ),
    ),
    _bug(
        "keys_behind_whole_blocks_that_are_not_loaded",
        condition("if (!is_loaded) {", "if (!is_loaded && !BUG) {", _TILE),
        problem="long",
    ),
    _bug(
        "keys_of_the_next_block_that_are_not_loaded",
        condition(
            "if (place > blocks.begin) { load_keys_of(place - 1); }",
            "if (place > blocks.begin && !BUG) { load_keys_of(place - 1); }",
            _TILE,
        ),
    ),
    _bug(
        "keys_of_the_first_block_that_are_not_loaded",
        condition(
            "load_keys_of(first_place());",
            "if (!BUG || tile.first_query == 0) { load_keys_of(first_place()); }",
            _TILE,
        ),
    ),
    _bug(
        "the_second_half_of_the_keys_is_the_first",
        condition("columns[c / kColumnsOfShare]", "columns[BUG ? 0 : c / kColumnsOfShare]", _BITS),
        configs=_WIDE,
    ),
    _bug(
        "the_second_half_of_the_bits_is_the_first",
        condition("device::bits(sums[r][i])", "device::bits(sums[r][BUG ? 0 : i])", _BITS),
        configs=_WIDE,
    ),
    _bug(
        "the_key_beside",
        condition("kColumnsOfShare][c % 2]", "kColumnsOfShare][c % 2 ^ BUG]", _BITS),
    ),
    _bug(
        "keys_of_the_lane_beside",
        condition(
            "fresh_thread_idx() % 4 + c % kColumnsOfShare / 2 * 4",
            "fresh_thread_idx() % 4 + (c % kColumnsOfShare / 2 ^ BUG) * 4",
            _BITS,
        ),
    ),
    _bug(
        "keys_of_a_lane_two_further_on",
        condition("i * kKeysOfLanes + 2 * lane", "i * kKeysOfLanes + 2 * (lane ^ 2 * BUG)", _BITS),
    ),
    _bug(
        "bits_of_the_other_row",
        condition(
            "sums[r][c / kBitsOfPart] +=", "sums[BUG ? 1 - r : r][c / kBitsOfPart] +=", _BITS
        ),
    ),
    _bug(
        "the_bit_beside", condition("1 << c % kBitsOfPart)", "1 << (c % kBitsOfPart ^ BUG))", _BITS)
    ),
    _bug(
        "rows_of_the_first_warpgroup",
        condition(
            "ahead.begin(tile, first_query());",
            "ahead.begin(tile, BUG ? tile.first_query : first_query());",
            _TILE,
        ),
    ),
    _bug(
        "rows_of_the_tile_before",
        condition(
            "of_tile = Scores(params, tile, first_query, 0);",
            "if (!BUG || tile.first_query == 0) {"
            " of_tile = Scores(params, tile, first_query, 0); }",
            _BITS,
        ),
    ),
    _bug(
        "a_cut_block_taken_for_a_whole_one",
        condition(
            "if (!ahead.block.is_cut) { return; }",
            "if (BUG && ahead.block.number == 1) { ahead.block.is_cut = false; }"
            " if (!ahead.block.is_cut) { return; }",
            _TILE,
        ),
    ),
    _bug(
        "bits_that_hide_nothing",
        condition("ahead.bits.hide(acc_S);", "if (!BUG) { ahead.bits.hide(acc_S); }", _TILE),
    ),
    _bug(
        "bits_that_hide_nothing_of_the_first_block",
        condition(
            "Blocks::kMayHide) { if (is_cut) {",
            "Blocks::kMayHide) { if (is_cut && !BUG) {",
            _SCORES,
        ),
    ),
    # What is right all the same, but is computed twice.
    _bug(
        "rows_that_meet_their_first_score_unnoticed",
        condition(
            "compares = compares || shows_rows_without_maximum(place);",
            "compares = compares || (!BUG && shows_rows_without_maximum(place));",
            _TILE,
        ),
        silent=True,
    ),
    _bug(
        "rows_whose_neighbour_meets_its_first_score",
        condition(
            "softmax.lacks_maximum(1) && ahead.shows(1)",
            "softmax.lacks_maximum(1) && ahead.shows(BUG ? 0 : 1)",
            _TILE,
        ),
        silent=True,
        problem="second_rows",
    ),
    _bug(
        "a_whole_block_that_rows_meet_unnoticed",
        condition("if (!next.is_cut) {", "if (!BUG && !next.is_cut) {", _TILE),
        silent=True,
        problem="whole_after_none",
    ),
]
