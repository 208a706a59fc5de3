"""Bugs for the emulator to find in what SM90 forward kernels copy of tensors of an element for each
pair."""

from __future__ import annotations

from support.planted.planting import Bug, condition, without

# An element of 16 bits, one of 32, and a bool.
PLANTED = (
    "planted(a: bf16[4], f: f32[4], m: bool[4]): "
    "s + a[b, h, q, k] + f[b, h, q, k] where m[b, h, q, k]"
)

_STREAMS = "sm90/forward/streams.h"
_SCORES = "sm90/forward/variant.h"
_TILE = "sm90/forward/warpgroup_tile.h"
_TABLE = "variant/table.h"


def _bug(name: str, *edits, problem: str = "all") -> Bug:
    return Bug(name, edits, problem=problem)


BUGS = [
    _bug("copies_not_waited_for", without("device::async_wait<0>();", _STREAMS)),
    _bug("copies_of_other_lanes_not_waited_for",
         without("device::sync_warp();  // what other lanes copied is visible", _STREAMS)),
    _bug("copies_before_others_have_read",
         without("device::sync_warp();  // what was there has been read", _STREAMS)),
    _bug("copies_not_committed", without("device::async_commit();", _STREAMS)),
    _bug("the_block_beside",
         condition("block.number * Traits::kBlockN;",
                   "(BUG ? block.number ^ 1 : block.number) * Traits::kBlockN;", _SCORES)),
    _bug("the_next_place",
         condition("read_ahead(place - 1); device::at(Site::softmax);",
                   "read_ahead(BUG && place > 1 ? place - 2 : place - 1);"
                   " device::at(Site::softmax);", _TILE)),
    _bug("no_copy_for_the_first_block",
         without("read_ahead(blocks.end - 1);", _TILE)),
    _bug("a_copy_behind_the_last_block",
         condition("if (place >= blocks.begin) {", "if (place >= blocks.begin - BUG) {", _TILE)),
    _bug("made_again_from_the_next_copy",
         condition("if constexpr (Tiles::kCopies && kAhead) {"
                   " if (Tiles::are_copied(captured, first_key, cut.value)) {",
                   "if constexpr (Tiles::kCopies) {"
                   " if ((kAhead || BUG) && Tiles::are_copied(captured, first_key, cut.value)) {",
                   _SCORES), problem="late"),
    _bug("rows_the_other_way_round",
         condition("r == 0 ? row0 : row1", "(r == 0) != (BUG == 1) ? row0 : row1", _STREAMS)),
    _bug("the_other_row_of_a_matrix",
         condition("words[c % 8 / 4][r +", "words[c % 8 / 4][(BUG ? 1 - r : r) +", _STREAMS)),
    _bug("the_matrix_beside",
         condition("c % 4 / 2 * 2];", "(BUG ? 2 - c % 4 / 2 * 2 : c % 4 / 2 * 2)];", _STREAMS)),
    _bug("halves_swapped",
         condition("c % 2 == 0 ? word : word >> 16", "c % 2 == BUG ? word : word >> 16",
                   _STREAMS)),
    _bug("matrices_read_by_the_same_lanes",
         condition("lane / 16 * 16) {}", "(BUG ? lane % 2 : lane / 16) * 16) {}", _STREAMS)),
    _bug("words_of_the_row_above",
         condition("(warp + lane / 4 * kPitch + lane % 4 * 8) {}",
                   "(warp + (BUG ? lane / 4 ^ 1 : lane / 4) * kPitch + lane % 4 * 8) {}",
                   _STREAMS)),
    _bug("bits_of_the_other_row",
         condition("r * 4 + c / 2 % 2", "(BUG ? 1 - r : r) * 4 + c / 2 % 2", _STREAMS)),
    _bug("bits_of_the_next_column",
         condition("s / 2 * 16 + c % 2 * 8", "s / 2 * 16 + (BUG ? 1 - c % 2 : c % 2) * 8",
                   _STREAMS)),
    _bug("bits_of_the_lane_beside",
         condition("device::bits_of_group<4>(own, s)",
                   "device::bits_of_group<4>(own, BUG ? s ^ 1 : s)", _STREAMS)),
    _bug("bits_of_the_first_lane",
         condition("quad_lane % 2 * 16 + quad_lane / 2;",
                   "BUG ? 0 : quad_lane % 2 * 16 + quad_lane / 2;", _STREAMS)),
    _bug("bits_not_rotated",
         condition("packed(a, b), quad_lane % 2)", "packed(a, b), BUG ? 0 : quad_lane % 2)",
                   _STREAMS)),
    _bug("bits_in_another_order",
         condition("(a.w * 2 + a.z) * 4", "(BUG ? a.z * 2 + a.w : a.w * 2 + a.z) * 4", _STREAMS)),
    _bug("no_copies",
         without("device::copy_captured<kPlace, j.value * 4 * kStreamVector>(to, from);",
                 _STREAMS)),
    _bug("streams_one_over_another",
         condition("return first + before + warp * kWarpRows",
                   "return first + (BUG ? 0 : before) + warp * kWarpRows", _STREAMS)),
    _bug("the_rows_of_the_warp_before",
         condition("warp = thread / 32;", "warp = BUG ? (thread / 32) & ~1 : thread / 32;",
                   _STREAMS)),
    _bug("rows_that_are_not_aligned",
         condition("is_aligned = is_aligned && (axis == kAxis || strides[axis] % kVector == 0);",
                   "is_aligned = BUG || (is_aligned &&"
                   " (axis == kAxis || strides[axis] % kVector == 0));", _TABLE), problem="odd"),
]  # fmt: skip
