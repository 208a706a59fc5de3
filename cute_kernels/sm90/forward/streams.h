// Streams of a variant (variant/streams.h) through shared memory: a warp copies its 16 rows of the elements of a block while the block
// before is computed, and then has them as the accumulator has its scores. Where rows are not aligned, or end within the block, the
// scores' own loads take over (variant.h).
#pragma once

#include <climits>
#include <utility>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/columns.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/stream_shape.h"

namespace pyflash::sm90 {

using namespace cute;

// The distance of a thread's two rows.
inline constexpr int kRowStep = 8;

// A thread's elements of one stream in the columns of a block that are copied: rows r and columns c as those of rows_by_columns of its scores.
template <class T, int kColumns>
struct StreamReader;

// Elements of 16 bits: a matrix of 8 x 8 is what the accumulator has of 8 columns.
template <class T, int kColumns>
  requires(sizeof(T) == 2)
struct StreamReader<T, kColumns> {
  device::SmemAddress row;
  uint32_t words[2][4];

  CUTE_DEVICE StreamReader(device::SmemAddress warp, int lane)
      : row(warp + lane % 16 * stream_pitch(sizeof(T), kColumns) + lane / 16 * 16) {}

  // Columns c to c + 7 of the thread.
  CUTE_DEVICE void read(int c) {
    device::load_matrices(words[0], row + 8 * c);
    device::load_matrices(words[1], row + 8 * c + 32);
  }
  CUTE_DEVICE T at(int r, int c) const {
    uint32_t const word = words[c % 8 / 4][r + c % 4 / 2 * 2];
    return {uint16_t(c % 2 == 0 ? word : word >> 16)};
  }
};

// Elements of 32 bits, two beside each other.
template <class T, int kColumns>
  requires(sizeof(T) == 4)
struct StreamReader<T, kColumns> {
  static constexpr int kPitch = stream_pitch(sizeof(T), kColumns);
  device::SmemAddress row;
  uint32_t words[2][8];

  CUTE_DEVICE StreamReader(device::SmemAddress warp, int lane)
      : row(warp + lane / 4 * kPitch + lane % 4 * 8) {}

  CUTE_DEVICE void read(int c) {
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      CUTE_UNROLL
      for (int i = 0; i < 8; i += 2) {
        if (column_of(c + i) < kColumns) {
          uint2 const pair = device::load_shared_pair(row + kRowStep * r * kPitch + (c + i) * 16);
          words[r][i] = pair.x;
          words[r][i + 1] = pair.y;
        }
      }
    }
  }
  CUTE_DEVICE T at(int r, int c) const {
    T value;
    __builtin_memcpy(&value, &words[r][c % 8], sizeof(T));
    return value;
  }
};

// Bools: bits of 64 columns and both rows in a word, of which four lanes have 16 columns each until they exchange them. NOTE: bytes
// are 0 or 1.
template <int kColumns>
struct StreamReader<bool, kColumns> {
  static constexpr int kWords = kColumns / 64;
  uint32_t words[kWords];

  // Bit 8 i + 4 r + m: column 4 m + i, of both rows' 16 bytes.
  static CUTE_DEVICE uint32_t packed(uint4 const& a, uint4 const& b) {
    uint32_t const of_a = (a.w * 2 + a.z) * 4 + (a.y * 2 + a.x);
    uint32_t const of_b = (b.w * 2 + b.z) * 4 + (b.y * 2 + b.x);
    return of_b * 16 + of_a;
  }

  // Lane t has columns 8 j + 2 t + i. Of lane s those are two bits of each of two bytes: of the two bytes t % 2, bits t / 2 and
  // t / 2 + 2, for both rows.
  CUTE_DEVICE StreamReader(device::SmemAddress warp, int lane) {
    constexpr uint32_t kEven = 0x55555555u;
    int const quad_lane = lane % 4;
    int const shift = quad_lane % 2 * 16 + quad_lane / 2;
    CUTE_UNROLL
    for (int i = 0; i < kWords; ++i) {
      uint4 const a = device::load_shared(warp + (i * 64 + lane) * kStreamVector);
      uint4 const b = device::load_shared(warp + (i * 64 + 32 + lane) * kStreamVector);
      uint32_t const own = device::rotate_left(packed(a, b), quad_lane % 2);
      uint32_t of_lane[4];
      CUTE_UNROLL
      for (int s = 0; s < 4; ++s) {
        of_lane[s] = device::rotate_right(device::bits_of_group<4>(own, s), shift);
      }
      uint32_t const low = device::bits_of_either(kEven, of_lane[0], of_lane[1]);
      uint32_t const high = device::bits_of_either(kEven, of_lane[2], of_lane[3]);
      words[i] = device::permute_bytes(low, high, 0x5410);
    }
  }

