"""Bugs for the emulator to find in the SM90 kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.planted.planting import Bug, build_planted, condition, found, instead, without

from pyflash import FlashForwardSm90Config

_KERNEL = "sm90/forward/forward_kernel.cuh"
_CONSUMER = "sm90/forward/consumer.h"
_GEMMS = "sm90/forward/warpgroup_gemms.h"
_LOAD = "sm90/forward/load.h"
_PIPELINE = "sm90/pipeline.h"
_GEMM = "sm90/gemm.h"
_EPILOGUE = "sm90/forward/epilogue.h"
_ROW_STORES = "sm90/row_stores.h"
_SLABS = "sm90/slabs.h"
_SCORES = "sm90/forward/scores.h"
_MERGE = "sm90/forward/merge.h"
_MASK = "sm90/forward/mask.h"
_COLUMNS = "sm90/columns.h"
_LIST = "common/tile_list.h"

CONFIGS = {
    "overlap": FlashForwardSm90Config.parse(
        "(FP16, 128, 128, 32, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold"
    ),
    "one_consumer": FlashForwardSm90Config.parse("(FP16, 128, 64, 32, 1): sm90+stages_1"),
    "cluster": FlashForwardSm90Config.parse("(FP16, 128, 64, 64, 1): sm90+stages_3"),
}

_WAIT_IN_LOOP = "if (!folds) { gemms.pass_turn(); } gemm_wait<1>(acc_S); } else {"
_QK = "gemm_async(typename Traits::MmaQK{}, tSrQ, tSrK(_, _, _, read_K.stage), acc_S, false);"
_PV = "gemm_async(typename Traits::MmaPV{}, tOrP, tOrV(_, _, _, read_V.stage), acc_O, accumulate);"


def _bug(name: str, *edits, finds=(), problem: str = "ragged", configs=("overlap",)) -> Bug:
    return Bug(name, edits, tuple(finds), configs=configs, problem=problem)


def _merge_bug(name: str, *edits, finds) -> Bug:
    return _bug(name, *edits, finds=finds, problem="splits", configs=("cluster",))


BUGS = [
    # The list of tiles.
    _bug(
        "a_tile_is_listed_twice",
        condition("tiles[place] = {sequence, m_block};",
                  "tiles[place] = {sequence, BUG ? 0 : m_block};", _LIST),
        finds=[found("not_written", memory=None)],
        problem="uneven",
    ),
    _bug(
        "a_tile_is_not_listed",
        condition("list[0] = n_tiles;", "list[0] = n_tiles - (BUG ? 1 : 0);", _LIST),
        finds=[found("not_written", memory=None)],
        problem="uneven",
    ),
    _bug(
        "the_list_is_of_the_lengths_of_another_call",
        condition("listing.q.rows_of(first + i, load).length;",
                  "(BUG ? listing.k : listing.q).rows_of(first + i, load).length;", _LIST),
        finds=[found("not_written", memory=None)],
        problem="uneven",
    ),
    _bug(
        "a_place_in_the_list_is_of_another_section",
        condition("rest += section * order.section;\n    return device::load(",
                  "rest += (section + (BUG ? 1 : 0)) * order.section; return device::load(",
                  "sm90/forward/problem.h"),
        problem="uneven_heads",
    ),
    # Stages and who has done with them.
    _bug(
        "K_released_before_its_MMAs_are_waited_for",
        condition(_QK, "{original} if (BUG) { smem.pipeline_K.release(read_K); }", _GEMMS),
        condition("smem.pipeline_K.release(read_K);\n    read_K.advance();",
                  "if (!BUG) { smem.pipeline_K.release(read_K); } read_K.advance();", _GEMMS),
        finds=[found("race", "K_g2s", "QK")],
    ),
    _bug(
        "V_released_before_its_MMAs_are_waited_for",
        condition(_PV, "{original} if (BUG) { smem.pipeline_V.release(read_V); }", _GEMMS),
        condition("smem.pipeline_V.release(read_V);\n    read_V.advance();",
                  "if (!BUG) { smem.pipeline_V.release(read_V); } read_V.advance();", _GEMMS),
        finds=[found("race", "V_g2s", "PV")],
    ),
    _bug(
        "Q_released_while_other_blocks_need_it",
        condition("finish_QK(place - 1 == now.blocks.begin);",
                  "finish_QK(BUG || place - 1 == now.blocks.begin);", _CONSUMER),
        finds=[found("phase_never_awaited", "PV", memory="Q of consumer 0 full[0]")],
    ),
    _bug(
        "stages_filled_without_waiting_for_them",
        without("device::mbarrier_wait(empty[at.stage], at.parity ^ 1);", _PIPELINE),
        finds=[found("too_many_arrivals", "K_g2s", memory="K full[0]"),
               found("race", "K_g2s"), found("race", "V_g2s")],
    ),
    _bug(
        "the_producer_begins_with_the_wrong_parity",
        condition("device::mbarrier_wait(empty[at.stage], at.parity ^ 1)",
                  "device::mbarrier_wait(empty[at.stage], at.parity ^ (BUG ? 0 : 1))", _PIPELINE),
        finds=[found("wrong_phase", "K_g2s", memory="K empty[0]"),
               found("deadlock", memory="", detail="waits for phase 0 of K empty[0]")],
    ),
    _bug(
        "K_not_waited_for",
        condition("smem.pipeline_K.wait(read_K); Tensor",
                  "if (!BUG) { smem.pipeline_K.wait(read_K); } Tensor", _GEMMS),
        finds=[found("in_flight_read or uninitialised_read", "QK"),
               found("phase_never_awaited", memory="K full[0]")],
    ),
    _bug(
        "V_not_waited_for",
        condition("smem.pipeline_V.wait(read_V); Tensor tOrV",
                  "if (!BUG) { smem.pipeline_V.wait(read_V); } Tensor tOrV", _GEMMS),
        finds=[found("in_flight_read or uninitialised_read", "PV"),
               found("phase_never_awaited", memory="V full[0]")],
        configs=("overlap", "one_consumer"),
    ),
    _bug(
        "Q_not_waited_for",
        condition("gemms.wait_for_Q(); gemms.wait_for_turn();",
                  "if (!BUG) { gemms.wait_for_Q(); } gemms.wait_for_turn();", _CONSUMER),
        finds=[found("in_flight_read or uninitialised_read", "QK")],
    ),
    _bug(
        "the_consumer_waits_for_the_other_parity",
        condition("device::mbarrier_wait(full[at.stage], at.parity);",
                  "device::mbarrier_wait(full[at.stage], at.parity ^ BUG);", _PIPELINE),
        finds=[found("wrong_phase", memory="Q of consumer 0 full[0]")],
    ),
    _bug(
        "the_parity_of_the_first_round_for_ever",
        condition("void wait(Position const& at) {",
                  "void wait(Position at) { if (BUG) { at.parity = 0; }", _PIPELINE),
        finds=[found("wrong_phase", "QK", memory="K full[0]")],
    ),
    _bug(
        "a_release_by_every_lane",
        condition("if (device::elect_one()) { device::mbarrier_arrive(empty[at.stage]); }",
                  "if (device::elect_one() || BUG) { device::mbarrier_arrive(empty[at.stage]); }",
                  _PIPELINE),
        finds=[found("phase_never_awaited", memory="K full[0]")],
    ),
    _bug(
        "every_lane_of_the_producer_loads",
        condition("if (device::elect_one()) { load_tiles",
                  "if (device::elect_one() || BUG) { load_tiles", _KERNEL),
        finds=[found("too_many_arrivals", "Q_g2s", memory="Q of consumer 0 full[0]")],
    ),
    _bug(
        "the_previous_kernel_not_waited_for",
        condition("if (!kFeatures.equal_shares || !params.shares.runs_beside)",
                  "if (!BUG && (!kFeatures.equal_shares || !params.shares.runs_beside))", _KERNEL),
        finds=[found("before_previous_kernel_ended", "Q_g2s", memory=""),
               found("before_previous_kernel_ended", "O_s2g", memory="")],
    ),
    # Barriers: counts, bytes, visibility.
    _bug(
        "a_barrier_that_expects_a_warp_less",
        condition("smem.pipeline_K.init(Traits::kNConsumerWarps,",
                  "smem.pipeline_K.init(Traits::kNConsumerWarps - BUG,", _KERNEL),
        finds=[found("race", "K_g2s", "QK")],
    ),
    _bug(
        "a_barrier_that_expects_a_warp_more",
        condition("smem.pipeline_V.init(Traits::kNConsumerWarps,",
                  "smem.pipeline_V.init(Traits::kNConsumerWarps + BUG,", _KERNEL),
        finds=[found("deadlock", memory="", detail="V empty[0], which lacks 1 of 9 arrivals")],
    ),
    _bug(
        "half_of_the_bytes_expected",
        condition("full = pipeline.acquire(write, kKVBytes);",
                  "full = pipeline.acquire(write, kKVBytes / (1 + BUG));", _LOAD),
        finds=[found("wrong_expect_tx", "K_g2s", memory="K full[0]", detail="TMA brings 8192")],
    ),
    _bug(
        "more_bytes_expected_than_come",
        condition("smem.pipeline_Q[warpgroup].acquire(write, bytes);",
                  "smem.pipeline_Q[warpgroup].acquire(write, bytes + 128 * BUG);", _LOAD),
        finds=[found("deadlock", memory="", detail="which lacks 128 bytes")],
    ),
    _bug(
        "no_bytes_expected",
        instead("device::mbarrier_arrive_and_expect(full[at.stage], bytes);",
                "device::mbarrier_arrive(full[at.stage]);", _PIPELINE),
        finds=[found("in_flight_read", "K_g2s", "QK")],
    ),
    _bug(
        "mbarriers_that_TMA_cannot_see",
        without("device::fence_mbarrier_init();", _KERNEL),
        finds=[found("barrier_not_visible", "K_g2s", memory="K full[0]", detail="fence")],
    ),
    _bug(
        "mbarriers_that_other_warps_cannot_see",
        without("device::sync_threads();  // the mbarriers are visible", _KERNEL),
        finds=[found("barrier_not_visible or barrier_not_initialised", memory=None)],
    ),
    # Proxies: stores that TMA and the tensor cores do not see.
    _bug(
        "zeros_without_a_proxy_fence",
        condition("device::fence_async_proxy(); device::named_barrier_sync(",
                  "if (!BUG) { device::fence_async_proxy(); } device::named_barrier_sync(",
                  _GEMMS),
        finds=[found("missing_proxy_fence", "PV", "V_r2s")],
        problem="packed",
    ),
    _bug(
        "zeros_without_a_barrier",
        without("device::named_barrier_sync(kWarpgroupSync + warpgroup, kWarpgroup);", _GEMMS),
        finds=[found("race", "PV", "V_r2s")],
        problem="packed",
        configs=("one_consumer",),  # taking turns orders the warps, too
    ),
    _bug(
        "zeros_before_the_stage_is_full",
        condition("device::at(Site::V_r2s); smem.pipeline_V.wait(read_V);",
                  "device::at(Site::V_r2s); if (!BUG) { smem.pipeline_V.wait(read_V); }",
                  _GEMMS),
        finds=[found("race", "V_r2s", "V_g2s")],
        problem="packed",
    ),
    # Registers of MMAs in flight.
    _bug(
        "S_read_before_its_MMAs_are_done",
        condition(_WAIT_IN_LOOP,
                  "if (!folds) { gemms.pass_turn(); } if (!BUG) { gemm_wait<1>(acc_S); } } else {",
                  _CONSUMER),
        finds=[found("register_in_flight", "softmax", "QK", memory="accumulators")],
    ),
    _bug(
        "P_overwritten_while_MMAs_read_it",
        condition("if constexpr (Traits::kOverlap) { gemm_wait<0>(gemms.acc_O);",
                  "if constexpr (Traits::kOverlap) { if (!BUG) { gemm_wait<0>(gemms.acc_O); }",
                  _CONSUMER),
        finds=[found("register_in_flight", "P_convert", "PV", memory="A registers"),
               found("race", "V_g2s", "PV")],
    ),
    _bug(
        "O_scaled_while_MMAs_write_it",
        condition("if (rescale) { device::at(Site::O_rescale);",
                  "if (rescale || BUG) { device::at(Site::O_rescale);", _CONSUMER),
        condition("bool const rescale = now.softmax_of_next(acc_S, place - 1);",
                  "if (BUG) { device::at(Site::O_rescale);"
                  " TileSoftmax::rescale(gemms.acc_O, now.correction); }"
                  " bool const rescale = now.softmax_of_next(acc_S, place - 1);",
                  _CONSUMER),
        finds=[found("register_in_flight", "O_rescale", "PV", memory="accumulators")],
    ),
    _bug(
        "MMAs_without_a_fence",
        condition("device::mma_fence(); CUTE_UNROLL for (int k = 0; k < size<2>(tA);",
                  "if (!BUG) { device::mma_fence(); } "
                  "CUTE_UNROLL for (int k = 0; k < size<2>(tA);", _GEMM),
        finds=[found("missing_mma_fence", "PV", memory="A registers")],
        configs=("overlap", "one_consumer"),
    ),
    _bug(
        "MMAs_that_are_never_committed",
        condition("device::mma_commit(); } // The same of operands",
                  "if (!BUG) { device::mma_commit(); } } // The same of operands", _GEMM),
        finds=[found("register_in_flight", "softmax", "QK", memory="accumulators"),
               found("mma_never_awaited", memory="")],
    ),
    _bug(
        "a_warp_that_leaves_out_an_MMA",
        condition("k < size<2>(tA); ++k) {",
                  "{original} if (BUG && k == 0 && device::warp_idx() == 5) { continue; }", _GEMM),
        finds=[found("divergence", memory="")],
    ),
    # Addresses: descriptors, boxes, maps.
    _bug(
        "K_of_another_stage",
        condition("tSrK(_, _, _, read_K.stage), acc_S",
                  "tSrK(_, _, _, (read_K.stage + BUG) % Traits::kStages), acc_S", _GEMMS),
        finds=[found("in_flight_read or uninitialised_read", "QK")],
    ),
    _bug(
        "a_descriptor_past_the_end",
        condition("tSrK(_, _, _,",
                  "tSrK(_, _, _, 16 * BUG +", _GEMMS),
        finds=[found("out_of_bounds", "QK", detail="descriptor")],
    ),
    _bug(
        "a_descriptor_across_stages",
        condition("tOrV(_, _, _, read_V.stage), acc_O, accumulate",
                  "make_tensor(tOrV(_, _, _, read_V.stage).data() + 64 * BUG,"
                  " tOrV(_, _, _, read_V.stage).layout()), acc_O, accumulate", _GEMMS),
        finds=[found("outside_tile", "PV", detail="V")],
    ),
    _bug(
        "Q_of_another_warpgroup",
        condition("smem.q + warpgroup * Traits::kMmaM * kHeadDim);",
                  "smem.q + (warpgroup + BUG) % Traits::kNConsumers * Traits::kMmaM * kHeadDim);",
                  _GEMMS),
        finds=[found("in_flight_read", "QK", "Q_g2s")],
    ),
    _bug(
        "boxes_into_another_stage",
        condition("layout, 0, column, write.stage), column,",
                  "layout, 0, column, (write.stage + BUG) % Traits::kStages), column,", _LOAD),
        finds=[found("in_flight_read", "QK", "K_g2s")],
    ),
    _bug(
        "boxes_across_stages",
        condition("(sKV, layout, 0,", "(sKV, layout, 8 * BUG,", _LOAD),
        finds=[found("outside_tile", "K_g2s", detail="K"),
               found("outside_tile", "V_g2s", detail="V")],
    ),
    _bug(
        "boxes_that_are_not_aligned",
        condition("device::tma_load<kHintKV>(map, full, Slabs::address(",
                  "device::tma_load<kHintKV>(map, full, 64 * BUG + Slabs::address(", _LOAD),
        finds=[found("misaligned", "K_g2s")],
    ),
    _bug(
        "boxes_past_the_end",
        condition("device::tma_load<kHintKV>(map, full,",
                  "device::tma_load<kHintKV>(map, full, (BUG << 17) +", _LOAD),
        finds=[found("out_of_bounds", "V_g2s", detail="overruns")],
    ),
    _bug(
        "a_tensor_map_with_a_row_too_many",
        condition("{sequences.tensor_rows(), strides.row,",
                  "{sequences.tensor_rows() + BUG, strides.row,",
                  "sm90/forward/plan.h"),
        finds=[found("out_of_bounds", "Q_g2s", memory="q")],
    ),
    _bug(
        "scores_of_keys_past_the_end_computed_again",
        condition("n_block * Traits::kBlockN + get<1>(coords(i));",
                  "(n_block + 10 * BUG) * Traits::kBlockN + get<1>(coords(i));", _SCORES),
        finds=[found("out_of_bounds", "QK_g2r", memory="k")],
        problem="leaping",
    ),
    _bug(
        "scores_computed_again_into_MMAs_in_flight",
        condition("bool const rescale = now.softmax_of_next(acc_S, place - 1);",
                  "{original} if (BUG && now.mask.uncut_end == 0) {"
                  " device::at(Site::QK_g2r); gemms.acc_O(0) = acc_S(0); }", _CONSUMER),
        finds=[found("register_in_flight", "QK_g2r", "PV", memory="accumulators")],
        problem="leaping",
    ),
    # Masks.
    _bug(
        "a_key_past_the_diagonal",
        condition("keys_from<kFeatures>(params, tile, aligned)",
                  "keys_from<kFeatures>(params, tile, aligned + BUG)", _MASK),
        condition("row_end[r] = keys.end(0) - column;",
                  "row_end[r] = keys.end(BUG) - column;", _MASK),
        problem="causal",
    ),
    _bug(
        "the_second_of_a_thread_s_columns_cut_with_the_first",
        condition("min(column & 7, 2)", "min(column & 7, 2 - BUG)", _COLUMNS),
        problem="causal",
    ),
    _bug(
        "a_window_from_one_column_too_late",
        condition("columns_before(begin);", "columns_before(begin) + BUG;", _COLUMNS),
        problem="window",
    ),
    # Roles: registers, turns.
    _bug(
        "consumers_that_claim_more_than_there_is",
        instead("device::registers_claim<Traits::consumer_registers(kFeatures)>();",
                "device::registers_claim<Traits::consumer_registers(kFeatures) + 8>();", _KERNEL),
        finds=[found("deadlock", memory="", detail="registers, of which there are")],
    ),
    _bug(
        "a_producer_that_keeps_its_registers",
        without("device::registers_release<Traits::producer_registers(kFeatures)>();", _KERNEL),
        finds=[found("deadlock", memory="", detail="registers, of which there are")],
    ),
    _bug(
        "a_producer_that_releases_upwards",
        instead("device::registers_release<Traits::producer_registers(kFeatures)>();",
                "device::registers_release<Traits::consumer_registers(kFeatures)>();", _KERNEL),
        finds=[found("register_budget", memory="")],
    ),
    _bug(
        "a_turn_that_is_not_passed",
        condition("int const next = warpgroup + 1 == Traits::kNConsumers ? 0 : warpgroup + 1;",
                  "if (BUG) { return; } {original}", _GEMMS),
        finds=[found("deadlock", memory="", detail="named barrier")],
    ),
    _bug(
        "a_turn_that_nobody_takes",
        without("gemms.wait_for_turn();  // the last turn that was passed", _CONSUMER),
        finds=[found("arrivals_left", memory="")],
    ),
    _bug(
        "a_turn_for_half_of_the_threads",
        condition("device::named_barrier_arrive(kTurn + next, 2 * kWarpgroup);",
                  "device::named_barrier_arrive(kTurn + next, (2 - BUG) * kWarpgroup);", _GEMMS),
        finds=[found("deadlock or divergence", memory="", detail="named barrier")],
    ),
    _bug(
        "lanes_at_different_shuffles",
        condition("value = reduce(value, device::shfl_xor(value, 2));",
                  "if (!BUG || device::thread_idx() % 32 < 16) { {original} }", "row_softmax.h"),
        finds=[found("divergence", memory="")],
    ),
    _bug(
        "a_lane_that_asks_alone_for_its_warp",
        condition("float shrink = 1.f;",
                  "if (BUG && device::thread_idx() % 32 == 0) { device::warp_idx(); } {original}",
                  "sm90/forward/softmax.h"),
        finds=[found("divergence", memory="")],
    ),
    # Stores.
    _bug(
        "O_loaded_before_the_warp_has_stored_it",
        condition("device::sync_warp(); device::at(to_global);",
                  "if (!BUG) { device::sync_warp(); } device::at(to_global);", _ROW_STORES),
        finds=[found("race", "O_r2s", "O_s2g")],
    ),
    _bug(
        "a_slab_of_O_stored_before_the_last_is_loaded",
        without("device::sync_warp();  // the slab is free", _ROW_STORES),
        finds=[found("race", "O_r2s", "O_s2g")],
    ),
    _bug(
        # Shared memory begins at an odd multiple of what a swizzle repeats by.
        "rows_of_O_found_by_an_exclusive_or_past_the_swizzle",
        condition("apply(bytes % kSmemAlignment))",
                  "apply(BUG ? bytes : bytes % kSmemAlignment))", _SLABS),
        condition("+ bytes / kSmemAlignment * kSmemAlignment;",
                  "+ (BUG ? 0 : bytes / kSmemAlignment * kSmemAlignment);", _SLABS),
    ),
    _bug(
        "lse_written_by_every_lane_of_a_quad",
        condition("if (out.exists && get<1>(by_rows(0, 0)) == 0) {"
                  " device::store(params.problem.lse",
                  "if (out.exists && (get<1>(by_rows(0, 0)) == 0 || BUG)) {"
                  " device::store(params.problem.lse", _EPILOGUE),
        finds=[found("written_twice", "lse_r2g", memory="lse")],
    ),
    _bug(
        "O_stored_past_the_last_row",
        condition("first_query + row < tile.q_rows.length, .o",
                  "first_query + row < tile.q_rows.length + BUG, .o", _EPILOGUE),
        finds=[found("out_of_bounds", "O_s2g", memory="o")],
    ),
    _bug(
        "columns_past_narrow_heads_stored",
        condition("has_columns = !kFeatures.predicated_head_dim ||",
                  "has_columns = BUG || !kFeatures.predicated_head_dim ||", _EPILOGUE),
        finds=[found("out_of_bounds or written_twice", "O_s2g", memory="o")],
        problem="narrow_heads",
    ),
    # Clusters: parts in shared memory that other CTAs read.
    _merge_bug(
        "parts_read_before_they_are_there",
        without("device::cluster_sync();  // the parts are visible", _MERGE),
        finds=[found("race or uninitialised_read or in_flight_read", "part_s2r", memory=None)],
    ),
    _merge_bug(
        "parts_waited_for_by_their_own_CTA_alone",
        instead("device::cluster_sync();  // the parts are visible",
                "device::named_barrier_sync(barrier, kWarpgroup);", _MERGE),
        finds=[found("race or uninitialised_read or in_flight_read", "part_s2r", memory=None)],
    ),
    _merge_bug(
        "a_warp_that_does_not_wait_for_the_parts",
        condition("device::cluster_sync();  // the parts are visible",
                  "if (!BUG || device::warp_idx() != 5) { {original} }", _MERGE),
        finds=[found("race or uninitialised_read or in_flight_read", "part_s2r", memory=None)],
    ),
    _merge_bug(
        "a_CTA_that_ends_while_others_read",
        without("device::cluster_sync();  // no CTA ends while others read its shared memory",
                _MERGE),
        finds=[found("cta_ended", "part_s2r", memory="shared of another CTA")],
    ),
    _merge_bug(
        "parts_in_the_place_of_K_that_MMAs_read",
        without("device::named_barrier_sync(barrier, kWarpgroup);"
                "  // no warp's MMAs read the memory", _MERGE),
        finds=[found("race", "part_r2s", "QK")],
    ),
    _merge_bug(
        "the_part_of_the_next_rank",
        condition("device::load_from_rank(address, split)",
                  "device::load_from_rank(address, split + BUG)", _MERGE),
        finds=[found("out_of_bounds", "part_s2r", memory="shared of another CTA",
                     detail="rank 3 of a cluster of 3")],
    ),
    _merge_bug(
        "a_split_too_many",
        condition("int const n_splits = device::cluster_size()",
                  "int const n_splits = device::cluster_size() + BUG", _MERGE),
        finds=[found("out_of_bounds", "part_s2r", memory="shared of another CTA",
                     detail="rank 3 of a cluster of 3")],
    ),
    _merge_bug(
        "a_split_too_few",
        condition("int const n_splits = device::cluster_size()",
                  "int const n_splits = device::cluster_size() - BUG", _MERGE),
        finds=[found("written_twice", "O_r2g", memory="o")],
    ),
    _merge_bug(
        "a_part_without_its_lse",
        condition("if (get<1>(by_rows(0, 0)) == 0) { device::store(part_lse",
                  "if (get<1>(by_rows(0, 0)) == 0 && !BUG) { device::store(part_lse", _MERGE),
        finds=[found("uninitialised_read or in_flight_read", "part_s2r", memory=None)],
    ),
]  # fmt: skip


@pytest.fixture(scope="session")
def planted_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_planted(BUGS, CONFIGS, tmp_path_factory.mktemp("planted_sm90"), machine=["run"])
