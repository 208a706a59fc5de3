// Streams of a variant: loads of a pair whose neighbours are those of the next key, as bias[b, h, q, k]. Kernels that have shared
// memory left load a stream's elements of a block ahead.
#pragma once

#include <cstdint>
#include <tuple>

namespace pyflash::variant {

// A set of streams by their numbers.
using StreamSet = uint32_t;
constexpr bool has_stream(StreamSet set, int stream) { return (set >> stream & 1) != 0; }

template <class Variant, int kStream>
using StreamType = std::tuple_element_t<kStream, typename Variant::Streams>;

template <class Variant>
inline constexpr int kStreamCount = std::tuple_size_v<typename Variant::Streams>;

}  // namespace pyflash::variant
