"""Bugs for the emulator to find in what kernels of both forward families do with pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.planted.planting import Bug, build_planted, condition, found, without

from pyflash.config import parse

_LOAD = "sm90/forward/load.h"
_GATHER = "sm90/forward/gather.h"
_KERNEL = "sm90/forward/forward_kernel.cuh"
_PIPELINE = "sm90/pipeline.h"
_PLAN = "sm90/forward/plan.h"
_CONSUMER = "sm90/forward/consumer.h"
_SM80 = "sm80/forward/problem.h"
_SOURCE = "common/kv_source.h"

CONFIGS = {
    "sm90": parse("(FP16, 64, 128, 128, 2): sm90+stages_2+overlap+persistent+rescale_threshold"),
    # With more boxes of the fewest rows than a warp has lanes.
    "wide": parse("(FP16, 64, 64, 256, 1): sm90+stages_2+persistent+rescale_threshold"),
    "sm80": parse("(FP16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"),
}
BOTH = ("sm90", "sm80")


def _bug(name: str, *edits, finds=(), problem="window", configs=("sm90",)) -> Bug:
    return Bug(name, edits, tuple(finds), configs=configs, problem=problem)


# A bug that finds nothing shows in the result.
BUGS = [
    _bug(
        "boxes_in_reverse",
        condition("(sKV, layout, row, column, write.stage)",
                  "(sKV, layout, BUG ? kBlockN - n_rows - row : row, column, write.stage)", _LOAD),
    ),
    _bug(
        "the_next_entry_of_the_table",
        condition("table + (key >> pages.log2_size)", "table + (key >> pages.log2_size) + BUG",
                  _LOAD),
        finds=[found("out_of_bounds", "K_g2s", memory="block_table")],
    ),
    _bug("the_page_of_the_block_before", without("page = next_page;", _LOAD)),
    _bug(
        "the_page_of_a_block_that_nobody_asked_for",
        condition("place > tile.blocks.begin ? page_of", "place > tile.blocks.begin || BUG"
                  " ? page_of", _LOAD),
        finds=[found("out_of_bounds", "K_g2s", memory="block_table")],
        problem="unmasked",
    ),
    _bug(
        "entries_past_the_end_read",
        condition("row < kBlockN && key < tile.k_rows.length &&",
                  "row < kBlockN && (BUG || key < tile.k_rows.length) &&", _LOAD),
        finds=[found("out_of_bounds", "K_g2s", memory="block_table")],
    ),
    _bug(
        "rows_of_a_page_from_its_first",
        condition("(n_block * kBlockN + row) & ((1 << pages.log2_size) - 1)",
                  "BUG ? 0 : (n_block * kBlockN + row) & ((1 << pages.log2_size) - 1)", _LOAD),
        problem="large_pages",
    ),
    _bug(
        "rows_of_the_sequence_for_those_of_a_page",
        condition("(n_block * kBlockN + row) & ((1 << pages.log2_size) - 1)",
                  "(n_block * kBlockN + row) & (BUG ? -1 : (1 << pages.log2_size) - 1)", _LOAD),
    ),
    _bug(
        "the_head_beside",
        condition("head_kv, of_page);", "head_kv ^ BUG, of_page);", _LOAD),
    ),
    _bug(
        "one_page_for_all_boxes_of_a_lane",
        condition("n_rows, more_pages[box]);", "n_rows, BUG ? page : more_pages[box]);", _LOAD),
        problem="small_pages",
        configs=("wide",),
    ),
    _bug(
        "pages_that_are_taken_for_dense",
        condition("{std::max(kv.pages.number, 1), strides.batch, 1}",
                  "{std::max(kv.pages.number, 1), BUG ? kv.pages.size * strides.row :"
                  " strides.batch, 1}", _PLAN),
        problem="interleaved",
    ),
    _bug(
        "boxes_of_a_block_in_pages_that_are_smaller",
        condition("box_rows(config.B_c, kv.pages)},",
                  "BUG ? config.B_c : box_rows(config.B_c, kv.pages)},", _PLAN),
        finds=[found("outside_tile or wrong_expect_tx", "K_g2s", memory=None)],
    ),
    _bug(
        "boxes_before_the_stage_is_empty",
        without("device::sync_warp();  // the stage is empty", _LOAD),
        finds=[found("race", "K_g2s"), found("wrong_expect_tx", "V_g2s", memory="V full[0]")],
    ),
    _bug(
        "the_tail_of_a_page_not_cleared",
        condition("(kBoxesOfPages || params.problem.kv().sequences.is_packed()) &&",
                  "!BUG &&", _CONSUMER),
    ),
    _bug(
        "keys_that_expired_not_cleared",
        condition("if (n_rows > 0) { gemms.clear_rows_of_V(0, n_rows);",
                  "if (n_rows > 0 && !BUG) { gemms.clear_rows_of_V(0, n_rows);", _CONSUMER),
    ),
    _bug(
        "a_row_too_many_cleared",
        condition("clear_rows_of_V(0, n_rows);", "clear_rows_of_V(0, n_rows + BUG);", _CONSUMER),
    ),
    _bug(
        "the_length_of_the_next_sequence",
        condition("load(lengths + sequence)", "load(lengths + sequence + BUG)", _SOURCE),
        finds=[found("out_of_bounds", memory="seqlens_k")],
        configs=BOTH,
    ),
    _bug(
        "the_table_of_the_next_sequence",
        condition("pages.table + tile.batch * pages.table_stride",
                  "pages.table + (tile.batch + BUG) * pages.table_stride", _LOAD),
        finds=[found("out_of_bounds", "K_g2s", memory="block_table")],
    ),
    _bug(
        "rows_gathered_without_a_fence",
        condition("device::fence_async_proxy(); device::sync_warp();",
                  "if (!BUG) device::fence_async_proxy(); device::sync_warp();", _PIPELINE),
        finds=[found("missing_proxy_fence", "K_g2s"), found("missing_proxy_fence", "V_g2s")],
        problem="rows",
    ),
    _bug(
        "rows_of_one_warp_alone_waited_for",
        condition("pipeline_K.init(Traits::kNConsumerWarps, kLoadersOfStage<kFeatures>);",
                  "pipeline_K.init(Traits::kNConsumerWarps, kLoadersOfStage<kFeatures> - BUG);",
                  _KERNEL),
        finds=[found("deadlock", memory=None)],
        problem="rows",
    ),
    _bug(
        "an_arrival_too_many_waited_for",
        condition("pipeline_V.init(Traits::kNConsumerWarps, kLoadersOfStage<kFeatures>);",
                  "pipeline_V.init(Traits::kNConsumerWarps, kLoadersOfStage<kFeatures> + BUG);",
                  _KERNEL),
        finds=[found("deadlock", memory=None)],
        problem="rows",
    ),
    _bug(
        "arrival_before_the_copies",
        condition("device::async_wait<0>(); pipeline.fill(arriving);",
                  "if (!BUG) { device::async_wait<0>(); } pipeline.fill(arriving);", _GATHER),
        finds=[found("in_flight_read", "K_g2s", "QK")],
        problem="rows",
    ),
    _bug(
        "the_last_rows_never_announced",
        condition("}); finish_arriving();", "}); if (!BUG) { finish_arriving(); }", _GATHER),
        finds=[found("deadlock", memory=None)],
        problem="rows",
    ),
    _bug(
        "rows_of_one_warp_gathered_twice",
        condition("part * Copies::kRowsOfWarp}", "(BUG ? 0 : part) * Copies::kRowsOfWarp}",
                  _GATHER),
        problem="rows",
    ),
    _bug(
        "rows_gathered_before_the_stage_is_empty",
        without("pipeline.wait_until_empty(write);", _GATHER),
        finds=[found("race", "K_g2s"), found("phase_never_awaited", "K_g2s", memory=None)],
        problem="rows",
    ),
    _bug(
        "rows_looked_up_by_the_wrong_lane",
        condition("lane % kAbreast * kRows + lane / kAbreast",
                  "(BUG ? lane : lane % kAbreast * kRows + lane / kAbreast)", _GATHER),
        problem="rows",
    ),
    _bug(
        "rows_of_the_block_before_the_next",
        condition("page_of(walk[place - 1].number, i)", "page_of(walk[place - 1].number + BUG, i)",
                  _GATHER),
        problem="rows",
    ),
    _bug(
        "entries_past_the_end_gathered",
        condition("first <= key && key < tile.k_rows.length",
                  "first <= key && (BUG || key < tile.k_rows.length)", _GATHER),
        finds=[found("out_of_bounds", "K_g2s", memory="block_table")],
        problem="rows",
    ),
    _bug(
        "expired_rows_gathered",
        condition("row < Copies::kRowsOfWarp && first <= key",
                  "row < Copies::kRowsOfWarp && (BUG || first <= key)",
                  _GATHER),
        problem="threes",
    ),
    _bug(
        "rows_of_pages_that_do_not_exist_gathered",
        condition("pages.exists(page) ? page * steps", "BUG || pages.exists(page) ? page * steps",
                  _GATHER),
        finds=[found("unsupported or out_of_bounds", "V_g2s", memory=None)],
        problem="threes",
    ),
    _bug(
        "gathered_from_the_table_of_the_next_sequence",
        condition("pages.table + tile.batch * pages.table_stride",
                  "pages.table + (tile.batch + BUG) * pages.table_stride", _GATHER),
        finds=[found("out_of_bounds", "K_g2s", memory="block_table")],
        problem="rows",
    ),
    _bug(
        "rows_of_the_head_beside_gathered",
        condition("is_K ? params.problem.template k_at<Element>(0, head_kv, 0)",
                  "is_K ? params.problem.template k_at<Element>(0, head_kv ^ BUG, 0)", _GATHER),
        problem="rows",
    ),
    _bug(
        "the_first_row_of_a_page_gathered",
        condition("page * steps.of_page + row * steps.of_row",
                  "page * steps.of_page + (BUG ? 0 : row) * steps.of_row", _GATHER),
        problem="threes",
    ),
    _bug(
        "rows_gathered_past_the_swizzle",
        condition("Slabs::further(stage, copy * Copies::kRows, 0)",
                  "(BUG ? stage + copy * Copies::kRows * Traits::kSlab * kElementBytes"
                  " : Slabs::further(stage, copy * Copies::kRows, 0))", _GATHER),
        problem="rows",
    ),
    _bug(
        "gathered_from_the_next_entry",
        condition("table + sequence * table_stride + entry",
                  "table + sequence * table_stride + entry + BUG", _SOURCE),
        finds=[found("out_of_bounds", "K_g2s", memory="block_table")],
        configs=("sm80",),
    ),
    _bug(
        "rows_gathered_past_the_end",
        condition("key < keys.end", "(BUG || key < keys.end)", _SM80),
        finds=[found("out_of_bounds", "K_g2s", memory="block_table")],
        configs=("sm80",),
    ),
    _bug(
        "keys_that_expired_gathered",
        condition("keys.begin <= key &&", "(BUG || keys.begin <= key) &&", _SM80),
        configs=("sm80",),
    ),
    _bug(
        "pages_that_do_not_exist_gathered",
        condition("bool const exists = pages.exists(place.batch);",
                  "bool const exists = BUG || pages.exists(place.batch);", _SM80),
        finds=[found("out_of_bounds", "K_g2s", memory="k")],
        configs=("sm80",),
    ),
]  # fmt: skip


@pytest.fixture(scope="session")
def planted_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_planted(BUGS, CONFIGS, tmp_path_factory.mktemp("planted_paged"), paged=True)
