// A captured tensor, for the host and the device.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"
#include "cute_kernels/variant/arithmetic.h"
#include "cute_kernels/variant/bounds.h"

namespace pyflash::variant {

// The place in an axis of an index, which counts from the end where it is negative; clamped to the axis.
template <class Index>
PYFLASH_HOST_DEVICE unsigned place_in_axis(Index index, int extent) {
  Index const place = index < 0 ? index + extent : index;
  return unsigned(clamp(place, Index(0), Index(extent - 1)));
}

template <class T, int Rank>
struct Table {
  static constexpr int kAxes = Rank > 0 ? Rank : 1;
  static constexpr int64_t kLargestBox = 4096;  // elements that bounds() looks at

  T const* data;
  int extents[kAxes];
  int64_t strides[kAxes];  // elements

  template <class Index>
  PYFLASH_HOST_DEVICE unsigned inside(Index index, int axis) const {
    return place_in_axis(index, extents[axis]);
  }

  template <class... Index>
  PYFLASH_HOST_DEVICE auto at(Index... indices) const {
    static_assert(sizeof...(Index) == Rank);
    int64_t offset = 0;
    int axis = 0;
    ((offset += inside(indices, axis) * strides[axis], ++axis), ...);
    return number(data[offset]);
  }

  // Where axis kAxis begins at the indices of the others.
  template <int kAxis, class... Index>
  PYFLASH_HOST_DEVICE T const* line(Index... indices) const {
    static_assert(sizeof...(Index) == Rank - 1);
    int64_t offset = 0;
    int axis = 0;
    ((axis += axis == kAxis, offset += inside(indices, axis) * strides[axis], ++axis), ...);
    return data + offset;
  }

  // Whether `count` indices from `first` on are within axis kAxis, neighbours in memory, and in each line two of an even index
  // aligned to both. They are then read by what `element<true>` compiles to.
  template <int kAxis>
  PYFLASH_HOST_DEVICE bool is_streamed(int first, int count) const {
    bool is_even = reinterpret_cast<uintptr_t>(data) % (2 * sizeof(T)) == 0;
    for (int axis = 0; axis < Rank; ++axis) {
      is_even = is_even && (axis == kAxis || strides[axis] % 2 == 0);
    }
    return is_even && strides[kAxis] == 1 && first + count <= extents[kAxis];
  }

  // So many indices of axis kAxis are neighbours in memory, where each line begins with a vector of 16 bytes. 0 where they do not.
  template <int kAxis>
  PYFLASH_HOST_DEVICE int copied_until() const {
    constexpr int kVector = 16 / sizeof(T);
    bool is_aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0;
    for (int axis = 0; axis < Rank; ++axis) {
      is_aligned = is_aligned && (axis == kAxis || strides[axis] % kVector == 0);
    }
    return is_aligned && strides[kAxis] == 1 ? extents[kAxis] : 0;
  }

  // An element of a line; first: even, as what a thread has of a block begins with.
  template <bool kStreamed, int kAxis>
  PYFLASH_HOST_DEVICE auto element(T const* line, int first, int offset) const {
    if constexpr (kStreamed) {
      auto const aligned =
          static_cast<T const*>(__builtin_assume_aligned(line + first, 2 * sizeof(T)));
      return number(aligned[offset]);
    } else {
      return number(line[inside(first + offset, kAxis) * strides[kAxis]]);
    }
  }

  // Bounds the elements in a box of indices.
  template <class... Box>
  PYFLASH_HOST_DEVICE Bounds bounds(Box... boxes) const {
    static_assert(sizeof...(Box) == Rank);
    int64_t firsts[kAxes] = {0};
    int64_t counts[kAxes] = {1};
    int64_t size = 1;
    int axis = 0;
    ((open(boxes, axis, firsts[axis], counts[axis]), size = grown(size, counts[axis]), ++axis),
     ...);
    if (size > kLargestBox) {
      return whole<T>();
    }
    int64_t first = 0;
    for (int i = 0; i < Rank; ++i) {
      first += firsts[i] * strides[i];
    }
    auto const one = number(data[first]);
    Extremes found{one, one};
    join_elements<0>(0, firsts, counts, found);
    return {found.low, found.high};
  }

 private:
  // The least and the greatest of some elements.
  struct Extremes {
    decltype(number(T{})) low;
    decltype(number(T{})) high;

    PYFLASH_HOST_DEVICE void join(T value) {
      low = minimum(low, number(value));
      high = maximum(high, number(value));
    }
  };

  static PYFLASH_HOST_DEVICE int64_t grown(int64_t size, int64_t count) {
    return size > kLargestBox ? size : size * minimum(count, kLargestBox + 1);
  }

  template <int Axis>
  PYFLASH_HOST_DEVICE void join_elements(int64_t offset, int64_t const* firsts,
                                         int64_t const* counts, Extremes& found) const {
    if constexpr (Axis == Rank) {
      found.join(data[offset]);
    } else {
      offset += firsts[Axis] * strides[Axis];
      int64_t i = 0;
      if constexpr (Axis + 1 == Rank) {
        i = join_vectors(data + offset, strides[Axis] == 1 ? counts[Axis] : 0, found);
        offset += i;
      }
      for (; i < counts[Axis]; ++i, offset += strides[Axis]) {
        join_elements<Axis + 1>(offset, firsts, counts, found);
      }
    }
  }

  // Joins neighbours in memory from `line` on, as many as are whole vectors; returns how many.
  static PYFLASH_HOST_DEVICE int64_t join_vectors(T const* line, int64_t count, Extremes& found) {
    constexpr int kVector = 16 / sizeof(T);
    if (reinterpret_cast<uintptr_t>(line) % 16 != 0) {
      return 0;
    }
    int64_t i = 0;
    for (; i + kVector <= count; i += kVector) {
      auto const aligned = static_cast<T const*>(__builtin_assume_aligned(line + i, 16));
      for (int j = 0; j < kVector; ++j) {
        found.join(aligned[j]);
      }
    }
    return i;
  }

  PYFLASH_HOST_DEVICE void open(Bounds box, int axis, int64_t& first, int64_t& count) const {
    bool const is_split = box.low < 0 && box.high >= 0;  // from the end, and from the beginning
    first = is_split ? 0 : int64_t(inside(box.low, axis));
    count = is_split ? extents[axis] : int64_t(inside(box.high, axis)) - first + 1;
  }
};

}  // namespace pyflash::variant
