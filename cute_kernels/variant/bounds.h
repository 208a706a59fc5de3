// What emitted variants judge tiles with, for the host and the device: bounds of integers, and of bools as 0 and 1.
// pyflash/variant/interval.py has the same operations. Bounds that an operation cannot tell are those of its type.
#pragma once

#include <cstdint>
#include <limits>

#include "cute_kernels/common/integers.h"
#include "cute_kernels/variant/arithmetic.h"

namespace pyflash::variant {

// What a mask shows of a tile.
enum class Shown { none, some, all };

// low <= value <= high.
struct Bounds {
  int64_t low;
  int64_t high;

  PYFLASH_HOST_DEVICE constexpr bool is_one() const { return low == high; }
  PYFLASH_HOST_DEVICE constexpr bool has(int64_t value) const {
    return low <= value && value <= high;
  }
};

// NOTE: functions, since device code has no address of the host's constants.
PYFLASH_HOST_DEVICE constexpr Bounds never() { return {0, 0}; }
PYFLASH_HOST_DEVICE constexpr Bounds always() { return {1, 1}; }
PYFLASH_HOST_DEVICE constexpr Bounds maybe() { return {0, 1}; }

template <class T>
PYFLASH_HOST_DEVICE constexpr Bounds whole() {
  return {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
}

PYFLASH_HOST_DEVICE constexpr Bounds only(int64_t value) { return {value, value}; }
PYFLASH_HOST_DEVICE constexpr Shown shown(Bounds a) {
  return a.high == 0 ? Shown::none : a.low == 1 ? Shown::all : Shown::some;
}

PYFLASH_HOST_DEVICE constexpr Bounds join(Bounds a, Bounds b) {
  return {minimum(a.low, b.low), maximum(a.high, b.high)};
}
PYFLASH_HOST_DEVICE constexpr Bounds select(Bounds condition, Bounds yes, Bounds no) {
  return !condition.is_one() ? join(yes, no) : condition.low == 1 ? yes : no;
}

// The 32-bit integers of bounds: those of the type where one wraps.
PYFLASH_HOST_DEVICE constexpr Bounds checked(int64_t low, int64_t high) {
  return low < whole<int>().low || high > whole<int>().high ? whole<int>() : Bounds{low, high};
}
PYFLASH_HOST_DEVICE constexpr Bounds add(Bounds a, Bounds b) {
  return checked(a.low + b.low, a.high + b.high);
}
PYFLASH_HOST_DEVICE constexpr Bounds sub(Bounds a, Bounds b) {
  return checked(a.low - b.high, a.high - b.low);
}
PYFLASH_HOST_DEVICE constexpr Bounds neg(Bounds a) { return checked(-a.high, -a.low); }
PYFLASH_HOST_DEVICE constexpr Bounds mul(Bounds a, Bounds b) {
  Bounds const first = join(only(a.low * b.low), only(a.low * b.high));
  Bounds const second = join(only(a.high * b.low), only(a.high * b.high));
  Bounds const both = join(first, second);
  return checked(both.low, both.high);
}
PYFLASH_HOST_DEVICE constexpr Bounds absolute(Bounds a) {
  int64_t const low = a.low < 0 ? -a.low : a.low;
  int64_t const high = a.high < 0 ? -a.high : a.high;
  return checked(a.has(0) ? 0 : minimum(low, high), maximum(low, high));
}

// These rise with each operand.
PYFLASH_HOST_DEVICE constexpr Bounds minimum(Bounds a, Bounds b) {
  return {minimum(a.low, b.low), minimum(a.high, b.high)};
}
PYFLASH_HOST_DEVICE constexpr Bounds maximum(Bounds a, Bounds b) {
  return {maximum(a.low, b.low), maximum(a.high, b.high)};
}
PYFLASH_HOST_DEVICE constexpr Bounds clamp(Bounds a, Bounds low, Bounds high) {
  return minimum(maximum(a, low), high);
}

// By a divisor of one sign.
PYFLASH_HOST_DEVICE constexpr Bounds quotient(Bounds a, Bounds b) {
  Bounds const first = join(only(floor_div(a.low, b.low)), only(floor_div(a.low, b.high)));
  Bounds const second = join(only(floor_div(a.high, b.low)), only(floor_div(a.high, b.high)));
  return join(first, second);
}
PYFLASH_HOST_DEVICE constexpr Bounds remainder(Bounds a, Bounds b) {
  if (b.is_one() && floor_div(a.low, b.low) == floor_div(a.high, b.low)) {  // within one period
    return {floor_mod(a.low, b.low), floor_mod(a.high, b.low)};
  }
  if (a.low >= 0 && a.high < b.low) {
    return a;
  }
  return b.low > 0 ? Bounds{0, b.high - 1} : Bounds{b.low + 1, 0};
}

template <class Part>
PYFLASH_HOST_DEVICE constexpr Bounds divided(Bounds a, Bounds b, Part part) {
  Bounds found = never();
  bool is_first = !b.has(0);  // by 0 it is 0
  if (b.high > 0) {
    Bounds const of = part(a, Bounds{maximum(b.low, int64_t(1)), b.high});
    found = is_first ? of : join(found, of);
    is_first = false;
  }
  if (b.low < 0) {
    Bounds const of = part(a, Bounds{b.low, minimum(b.high, int64_t(-1))});
    found = is_first ? of : join(found, of);
  }
  return checked(found.low, found.high);
}
PYFLASH_HOST_DEVICE constexpr Bounds floor_div(Bounds a, Bounds b) {
  return divided(a, b, [](Bounds x, Bounds y) { return quotient(x, y); });
}
PYFLASH_HOST_DEVICE constexpr Bounds floor_mod(Bounds a, Bounds b) {
  return divided(a, b, [](Bounds x, Bounds y) { return remainder(x, y); });
}

// Comparisons and logic.
PYFLASH_HOST_DEVICE constexpr Bounds less_equal(Bounds a, Bounds b) {
  return a.high <= b.low ? always() : a.low > b.high ? never() : maybe();
}
PYFLASH_HOST_DEVICE constexpr Bounds equal(Bounds a, Bounds b) {
  if (a.high < b.low || b.high < a.low) {
    return never();
  }
  return a.is_one() && b.is_one() ? always() : maybe();
}
PYFLASH_HOST_DEVICE constexpr Bounds both(Bounds a, Bounds b) { return minimum(a, b); }
PYFLASH_HOST_DEVICE constexpr Bounds either(Bounds a, Bounds b) { return maximum(a, b); }
PYFLASH_HOST_DEVICE constexpr Bounds one_of(Bounds a, Bounds b) {
  return a.is_one() && b.is_one() ? only(a.low ^ b.low) : maybe();
}
PYFLASH_HOST_DEVICE constexpr Bounds opposite(Bounds a) { return {1 - a.high, 1 - a.low}; }

// What a variant's mask shows of some keys to some queries of a head.
template <class Variant>
PYFLASH_HOST_DEVICE Shown shown_of(typename Variant::Params const& captured, Lengths const& lengths,
                                   int batch, int head, Bounds queries, Bounds keys) {
  return Variant::tile(
      captured, lengths, Variant::tile_rows(captured, lengths, batch, head, queries),
      Variant::tile_columns(captured, lengths, batch, head, keys), batch, head, queries, keys);
}

}  // namespace pyflash::variant
