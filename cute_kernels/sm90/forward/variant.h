// What a variant makes of a warpgroup's scores of a block of keys.
#pragma once

#include <cmath>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/sm90/columns.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/mask_bits.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/scores.h"
#include "cute_kernels/sm90/forward/streams.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/softcap.h"

namespace pyflash::sm90 {

using namespace cute;

// What scores of a row share.
template <class Variant>
struct ScoreRow {
  int head;
  int query;
  typename Variant::Prepared prepared;
  typename Variant::Uniform uniform;
  typename Variant::Row row;
};

// Where a thread's scores of a block of keys are, and what they share. first_query: the warpgroup's.
template <class Traits, class Variant>
struct ScoresOfBlock {
  variant::Lengths lengths;
  int first;  // key of this thread
  ScoreRow<Variant> rows[2];

  ScoresOfBlock() = default;

  CUTE_DEVICE ScoresOfBlock(ParamsWith<Variant> const& params, Tile const& tile, int first_query,
                            int first_key)
      : lengths{tile.q_rows.length, tile.k_rows.length, 0, 0} {
    Tensor coords = coords_of<Traits::kBlockN>(device::fresh_thread_idx() % kWarpgroup);
    Tensor by_rows = rows_by_columns(coords);
    auto const& captured = params.captured;
    int const group = Traits::kPackGqa ? params.order.by_group.divisor : 1;
    first = first_key + get<1>(by_rows(0, 0));
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      PackedRow const packed = unpack_row<Traits>(params, get<0>(by_rows(r, 0)));
      rows[r].head = tile.head * group + packed.head;
      rows[r].query = first_query + packed.query;
      if (Traits::kPackGqa || r == 0) {
        rows[r].prepared = Variant::prepared(params.prepared, tile.batch, rows[r].head);
        rows[r].uniform = Variant::uniform(captured, lengths, tile.batch, rows[r].head);
      } else {
        rows[r].prepared = rows[0].prepared;
        rows[r].uniform = rows[0].uniform;
      }
      rows[r].row = Variant::row(captured, lengths, rows[r].prepared, rows[r].uniform, tile.batch,
                                 rows[r].head, rows[r].query);
    }
  }
};

// Raw scores to those of the variant: scaled, capped, through its score function where it has one; where kCut, -inf where its mask
// hides a pair. scores: where they are. set_elements: puts what a pair has of copied streams into its row, kCopied.
template <class Traits, ForwardFeatures kFeatures, class Variant, bool kCut, bool kStreamed,
          bool kCopied, class AccS, class SetElements>
CUTE_DEVICE void make_scores_of(AccS& acc_S, ParamsWith<Variant> const& params, Tile const& tile,
                                ScoresOfBlock<Traits, Variant>& scores,
                                SetElements const& set_elements) {
  Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,V,MMA_N))
  auto const& problem = params.problem;
  auto const& captured = params.captured;
  bool const is_capped = kFeatures.softcap && problem.softcap.cap != 0.f;
  float const scale = is_capped ? kLn2 : problem.softmax_scale;
  auto uncapped_or_capped = [&](float raw) {
    return is_capped ? capped_exponent(problem.softcap, raw) : raw;
  };
  auto const& lengths = scores.lengths;
  int const first = scores.first;
  CUTE_UNROLL
  for (int i = 0; i < size<1>(S); ++i) {
    // NOTE: bits of bools are in this order, of which ptxas turns seven at a time into predicates (R2P).
    int const c = kCopied ? i / 8 * 8 + i % 4 * 2 + i % 8 / 4 : i;
    int const offset = column_of(c);
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      auto& [head, query, prepared, uniform, row] = scores.rows[r];
      set_elements(row, r, c, first);
      // NOTE: of rows of one head the compiler computes a column once, and what a row and the one 8 below it have of a
      // distance, which the columns 8 further on have, too.
      auto const column =
          Variant::column(captured, lengths, prepared, uniform, tile.batch, head, first, offset);
      auto const distance =
          Traits::kPackGqa
              ? Variant::distance(captured, lengths, prepared, uniform, tile.batch, head,
                                  first - query, offset)
              : Variant::distance(captured, lengths, prepared, uniform, tile.batch, head,
                                  first - scores.rows[0].query, offset - kRowStep * r);
      if constexpr (Variant::kHasScore) {
        S(r, c) = Variant::template score<kStreamed, kCopied>(
            captured, lengths, uniform, row, column, distance, tile.batch, head, query, first,
            offset, uncapped_or_capped(S(r, c)), scale);
      }
      if (kCut && !Variant::template counts<kStreamed, kCopied>(captured, lengths, uniform, row,
                                                                column, distance, tile.batch, head,
                                                                query, first, offset)) {
        S(r, c) = -INFINITY;
      }
    }
  }
}

