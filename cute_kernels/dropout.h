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

// Compares random bytes by four.
class BytesAbove {
 public:
  static constexpr uint32_t kSigns = 0x80808080u;

  CUTE_DEVICE explicit BytesAbove(uint32_t limit)  // 0 to 255
      : to_sign_((0x7f - (limit & 0x7f)) * 0x01010101u), any_sign_(limit < 0x80 ? kSigns : 0) {}

  // Bytes whose signs say whether those of a word are above the limit. Their other bits mean nothing.
  CUTE_DEVICE uint32_t signs_of(uint32_t bytes) const {
    return device::majority(bytes, (bytes & ~kSigns) + to_sign_, any_sign_);
  }

 private:
  uint32_t to_sign_;   // makes a sign of what is above the limit but for signs
  uint32_t any_sign_;  // where one of the two signs is enough
};

// Where keys are rows: a thread has keys `key` and key + 8, and of every eight queries from `query` on the first two, an even one and
// an odd one. Of these the lanes of an even key and of the next one share the calls: each makes one, and they exchange what they need.
template <int kQueries>
class DropoutOfColumns {
 public:
  CUTE_DEVICE void draw(DropoutBytes const& bytes, uint32_t largest_kept, unsigned key,
                        unsigned query) {
    constexpr int kNextKey = 4;  // lanes
    BytesAbove const above(largest_kept);
    // The bytes of an even key and of the one eight behind it, for the upper and the lower eight queries, among those of eight keys
    // and of the next eight. Those of odd keys are the next ones.
    constexpr uint32_t kOfEven = 0x6240, kNext = 0x1111;
    unsigned const parity = key % 2;
    bool const is_upper = key / 16 % 2 != 0;
    int const lane = DropoutBytes::lane_of(query + parity, key);
    CUTE_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      uint32_t of_key = 0, of_other = 0;
      CUTE_UNROLL
      for (int i = group * kSigns; i < smaller(kCalls, (group + 1) * kSigns); ++i) {
        Random64 const random = bytes.half_of_lane(is_upper, query / 16 + i, key / 32, lane);
        auto const add = [&](uint32_t& signs, unsigned key_of_pair) {
          uint32_t const of_pair = device::permute_bytes(random.words[0], random.words[1],
                                                         kOfEven + key_of_pair * kNext);
          signs = device::bits_of_either(BytesAbove::kSigns, above.signs_of(of_pair), signs >> 1);
        };
        add(of_key, parity);
        add(of_other, 1 - parity);
      }
      of_other = device::shfl_xor_bits(of_other, kNextKey);
      dropped_[group][0] = parity == 0 ? of_key : of_other;
      dropped_[group][1] = parity == 0 ? of_other : of_key;
    }
  }

  // Sets what is dropped to 0 among pairs, of two queries of a key: those of columns c and c + 1 of row r at c + r.
  template <class Pairs>
  CUTE_DEVICE void apply_to_pairs(Pairs&& pairs) const {
    CUTE_UNROLL
    for (int i = 0; i < kCalls; ++i) {
      auto const& [even, odd] = dropped_[i / kSigns];
      CUTE_UNROLL
      for (int byte = 0; byte < 4; ++byte) {
        pairs(4 * i + byte) &=
            ~device::permute_bytes(even << n_behind(i), odd << n_behind(i), 0xcc88 + byte * 0x1111);
      }
    }
  }

  // Sets what is dropped to 0, by rows and columns.
  // NOTE: by bits, since shifted words would take registers from one use to the next.
  template <class Rows>
  CUTE_DEVICE void apply_to_rows(Rows&& rows) const {
    CUTE_UNROLL
    for (int i = 0; i < kCalls; ++i) {
      CUTE_UNROLL
      for (int byte = 0; byte < 4; ++byte) {
        uint32_t const bit = 0x80u << 8 * byte >> n_behind(i);
        CUTE_UNROLL
        for (int parity = 0; parity < 2; ++parity) {
          if ((dropped_[i / kSigns][parity] & bit) != 0) {
            rows(byte % 2, 4 * i + byte / 2 * 2 + parity) = 0.f;
          }
        }
      }
    }
  }

 private:
  static constexpr int kCalls = kQueries / 16;
  static constexpr int kSigns = 8;  // of calls, that a byte has room for
  static constexpr int kGroups = ceil_div(kCalls, kSigns);
  static_assert(kQueries % 16 == 0);

  // Calls whose signs came behind those of one.
  CUTE_DEVICE static constexpr int n_behind(int i) {
    return smaller(kSigns - 1 - i % kSigns, kCalls - 1 - i);
  }

  // For even queries, and for odd ones. The bytes belong to the two rows, for the upper eight queries and then for the lower eight.
  uint32_t dropped_[kGroups][2];
};

}  // namespace pyflash
