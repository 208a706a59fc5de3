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

struct Random64 {
  uint32_t words[2];
};
struct Random128 {
  uint32_t words[4];
};

// Philox-4x32-7, round by round, each with words of its own of the key.
struct Philox {
  static constexpr int kRounds = 7;

  static PYFLASH_HOST_DEVICE constexpr uint32_t key0(uint64_t seed, int round) {
    return uint32_t(seed) + round * 0x9E3779B9u;
  }
  static PYFLASH_HOST_DEVICE constexpr uint32_t key1(uint64_t seed, int round) {
    return uint32_t(seed >> 32) + round * 0xBB67AE85u;
  }
  static PYFLASH_HOST_DEVICE constexpr uint64_t times_a(uint32_t x) {
    return uint64_t(0xD2511F53u) * x;
  }
  static PYFLASH_HOST_DEVICE constexpr uint64_t times_b(uint32_t x) {
    return uint64_t(0xCD9E8D57u) * x;
  }
  static PYFLASH_HOST_DEVICE constexpr uint32_t upper(uint64_t x) { return uint32_t(x >> 32); }

  static PYFLASH_HOST_DEVICE constexpr Random128 round(Random128 const& counter, uint32_t key0,
                                                       uint32_t key1) {
    uint64_t const a = times_a(counter.words[0]), b = times_b(counter.words[2]);
    return {{upper(b) ^ counter.words[1] ^ key0, uint32_t(b), upper(a) ^ counter.words[3] ^ key1,
             uint32_t(a)}};
  }
  static PYFLASH_HOST_DEVICE constexpr Random128 rounds(int n, Random128 counter, uint64_t seed) {
    for (int i = 0; i < n; ++i) {
      counter = round(counter, key0(seed, i), key1(seed, i));
    }
    return counter;
  }
  static PYFLASH_HOST_DEVICE constexpr Random128 of(Random128 const& counter, uint64_t seed) {
    return rounds(kRounds, counter, seed);
  }
  // The lower or the upper half of the words: of the last round, one product.
  static PYFLASH_HOST_DEVICE constexpr Random64 half_of(bool is_upper, Random128 const& counter,
                                                        uint64_t seed) {
    constexpr int kLast = kRounds - 1;
    Random128 const last = rounds(kLast, counter, seed);
    uint64_t const product = uint64_t(is_upper ? uint32_t(times_a(1)) : uint32_t(times_b(1))) *
                             (is_upper ? last.words[0] : last.words[2]);
    uint32_t const key = is_upper ? key1(seed, kLast) : key0(seed, kLast);
    return {{upper(product) ^ (is_upper ? last.words[3] : last.words[1]) ^ key, uint32_t(product)}};
  }
};

// Philox of counters that share all words but the last: a third of its products is computed once.
struct PhiloxOfLastWord {
  static constexpr int kShared = 3;  // rounds that know some of their words
  static constexpr int kKeys = Philox::kRounds - kShared;

  uint32_t begin;                     // the third word after round 0, but for the last
  uint32_t first0, second0, second2;  // what is known of words of rounds 1 and 2
  uint32_t keys0[kKeys], keys1[kKeys];

  PhiloxOfLastWord() = default;
  PYFLASH_HOST_DEVICE constexpr PhiloxOfLastWord(uint32_t word0, uint32_t word1, uint32_t word2,
                                                 uint64_t seed)
      : begin(), first0(), second0(), second2(), keys0(), keys1() {
    uint64_t const a = Philox::times_a(word0), b = Philox::times_b(word2);
    begin = Philox::upper(a) ^ Philox::key1(seed, 0);
    first0 = uint32_t(b) ^ Philox::key0(seed, 1);
    uint64_t const next_a = Philox::times_a(Philox::upper(b) ^ word1 ^ Philox::key0(seed, 0));
    uint64_t const next_b =
        Philox::times_b(Philox::upper(next_a) ^ uint32_t(a) ^ Philox::key1(seed, 1));
    second0 = Philox::upper(next_b) ^ Philox::key0(seed, 2);
    second2 = uint32_t(next_a) ^ Philox::key1(seed, 2);
    for (int i = 0; i < kKeys; ++i) {
      keys0[i] = Philox::key0(seed, kShared + i);
      keys1[i] = Philox::key1(seed, kShared + i);
    }
    keys0[0] ^= uint32_t(next_b);  // all of the word that the round's product joins
  }

  PYFLASH_HOST_DEVICE constexpr Random128 of(uint32_t word3) const {
    uint64_t const b = Philox::times_b(begin ^ word3);
    uint64_t const a = Philox::times_a(Philox::upper(b) ^ first0);
    Random128 counter{{second0 ^ uint32_t(b), 0, Philox::upper(a) ^ second2, uint32_t(a)}};
    for (int i = 0; i < kKeys; ++i) {
      counter = Philox::round(counter, keys0[i], keys1[i]);
    }
    return counter;
  }
};
static_assert([] {
  constexpr uint64_t kSeed = 0x123456789abcdef;
  Random128 const all = Philox::of({{1, 2, 3, 4}}, kSeed);
  Random128 const of_word = PhiloxOfLastWord(1, 2, 3, kSeed).of(4);
  for (int i = 0; i < 4; ++i) {
    Random64 const half = Philox::half_of(i / 2 == 1, {{1, 2, 3, 4}}, kSeed);
    if (of_word.words[i] != all.words[i] || half.words[i % 2] != all.words[i]) {
      return false;
    }
  }
  return true;
}());

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
    return Philox::of(counter(queries, keys, lane), seed);
  }
  // Those of the lower or the upper 16 keys.
  PYFLASH_HOST_DEVICE constexpr Random64 half_of_lane(bool is_upper, int queries, int keys,
                                                      int lane) const {
    return Philox::half_of(is_upper, counter(queries, keys, lane), seed);
  }
  // For those of any keys.
  PYFLASH_HOST_DEVICE constexpr PhiloxOfLastWord of_keys(int queries, int lane) const {
    Random128 const shared = counter(queries, 0, lane);
    return {shared.words[0], shared.words[1], shared.words[2], seed};
  }
  // The byte of a query, 0 or 1 for the upper or the lower eight of 16, and of a key of a pair, given the word of its eight keys.
  static PYFLASH_HOST_DEVICE constexpr uint32_t byte_of(uint32_t word, int query_half,
                                                        int key_of_pair) {
    return word >> (16 * query_half + 8 * key_of_pair) & 0xff;
  }

 private:
  PYFLASH_HOST_DEVICE constexpr Random128 counter(int queries, int keys, int lane) const {
    uint64_t const first = offset + lane;
    return {{uint32_t(first), uint32_t(first >> 32), uint32_t(queries), uint32_t(keys)}};
  }
};

}  // namespace pyflash