  CUTE_DEVICE void read(int) {}
  CUTE_DEVICE bool at(int r, int c) const {
    int const s = c % 16 / 4;
    int const bit = s / 2 * 16 + c % 2 * 8 + r * 4 + c / 2 % 2 * 2 + s % 2;
    return (words[c / 16] >> bit & 1) != 0;
  }
};

// Stands for one that is not read.
struct NoReader {
  NoReader() = default;
  CUTE_DEVICE NoReader(device::SmemAddress, int) {}
  CUTE_DEVICE void read(int) {}
};

// Calls visit with 0, ..., kN - 1, which are constants.
template <int kN, class Visit>
CUTE_DEVICE void for_each_constant(Visit const& visit) {
  [&]<int... kI>(std::integer_sequence<int, kI...>) {
    (visit(Int<kI>{}), ...);
  }(std::make_integer_sequence<int, kN>{});
}

// Where the streams of a warp are in shared memory, and what it copies there.
template <class Traits, ForwardFeatures kFeatures, class Variant>
struct StreamTiles {
  static constexpr int kCount = variant::kStreamCount<Variant>;
  static constexpr int kBlockN = Traits::kBlockN;
  // NOTE: a fold of splits lies behind SharedStorage.
  static constexpr int kColumns = kFeatures.fixed_splits && Traits::kFoldsSplits
                                      ? 0
                                      : stream_columns<Variant>(Traits::kKernelConfig);
  static constexpr bool kCopies = kColumns > 0;
  static_assert(!kCopies || sizeof(typename Traits::SharedStorage) <=
                                shared_bytes_at_most(Traits::kKernelConfig));
  template <int kStream>
  using Type = variant::StreamType<Variant, kStream>;

  device::SmemAddress first;  // of streams
  int warp;                   // of those that compute
  int lane;

  CUTE_DEVICE StreamTiles()
      : first(device::smem_address(&device::dynamic_smem<typename Traits::SharedStorage>() + 1)) {
    int const thread = device::fresh_thread_idx() - kWarpgroup;  // behind the one that loads
    warp = thread / 32;
    lane = thread % 32;
  }

  template <int kStream>
  CUTE_DEVICE device::SmemAddress of_warp() const {
    int before = 0;
    for_each_constant<kStream>(
        [&](auto i) { before += Traits::kBlockM * stream_pitch(sizeof(Type<i.value>), kColumns); });
    return first + before + warp * kWarpRows * stream_pitch(sizeof(Type<kStream>), kColumns);
  }

  // Whether scores of a block read a stream.
  static CUTE_DEVICE constexpr bool reads(int stream, bool is_cut) {
    return variant::has_stream(Variant::kStreamsOfScore, stream) ||
           (is_cut && variant::has_stream(Variant::kStreamsOfMask, stream));
  }

  // How many keys those are of which all that scores read is copied, if they read some.
  static CUTE_DEVICE int copied_until(typename Variant::Params const& captured, bool is_cut) {
    static_assert(kBlockN % kStreamVector == 0);
    int until = INT_MAX;
    for_each_constant<kCount>([&](auto i) {
      if (reads(i.value, is_cut)) {
        until = min(until, Variant::template copied_until<i.value>(captured));
      }
    });
    return until == INT_MAX ? 0 : until;
  }
  static CUTE_DEVICE bool are_copied(typename Variant::Params const& captured, int first_key,
                                     bool is_cut) {
    return first_key + kBlockN <= copied_until(captured, is_cut);
  }

  // The elements of the thread's two rows.
  CUTE_DEVICE void copy(int first_key, bool is_cut, typename Variant::Row const& row0,
                        typename Variant::Row const& row1) const {
    device::sync_warp();  // what was there has been read
    for_each_constant<kCount>([&](auto i) {
      constexpr int kBytes = sizeof(Type<i.value>);
      constexpr int kPitch = stream_pitch(kBytes, kColumns);
      constexpr int kOfRow = kColumns * kBytes / (4 * kStreamVector);  // vectors of a lane
      if (!reads(i.value, is_cut)) {
        return;
      }
      // NOTE: of bytes a lane reads what it copies, in the order of lanes.
      device::SmemAddress const to =
          of_warp<i.value>() +
          (kBytes == 1 ? lane * kStreamVector : lane / 4 * kPitch + lane % 4 * kStreamVector);
      for_each_constant<2>([&](auto r) {
        auto const* const from =
            reinterpret_cast<char const*>(Variant::template line<i.value>(r == 0 ? row0 : row1)) +
            first_key * kBytes + lane % 4 * kStreamVector;
        for_each_constant<kOfRow>([&](auto j) {
          constexpr int kPlace = kBytes == 1 ? (j.value * 2 + r.value) * 32 * kStreamVector
                                             : kRowStep * r.value * kPitch + j.value * 64;
          device::copy_captured<kPlace, j.value * 4 * kStreamVector>(to, from);
        });
      });
    });
    device::async_commit();
  }

