// How a computing warpgroup makes the scores of most blocks of a variant: in a straight line, and from what it keeps of a tile. The
// exponentials take the special function unit longer than anything else does, and what scores take is computed beside them where
// no branch is between the two.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/mask_bits.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/softmax.h"
#include "cute_kernels/sm90/forward/streams.h"
#include "cute_kernels/sm90/forward/variant.h"

namespace pyflash::sm90 {

using namespace cute;

// What a variant adds to the scores of a block of keys, where it is a line along them, as exponents have it: a thread's columns of two
// rows.
struct LineOfBlock {
  float scale;     // of raw scores
  float slope[2];  // of each row
  float first[2];  // at the thread's first key

  CUTE_DEVICE float scale_log2(float) const { return scale; }
  CUTE_DEVICE auto of_row(int r, float m) const {
    float const at_first = first[r] - m, step = slope[r];
    return [=](int c) { return fmaf(static_cast<float>(column_of(c)), step, at_first); };
  }
};

template <class Traits, ForwardFeatures kFeatures, class Variant>
struct UsualScores {
  using Tiles = StreamTiles<Traits, kFeatures, Variant>;
  static constexpr bool kExists = true;
  // NOTE: four consumers lack the registers.
  static constexpr bool kKeeps = Traits::kNConsumers < 4;
  static constexpr bool kHides = variant::kTakesBits<Variant>;
  static constexpr bool kReadsStreams = Variant::kStreamsOfScore != 0;
  // Whether scores stay raw, and exponents have a line, which saves an instruction a score. NOTE: those under a cap are capped before;
  // four consumers lack the registers.
  static constexpr bool kAddsLine = Variant::kAddsLine && !kFeatures.softcap && kKeeps;
  // Whether what is read ahead, is so here.
  static constexpr bool kReadsAhead = kKeeps && (kHides || kReadsStreams);

  ParamsWith<Variant> const& params;
  Tiles tiles;
  ScoresOfBlock<Traits, Variant> of_tile;  // as if key 0 were a block's first
  int copied_until;                        // keys whose streams are copied

  CUTE_DEVICE explicit UsualScores(ParamsWith<Variant> const& params) : params(params) {
    if constexpr (kReadsStreams) {
      copied_until = Tiles::copied_until(params.captured, false);
      device::keep(copied_until);
    }
  }

  // first_query: the warpgroup's.
  CUTE_DEVICE void begin(Tile const& tile, int first_query) {
    if constexpr (kKeeps) {
      of_tile = ScoresOfBlock<Traits, Variant>(params, tile, first_query, 0);
    }
  }

  // Whether the scores of a block are made this way.
  template <class Blocks>
  CUTE_DEVICE bool are_of(variant::ListedBlock const& block, Blocks const& blocks) const {
    if constexpr (kHides) {
      return block.is_cut && blocks.has_bits();
    }
    return !block.is_cut && (!kReadsStreams || are_copied(block.number));
  }

  // Scores, but for what bits hide.
  template <class AccS>
  CUTE_DEVICE void make(AccS& acc_S, Tile const& tile, int first_query, int n_block) {
    if constexpr (!Variant::kHasScore || kAddsLine) {
      return;
    }
    int const first_key = n_block * Traits::kBlockN;
    auto scores = of_block(tile, first_query, first_key);
    auto make_of = [&](auto copied, auto const& set_elements) {
      make_scores_of<Traits, kFeatures, Variant, false, copied.value, copied.value>(
          acc_S, params, tile, scores, set_elements);
    };
    if constexpr (kReadsStreams) {
      tiles.wait();
      StreamElements<Tiles, Variant, false> elements(tiles);
      make_of(true_type{}, elements.setter());
      if constexpr (kReadsAhead) {
        // NOTE: the next block is copied once this one has been read: too late for what comes from DRAM.
        int const after_next = max(n_block - 2, 0) * Traits::kBlockN;
        tiles.prefetch(after_next, of_tile.rows[0].row, of_tile.rows[1].row);
      }
    } else {
      make_of(false_type{}, NoElements{});
    }
  }

  // What is done before the exponential of a score: it is hidden where its bit says so. Amid them, when its own elements have been
  // read, those of the block before are copied, if there is one from first_block on.
  template <class Blocks>
  CUTE_DEVICE auto before_exponential(Blocks const& blocks, int n_block, int first_block) const {
    auto const hide = [&] {
      if constexpr (kHides) {
        return blocks.bits.hider();
      } else {
        return Nothing{};
      }
    }();
    return [=, this](auto& S, int r, int c) __attribute__((always_inline)) {
      if constexpr (kReadsAhead && kReadsStreams) {
        if (r == 1 && c == 0 && n_block > first_block && are_copied(n_block - 1)) {
          tiles.copy((n_block - 1) * Traits::kBlockN, false, of_tile.rows[0].row,
                     of_tile.rows[1].row);
        }
      }
      hide(S, r, c);
    };
  }

  // What is added to them.
  CUTE_DEVICE auto line(Tile const& tile, int first_query, int n_block) const {
    if constexpr (kAddsLine) {
      auto const scores = of_block(tile, first_query, n_block * Traits::kBlockN);
      LineOfBlock line{.scale = params.problem.softmax_scale * kLog2e};
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        auto const& row = scores.rows[r];
        line.slope[r] = kLog2e * Variant::slope_of_line(params.captured, scores.lengths,
                                                        row.uniform, tile.batch, row.head);
        line.first[r] =
            kLog2e * Variant::added_line(params.captured, scores.lengths, row.prepared, row.uniform,
                                         tile.batch, row.head, row.query, scores.first, 0);
      }
      return line;
    } else {
      return NoLine{};
    }
  }

  // Loads the bits of the block at `place`.
  // NOTE: before the exponentials there are too few registers.
  template <class Blocks>
  CUTE_DEVICE void load_ahead(Blocks& blocks, int place) const {
    if constexpr (kHides) {
      blocks.advance_with_bits(place);
    }
  }

 private:
  CUTE_DEVICE auto of_block(Tile const& tile, int first_query, int first_key) const {
    if constexpr (kKeeps) {
      auto scores = of_tile;
      scores.first += first_key;
      return scores;
    } else {
      return ScoresOfBlock<Traits, Variant>(params, tile, first_query, first_key);
    }
  }
  CUTE_DEVICE bool are_copied(int n_block) const {
    return (n_block + 1) * Traits::kBlockN <= copied_until;
  }
};

// Stands for one where scores are made in another way, or are raw.
struct NoUsualScores {
  static constexpr bool kExists = false;

  template <class Params>
  CUTE_DEVICE explicit NoUsualScores(Params const&) {}
};

// NOTE: with streams beside a mask, or of which some columns are loaded, ptxas makes a loop that waits for each MMA; of three
// consumers at d_head 64 streams take 8 % longer this way.
template <class Traits, ForwardFeatures kFeatures, class Variant>
constexpr bool has_usual_scores() {
  if constexpr (Variant::kHasScore || variant::kTakesBits<Variant>) {
    using Tiles = StreamTiles<Traits, kFeatures, Variant>;
    bool const has_all_columns = Tiles::kColumns == Traits::kBlockN;
    return Variant::kStreamsOfScore == 0 ||
           (has_all_columns && !Variant::kHasMask && Traits::kNConsumers < 3);
  } else {
    return false;
  }
}

template <class Traits, ForwardFeatures kFeatures, class Variant>
using UsualScoresOf = std::conditional_t<has_usual_scores<Traits, kFeatures, Variant>(),
                                         UsualScores<Traits, kFeatures, Variant>, NoUsualScores>;

}  // namespace pyflash::sm90
