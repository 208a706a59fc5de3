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

// a * b. NOTE: of a product of two 64-bit integers the compiler adds up parts that are 0.
PYFLASH_HOST_DEVICE uint64_t wide_product(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;\n" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return uint64_t(a) * b;
#endif
}

// Philox-4x32-7, round by round, each with words of its own of the key.
struct Philox {
  static constexpr int kRounds = 7;
  static constexpr uint32_t kA = 0xD2511F53u, kB = 0xCD9E8D57u;

  static PYFLASH_HOST_DEVICE constexpr uint32_t key0(uint64_t seed, int round) {
    return uint32_t(seed) + round * 0x9E3779B9u;
  }
  static PYFLASH_HOST_DEVICE constexpr uint32_t key1(uint64_t seed, int round) {
    return uint32_t(seed >> 32) + round * 0xBB67AE85u;
  }
  static PYFLASH_HOST_DEVICE constexpr uint32_t upper(uint64_t x) { return uint32_t(x >> 32); }

  // Rounds `first` to `end` - 1.
  static PYFLASH_HOST_DEVICE Random128 rounds(Random128 counter, uint64_t seed, int first,
                                              int end) {
    for (int i = first; i < end; ++i) {
      uint64_t const a = wide_product(kA, counter.words[0]);
      uint64_t const b = wide_product(kB, counter.words[2]);
      counter = {{upper(b) ^ counter.words[1] ^ key0(seed, i), uint32_t(b),
                  upper(a) ^ counter.words[3] ^ key1(seed, i), uint32_t(a)}};
    }
    return counter;
  }
  static PYFLASH_HOST_DEVICE Random128 of(Random128 const& counter, uint64_t seed) {
    return rounds(counter, seed, 0, kRounds);
  }
  // The upper or the lower two words of the four: of the last round, one product.
  static PYFLASH_HOST_DEVICE Random64 half_of(bool is_upper, Random128 const& counter,
                                              uint64_t seed) {
    constexpr int kLast = kRounds - 1;
    Random128 const last = rounds(counter, seed, 0, kLast);
    uint64_t const product =
        wide_product(is_upper ? kA : kB, is_upper ? last.words[0] : last.words[2]);
    uint32_t const key = is_upper ? key1(seed, kLast) : key0(seed, kLast);
    return {{upper(product) ^ (is_upper ? last.words[3] : last.words[1]) ^ key, uint32_t(product)}};
  }
};

// Philox of counters that share all words but the last: four of its products are computed once.
class PhiloxOfLastWord {
 public:
  PhiloxOfLastWord() = default;
  // counter: with 0 for the last word.
  PYFLASH_HOST_DEVICE PhiloxOfLastWord(Random128 const& counter, uint64_t seed) : seed_(seed) {
    Random128 const first = Philox::rounds(counter, seed, 0, 1);
    uint64_t const a = wide_product(Philox::kA, first.words[0]);
    word2_ = first.words[2];
    word0_of_second_ = first.words[1] ^ Philox::key0(seed, 1);
    uint64_t const b =
        wide_product(Philox::kB, Philox::upper(a) ^ first.words[3] ^ Philox::key1(seed, 1));
    word0_of_third_ = Philox::upper(b) ^ Philox::key0(seed, 2);
    word1_of_third_ = uint32_t(b);
    word2_of_third_ = uint32_t(a) ^ Philox::key1(seed, 2);
  }

  PYFLASH_HOST_DEVICE Random128 of(uint32_t word3) const {
    uint64_t const b = wide_product(Philox::kB, word2_ ^ word3);
    uint64_t const a = wide_product(Philox::kA, Philox::upper(b) ^ word0_of_second_);
    return Philox::rounds({{word0_of_third_ ^ uint32_t(b), word1_of_third_,
                            word2_of_third_ ^ Philox::upper(a), uint32_t(a)}},
                          seed_, 3, Philox::kRounds);
  }

 private:
  uint64_t seed_;
  uint32_t word2_;            // after the first round, but for the last word of the counter
  uint32_t word0_of_second_;  // what is known of words after the second and the third
  uint32_t word0_of_third_, word1_of_third_, word2_of_third_;
};

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

  static PYFLASH_HOST_DEVICE constexpr int lane_of(unsigned query, unsigned key) {
    return int(query % 8 * 4 + key % 8 / 2);
  }
  // The bytes of a lane of 16 queries and 32 keys, by their numbers.
  PYFLASH_HOST_DEVICE Random128 of_lane(int queries, int keys, int lane) const {
    return Philox::of(counter(queries, keys, lane), seed);
  }
  // Those of the upper or the lower 16 keys.
  PYFLASH_HOST_DEVICE Random64 half_of_lane(bool is_upper, int queries, int keys, int lane) const {
    return Philox::half_of(is_upper, counter(queries, keys, lane), seed);
  }
  // What makes those of any 32 keys.
  PYFLASH_HOST_DEVICE PhiloxOfLastWord of_keys(int queries, int lane) const {
    return {counter(queries, 0, lane), seed};
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