  // Has L2 fetch what scores of a block read in the thread's two rows.
  CUTE_DEVICE void prefetch(int first_key, typename Variant::Row const& row0,
                            typename Variant::Row const& row1) const {
    for_each_constant<kCount>([&](auto i) {
      constexpr int kLine = 128;
      constexpr int kOfRow = kBlockN * sizeof(Type<i.value>);
      if (!reads(i.value, false)) {
        return;
      }
      // Two lanes for each of the rows.
      auto const* const line0 = Variant::template line<i.value>(row0);
      auto const* const line1 = Variant::template line<i.value>(row1);
      auto const* const row = lane % 4 < 2 ? line0 : line1;
      for_each_constant<(kOfRow + 2 * kLine - 1) / (2 * kLine)>([&](auto j) {
        int const offset = min((j.value * 2 + lane % 2) * kLine, kOfRow - 1);
        device::prefetch(reinterpret_cast<char const*>(row + first_key) + offset);
      });
    });
  }

  // Waits for what was copied.
  CUTE_DEVICE void wait() const {
    device::async_wait<0>();
    device::sync_warp();  // what other lanes copied is visible
  }
};

// Stands for the setter of one whose streams are not copied.
struct NoElements {
  template <class Row>
  CUTE_DEVICE void operator()(Row&, int, int, int) const {}
};

// A thread's elements of a block's streams, where kCut of those of the mask, too.
template <class Tiles, class Variant, bool kCut>
struct StreamElements {
  template <class T>
  using BitsOfPair = std::conditional_t<sizeof(T) == 4, uint64_t,
                                        std::conditional_t<sizeof(T) == 2, uint32_t, uint16_t>>;
  template <int kStream>
  using Reader =
      std::conditional_t<Tiles::reads(kStream, kCut),
                         StreamReader<variant::StreamType<Variant, kStream>, Tiles::kColumns>,
                         NoReader>;
  template <int... kStream>
  static auto readers_of(std::integer_sequence<int, kStream...>) -> cute::tuple<Reader<kStream>...>;
  using Readers = decltype(readers_of(std::make_integer_sequence<int, Tiles::kCount>{}));

  Readers readers;

  CUTE_DEVICE explicit StreamElements(Tiles const& tiles)
      : StreamElements(tiles, std::make_integer_sequence<int, Tiles::kCount>{}) {}

  // Columns c to c + 7 of the thread.
  CUTE_DEVICE void read(int c) {
    if (column_of(c) >= Tiles::kColumns) {
      return;
    }
    for_each_constant<Tiles::kCount>([&](auto i) { get<i.value>(readers).read(c); });
  }
  // Those of row r and column c, for a pair. first: key of the thread.
  CUTE_DEVICE void set(typename Variant::Row& row, int r, int c, int first) const {
    for_each_constant<Tiles::kCount>([&](auto i) {
      if constexpr (Tiles::reads(i.value, kCut)) {
        using T = variant::StreamType<Variant, i.value>;
        if (column_of(c) < Tiles::kColumns) {
          Variant::template element<i.value>(row) = get<i.value>(readers).at(r, c);
        } else {
          // NOTE: of a struct of two the compiler loads each alone.
          uint64_t const pair = *reinterpret_cast<BitsOfPair<T> const*>(
              Variant::template line<i.value>(row) + first + column_of(c / 2 * 2));
          uint64_t const bits = pair >> (c % 2 * 8 * sizeof(T));
          __builtin_memcpy(&Variant::template element<i.value>(row), &bits, sizeof(T));
        }
      }
    });
  }

  // What reads those of a pair: the first row of eight columns reads for both.
  CUTE_DEVICE auto setter() {
    return [this](typename Variant::Row& row, int r, int c, int first) {
      if (c % 8 == 0 && r == 0) {
        read(c);
      }
      set(row, r, c, first);
    };
  }

 private:
  template <int... kStream>
  CUTE_DEVICE StreamElements(Tiles const& tiles, std::integer_sequence<int, kStream...>)
      : readers(Reader<kStream>(tiles.template of_warp<kStream>(), tiles.lane)...) {}
};

}  // namespace pyflash::sm90
