// A captured tensor, for the host and the device.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"
#include "cute_kernels/variant/arithmetic.h"
#include "cute_kernels/variant/bounds.h"

namespace pyflash::variant {

template <class T, int Rank>
struct Table {
  static constexpr int kAxes = Rank > 0 ? Rank : 1;
  static constexpr int64_t kLargestBox = 4096;  // elements that bounds() looks at

  T const* data;
  int64_t extents[kAxes];
  int64_t strides[kAxes];  // elements

  // Counted from the end where it is negative, clamped to the axis.
  PYFLASH_HOST_DEVICE int64_t inside(int64_t index, int axis) const {
    int64_t const place = index < 0 ? index + extents[axis] : index;
    return clamp(place, int64_t(0), extents[axis] - 1);
  }

  template <class... Index>
  PYFLASH_HOST_DEVICE auto at(Index... indices) const {
    static_assert(sizeof...(Index) == Rank);
    int64_t offset = 0;
    int axis = 0;
    ((offset += inside(indices, axis) * strides[axis], ++axis), ...);
    return number(data[offset]);
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
    Bounds found{};
    bool is_first = true;
    join_elements<0>(0, firsts, counts, found, is_first);
    return found;
  }

 private:
  static PYFLASH_HOST_DEVICE int64_t grown(int64_t size, int64_t count) {
    return size > kLargestBox ? size : size * minimum(count, kLargestBox + 1);
  }

  template <int Axis>
  PYFLASH_HOST_DEVICE void join_elements(int64_t offset, int64_t const* firsts,
                                         int64_t const* counts, Bounds& found,
                                         bool& is_first) const {
    if constexpr (Axis == Rank) {
      Bounds const element = only(number(data[offset]));
      found = is_first ? element : join(found, element);
      is_first = false;
    } else {
      offset += firsts[Axis] * strides[Axis];
      for (int64_t i = 0; i < counts[Axis]; ++i, offset += strides[Axis]) {
        join_elements<Axis + 1>(offset, firsts, counts, found, is_first);
      }
    }
  }

  PYFLASH_HOST_DEVICE void open(Bounds box, int axis, int64_t& first, int64_t& count) const {
    bool const is_split = box.low < 0 && box.high >= 0;  // from the end, and from the beginning
    first = is_split ? 0 : inside(box.low, axis);
    count = is_split ? extents[axis] : inside(box.high, axis) - first + 1;
  }
};

}  // namespace pyflash::variant
