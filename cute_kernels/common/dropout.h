// Which elements of P dropout keeps: a function of seed, offset, sequence, head, query and key, and of no tile.
//
// The scheme is FlashAttention-2's, so that PyTorch's flash attention has the same mask. Of every 16 queries and 32 keys of a head a
// call of Philox-4x32-7 (Salmon et al. 2011) makes 16 random bytes for each of 32 lanes. Its key is the seed; its counter is
//   offset + 32 * (sequence * heads + head) + lane    64 bits
//   query / 16                                        32 bits
//   key / 32                                          32 bits
// Query and key are those in their sequence, lane is query % 8 * 4 + key % 8 / 2, as in accumulators of m16n8 MMAs. Of the 16
// bytes, the element's is number 4 * (key / 8 % 4) + 2 * (query / 8 % 2) + key % 2. It is kept where that is at most `largest_kept`.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"

namespace pyflash {

struct Random128 {
  uint32_t words[4];
};

template <int kRounds>
PYFLASH_HOST_DEVICE constexpr Random128 philox4x32(Random128 counter, uint64_t key) {
  uint32_t key0 = uint32_t(key), key1 = uint32_t(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    uint64_t const a = uint64_t(0xD2511F53u) * counter.words[0];
    uint64_t const b = uint64_t(0xCD9E8D57u) * counter.words[2];
    counter = {{uint32_t(b >> 32) ^ counter.words[1] ^ key0, uint32_t(b),
                uint32_t(a >> 32) ^ counter.words[3] ^ key1, uint32_t(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// The option, as kernels get it.
struct Dropout {
  static constexpr char const* kStateName = "dropout_state";

  uint64_t const* state;  // seed and offset
  float p;                // 0: nothing is dropped, and the rest means nothing
  float factor;           // of what is kept, 1 / (1 - p)
  uint32_t largest_kept;  // of the random bytes

  PYFLASH_HOST_DEVICE constexpr bool drops() const { return p != 0.f; }
};

// The random bytes of a head.
struct DropoutBytes {
  uint64_t seed;
  uint64_t offset;  // of lane 0

  PYFLASH_HOST_DEVICE constexpr DropoutBytes(uint64_t seed, uint64_t offset, int heads,
                                             int sequence, int head)
      : seed(seed), offset(offset + 32 * (uint64_t(sequence) * heads + head)) {}

  static PYFLASH_HOST_DEVICE constexpr int lane_of(int query, int key) {
    return query % 8 * 4 + key % 8 / 2;
  }
  // The bytes of a lane of 16 queries and 32 keys, by their numbers.
  PYFLASH_HOST_DEVICE constexpr Random128 of_lane(int queries, int keys, int lane) const {
    uint64_t const first = offset + lane;
    return philox4x32<7>(
        {{uint32_t(first), uint32_t(first >> 32), uint32_t(queries), uint32_t(keys)}}, seed);
  }
  // The byte of a query, 0 or 1 for the upper or the lower eight of 16, and of a key of a pair, given the word of its eight keys.
  static PYFLASH_HOST_DEVICE constexpr uint32_t byte_of(uint32_t word, int query_half,
                                                        int key_of_pair) {
    return word >> (16 * query_half + 8 * key_of_pair) & 0xff;
  }
};

}  // namespace pyflash
