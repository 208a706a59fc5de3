// Dropout (common/dropout.h) as a kernel applies it to accumulators of P: (MMA,MMA_M,MMA_N) of m16n8 MMAs, or of warpgroups', by rows
// and columns.
#pragma once

#include <cute/tensor_impl.hpp>

#include "cute_kernels/common/dropout.h"
#include "cute_kernels/device.h"

namespace pyflash {

// The random bytes of a head of a sequence.
CUTE_DEVICE DropoutBytes load_dropout(Dropout const& dropout, int heads, int sequence, int head) {
  device::at(device::Site::dropout_g2r);
  uint64_t const seed = device::load(dropout.state);
  return {seed, device::load(dropout.state + 1), heads, sequence, head};
}

// The call of Philox of step k of a block of keys, 16 of them: that of 32 keys, its upper half or its lower one. Of a block's steps, in
// their order, those that draw make the calls.
template <int kBlockN>
struct StepOfKeys {
  static constexpr int kKeys = 32;
  static constexpr bool kWholeCalls = kBlockN % kKeys == 0;
  static_assert(kBlockN % 16 == 0);

  int keys;  // the number of the 32
  bool is_upper;
  bool draws;

  CUTE_DEVICE StepOfKeys(int k, int n_block) {
    int const half = kWholeCalls ? k : n_block * (kBlockN / 16) + k;  // in the block, or all keys
    keys = kWholeCalls ? n_block * (kBlockN / kKeys) + k / 2 : half / 2;
    is_upper = half % 2 != 0;
    draws = !is_upper || k == 0;
  }
  // The random bytes of eight keys of the step, the first or the second.
  CUTE_DEVICE uint32_t word_of(Random128 const& random, int eight) const {
    return is_upper ? random.words[2 + eight] : random.words[eight];
  }
};

// Where queries are rows. A thread's lane is that of its elements.
// kRowTiles: the 16 rows of MMAs that the thread has a part of. kBlockN: keys of a block.
template <int kRowTiles, int kBlockN>
struct DropoutOfRows {
  DropoutBytes const bytes;
  uint32_t const largest_kept;
  int const lane;
  Random128 random[kRowTiles];  // of the newest 32 keys

  CUTE_DEVICE DropoutOfRows(Dropout const& dropout, DropoutBytes const& bytes, int lane)
      : bytes(bytes), largest_kept(dropout.largest_kept), lane(lane) {}

  // Calls drop(r, c) for each row and column that is dropped of step k of a block of keys, whose columns are 4 k to 4 k + 3. Steps come
  // in their order. row_tile(m): the number of the m-th 16 rows in the sequence.
  template <class RowTile, class Drop>
  CUTE_DEVICE void find(int k, int n_block, RowTile const& row_tile, Drop const& drop) {
    StepOfKeys<kBlockN> const step(k, n_block);
    CUTE_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      if (step.draws) {
        random[m] = bytes.of_lane(row_tile(m), step.keys, lane);
      }
      CUTE_UNROLL
      for (int eight = 0; eight < 2; ++eight) {
        uint32_t const word = step.word_of(random[m], eight);
        CUTE_UNROLL
        for (int i = 0; i < 4; ++i) {
          int const r = i / 2, c = i % 2;
          if (DropoutBytes::byte_of(word, r, c) > largest_kept) {
            drop(2 * m + r, 4 * k + 2 * eight + c);
          }
        }
      }
    }
  }
};

// The same of 16 rows, whose P is an operand: what is kept of a block may be drawn before P is there.
template <int kBlockN>
class DropoutOfOperand {
 public:
  DropoutOfOperand() = default;
  // row_tile: the number of the 16 rows in the sequence.
  CUTE_DEVICE DropoutOfOperand(DropoutBytes const& bytes, int row_tile, int lane)
      : random_(bytes.of_keys(row_tile, lane)) {}

  // NOTE: for the branch the compiler draws here, not among the MMAs that were issued before.
  CUTE_DEVICE void draw(Dropout const& dropout, int n_block) {
    if (!dropout.drops()) {
      return;
    }
    Random128 random;
    CUTE_UNROLL
    for (int k = 0; k < kBlockN / 16; ++k) {
      StepOfKeys<kBlockN> const step(k, n_block);
      if (step.draws) {
        random = random_.of(step.keys);
      }
      CUTE_UNROLL
      for (int eight = 0; eight < 2; ++eight) {
        uint32_t const bytes = step.word_of(random, eight);
        kept_[4 * k + 2 * eight] = device::at_most<false>(bytes, dropout.largest_kept);
        kept_[4 * k + 2 * eight + 1] = device::at_most<true>(bytes, dropout.largest_kept);
      }
    }
  }

  // Leaves what is dropped of the block out of its P: pairs, of columns c and c + 1 of row r at c + r.
  template <class Pairs>
  CUTE_DEVICE void apply(Dropout const& dropout, Pairs&& pairs) const {
    static_assert(decltype(cute::size(pairs))::value == kBlockN / 4);
    if (!dropout.drops()) {
      return;
    }
    CUTE_UNROLL
    for (int i = 0; i < kBlockN / 4; ++i) {
      pairs(i) &= kept_[i];
    }
  }

 private:
  PhiloxOfLastWord random_;
  uint32_t kept_[kBlockN / 4];  // ones for each element that is, by pairs
};

// Where keys are rows: a thread has keys `key` and key + 8, and of every eight queries from `query` on the first two. Marks what is
// dropped of P by its sign, and sets it to 0 among pairs, of queries of a key. Of an even query and an odd one the lanes of an even key
// and the next one share the calls: each makes one, and they exchange what they need.
template <class Rows, class Pairs>
CUTE_DEVICE void drop_of_columns(Rows& P, Pairs&& pairs, DropoutBytes const& bytes,
                                 uint32_t largest_kept, int key, int query) {
  constexpr int kNextKey = 4;  // lanes
  int const parity = key % 2;
  bool const upper = key / 16 % 2 != 0;
  CUTE_UNROLL
  for (int c = 0; c < cute::size<1>(P); c += 4) {  // 16 queries
    Random128 const random =
        bytes.of_lane((query + 4 * c) / 16, key / 32, DropoutBytes::lane_of(query + parity, key));
    // The bytes of a key and of the one eight behind it, for the upper and the lower eight queries.
    auto const bytes_of = [&](int key_of_pair) {
      uint32_t const first = upper ? random.words[2] : random.words[0];
      uint32_t const second = upper ? random.words[3] : random.words[1];
      constexpr uint32_t kOfKey = 0x00ff00ff;
      return (first >> 8 * key_of_pair & kOfKey) | (second >> 8 * key_of_pair & kOfKey) << 8;
    };
    uint32_t const own = bytes_of(parity);
    uint32_t const other = device::shfl_xor_bits(bytes_of(1 - parity), kNextKey);
    CUTE_UNROLL
    for (int i = 0; i < 2; ++i) {
      uint32_t const of_query = parity == i ? own : other;
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        CUTE_UNROLL
        for (int half = 0; half < 2; ++half) {
          if (DropoutBytes::byte_of(of_query, half, r) > largest_kept) {
            int const column = c + 2 * half;
            P(r, column + i) = -P(r, column + i);
            pairs(column + r) &= i == 0 ? 0xffff0000u : 0x0000ffffu;
          }
        }
      }
    }
  }
}

// dS of an element of P and of dP, where P has the sign of what is dropped.
CUTE_DEVICE float dropped_dS(float P, float dP, float factor, float minus_delta) {
  return P >= 0.f ? P * (dP * factor + minus_delta) : -P * minus_delta;
}

}  // namespace pyflash
