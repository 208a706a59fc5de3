// The bits of a variant's mask (variant/mask_bits.h) in a computing warpgroup: a thread has the words of the block whose scores are
// made next before these are there, and knows the block after it.
#pragma once

#include <cmath>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/columns.h"
#include "cute_kernels/sm90/cute.h"
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

  // NOTE: of bits of a word ptxas turns several at a time into predicates (R2P).
  static CUTE_DEVICE bool shows(uint32_t word, int c) { return (word >> c % 32 & 1) != 0; }

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
        if (!shows(row_words[r * kWordsOfRow + c / 32], c)) {
          S(r, c) = -INFINITY;
        }
      }
    }
  }

  // Hides one score after the other, between their exponentials.
  struct Hider {
    static constexpr int kGroup = 8;  // columns
    uint32_t mutable words[kWords];
    uint32_t nothing;  // 0, but not to the compiler

    // NOTE: a group of bits is read once there is an exponential of two groups before it. Else the compiler has all of them first,
    // through seven predicates, while the special function unit has nothing to do.
    template <class Scores>
    CUTE_DEVICE void operator()(Scores& S, int r, int c) const {
      constexpr int kColumns = decltype(size<1>(S))::value;
      uint32_t& word = words[r * kWordsOfRow + c / 32];
      int const earlier = r * kColumns + c - 2 * kGroup;
      if (c % kGroup == 0 && earlier >= 0) {
        word |= device::bits(S(earlier / kColumns, earlier % kColumns)) & nothing;
      }
      if (!shows(word, c)) {
        S(r, c) = -INFINITY;
      }
    }
  };
  CUTE_DEVICE Hider hider() const {
    Hider hider{.words = {}, .nothing = device::unknown_zero()};
    __builtin_memcpy(hider.words, &words, sizeof(words));
    return hider;
  }
};

// The blocks of a tile, from its last place on.
// NOTE: offsets, since of pointers that a loop carries the compiler does not know that all lanes read one address. There are no
// more of them than 32 bits count: bits are few (bits_size), and longer lists are refused.
template <class Traits, class Variant>
struct BlocksAhead {
  static constexpr bool kMayHide = true;
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

  // The same without a branch, where there are bits. Before the first place there is that one again, and nobody asks.
  CUTE_DEVICE void advance_with_bits(int place) {
    entry = entry_after;
    bits = {load_words(variant::ListedBlock::of(entry).number)};
    entry_after = entry_at(max(place - 1, first_place));
  }

  CUTE_DEVICE variant::ListedBlock next() const { return variant::ListedBlock::of(entry); }
  CUTE_DEVICE bool has_bits() const { return params.bits != nullptr; }
  // NOTE: of blocks that the mask does not cut, nobody reads them.
  CUTE_DEVICE Bits of_block(int n_block) const {
    if (!has_bits()) {
      return {};
    }
    return {load_words(n_block)};
  }

 private:
  CUTE_DEVICE Vector load_words(int n_block) const {
    auto const* const vectors = reinterpret_cast<Vector const*>(params.bits);
    return device::load(vectors + first_vector + n_block * kVectorsOfBlock);
  }
  CUTE_DEVICE int entry_at(int place) const {
    return device::load(params.lists.data + first_entry + place);
  }
};

// Stands for one of a variant whose kernels take no bits.
struct NoBlocksAhead {
  static constexpr bool kMayHide = false;

  CUTE_DEVICE explicit NoBlocksAhead(KernelParams const&) {}
  static constexpr bool has_bits() { return false; }
};

}  // namespace pyflash::sm90
