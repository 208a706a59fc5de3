"""Bugs for the emulator to find in the SM80 kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.planted import planting
from support.planted.planting import Bug, Edit, build_planted, found

from pyflash import FlashForwardKernelConfig

_KERNEL = "sm80/forward/forward_kernel.cuh"


def _edit(original: str, planted: str, file: str = _KERNEL) -> Edit:
    return Edit(original, planted, file)


def instead(original: str, planted: str, file: str = _KERNEL) -> Edit:
    return planting.instead(original, planted, file)


def without(original: str, file: str = _KERNEL) -> Edit:
    return planting.without(original, file)


def condition(original: str, planted: str, file: str = _KERNEL) -> Edit:
    return planting.condition(original, planted, file)


CONFIGS = {
    name: FlashForwardKernelConfig.parse(short_form)
    for name, short_form in {
        "eager": "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
        "sync": "(FP16, 64, 64, 32, 4): load_2_2_2_tiles",
        "ring": "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax+stages_3",
    }.items()
}

_WAIT = "if constexpr (Traits::kAsyncCopy) { device::async_wait<kNewerGroups>(); }"
_WAIT_AT_TOP = (
    "// K[n_block] is visible, and Q the first time; every warp has read V[n_block + 1]."
    " wait_and_sync(Int<kNewerGroups>{});"
)
_WAIT_AFTER_QK = (
    "// V[n_block] is visible; every warp has read K[n_block]. wait_and_sync(Int<kNewerGroups>{});"
)
_WAIT_FOR_ONE_LESS = "wait_and_sync(Int<kNewerGroups + 1>{});"
_PLAIN_VT = (
    "Layout<Shape<Int<Traits::kHeadDim>, Int<kBlockN>>, Stride<_1, Int<Traits::kHeadDim>>>"  # plain
)

BUGS = [
    Bug(
        "no_barrier_at_the_loop_top",
        (instead(_WAIT_AT_TOP, _WAIT),),
        (found("race", "K_g2s", "K_s2r"), found("race", "V_g2s", "V_s2r")),
        configs=("eager", "ring"),
    ),
    Bug(
        "no_barrier_after_QK",
        (instead(_WAIT_AFTER_QK, _WAIT),),
        (found("race", "K_g2s", "K_s2r"), found("race", "V_g2s", "V_s2r")),
        configs=("eager", "ring"),
    ),
    Bug(
        "no_barrier_before_O_leaves",
        (without("device::sync_threads();  // O is visible"),),
        (found("race", "O_r2s", "O_s2g"),),
    ),
    Bug(
        "a_warp_barrier_where_the_CTA_needs_one",
        (instead("device::sync_threads();  // O is visible", "device::sync_warp();"),),
        (found("race", "O_r2s", "O_s2g"),),
    ),
    Bug(
        "no_barrier_after_storing_V",
        (without("wait_and_sync(_0{});  // V[n_block] is visible"),),
        (found("race", "V_g2s", "V_s2r"),),
        configs=("sync",),
    ),
    Bug(
        "no_barrier_after_storing_K",
        (instead(_WAIT_AT_TOP, ""),),
        (found("race", "K_g2s", "K_s2r"), found("race", "Q_g2s", "Q_s2r")),
        configs=("sync",),
    ),
    Bug(
        "no_wait",
        (without("device::async_wait<n_pending.value>();"),),
        (found("in_flight_read", "Q_s2r", "Q_g2s"), found("in_flight_read", "K_s2r", "K_g2s"),
         found("in_flight_read", "V_s2r", "V_g2s"), found("copy_never_awaited", "V_g2s")),
    ),
    Bug(
        "a_wait_that_leaves_V_in_flight",
        (instead(_WAIT_AFTER_QK, _WAIT_FOR_ONE_LESS),),
        (found("in_flight_read", "V_s2r", "V_g2s"),),
        configs=("eager", "ring"),
    ),
    Bug(
        "a_wait_that_leaves_K_in_flight",
        (instead(_WAIT_AT_TOP, _WAIT_FOR_ONE_LESS),),
        (found("in_flight_read", "K_s2r", "K_g2s"),),
        configs=("eager", "ring"),
    ),
    Bug(
        "no_empty_groups_past_the_first_block",
        (_edit("else if constexpr (kKVStages > 1) { commit(); }",
              "else if constexpr (kKVStages > 1) { if (!BUG) { commit(); } }"),),
        (found("in_flight_read", "K_s2r", "K_g2s"), found("in_flight_read", "V_s2r", "V_g2s")),
        configs=("ring",),
    ),
    Bug(
        "V_loaded_one_block_too_far_ahead",
        (instead("load_ahead(load_V, n_block, kKVStages - 1, first);",
                 "load_ahead(load_V, n_block, kKVStages, first);"),),
        (found("race", "V_g2s"), found("uninitialised_read", "V_s2r")),
        configs=("ring",),
    ),
    Bug(
        "K_loaded_to_a_stage_before_every_warp_has_read_it",
        (instead("load_ahead(load_K, n_block, kKVStages, false_type{});", "commit();"),
         condition(_WAIT_AT_TOP,
                   "{original} if (BUG) { load_ahead(load_K, n_block, kKVStages, first); }")),
        (found("in_flight_read", "K_s2r", "K_g2s"),),
        configs=("ring",),
    ),
    Bug(
        "K_of_another_stage",
        (condition("smem.k[stage_of(n_block)];", "smem.k[stage_of(n_block + BUG)];"),),
        configs=("ring",),
    ),
    Bug(
        "a_wait_that_leaves_Q_in_flight",
        (instead("wait_and_sync(Int<Traits::kEagerLoadBlocks ? 1 + kNewerGroups : 0>{});",
                 "wait_and_sync(Int<2 + kNewerGroups>{});"),),
        (found("in_flight_read", "Q_s2r", "Q_g2s"),),
        configs=("eager", "ring"),
    ),
    Bug(
        "V_not_committed",
        (_edit("commit(); }; auto wait_and_sync",
              "if (!BUG) { commit(); } }; auto wait_and_sync"),),
        (found("in_flight_read", "V_s2r", "V_g2s"),),
    ),
    Bug(
        "V_of_the_block_before",
        (_edit("load_V(n_block, first); } Element const* const sK",
              "if (!BUG) { load_V(n_block, first); } } Element const* const sK"),
         _edit("pack_step<Element>(acc_S, tOrP, k); }); };",
              "pack_step<Element>(acc_S, tOrP, k); });"
              " if (BUG) { load_V(n_block, first); } };")),
        (found("uninitialised_read", "V_s2r"),),
    ),
    Bug(
        "swizzle_left_out_where_V_is_read",
        (instead("load_B<LdmatrixTransposed>(tOrVt, sV, v_tiles, k);",
                 f"ThreadOffsets<{_PLAIN_VT}, 16, 16> const plain("
                 "lane_coord<typename Traits::LanesVt>());"
                 "load_B<LdmatrixTransposed>(tOrVt, sV, plain, k);"),),
        conflicts_at="V_s2r",
    ),
    Bug(
        "steps_added_where_the_swizzle_needs_an_XOR",
        (condition("(first ^ (step & kMask))",
                   "(BUG ? first + (step & kMask) : first ^ (step & kMask))", "sm80/copy.h"),),
    ),
    Bug(
        "K_loaded_past_the_first_block",
        (condition("if (n_block > begin_block + (n_ahead - 1)) {",
                   "if (BUG || n_block > begin_block + (n_ahead - 1)) {"),),
        (found("out_of_bounds", "K_g2s", memory="k"), found("copy_never_awaited", "K_g2s")),
        silent=True,
    ),
    Bug(
        "K_loaded_past_the_first_block_of_a_split",
        (condition("begin_block + (n_ahead - 1)", "(BUG ? 0 : begin_block) + (n_ahead - 1)"),),
        (found("copy_never_awaited", "K_g2s"),),
        silent=True,
        configs=("eager", "ring"),
        problem="splits",
    ),
    Bug(
        "one_row_too_many_loaded",
        (condition("(!kRagged || row(m) < extent.rows);",
                   "(!kRagged || row(m) < extent.rows + BUG);",
                   "sm80/copy.h"),),
        (found("out_of_bounds", "Q_g2s", memory="q"), found("out_of_bounds", "K_g2s", memory="k"),
         found("out_of_bounds", "V_g2s", memory="v")),
        configs=("eager", "sync"),
    ),
    Bug(
        "columns_past_narrow_heads_loaded",
        (condition("!kPredicatedColumns || column(k) < extent.columns;",
                   "!kPredicatedColumns || BUG || column(k) < extent.columns;",
                   "sm80/copy.h"),),
        (found("out_of_bounds", "Q_g2s", memory="q"), found("out_of_bounds", "K_g2s", memory="k"),
         found("out_of_bounds", "V_g2s", memory="v")),
        configs=("eager", "sync"),
        problem="narrow_heads",
    ),
    Bug(
        "columns_past_narrow_heads_not_cleared",
        (condition("issue<typename Traits::AsyncCopyAtomOrZeros>(vector, destination, exists);",
                   "if (!BUG || column_exists) { {original} }", "sm80/copy.h"),),
        (found("uninitialised_read", "Q_s2r"), found("uninitialised_read", "K_s2r"),
         found("uninitialised_read", "V_s2r")),
        problem="narrow_heads",
    ),
    Bug(
        "columns_past_narrow_heads_stored",
        (condition("&& column(k) < extent.columns) {",
                   "&& column(k) < (BUG ? 64 : extent.columns)) {", "sm80/copy.h"),),
        (found("out_of_bounds", "O_s2g", memory="o"),
         found("written_twice", "O_s2g", memory="o")),
        problem="narrow_heads",
    ),
    Bug(
        "store_of_one_row_too_many",
        (condition("if (row(m) < extent.rows &&",
                   "if (row(m) < extent.rows + BUG &&", "sm80/copy.h"),),
        (found("out_of_bounds", "O_s2g", memory="o"),),
        silent=True,
    ),
    Bug(
        "lse_of_one_row_too_many",
        (condition("if (row < rows_left) {", "if (row < rows_left + BUG) {"),),
        (found("out_of_bounds", "lse_r2g", memory="lse"),),
        silent=True,
    ),
    Bug(
        "lse_of_one_row_too_few",
        (instead("device::store(lse_block + row, lse[r]);",
                 "if (row + 1 < rows_left) { device::store(lse_block + row, lse[r]); }"),),
        (found("not_written", memory="lse"),),
    ),
    Bug(
        "lse_written_by_every_lane_of_a_quad",
        (condition("if (acc_coord.column == 0) {", "if (acc_coord.column == 0 || BUG) {"),),
        (found("written_twice", "lse_r2g", memory="lse"),),
        silent=True,
    ),
    Bug(
        "shared_memory_past_the_device_layer",
        (instead("store_packed<Traits>(as_operand_A<Element>(acc_O), acc_coord, smem.o);",
                 "smem.o[tidx % kBlockM * Traits::kHeadDim] = Element(0.f);"),),
        (found("unhooked_access", "O_r2s"),),
    ),
    Bug(
        "global_memory_past_the_device_layer",
        (condition("int const row = acc_coord.row + AccRows{}(r);",
                   "{original} if (BUG) { lse_block[row] = lse[r]; }"),),
        (found("unhooked_access", "lse_r2g", memory="lse"),),
    ),
    Bug(
        "an_address_of_no_tensor",
        (condition("int const row = acc_coord.row + AccRows{}(r);",
                   "{original} if (BUG) { *reinterpret_cast<float volatile*>(16) = lse[r]; }"),),
        (found("unhooked_access", "lse_r2g", memory=""),),
    ),
    Bug(
        "one_warp_with_a_barrier_more",
        (condition("device::sync_threads();  // O is visible",
                   "{original} if (BUG && tidx < 32) { device::sync_threads(); }"),),
        (found("divergence", "O_s2g", memory=""),),
    ),
    Bug(
        "lanes_at_different_shuffles",
        (condition("value = reduce(value, device::shfl_xor(value, 2));",
                   "if (!BUG || device::thread_idx() % 32 < 16) { {original} }",
                   "row_softmax.h"),),
        (found("divergence", memory=""),),
    ),
    Bug(
        "lanes_that_leave_early",
        (condition("device::at(Site::O_r2s); device::sync_warp();",
                   "{original} if (BUG && tidx % 32 == 31) { return; }"),),
        (found("divergence", "O_r2s", memory=""),),
    ),
    Bug(
        "a_key_past_the_diagonal",
        (condition("keys.end(row);", "keys.end(row + BUG);", "sm80/forward/mask.h"),),
        configs=("eager", "sync"),
        problem="causal",
    ),
    Bug(
        "a_window_whose_begin_cuts_no_block",
        (condition("return {begin(n_rows - 1), end(0)};",
                   "return {BUG ? 0 : begin(n_rows - 1), end(0)};", "common/mask.h"),),
        problem="window",
    ),
    Bug(
        "a_window_from_one_key_too_early",
        (condition("column < keys.begin(row) - first_key;",
                   "column < keys.begin(row) - first_key - BUG;", "sm80/forward/mask.h"),),
        problem="window",
    ),
    Bug(
        "a_window_whose_end_cuts_no_block",
        (condition("begin(n_rows - 1), end(0)};",
                   "begin(n_rows - 1), end(BUG ? n_rows - 1 : 0)};", "common/mask.h"),),
        configs=("eager", "sync"),
        problem="causal",
    ),
    Bug(
        "blocks_end_where_the_first_row_does",
        (condition("return {begin(0), end(n_rows - 1)};",
                   "return {begin(0), end(BUG ? 0 : n_rows - 1)};", "common/mask.h"),),
        problem="causal",
    ),
    Bug(
        "rows_that_attended_nothing_so_far",
        (condition("kFirst ? kLeastMax :", "kFirst ? (BUG ? -INFINITY : kLeastMax) :",
                   "sm80/forward/softmax.h"),
         condition("cute::fill(limit, float{kLeastMax});",
                   "cute::fill(limit, BUG ? -INFINITY : kLeastMax);", "sm80/forward/softmax.h")),
        configs=("eager", "sync"),
        problem="causal",
    ),
    Bug(
        "heads_of_another_group",
        (condition("params.kv().head_of(coord.head, params.heads)",
                   "(BUG ? coord.head % params.heads_kv :"
                   " params.kv().head_of(coord.head, params.heads))"),),
        problem="groups",
    ),
    Bug(
        "packed_keys_from_the_first_on",
        (condition("Sequences const sequences = params.kv().sequences;",
                   "Sequences const sequences = BUG"
                   " ? Sequences::padded(params.kv().sequences.longest) : params.kv().sequences;"),
         ),
        problem="packed",
    ),
    Bug(
        "lengths_of_the_next_sequence",
        (condition("load(starts + sequence + 1)", "load(starts + sequence + 1 + BUG)",
                   "common/sequence.h"),),
        (found("out_of_bounds", "unlabelled", memory="cu_seqlens_q"),
         found("out_of_bounds", "unlabelled", memory="cu_seqlens_k")),
        problem="packed",
    ),
    Bug(
        "packed_rows_stored_at_the_first",
        (condition("coord.head * params.lse_strides.head + q_rows.begin +",
                   "coord.head * params.lse_strides.head + (BUG ? 0 : q_rows.begin) +"),),
        (found("written_twice", "lse_r2g", memory="lse"), found("not_written", memory="lse")),
        problem="packed",
    ),
    Bug(
        "splits_that_store_to_the_same_place",
        (condition("coord.split * params.lse_strides.split + lse_offset",
                   "(BUG ? 0 : coord.split * params.lse_strides.split) + lse_offset"),),
        (found("written_twice", "O_r2g", memory="o_partial"),
         found("written_twice", "lse_r2g", memory="lse_partial"),
         found("not_written", memory="o_partial"), found("not_written", memory="lse_partial")),
        problem="splits",
    ),
    Bug(
        "splits_that_share_blocks",
        (condition("int const end_block = min(begin_block + blocks_per_split,",
                   "int const end_block = min(begin_block + blocks_per_split + BUG,"),),
        problem="splits",
    ),
    Bug(
        "pairs_of_columns_from_an_odd_one",
        (condition("int const column = first.column + Columns{}(c);",
                   "int const column = first.column + Columns{}(c) + BUG;", "sm80/copy.h"),),
        (found("misaligned", "O_r2g", memory="o_partial"),),
        problem="splits",
    ),
    Bug(
        "partial_rows_past_the_end",
        (condition("if (row < extent.rows && column < extent.columns) {",
                   "if (row < extent.rows + BUG && column < extent.columns) {", "sm80/copy.h"),),
        (found("written_twice", "O_r2g", memory="o_partial"),
         found("out_of_bounds", "O_r2g", memory="o_partial")),
        silent=True,
        problem="splits",
    ),
    Bug(
        "the_sink_of_another_head",
        (condition("load_sink<Element>(params.sinks, coord.head,",
                   "load_sink<Element>(params.sinks, BUG ? 0 : coord.head,"),),
        problem="sinks",
    ),
    Bug(
        "sinks_past_the_last_row",
        (condition("m < rows_left ? load_sink", "m < rows_left + BUG ? load_sink"),),
        (found("out_of_bounds", "sinks_g2r", memory="sinks"),),
        silent=True,
        problem="sinks_of_one_query",
    ),
    Bug(
        "sinks_in_partial_results",
        (condition("params.sinks.data != nullptr && !is_partial",
                   "params.sinks.data != nullptr && (BUG || !is_partial)"),),
        problem="splits_and_all_features",
    ),
]  # fmt: skip


@pytest.fixture(scope="session")
def planted_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_planted(BUGS, CONFIGS, tmp_path_factory.mktemp("planted"))
