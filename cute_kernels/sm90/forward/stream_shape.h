// What the kernel and its launcher agree on about the streams of a variant (variant/streams.h): whether shared memory has room for
// those of a block, and how much they take.
#pragma once

#include <utility>

#include "cute_kernels/sm90/forward/shape.h"
#include "cute_kernels/variant/streams.h"

namespace pyflash::sm90 {

inline constexpr int kStreamVector = 16;  // bytes of a copy

// Between rows, so that lanes that read beside each other meet no bank twice: elements of 16 bits as matrices of 8 rows, of 32 bits
// two columns of four rows. Of bytes a lane reads what it copied itself.
constexpr int stream_padding(int element_bytes) {
  return element_bytes == 1 ? 0 : element_bytes == 2 ? 16 : 32;
}
constexpr int stream_pitch(int element_bytes, int columns) {
  return columns * element_bytes + stream_padding(element_bytes);
}

// What the streams of a variant take for a row of a block.
struct StreamsOfRow {
  int bytes;    // of so many columns
  int least;    // of an element
  int largest;  // of an element
};
template <class Variant, int... kStream>
constexpr StreamsOfRow streams_of_row(int columns, std::integer_sequence<int, kStream...>) {
  StreamsOfRow row{0, kStreamVector, 0};
  ((row.bytes += stream_pitch(sizeof(variant::StreamType<Variant, kStream>), columns),
    row.least = smaller(row.least, int(sizeof(variant::StreamType<Variant, kStream>))),
    row.largest = larger(row.largest, int(sizeof(variant::StreamType<Variant, kStream>)))),
   ...);
  return row;
}
template <class Variant>
constexpr StreamsOfRow streams_of_row(int columns) {
  return streams_of_row<Variant>(columns,
                                 std::make_integer_sequence<int, variant::kStreamCount<Variant>>{});
}

// SharedStorage, at most.
constexpr int shared_bytes_at_most(FlashForwardSm90Config const& config) {
  constexpr int kBarriers = 1024;
  int const epilogue = config.persistent ? config.B_r * slab_columns(config) * kElementBytes : 0;
  return (config.B_r + 2 * config.stages * config.B_c) * config.d_head * kElementBytes + epilogue +
         kBarriers;
}

// How many columns of a block are copied: the first ones, as far as there is room behind SharedStorage. The four lanes of a row copy
// a vector each. 0 where that would be less than half of them.
template <class Variant>
constexpr int stream_columns(FlashForwardSm90Config const& config) {
  constexpr int kOfSm = kMostSmem + 1024;
  int const room = kOfSm / ctas_per_sm(config) - 1024 - shared_bytes_at_most(config);
  StreamsOfRow const row = streams_of_row<Variant>(0);
  if (row.largest == 0 || row.largest > 4) {
    return 0;
  }
  int const step = 4 * kStreamVector / row.least;
  int columns = config.B_c / step * step;
  while (columns > 0 && config.B_r * streams_of_row<Variant>(columns).bytes > room) {
    columns -= step;
  }
  return 2 * columns >= config.B_c ? columns : 0;
}

// Shared memory of a CTA of a kernel with a variant, of those whose kernel without one takes smem_bytes.
template <class Variant>
constexpr int variant_smem_bytes(FlashForwardSm90Config const& config, int smem_bytes) {
  int const columns = stream_columns<Variant>(config);
  int const streams = config.B_r * streams_of_row<Variant>(columns).bytes;
  return columns > 0 ? larger(smem_bytes, shared_bytes_at_most(config) + streams) : smem_bytes;
}

// Of the smallest access to streams.
template <class Variant>
constexpr int stream_access_bytes(FlashForwardSm90Config const& config) {
  return stream_columns<Variant>(config) > 0 && streams_of_row<Variant>(0).largest == 4
             ? 8
             : kStreamVector;
}

}  // namespace pyflash::sm90
