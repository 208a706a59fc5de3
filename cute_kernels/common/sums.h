// Sums of numbers that the threads of a CTA make together, for the host and the device. `Threads` says which of them this is, and
// has them wait for each other.
#pragma once

#include "cute_kernels/common/integers.h"

// Before a template that calls what its arguments bring, of the host or of the device.
#if defined(__CUDACC__)
#define PYFLASH_ANY_SIDE _Pragma("nv_exec_check_disable")
#else
#define PYFLASH_ANY_SIDE
#endif

namespace pyflash {

// One thread makes it alone.
struct OneThread {
  constexpr int index() const { return 0; }
  constexpr int count() const { return 1; }
  void sync() const {}
  // Adds to a number in shared memory; returns what was there.
  int add(int& number, int n) const {
    int const before = number;
    number += n;
    return before;
  }
};

// The sums of the first n numbers up to each, none above `most`: in `numbers` or in `spare`. Every thread calls it, and sees them
// after it.
// NOTE: a step for each bit of n; one CTA makes the list while the forward pass waits for it.
PYFLASH_ANY_SIDE
template <class Threads>
PYFLASH_HOST_DEVICE int* sums_of_first(int* numbers, int* spare, int n, int most,
                                       Threads const& threads) {
  int* from = numbers;
  int* to = spare;
  for (int distance = 1; distance < n; distance *= 2) {
    for (int i = threads.index(); i < n; i += threads.count()) {
      to[i] = i < distance ? from[i] : smaller(from[i] + from[i - distance], most);
    }
    threads.sync();  // the step's sums are visible, and what they were made of is free
    int* const made = to;
    to = from;
    from = made;
  }
  return from;
}

}  // namespace pyflash