// The same of a block, whichever way its elements come. first_query: the warpgroup's. kAhead: the streams that are copied were
// copied, and `blocks` has the block's bits.
template <class Traits, ForwardFeatures kFeatures, class Variant, bool kAhead, class AccS,
          class Blocks>
CUTE_DEVICE void make_variant_scores(AccS& acc_S, ParamsWith<Variant> const& params,
                                     Tile const& tile, int first_query, int n_block, bool is_cut,
                                     Blocks const& blocks) {
  using Tiles = StreamTiles<Traits, kFeatures, Variant>;
  auto const& captured = params.captured;
  int const first_key = n_block * Traits::kBlockN;
  auto make = [&](auto cut, auto streamed, auto copied, auto const& set_elements) {
    ScoresOfBlock<Traits, Variant> scores(params, tile, first_query, first_key);
    make_scores_of<Traits, kFeatures, Variant, cut.value, streamed.value, copied.value>(
        acc_S, params, tile, scores, set_elements);
  };
  auto make_by_loads = [&](auto cut) {
    if constexpr (Tiles::kCopies && kAhead) {
      if (Tiles::are_copied(captured, first_key, cut.value)) {
        device::at(device::Site::softmax);
        Tiles const tiles;
        tiles.wait();
        StreamElements<Tiles, Variant, cut.value> elements(tiles);
        make(cut, true_type{}, true_type{}, elements.setter());
        return;
      }
    }
    // NOTE: what is made once more is rare.
    if constexpr (Variant::kStreams && kAhead) {
      if (Variant::is_streamed(captured, first_key, Traits::kBlockN)) {
        make(cut, true_type{}, false_type{}, NoElements{});
        return;
      }
    }
    make(cut, false_type{}, false_type{}, NoElements{});
  };
  if constexpr (Variant::kHasMask) {
    if (is_cut && !blocks.has_bits()) {
      make_by_loads(true_type{});
      return;
    }
  }
  if constexpr (Variant::kHasScore) {
    make_by_loads(false_type{});
  }
  if constexpr (Blocks::kMayHide) {
    if (is_cut) {
      device::at(device::Site::softmax);
      auto const bits = kAhead ? blocks.bits : blocks.of_block(n_block);
      bits.hide(acc_S);
    }
  }
}

// Copies the streams of a block whose scores are made next, where they are copied. first_query: the warpgroup's.
template <class Traits, ForwardFeatures kFeatures, class Variant>
CUTE_DEVICE void copy_streams(ParamsWith<Variant> const& params, Tile const& tile, int first_query,
                              variant::ListedBlock const& block) {
  using Tiles = StreamTiles<Traits, kFeatures, Variant>;
  if constexpr (Tiles::kCopies) {
    device::at(device::Site::softmax);
    int const first_key = block.number * Traits::kBlockN;
    bool const is_cut = block.is_cut && params.bits == nullptr;
    if (Tiles::are_copied(params.captured, first_key, is_cut)) {
      ScoresOfBlock<Traits, Variant> const scores(params, tile, first_query, first_key);
      Tiles{}.copy(first_key, is_cut, scores.rows[0].row, scores.rows[1].row);
    }
  }
}

// What becomes of this thread's QK^T of a block before the softmax: by a variant, or ALiBi. kAhead: as of make_variant_scores.
template <class Traits, ForwardFeatures kFeatures, class Variant, bool kAhead, class AccS,
          class Blocks>
CUTE_DEVICE void make_scores(AccS& acc_S, ParamsWith<Variant> const& params, Tile const& tile,
                             int first_query, int n_block, bool is_cut, Blocks const& blocks) {
  if constexpr (Variant::kHasMask || Variant::kHasScore) {
    make_variant_scores<Traits, kFeatures, Variant, kAhead>(acc_S, params, tile, first_query,
                                                            n_block, is_cut, blocks);
  }
  if constexpr (kFeatures.alibi_slopes) {
    add_alibi_to<Traits, kFeatures>(acc_S, params, tile, first_query, n_block);
  }
}

}  // namespace pyflash::sm90
