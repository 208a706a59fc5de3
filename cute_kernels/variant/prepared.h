// Fields of a variant that cost more than a load: of queries, keys or distances alone. They lie in global memory, an int each,
// and are made before the kernel runs (prepared_tables.h).
#pragma once

#include <cstdint>
#include <type_traits>

#include "cute_kernels/common/integers.h"
#include "cute_kernels/variant/arithmetic.h"

namespace pyflash::variant {

// What a field is a function of: a query, a key, k - q, or k - q with the last query and the last key at 0.
enum class Along { query, key, apart, aligned };

struct PreparedField {
  Along along;
  bool reads_batch;
  bool reads_lengths;
  bool reads_head;
};

// Fields as ints, and back.
template <class T>
PYFLASH_HOST_DEVICE T from_prepared(int value) {
  if constexpr (std::is_same_v<T, float>) {
    return float_of(uint32_t(value));
  }
  return T(value);
}
template <class T>
PYFLASH_HOST_DEVICE T prepared_at(int const* at) {
#if defined(__CUDA_ARCH__)
  return from_prepared<T>(__ldg(at));
#else
  return from_prepared<T>(*at);
#endif
}
// at: of 8-byte alignment. Neighbours, of which the first has an even offset, are one load.
template <class T>
PYFLASH_HOST_DEVICE T prepared_beside(int const* at, int offset) {
#if defined(__CUDA_ARCH__)
  int2 const two = __ldg(reinterpret_cast<int2 const*>(at + (offset & ~1)));
  return from_prepared<T>(offset & 1 ? two.y : two.x);
#else
  return from_prepared<T>(at[offset]);
#endif
}
PYFLASH_HOST_DEVICE int to_prepared(float value) { return int(bits_of(value)); }
PYFLASH_HOST_DEVICE constexpr int to_prepared(int value) { return value; }
PYFLASH_HOST_DEVICE constexpr int to_prepared(bool value) { return value; }

}  // namespace pyflash::variant
