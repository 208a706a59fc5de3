// The bits of a variant's mask (variant/mask_bits.h) in a computing warpgroup: a thread has the words of the block whose scores are
// made next before these are there, and knows the block after it.
#pragma once

#include <cmath>

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/columns.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/variant/mask_bits.h"

namespace pyflash::sm90 {

using namespace cute;

// A thread's bits of a block: of row r and column c those of rows_by_columns of its scores.
template <int kBlockN>
struct BitsOfBlock {
  static constexpr int kWordsOfRow = variant::words_of_row(kBlockN);
  static constexpr int kWords = variant::words_of_thread(kBlockN);
  using Vector = std::conditional_t<kWords == 2, uint2, uint4>;
  static_assert(sizeof(Vector) == kWords * sizeof(uint32_t));

  Vector words;

  // Sets the scores of pairs that are hidden to -inf.
  template <class AccS>
  CUTE_DEVICE void hide(AccS& acc_S) const {
    Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,V,MMA_N))
    uint32_t row_words[kWords];
    __builtin_memcpy(row_words, &words, sizeof(words));
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      CUTE_UNROLL
      for (int c = 0; c < size<1>(S); ++c) {
        // NOTE: of bits of a word ptxas turns several at a time into predicates (R2P).
        if ((row_words[r * kWordsOfRow + c / 32] >> c % 32 & 1) == 0) {
          S(r, c) = -INFINITY;
        }
      }
    }
  }
};

// The blocks of a tile, from its last place on.
// NOTE: offsets, since of pointers that a loop carries the compiler does not know that all lanes read one address. There are no
// more of them than 32 bits count: bits are few (bits_size), and longer lists are refused.
template <class Traits, class Variant>
struct BlocksAhead {
  using Bits = BitsOfBlock<Traits::kBlockN>;
  using Vector = typename Bits::Vector;
  static constexpr int kVectorsOfBlock =
      int(variant::words_of_block(Traits::kNConsumers, Traits::kBlockN) / Bits::kWords);

  ParamsWith<Variant> const& params;
  uint32_t first_entry;   // of the tile's list
  uint32_t first_vector;  // this thread's, of the tile's block 0
  int first_place;
  int entry;        // of the block whose scores are made next
  int entry_after;  // of the one after it
  Bits bits;

  CUTE_DEVICE explicit BlocksAhead(ParamsWith<Variant> const& params) : params(params) {}

  // Those at `places` of a tile.
  CUTE_DEVICE void begin(Tile const& tile, int warpgroup, Interval const& places) {
    using Schedule = TileSchedule<Traits, ForwardFeatures{}, Variant>;
    auto const& lists = params.lists;
    int64_t const list = Schedule::list_of(params, tile);
    first_entry = uint32_t(list * (1 + lists.blocks) + 1);
    first_vector = uint32_t(list * lists.blocks) * kVectorsOfBlock + warpgroup * kWarpgroup +
                   device::fresh_thread_idx() % kWarpgroup;
    first_place = places.begin;
    if (places.size() > 0) {
      entry_after = entry_at(places.end - 1);
    }
  }

  // Reads ahead: the block at `place` is next, if there is one.
  CUTE_DEVICE void advance(int place) {
    if (place < first_place) {
      return;
    }
    entry = entry_after;
    bits = of_block(variant::ListedBlock::of(entry).number);
    if (place > first_place) {
      entry_after = entry_at(place - 1);
    }
  }

  CUTE_DEVICE variant::ListedBlock next() const { return variant::ListedBlock::of(entry); }
  CUTE_DEVICE bool has_bits() const { return params.bits != nullptr; }
  // NOTE: of blocks that the mask does not cut, nobody reads them.
  CUTE_DEVICE Bits of_block(int n_block) const {
    if (!has_bits()) {
      return {};
    }
    auto const* const vectors = reinterpret_cast<Vector const*>(params.bits);
    return {device::load(vectors + first_vector + n_block * kVectorsOfBlock)};
  }

 private:
  CUTE_DEVICE int entry_at(int place) const {
    return device::load(params.lists.data + first_entry + place);
  }
};

// Stands for one of a variant whose kernels take no bits.
struct NoBlocksAhead {
  CUTE_DEVICE explicit NoBlocksAhead(KernelParams const&) {}
  static constexpr bool has_bits() { return false; }
};

}  // namespace pyflash::sm90
