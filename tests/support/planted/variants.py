"""Bugs for the emulator to find in kernels with a variant: in the emitted functor, in what kernels
of both forward families make of it, and in the lists of blocks that they walk."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.combined_variants import whole
from support.planted.planting import EMITTED, Bug, build_planted, condition, without

from pyflash.config import Features, parse

_SCORES = "sm90/forward/variant.h"
_CONSUMER = "sm90/forward/consumer.h"
_TILE = "sm90/forward/warpgroup_tile.h"
_LOAD = "sm90/forward/load.h"
_SCHEDULE = "sm90/forward/problem.h"
_SCORES_SM80 = "sm80/forward/variant.h"
_KERNEL_SM80 = "sm80/forward/forward_kernel.cuh"
_LISTS = "variant/block_lists.h"
_ORDER = "variant/tile_order.h"
_WALK = "variant/kernel_params.h"
_PREPARED = "variant/prepared_tables.h"
_TABLE = "variant/table.h"

CONFIGS = {
    "sm90": parse("(FP16, 64, 128, 64, 2): sm90+stages_2+overlap+persistent+rescale_threshold"),
    "sm90_wide": parse(
        "(FP16, 64, 256, 64, 4): sm90+stages_2+overlap+persistent+rescale_threshold"
    ),
    "sm90_decoding": parse(
        "(FP16, 64, 64, 128, 1): sm90+stages_2+overlap+persistent+rescale_threshold+pack_gqa"
    ),
    "sm80": parse("(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"),
}
BOTH = ("sm90", "sm80")
# One kernel runs every problem.
FEATURES = Features(
    right_window=True, left_window=True, predicated_head_dim=True, softcap=True, sinks=True
)


def _bug(name: str, *edits, problem: str, configs=BOTH) -> Bug:
    return Bug(name, edits, configs=configs, problem=problem)


def _sm90(name: str, *edits, problem: str) -> Bug:
    return _bug(f"sm90_{name}", *edits, problem=problem, configs=("sm90",))


def _sm80(name: str, *edits, problem: str) -> Bug:
    return _bug(f"sm80_{name}", *edits, problem=problem, configs=("sm80",))


def _spans(name: str, *edits, problem: str) -> Bug:
    return _bug(f"spans_{name}", *edits, problem=problem, configs=("sm90", "sm90_wide"))


# All show in the result: where the loads, the walk and the mask are of one list, the machine has
# nothing to say about which.
BUGS = [
    # What is emitted.
    _bug("the_row_of_the_next_query",
         condition("params.p6.at(h, at)", "params.p6.at(h, at + BUG)", EMITTED),
         problem="of_row"),
    _bug("the_column_of_the_next_key",
         condition("params.p5.at(at)", "params.p5.at(at + BUG)", EMITTED), problem="of_column"),
    _bug("the_slope_of_head_0",
         condition("params.p8.at(h)", "params.p8.at(BUG ? 0 : h)", EMITTED), problem="alibi"),
    _bug("queries_before_heads_in_a_table",
         condition("params.p7.template line<3>(b, h, q)",
                   "params.p7.template line<3>(b, BUG ? q : h, BUG ? h : q)", EMITTED),
         problem="bias"),
    _bug("the_documents_of_batch_0",
         condition("if (i == 10) { return to_prepared(params.p15.at(b, at)); }",
                   "if (i == 10) { return to_prepared(params.p15.at(BUG ? 0 : b, at)); }", EMITTED),
         problem="documents"),
    _bug("the_document_of_the_next_query",
         condition("if (i == 11) { return to_prepared(params.p15.at(b, at)); }",
                   "if (i == 11) { return to_prepared(params.p15.at(b, at + BUG)); }", EMITTED),
         problem="documents"),
    # What is made before the kernel.
    _bug("the_tables_of_head_0",
         condition("head * head_strides[field]", "(BUG ? 0 : head) * head_strides[field]",
                   _PREPARED), problem="of_row"),
    _bug("the_tables_of_batch_0",
         condition("batch * batch_strides[field]", "(BUG ? 0 : batch) * batch_strides[field]",
                   _PREPARED), problem="documents"),
    _bug("a_table_from_its_second_entry",
         condition("int const at = shape.first + int(place % shape.length);",
                   "int const at = shape.first + BUG + int(place % shape.length);", _PREPARED),
         problem="of_column"),
    _bug("distances_from_their_second",
         condition("tables.data[i] = memory - shape.first;",
                   "tables.data[i] = memory - shape.first +"
                   " (Variant::prepared_field(i).along == Along::apart ? BUG : 0);", _PREPARED),
         problem="dilated"),
    _bug("the_element_below",
         condition("return number(line[inside(first + offset, kAxis) * strides[kAxis]]);",
                   "return number(line[inside(first + offset + BUG, kAxis) * strides[kAxis]]);",
                   _TABLE), problem="bias"),
    # Whose scores a thread has: SM90.
    _sm90("the_column_beside",
          condition("first_key + get<1>(by_rows(0, 0));",
                    "first_key + (get<1>(by_rows(0, 0)) ^ 2 * BUG);", _SCORES),
          problem="dilated"),
    _sm90("the_distances_of_the_row_above",
          condition("offset - kRowStep * r);", "offset - (BUG ? 0 : kRowStep) * r);", _SCORES),
          problem="alibi"),
    _sm90("the_other_row",
          condition("unpack_row<Traits>(params, get<0>(by_rows(r, 0)));",
                    "unpack_row<Traits>(params, get<0>(by_rows(BUG ? 1 - r : r, 0)));", _SCORES),
          problem="alibi"),
    _sm90("the_query_below",
          condition("first_query + packed.query;", "first_query + packed.query + BUG;", _SCORES),
          problem="of_row"),
    _sm90("the_head_beside",
          condition("tile.head * group + packed.head;", "(tile.head ^ BUG) * group + packed.head;",
                    _SCORES), problem="of_heads"),
    _sm90("the_first_block_of_keys",
          condition("int const first_key = n_block * Traits::kBlockN;",
                    "int const first_key = BUG ? 0 : n_block * Traits::kBlockN;", _SCORES),
          problem="bias"),
    _sm90("the_lengths_the_other_way_round",
          condition("lengths{tile.q_rows.length, tile.k_rows.length, 0, 0} {",
                    "lengths{BUG ? tile.k_rows.length : tile.q_rows.length,"
                    " BUG ? tile.q_rows.length : tile.k_rows.length, 0, 0} {", _SCORES),
          problem="alibi"),
    _sm90("no_scores_where_a_block_is_not_cut",
          without("make_by_loads(false_type{});", _SCORES), problem="bias"),
    _sm90("raw_scores",
          condition("is_capped ? kLn2 : problem.softmax_scale;",
                    "is_capped ? kLn2 : BUG ? 1.f : problem.softmax_scale;", _SCORES),
          problem="of_row"),
    _sm90("no_cap_below_a_variant",
          condition("kFeatures.softcap && problem.softcap.cap != 0.f;",
                    "!BUG && kFeatures.softcap && problem.softcap.cap != 0.f;", _SCORES),
          problem="softcap"),
    _sm90("the_mask_of_a_cut_block_ignored",
          condition("if (is_cut && !blocks.has_bits()) {",
                    "if (is_cut && !blocks.has_bits() && !BUG) {", _SCORES),
          problem="dilated"),
    # The softmax of those.
    _sm90("not_made_again_after_an_overflow",
          without("make_scores<false>(acc_S, block);", _TILE), problem="of_column"),
    _sm90("scaled_twice",
          condition("softmax(Variant::kHasScore ? 1.f : params.problem.softmax_scale,",
                    "softmax(Variant::kHasScore && !BUG ? 1.f : params.problem.softmax_scale,",
                    _TILE), problem="of_row"),
    _sm90("powers_of_2_of_natural_scores",
          condition("Variant::kHasScore ? kLn2 : params.problem.inverse_scale_log2)",
                    "Variant::kHasScore && !BUG ? kLn2 : params.problem.inverse_scale_log2)",
                    _TILE),
          problem="sinks"),
    _sm90("the_mask_of_the_block_before",
          condition("ListedBlock const block = next_block(place); make_scores<true>",
                    "ListedBlock const block = next_block(BUG && place > 0 ? place - 1 : place);"
                    " make_scores<true>",
                    _TILE), problem="documents"),
    _sm90("a_tail_of_V_by_its_place",
          condition("int const n_block = now.block_at(now.first_place()).number;",
                    "int const n_block = BUG ? (now.first_place() - 1) % variant::kListedPlaces"
                    " : now.block_at(now.first_place()).number;",
                    _CONSUMER), problem="packed"),
    # The walk.
    _sm90("places_taken_for_blocks",
          condition("int const n_block = walk[place].number; device::Mbarrier",
                    "int const n_block = BUG && place > variant::kListedPlaces"
                    " ? place - 1 - variant::kListedPlaces : walk[place].number; device::Mbarrier",
                    _LOAD), problem="blocks"),
    _sm90("the_list_of_the_tile_before",
          condition("params.lists.list(tile.batch, tile.head, tile.first_query / n_queries)};",
                    "params.lists.list(tile.batch, tile.head,"
                    " BUG ? 0 : tile.first_query / n_queries)};", _SCHEDULE), problem="blocks"),
    _sm90("splits_that_share_blocks",
          condition("tile.blocks.begin += tile.split * share;",
                    "tile.blocks.begin += tile.split * (BUG && share > 1 ? share - 1 : share);",
                    _SCHEDULE), problem="split"),
    _sm90("tiles_of_one_length_in_one_place",
          condition("lengths[i] == lengths[tile] && i < tile",
                    "lengths[i] == lengths[tile] && i < tile && !BUG", _ORDER), problem="blocks"),
    _sm90("tiles_of_the_first_sequence",
          condition("= {tile / lists.tiles, tile % lists.tiles};",
                    "= {BUG ? 0 : tile / lists.tiles, tile % lists.tiles};", _ORDER),
          problem="documents"),
    _sm80("the_column_beside",
          condition("int const offset = Columns{}(c);",
                    "int const offset = Columns{}(c) ^ BUG;", _SCORES_SM80), problem="dilated"),
    _sm80("the_query_of_the_first_tile",
          condition("int const first_query = coord.m_block * Traits::kBlockM + first.row;",
                    "int const first_query ="
                    " (BUG ? 0 : coord.m_block * Traits::kBlockM) + first.row;",
                    _SCORES_SM80), problem="of_row"),
    _sm80("the_first_row_of_a_thread",
          condition("coord.batch, coord.head, first_query + Rows{}(r)); }",
                    "coord.batch, coord.head, first_query + Rows{}(BUG ? 0 : r)); }",
                    _SCORES_SM80),
          problem="of_row"),
    _sm80("raw_scores",
          condition("is_capped ? kLn2 : params.softmax_scale;",
                    "is_capped ? kLn2 : BUG ? 1.f : params.softmax_scale;", _SCORES_SM80),
          problem="bias"),
    _sm80("a_hidden_pair_shown",
          condition("if (kCut && !Variant::template counts<",
                    "if (kCut && !BUG && !Variant::template counts<",
                    _SCORES_SM80), problem="of_heads"),
    _sm80("cut_blocks_taken_for_whole_ones",
          condition("if (is_cut || number >= uncut.end",
                    "if ((!BUG && is_cut) || number >= uncut.end", _KERNEL_SM80),
          problem="dilated"),
    _sm80("K_by_its_place",
          condition("device::at(Site::K_g2s); int const n_block = walk[place].number;",
                    "device::at(Site::K_g2s);"
                    " int const n_block = BUG ? place : walk[place].number;",
                    _KERNEL_SM80), problem="blocks"),
    _sm80("V_a_block_behind",
          condition("device::at(Site::V_g2s); int const n_block = walk[place].number;",
                    "device::at(Site::V_g2s); int const n_block ="
                    " walk[BUG && place > 0 ? place - 1 : place].number;", _KERNEL_SM80),
          problem="blocks"),
    _sm80("scores_of_the_block_at_that_place",
          condition("{q_rows.length, k_rows.length, 0, 0}, acc_coord, walk[n_block].number);",
                    "{q_rows.length, k_rows.length, 0, 0}, acc_coord,"
                    " BUG ? n_block : walk[n_block].number);", _KERNEL_SM80), problem="blocks"),
    _sm80("splits_that_share_blocks",
          condition("(kFeatures.fixed_splits ? 0 : coord.split * blocks_per_split);",
                    "(kFeatures.fixed_splits ? 0 : coord.split *"
                    " (BUG && blocks_per_split > 1 ? blocks_per_split - 1 : blocks_per_split));",
                    _KERNEL_SM80), problem="split"),
    # Spans of blocks that are neighbours, in tiles of two warpgroups and of four.
    _spans("some_taken_for_all",
           condition("lanes.for_each_vote(is_attended, shown == Shown::all, take);",
                     "lanes.for_each_vote(is_attended, BUG ? is_attended : shown == Shown::all,"
                     " take);", _LISTS),
           problem="dilated"),
    _spans("the_block_behind_the_whole_ones",
           condition("place < whole.end;", "place < whole.end + BUG;", _TILE),
           problem="alibi"),
    _spans("the_block_before_the_whole_ones",
           condition("whole.begin <= place &&", "whole.begin - BUG <= place &&", _TILE),
           problem="ring"),
    _spans("whole_from_the_first_to_the_last_that_is",
           condition("bool const has_whole = n_whole == whole.size();",
                     "bool const has_whole = BUG || n_whole == whole.size();", _LISTS),
           condition("n_attended == attended.size() && n_whole == whole.size();",
                     "n_attended == attended.size() && (BUG || n_whole == whole.size());", _LISTS),
           problem="but_one"),
    _spans("a_span_without_its_last_block",
           condition("return {attended.begin, attended.end,",
                     "return {attended.begin, attended.end - BUG,", _LISTS),
           problem="documents"),
    _spans("the_span_of_the_warpgroup_beside",
           condition("+ 1 + warpgroup);", "+ 1 + (warpgroup ^ BUG));", _SCHEDULE),
           problem="alibi"),
    _spans("rows_of_the_warpgroup_before",
           condition("first += (i - 1) * n_queries;",
                     "first += (BUG && i > 1 ? i - 2 : i - 1) * n_queries;", _LISTS),
           problem="alibi"),
    _spans("the_span_of_the_first_tile",
           condition("params.spans.of_list(list_of(params, tile)));",
                     "params.spans.of_list(BUG ? 0 : list_of(params, tile)));", _SCHEDULE),
           problem="two_tiles"),
    _spans("listed_places_from_the_length",
           condition("list[place - kListedPlaces]", "list[place - kListedPlaces - BUG]", _LISTS),
           problem="apart"),
    # The lists.
    _bug("some_taken_for_all",
         condition("lanes.index(), shown == Shown::some}.entry();",
                   "lanes.index(), shown == Shown::some && !BUG}.entry();", _LISTS),
         problem="apart"),
    _bug("some_taken_for_none",
         condition("bool const is_attended = shown != Shown::none;",
                   "bool const is_attended = BUG ? shown == Shown::all : shown != Shown::none;",
                   _LISTS), problem="apart"),
    _bug("the_list_of_batch_0",
         condition("PYFLASH_HOST_DEVICE constexpr int* list(", "PYFLASH_HOST_DEVICE int* list(",
                   _LISTS),
         condition("batches == 1 ? 0 : batch;", "BUG || batches == 1 ? 0 : batch;", _LISTS),
         problem="documents"),
    _bug("the_list_of_head_0",
         condition("heads == 1 ? 0 : head;", "BUG || heads == 1 ? 0 : head;", _LISTS),
         problem="heads"),
    _bug("the_last_key_of_a_block_not_judged",
         condition("int64_t(lengths.k_len)) - 1};", "int64_t(lengths.k_len)) - 1 - BUG};", _LISTS),
         problem="last_key"),
    _bug("the_last_query_of_a_tile_not_judged",
         condition("part.queries.end - 1}", "part.queries.end - 1 - BUG}", _LISTS),
         problem="last_query"),
    _bug("bounds_of_the_first_query",
         condition("at.batch, head, {first, end - 1});",
                   "at.batch, head, BUG ? Bounds{0, 0} : Bounds{first, end - 1});", _LISTS),
         problem="documents"),
    _bug("bounds_of_the_first_key",
         condition("tile_columns(captured, lengths, at.batch, head, keys);",
                   "tile_columns(captured, lengths, at.batch, head, BUG ? Bounds{0, 0} : keys);",
                   _LISTS), problem="documents"),
    _bug("a_list_without_its_last_block",
         condition("n += lanes.count(word);",
                   "n += lanes.count(word) - (BUG && first > 0 ? 1 : 0);", _LISTS),
         problem="apart"),
    _bug("every_block_is_whole",
         condition("constexpr ListedBlock of(int entry) { return {entry >> 1, (entry & 1) != 0};",
                   "ListedBlock of(int entry) { return {entry >> 1, !BUG && (entry & 1) != 0};",
                   _LISTS),
         problem="apart"),
    _sm80("the_walk_from_the_length",
         condition("ListedBlock::of(list[1 + place]);", "ListedBlock::of(list[1 - BUG + place]);",
                   _WALK), problem="blocks"),
]  # fmt: skip


@pytest.fixture(scope="session")
def planted_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("planted_variants")
    return build_planted(BUGS, CONFIGS, root, variant=whole().normal, features=[FEATURES])
