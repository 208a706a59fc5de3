// Dropout (common/dropout.h) as a kernel applies it to accumulators of P: (MMA,MMA_M,MMA_N) of m16n8 MMAs, or of warpgroups', by rows
// and columns.
#pragma once

#include <cute/tensor_impl.hpp>

#include "cute_kernels/common/dropout.h"
#include "cute_kernels/device.h"
#include "cute_kernels/row_softmax.h"

namespace pyflash {

// The random bytes of a head of a sequence.
CUTE_DEVICE DropoutBytes load_dropout(Dropout const& dropout, int heads, int sequence, int head) {
  device::at(device::Site::dropout_g2r);
  uint64_t const seed = device::load(dropout.state);
  return {seed, device::load(dropout.state + 1), heads, sequence, head};
}

// Where queries are rows. A thread's lane is that of its elements.
// kRowTiles: the 16 rows of MMAs that the thread has a part of. kBlockN: keys of a block.
template <int kRowTiles, int kBlockN>
struct DropoutOfRows {
  static constexpr int kKeys = 32;  // of a call of Philox: halves are the 16 keys of a step of PV
  static constexpr bool kWholeCalls = kBlockN % kKeys == 0;
  static_assert(kBlockN % 16 == 0);

  PhiloxOfLastWord random[kRowTiles];
  Random128 newest[kRowTiles];  // of 32 keys

  // row_tile(m): the number of the m-th 16 rows in the sequence.
  template <class RowTile>
  CUTE_DEVICE DropoutOfRows(DropoutBytes const& bytes, RowTile const& row_tile) {
    CUTE_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      random[m] = bytes.of_keys(row_tile(m), device::thread_idx() % 32);
    }
  }

  // Calls take(m, tile, word) for the random bytes of each 8 keys of step k of a block, as drop_pairs takes them. Steps come in their
  // order.
  template <class Take>
  CUTE_DEVICE void draw(int k, int n_block, Take const& take) {
    int const half = kWholeCalls ? k : n_block * (kBlockN / 16) + k;  // in the block, or all keys
    int const keys = kWholeCalls ? n_block * (kBlockN / kKeys) + k / 2 : half / 2;
    bool const is_upper = half % 2 != 0;
    CUTE_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      if (!is_upper || k == 0) {
        newest[m] = random[m].of(keys);
      }
      CUTE_UNROLL
      for (int tile = 0; tile < 2; ++tile) {
        take(m, tile, is_upper ? newest[m].words[2 + tile] : newest[m].words[tile]);
      }
    }
  }
};

// Leaves what is dropped out of the pairs of 8 keys, of the upper eight rows and of the lower ones. What is kept is multiplied by
// kOneOfFp16 of the type.
template <class Element>
CUTE_DEVICE void drop_pairs(uint32_t& upper_rows, uint32_t& lower_rows, uint32_t bytes,
                            uint32_t limits) {
  upper_rows = device::multiply2(upper_rows, device::ones_below<false>(bytes, limits), Element{});
  lower_rows = device::multiply2(lower_rows, device::ones_below<true>(bytes, limits), Element{});
}

// Where keys are rows: a thread has keys `key` and key + 8, and of every eight queries from `query` on the first two. Words of random
// bytes, one of every eight queries: two bytes for the pair of queries of the upper key, and two for that of the lower one. Of an even
// query and an odd one the lanes of an even key and the next one share the calls: each makes one, and they exchange what they need.
template <int kWords>
CUTE_DEVICE void draw_for_columns(uint32_t (&words)[kWords], DropoutBytes const& bytes, int key,
                                  int query) {
  constexpr int kNextKey = 4;  // lanes
  // The bytes of an even key, and of an odd one, of the words of eight keys and of the next eight.
  constexpr uint32_t kOfEven = 0x6240, kOfOdd = 0x7351;
  int const is_odd = key % 2;
  uint32_t const of_own = is_odd ? kOfOdd : kOfEven, of_other = is_odd ? kOfEven : kOfOdd;
  CUTE_UNROLL
  for (int i = 0; i < kWords; i += 2) {  // 16 queries
    Random64 const random = bytes.half_of_lane(key / 16 % 2 != 0, (query + 8 * i) / 16, key / 32,
                                               DropoutBytes::lane_of(query + is_odd, key));
    uint32_t const own = device::permute_bytes(random.words[0], random.words[1], of_own);
    uint32_t const other = device::shfl_xor_bits(
        device::permute_bytes(random.words[0], random.words[1], of_other), kNextKey);
    // An even key's own bytes are those of the even query.
    words[i] = device::permute_bytes(own, other, is_odd ? 0x1504 : 0x5140);
    words[i + 1] = device::permute_bytes(own, other, is_odd ? 0x3726 : 0x7362);
  }
}

// Marks what is dropped of P by its sign. words: of draw_for_columns. on_pair(i, marks): of a pair of queries, which are columns c and
// c + 1 of row i - c.
template <class Rows, int kWords, class OnPair>
CUTE_DEVICE void mark_dropped(Rows& P, uint32_t const (&words)[kWords], uint32_t largest_kept,
                              OnPair const& on_pair) {
  static_assert(2 * kWords == decltype(cute::size<1>(P))::value);
  uint32_t const limits = device::limits_of_bytes(largest_kept);
  CUTE_UNROLL
  for (int i = 0; i < kWords; ++i) {
    uint32_t const marks[] = {device::signs_above<false>(words[i], limits),
                              device::signs_above<true>(words[i], limits)};
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      P(r, 2 * i) = device::with_sign(P(r, 2 * i), marks[r] << 16);
      P(r, 2 * i + 1) = device::with_sign(P(r, 2 * i + 1), marks[r]);
      on_pair(2 * i + r, marks[r]);
    }
  }
}

// What makes P the multiple of it by what dropout multiplies by, and delta what is subtracted then: a term of the exponent of 2, and a
// factor.
CUTE_DEVICE float exponent_of_kept(Dropout const& dropout) {
  return device::log(dropout.factor) * kLog2e;
}
CUTE_DEVICE float share_kept(Dropout const& dropout) { return 1.f - dropout.p; }

// dS of an element of P, which is negative where it is dropped, and of dP.
CUTE_DEVICE float dropped_dS(float P, float dP, float delta) {
  return fmaf(fmaxf(P, 0.f), dP, -fabsf(P) * delta);
}

}  // namespace pyflash
