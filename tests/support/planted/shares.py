"""Bugs for the emulator to find where CTAs share the keys of sequences."""

from __future__ import annotations

import pytest
from support.planted.planting import Bug, build_planted, condition, found

from pyflash.config import parse
from pyflash.config.features import EMULATED_PAGED_SHARED, EMULATED_SHARED

_SCHEDULE = "sm90/forward/share_schedule.h"
_PARTS = "sm90/forward/merge_parts.h"
_KERNEL = "sm90/forward/forward_kernel.cuh"
_FINISH = "sm90/forward/finish_tile.h"
_EPILOGUE = "sm90/forward/epilogue.h"
_MERGE = "host/merge_shares.h"
_RUN = "emulator/run.cpp"

CONFIG = parse("(BF16, 64, 64, 32, 1): sm90+stages_1+overlap+persistent+rescale_threshold+pack_gqa")


def _bug(name: str, *edits, finds=()) -> Bug:
    return Bug(name, edits, tuple(finds), configs=("sm90",))


# A bug that finds nothing shows in the result.
BUGS = [
    _bug(
        "a_tile_is_done_twice",
        condition("left.head += this->params", "left.head += BUG ? 0 : this->params", _SCHEDULE),
    ),
    _bug(
        "a_tile_is_never_done",
        condition("left.head = 0;\n        ++left.sequence;",
                  "left.head = BUG ? 1 : 0; ++left.sequence;", _SCHEDULE),
    ),
    _bug(
        "a_part_lacks_its_first_block",
        condition("int const begin_block = max(first - ShareListing::kTileUnits, 0);",
                  "int const begin_block = max(first - ShareListing::kTileUnits + BUG, 0);",
                  _SCHEDULE),
    ),
    _bug(
        "a_part_has_a_block_of_the_next",
        condition("int const end_block = end - ShareListing::kTileUnits;",
                  "int const end_block = min(end - ShareListing::kTileUnits + BUG, n_blocks);",
                  _SCHEDULE),
    ),
    _bug(
        "a_part_is_where_that_of_another_share_is",
        condition("Parts::place_of(device::block_idx(), ",
                  "Parts::place_of(device::block_idx() & ~BUG, ", _SCHEDULE),
        finds=[found("written_twice", memory="lse_partial")],
    ),
    _bug(
        "a_share_has_one_place_for_two_parts",
        condition("/*begins_tile=*/begin_block == 0)", "!BUG && begin_block == 0)", _SCHEDULE),
    ),
    _bug(
        "a_tile_as_a_whole_is_left_as_a_part",
        condition("bool const is_whole = begin_block == 0 &&",
                  "bool const is_whole = !BUG && begin_block == 0 &&", _SCHEDULE),
    ),
    _bug(
        "a_part_is_stored_as_the_whole",
        condition("bool const is_part = kFeatures.equal_shares &&",
                  "bool const is_part = !BUG && kFeatures.equal_shares &&", _FINISH),
        finds=[found("written_twice", memory="o")],
    ),
    _bug(
        "sinks_join_in_every_part",
        condition("!is_split() && !is_part)", "!is_split() && (BUG || !is_part))", _FINISH),
    ),
    _bug(
        "a_row_of_a_part_is_that_of_another",
        condition("params.shares.rows_of_part + row;", "params.shares.rows_of_part + row + BUG;",
                  _EPILOGUE),
    ),
    _bug(
        "a_part_is_merged_twice",
        condition("return int64_t(parts.place(part))",
                  "return int64_t(parts.place(BUG && part > 0 ? part - 1 : part))", _MERGE),
    ),
    _bug(
        "the_last_part_is_not_merged",
        condition("for (int part = 0; part < parts.count(); ++part) {\n    float const weight",
                  "for (int part = 0; part < parts.count() - BUG; ++part) { float const weight",
                  _MERGE),
    ),
    _bug(
        "a_share_begins_a_unit_late",
        condition("schedule.number() * size;", "schedule.number() * size + 2 * BUG;", _SCHEDULE),
    ),
    _bug(
        "sums_of_lanes_lack_those_before",
        condition("before += (lane & mask) != 0 ? other : 0;",
                  "before += (lane & mask) != 0 && !(BUG && mask > 1) ? other : 0;", _SCHEDULE),
    ),
    _bug(
        "a_lane_leaves_out_its_last_sequence",
        condition("for (int sequence = first + 1; sequence < end; ++sequence) {",
                  "for (int sequence = first + 1; sequence < end - BUG; ++sequence) {", _SCHEDULE),
    ),
    _bug(
        "the_sequence_after_is_never_asked_for",
        condition("++sequence;\n        n_units = schedule.find_tile(tile, sequence);",
                  "++sequence; n_units = schedule.find_tile(tile, sequence - BUG);", _SCHEDULE),
    ),
    _bug(
        "tiles_that_differ_count_as_alike",
        condition("!device::any_lane(is_unlike) &&", "(BUG || !device::any_lane(is_unlike)) &&",
                  _SCHEDULE),
        finds=[found("written_twice", memory="o")],
    ),
    _bug(
        "the_last_of_the_whole_tiles_are_done_again",
        condition("tile *= shares.whole_tiles;", "tile *= shares.whole_tiles - BUG;", _SCHEDULE),
        finds=[found("written_twice", memory="o")],
    ),
    _bug(
        "a_part_of_like_tiles_begins_a_unit_late",
        condition("place.part > 0 ? begin + kTileUnits : 0;",
                  "place.part > 0 ? begin + kTileUnits + (BUG && place.part == 1 ? 2 : 0) : 0;",
                  _SCHEDULE),
    ),
    _bug(
        "a_head_of_like_tiles_is_another",
        condition("place.head *= shares.by_abreast.divisor;",
                  "place.head = (place.head & ~BUG) * shares.by_abreast.divisor;", _SCHEDULE),
        finds=[found("written_twice", memory="o")],
    ),
    _bug(
        "nobody_merges",
        condition("return parts.count() > 0 &&", "return !BUG && parts.count() > 0 &&", _PARTS),
        finds=[found("tag_left", memory=None)],
    ),
    _bug(
        "the_cta_before_the_last_part_merges",
        condition("return part + 1 == parts.count();", "return part + 1 + BUG == parts.count();",
                  _PARTS),
    ),
    _bug(
        "the_first_part_is_another_tiles",
        condition(".first = device::block_idx() - part * abreast,",
                  ".first = device::block_idx() - (part + BUG) * abreast,", _SCHEDULE),
        finds=[found("deadlock", memory=None)],
    ),
    _bug(
        "no_eight_parts_become_one",
        condition("part % kTogether == kTogether - 1)",
                  "!BUG && part % kTogether == kTogether - 1)", _PARTS),
        finds=[found("deadlock", memory=None)],
    ),
    _bug(
        "the_last_leaves_out_what_has_been_merged",
        condition("return is_last() ? part / kTogether : 0;",
                  "return is_last() ? part / kTogether - (BUG && part >= kTogether) : 0;", _PARTS),
        finds=[found("tag_left", memory=None)],
    ),
    _bug(
        "eight_parts_lack_the_first",
        condition("return part / kTogether * kTogether;",
                  "return part / kTogether * kTogether + (BUG && !is_last());", _PARTS),
        finds=[found("tag_left", memory=None)],
    ),
    _bug(
        "what_has_been_merged_lies_where_a_part_does",
        condition("return part * stride; }", "return part * stride - BUG * rows_of_part; }",
                  _PARTS),
    ),
    _bug(
        "sinks_join_where_eight_parts_become_one",
        condition("problem.sinks.data != nullptr && is_last)",
                  "problem.sinks.data != nullptr && (BUG || is_last))", _PARTS),
    ),
    _bug(
        "the_last_part_is_left_out_of_the_sum",
        condition("first + p < n)", "first + p < n - BUG)", _PARTS),
    ),
    _bug(
        "parts_that_are_not_there_count",
        condition("if (first + p", "if (BUG || first + p", _PARTS),
    ),
    _bug(
        "sums_stay_of_the_maximum_before",
        condition("sum *= scale;", "sum *= BUG ? 1.f : scale;", _PARTS),
    ),
    _bug(
        "sinks_do_not_join_the_parts",
        condition("merged.sum = merged.maximum == -INFINITY ? 0.f : 1.f;",
                  "merged.sum = BUG || merged.maximum == -INFINITY ? 0.f : 1.f;", _PARTS),
    ),
    _bug(
        "a_merged_row_is_that_of_another_head",
        condition("head = parts.head * group +", "head = (parts.head & ~BUG) * group +", _PARTS),
        finds=[found("written_twice", memory="o")],
    ),
    _bug(
        "tags_stay_with_the_first_part",
        condition("for (int p = 0; p < n; ++p) {", "for (int p = BUG; p < n; ++p) {", _PARTS),
        finds=[found("tag_left", memory="o_partial")],
    ),
    _bug(
        "tags_stay_with_lse",
        condition("i < n_rows * n;", "i < n_rows * (n - BUG);", _PARTS),
        finds=[found("tag_left", memory="lse_partial")],
    ),
    _bug(
        "tags_go_while_others_read_lse",
        condition("device::named_barrier_sync(barrier, kWarpgroup);  // all have read lse",
                  "if (!BUG) device::named_barrier_sync(barrier, kWarpgroup);", _PARTS),
        finds=[found("deadlock", memory="lse_partial")],
    ),
    _bug(
        "a_part_has_no_tag",
        condition("{tag, low, high});", "{tag + BUG, low, high});", _EPILOGUE),
        finds=[found("deadlock", memory="o_partial")],
    ),
    _bug(
        "a_cta_reads_its_share_before_it_is_found",
        condition("device::sync_threads();  // the share is visible",
                  "if (!BUG) device::sync_threads();", _KERNEL),
        finds=[found("race", memory="shared")],
    ),
    _bug(
        "it_ends_before_the_kernel_beside",
        condition("if (params.shares.runs_beside &&", "if (!BUG && params.shares.runs_beside &&",
                  _KERNEL),
        finds=[found("ended_before_previous_kernel", memory=None)],
    ),
    _bug(
        "sequences_of_more_rows_are_done_too",
        condition("bool const is_own = 0 < tile.q_rows.length &&",
                  "bool const is_own = BUG || 0 < tile.q_rows.length &&", _SCHEDULE),
    ),
    _bug(
        "the_list_is_of_the_lengths_of_another_call",
        condition("write_shares(listing, list_.data(), *shared, OneThread{}, HostLoader{});",
                  """ShareListing other = listing;
                     other.k.longest = BUG ? listing.k.longest / 3 : listing.k.longest;
                     write_shares(other, list_.data(), *shared, OneThread{}, HostLoader{});""",
                  _RUN),
    ),
]  # fmt: skip


@pytest.fixture(scope="session")
def shared_library(tmp_path_factory):
    """Shares of pages and of packed sequences."""
    root = tmp_path_factory.mktemp("planted_shares")
    features = (*EMULATED_SHARED, *EMULATED_PAGED_SHARED)
    (library,) = build_planted(
        BUGS, {"sm90": CONFIG}, root, machine=["run"], features=features
    ).values()
    return library
