// How a computing warpgroup makes the scores of most blocks of a variant: in a straight line, and from what it keeps of a tile. The
// exponentials take the special function unit longer than anything else does, and what scores take is computed beside them where
// no branch is between the two.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/forward/mask_bits.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/softmax.h"
#include "cute_kernels/sm90/forward/streams.h"
#include "cute_kernels/sm90/forward/variant.h"

namespace pyflash::sm90 {

using namespace cute;

template <class Traits, ForwardFeatures kFeatures, class Variant>
struct UsualScores {
  using Tiles = StreamTiles<Traits, kFeatures, Variant>;
  static constexpr bool kExists = true;
  static constexpr bool kReadsStreams = Variant::kStreamsOfScore != 0;
  // NOTE: four consumers lack the registers.
  static constexpr bool kKeeps = Traits::kNConsumers < 4;
  static constexpr bool kHides = variant::kTakesBits<Variant>;
  // Whether `read_ahead` does all that a block needs: nothing is read of those alone that a mask cuts.
  static constexpr bool kReadsAhead =
      kKeeps && (kHides || kReadsStreams) && (kHides || Variant::kStreamsOfMask == 0);

  ParamsWith<Variant> const& params;
  Tiles tiles;
  ScoresOfBlock<Traits, Variant> of_tile;  // as if key 0 were a block's first
  int copied_until;  // keys whose streams are copied for scores

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

  CUTE_DEVICE bool are_copied(int n_block) const {
    return (n_block + 1) * Traits::kBlockN <= copied_until;
  }

  // Whether the scores of a block are made this way.
  template <class Blocks>
  CUTE_DEVICE bool are_of(variant::ListedBlock const& block, Blocks const& blocks) const {
    bool are_usual = true;
    if constexpr (kHides) {
      are_usual = block.is_cut && blocks.has_bits();
    } else if constexpr (Variant::kHasMask) {
      are_usual = !block.is_cut;
    }
    if constexpr (kReadsStreams) {
      are_usual = are_usual && are_copied(block.number);
    }
    return are_usual;
  }

  template <class AccS, class Blocks>
  CUTE_DEVICE void make(AccS& acc_S, Tile const& tile, int first_query, int n_block,
                        Blocks const& blocks) {
    if constexpr (Variant::kHasScore) {
      auto scores = [&] {
        if constexpr (kKeeps) {
          auto scores = of_tile;
          scores.first += n_block * Traits::kBlockN;
          return scores;
        } else {
          return ScoresOfBlock<Traits, Variant>(params, tile, first_query,
                                                n_block * Traits::kBlockN);
        }
      }();
      auto make_of = [&](auto copied, auto const& set_elements) {
        make_scores_of<Traits, kFeatures, Variant, false, copied.value, copied.value>(
            acc_S, params, tile, scores, set_elements);
      };
      if constexpr (kReadsStreams) {
        tiles.wait();
        StreamElements<Tiles, Variant, false> elements(tiles);
        make_of(true_type{}, elements.setter());
      } else {
        make_of(false_type{}, NoElements{});
      }
    }
  }

  // What is done before the exponential of a score: hides it where a bit says so. And in the midst of them, when its own elements
  // have been read, the streams of the block at `place` are copied, if that is in the tile. block_at(place): that block.
  template <class Blocks, class BlockAt>
  CUTE_DEVICE auto before(Blocks const& blocks, int place, int first_place,
                          BlockAt const& block_at) const {
    auto const hider = [&] {
      if constexpr (kHides) {
        return blocks.bits.hider();
      } else {
        return Nothing{};
      }
    }();
    return [=, this, &blocks, &block_at](auto& S, int r, int c) __attribute__((always_inline)) {
      if constexpr (kReadsAhead && kReadsStreams) {
        if (r == 1 && c == 0 && place >= first_place) {
          copy_ahead(blocks, place, block_at);
        }
      }
      hider(S, r, c);
    };
  }

  // Loads the bits of the block at `place`.
  // NOTE: before the exponentials there are too few registers.
  template <class Blocks>
  CUTE_DEVICE void load_ahead(Blocks& blocks, int place) const {
    if constexpr (kReadsAhead && kHides) {
      blocks.advance_with_bits(place);
    }
  }

 private:
  template <class Blocks, class BlockAt>
  CUTE_DEVICE void copy_ahead(Blocks const& blocks, int place, BlockAt const& block_at) const {
    int const n_block = [&] {
      if constexpr (kHides) {
        return blocks.after_next().number;
      } else {
        return block_at(place).number;
      }
    }();
    if (are_copied(n_block)) {
      tiles.copy(n_block * Traits::kBlockN, false, of_tile.rows[0].row, of_tile.rows[1].row);
    }
  }
};

// Stands for one where scores are made in another way, or are raw.
struct NoUsualScores {
  static constexpr bool kExists = false;
};

template <class Traits, ForwardFeatures kFeatures, class Variant>
constexpr bool has_usual_scores() {
  if constexpr (Variant::kHasScore || variant::kTakesBits<Variant>) {
    using Tiles = StreamTiles<Traits, kFeatures, Variant>;
    return Variant::kStreamsOfScore == 0 || Tiles::kCopies;
  } else {
    return false;
  }
}

template <class Traits, ForwardFeatures kFeatures, class Variant>
using UsualScoresOf = std::conditional_t<has_usual_scores<Traits, kFeatures, Variant>(),
                                         UsualScores<Traits, kFeatures, Variant>, NoUsualScores>;

}  // namespace pyflash::sm90
