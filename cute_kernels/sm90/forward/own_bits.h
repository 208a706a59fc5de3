// Bits of a mask that a computing warpgroup makes itself: of a block that the mask cuts, while QK^T of the block is computed. What
// a mask reads of keys is on its way a block before, each key's in one lane of a warp.
#pragma once

#include <tuple>
#include <type_traits>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/columns.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/mask_bits.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/variant.h"

namespace pyflash::sm90 {

using namespace cute;

// Whether a variant's mask is of this kind. NOTE: where it reads heads, a thread's rows may be of two, and keys have something
// else for each. Four consumers lack the registers, and blocks of more than 128 keys leave none.
template <class Traits, class Variant>
constexpr bool makes_bits() {
  if constexpr (variant::kTakesSpans<Variant>) {
    return !Variant::kHasScore && !Variant::kStreams && Traits::kNConsumers < 4 &&
           Traits::kBlockN <= variant::kKeysOfWord &&
           !(Traits::kPackGqa && Variant::kMaskReadsHead);
  }
  return false;
}

// Whether it reads a table of keys.
template <class Variant>
constexpr bool reads_keys() {
  for (int i = 0; i < Variant::kPrepared; ++i) {
    if (Variant::prepared_field(i).along == variant::Along::key) {
      return true;
    }
  }
  return false;
}

// What another lane of a warp has.
template <class T>
CUTE_DEVICE T of_lane(T const& own, int lane) {
  constexpr int kWords = (sizeof(T) + 3) / 4;
  uint32_t words[kWords] = {};
  __builtin_memcpy(words, &own, sizeof(T));
  CUTE_UNROLL
  for (int i = 0; i < kWords; ++i) {
    words[i] = device::bits_of_group<32>(words[i], lane);
  }
  T other;
  __builtin_memcpy(&other, words, sizeof(T));
  return other;
}

template <class Traits, class Variant>
struct OwnBits {
  static constexpr bool kMayHide = true;
  static constexpr int kBlockN = Traits::kBlockN;
  using Bits = BitsOfBlock<kBlockN>;
  using Column = typename Variant::Column;
  // Whether lanes have what keys have: lane i that of keys 2 i and 2 i + 1 of each 64.
  static constexpr bool kSharesColumns = reads_keys<Variant>();
  static constexpr int kKeysOfLanes = 64;
  static constexpr int kShares = (kBlockN + kKeysOfLanes - 1) / kKeysOfLanes;
  static constexpr int kColumnsOfShare = kKeysOfLanes / 4;  // of a thread's scores
  // Bits are summed as floats, and are the last ones of these: predicates are made by another unit than sums of floats.
  static constexpr int kBitsOfPart = 16;
  static constexpr int kParts = (kBlockN / 4 + kBitsOfPart - 1) / kBitsOfPart;  // of a row
  static constexpr float kUnitOne = 1 << 23;  // the float whose last bit is 1

  using Scores = ScoresOfBlock<Traits, Variant>;
  struct Shared {
    Column columns[kShares][2];
  };

  ParamsWith<Variant> const& params;
  Scores of_tile;  // as if key 0 were a block's first
  std::conditional_t<kSharesColumns, Shared, std::tuple<>> shared;
  variant::ListedBlock block;  // whose scores are made next
  Bits bits;                   // of this block, where it is cut

  CUTE_DEVICE explicit OwnBits(ParamsWith<Variant> const& params) : params(params) {}

  // first_query: the warpgroup's.
  CUTE_DEVICE void begin(Tile const& tile, int first_query) {
    of_tile = Scores(params, tile, first_query, 0);
  }

  // Loads what keys of a block have whose bits are made next.
  CUTE_DEVICE void load(Tile const& tile, int n_block) {
    if constexpr (kSharesColumns) {
      shared = columns_of_lane(tile, n_block);
    }
  }

  CUTE_DEVICE variant::ListedBlock next() const { return block; }

  // Makes the bits of the block that is next.
  CUTE_DEVICE void make(Tile const& tile) {
    device::at(device::Site::softmax);
    auto const& captured = params.captured;
    auto const& lengths = of_tile.lengths;
    int const first = of_tile.first + block.number * kBlockN;
    float sums[2][kParts];
    CUTE_UNROLL
    for (int i = 0; i < kParts; ++i) {
      sums[0][i] = sums[1][i] = kUnitOne;
    }
    CUTE_UNROLL
    for (int c = 0; c < kBlockN / 4; ++c) {
      int const offset = column_of(c);
      Column column;
      if constexpr (kSharesColumns) {
        column = column_of_lanes(c);
      }
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        auto const& [head, query, prepared, uniform, row] = of_tile.rows[r];
        if constexpr (!kSharesColumns) {
          column = Variant::column(captured, lengths, prepared, uniform, tile.batch, head, first,
                                   offset);
        }
        auto const distance =
            Traits::kPackGqa
                ? Variant::distance(captured, lengths, prepared, uniform, tile.batch, head,
                                    first - query, offset)
                : Variant::distance(captured, lengths, prepared, uniform, tile.batch, head,
                                    first - of_tile.rows[0].query, offset - kRowStep * r);
        bool const counts = Variant::template counts<false, false>(captured, lengths, uniform, row,
                                                                   column, distance, tile.batch,
                                                                   head, query, first, offset);
        if (counts) {
          sums[r][c / kBitsOfPart] += static_cast<float>(1 << c % kBitsOfPart);
        }
      }
    }
    uint32_t words[2] = {};  // of each row
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      CUTE_UNROLL
      for (int i = 0; i < kParts; ++i) {
        uint32_t const part = device::bits(sums[r][i]) & ((1 << kBitsOfPart) - 1);
        words[r] |= part << i * kBitsOfPart;
      }
    }
    bits.words = {words[0], words[1]};
  }

  // Whether a block shows something of row r in this thread's columns.
  CUTE_DEVICE bool shows(int r) const { return (r == 0 ? bits.words.x : bits.words.y) != 0; }

  static constexpr bool has_bits() { return true; }
  CUTE_DEVICE Bits of_block(int) const { return bits; }

 private:
  // What the keys of a block have that this lane loads.
  CUTE_DEVICE Shared columns_of_lane(Tile const& tile, int n_block) const {
    auto const& row = of_tile.rows[0];
    int const lane = device::fresh_thread_idx() % 32;
    Shared loaded;
    CUTE_UNROLL
    for (int i = 0; i < kShares; ++i) {
      int const first = n_block * kBlockN + min(i * kKeysOfLanes + 2 * lane, kBlockN - 2);
      CUTE_UNROLL
      for (int j = 0; j < 2; ++j) {
        loaded.columns[i][j] = Variant::column(params.captured, of_tile.lengths, row.prepared,
                                               row.uniform, tile.batch, row.head, first, j);
      }
    }
    return loaded;
  }
  // And that of column c of this thread.
  CUTE_DEVICE Column column_of_lanes(int c) const {
    int const lane = device::fresh_thread_idx() % 4 + c % kColumnsOfShare / 2 * 4;
    return of_lane(shared.columns[c / kColumnsOfShare][c % 2], lane);
  }
};

}  // namespace pyflash::sm90
