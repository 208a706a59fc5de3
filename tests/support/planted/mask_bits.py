"""Bugs for the emulator to find in masks as bits: in what makes them, and in what SM90 forward
kernels read of them."""

from __future__ import annotations

from support.planted.planting import Bug, condition, without

PLANTED = "planted(m: bool[2]): s where m[q, k] & ((q * 5 + k * 3) % 11 != 0)"

_MADE = "variant/mask_bits.h"
_LISTS = "variant/block_lists.h"
_READ = "sm90/forward/mask_bits.h"
_SCORES = "sm90/forward/variant.h"
_TILE = "sm90/forward/warpgroup_tile.h"
_USUAL = "sm90/forward/usual_scores.h"


def _bug(name: str, *edits, problem: str = "all") -> Bug:
    return Bug(name, edits, problem=problem)


BUGS = [
    # What is made.
    _bug("the_word_of_the_other_row",
         condition("int const half = row % 16 / 8;", "int const half = BUG ^ row % 16 / 8;",
                   _MADE)),
    _bug("the_word_of_the_lane_beside",
         condition(" + row % 8 * 4 + lane;", " + row % 8 * 4 + (lane ^ BUG);", _MADE)),
    _bug("the_words_of_the_warp_before",
         condition("int const thread = row / 16 * 32",
                   "int const thread = (BUG ? row / 16 & ~1 : row / 16) * 32", _MADE)),
    _bug("bits_of_neighbours_swapped",
         condition("key_of_bit(lane), problem", "key_of_bit(lane ^ BUG), problem", _MADE)),
    _bug("bits_of_the_next_eight_columns",
         condition("column = column_of(i % kVotes, lane);",
                   "column = column_of(i % kVotes, lane ^ 2 * BUG);", _MADE)),
    _bug("bytes_in_another_order",
         condition(" & 255) << (8 * i);", " & 255) << (8 * (i ^ BUG));", _MADE)),
    _bug("the_byte_of_the_first_lane",
         condition("(votes[i] >> (8 * lane)", "(votes[i] >> (BUG ? 0 : 8 * lane)", _MADE)),
    _bug("the_query_below",
         condition("* queries_of_warpgroup + of_warpgroup;",
                   "* queries_of_warpgroup + of_warpgroup + BUG;", _MADE)),
    _bug("the_rows_of_the_first_warpgroup",
         condition("of.first_query + row / kRowsOfWarpgroup",
                   "of.first_query + (BUG ? 0 : row / kRowsOfWarpgroup)", _MADE)),
    _bug("the_first_block_of_keys",
         condition("return first_key + (column & ~1);",
                   "return (BUG ? 0 : first_key) + (column & ~1);", _MADE)),
    _bug("even_columns_alone",
         condition("int const offset = column & 1;", "int const offset = BUG ? 0 : column & 1;",
                   _MADE)),
    # What is judged.
    _bug("a_block_that_hides_some_is_whole",
         condition("(~vote & keys[i]) != 0);", "!BUG && (~vote & keys[i]) != 0);", _MADE)),
    _bug("a_block_with_few_pairs_is_empty",
         condition("(of_row[i] & keys[i]) != 0;",
                   "((BUG && of.block == 1 ? 0 : of_row[i]) & keys[i]) != 0;", _MADE)),
    _bug("votes_of_the_row_beside",
         condition("vote = votes[n * kVotes + i];", "vote = votes[(n ^ BUG) * kVotes + i];",
                   _MADE)),
    _bug("what_is_judged_of_the_block_before",
         condition("[1 + block] = int(shown);",
                   "[BUG && block > 0 ? block : 1 + block] = int(shown);", _MADE),
         problem="sparse"),
    _bug("the_next_verdict",
         condition("return static_cast<Shown>(list[1 + block]);",
                   "return static_cast<Shown>(list[(BUG && block + 1 < lists.blocks ? 2 : 1)"
                   " + block]);", _LISTS), problem="sparse"),
    # What is read.
    _bug("words_of_the_block_beside",
         condition("of_block(variant::ListedBlock::of(entry).number)",
                   "of_block(variant::ListedBlock::of(entry).number ^ BUG)", _READ)),
    _bug("stale_words",
         condition("bits = {load_words(variant::ListedBlock::of(entry).number)};",
                   "if (!BUG || place != first_place) {"
                   " bits = {load_words(variant::ListedBlock::of(entry).number)}; }", _READ)),
    _bug("words_of_the_tile_before",
         condition("first_vector = uint32_t(list * lists.blocks) * kVectorsOfBlock",
                   "first_vector = uint32_t((BUG && list > 0 ? list - 1 : list) * lists.blocks) *"
                   " kVectorsOfBlock", _READ)),
    _bug("words_of_the_other_warpgroup",
         condition("+ warpgroup * kWarpgroup + device", "+ (warpgroup ^ BUG) * kWarpgroup + device",
                   _READ)),
    _bug("words_of_the_thread_beside",
         condition("device::fresh_thread_idx() % kWarpgroup; first_place",
                   "(device::fresh_thread_idx() % kWarpgroup ^ BUG); first_place", _READ)),
    _bug("words_past_the_end",
         condition("first_vector + n_block * kVectorsOfBlock",
                   "first_vector + (n_block + BUG) * kVectorsOfBlock", _READ)),
    _bug("rows_the_other_way_round",
         condition("row_words[r * kWordsOfRow + c / 32]",
                   "row_words[(BUG ? 1 - r : r) * kWordsOfRow + c / 32]", _READ)),
    _bug("the_next_bit",
         condition(">> c % 32 & 1) != 0", ">> (c % 32 ^ BUG) & 1) != 0", _READ)),
    _bug("bits_that_hide_what_is_shown",
         condition("& 1) != 0; }", "& 1) != BUG; }", _READ)),
    _bug("the_entry_one_further",
         condition("entry_after = entry_at(place - 1);",
                   "entry_after = entry_at(place - (BUG && place > first_place + 1 ? 2 : 1));",
                   _READ)),
    _bug("made_again_with_the_next_words",
         condition("kAhead ? blocks.bits : blocks.of_block(n_block);",
                   "kAhead || BUG ? blocks.bits : blocks.of_block(n_block);", _SCORES),
         problem="growing"),
    _bug("rows_the_other_way_round_amid_exponentials",
         condition("word = words[r * kWordsOfRow + c / 32];",
                   "word = words[(BUG ? 1 - r : r) * kWordsOfRow + c / 32];", _READ)),
    _bug("nothing_hidden_amid_exponentials",
         condition("auto const hide = [&] { if constexpr (kHides) {",
                   "auto const hide = [&] { if constexpr (kHides) {"
                   " if (BUG) { auto all = blocks.bits; all.words = {~0u, ~0u};"
                   " return all.hider(); }", _USUAL)),
    _bug("the_same_words_again",
         without("blocks.advance_with_bits(place);", _USUAL)),
    _bug("an_entry_too_early",
         condition("entry_at(max(place - 1, first_place));",
                   "entry_at(max(place - (BUG ? 2 : 1), first_place));", _READ), problem="long"),
    _bug("nothing_hidden",
         without("bits.hide(acc_S);", _SCORES)),
    _bug("nothing_read_ahead",
         without("ahead.advance(place);", _TILE)),
]  # fmt: skip
